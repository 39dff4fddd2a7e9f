"""The plan of a merge: `how` is checked against both schemas and becomes steps, each of which makes new columns.

how   := {column: what}  |  {(column, ...): function}
what  := "count"                       rows of the key
       | (aggregate, batch column)     count, sum, min, max, any, all, first, last, mean, count_distinct
       | function                      (old columns, grouped columns) -> new column or columns
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from statebackend._columns.arrow import array_from, pa, pc
from statebackend._columns.batch.aggregates import AGGREGATES, counted, is_text_or_bytes, picked, stored
from statebackend._columns.batch.merge_sides import MergeSides
from statebackend._columns.batch.numbered_keys import Grouped, Ints, column_in
from statebackend._columns.batch.sketches import check_sketches, merged_sketches
from statebackend._columns.batch.vectors import Vector, ranked, sortable, valid_of, vector_of
from statebackend._columns.fitting import column_for, fits
from statebackend.errors import InputError

_types: Any = pa.types

Function = Callable[[Any, "GroupedColumns"], Any]
What = str | tuple[str, str] | Function
How = Mapping[str | tuple[str, ...], What]

KINDS: Final = ("count", *AGGREGATES, "first", "last", "mean", "count_distinct")


class GroupedColumns:
    """The columns of a batch by key, for a function in `how`: one element per key, in the order of `keys`."""

    def __init__(self, groups: Grouped, batch: Any, is_new: npt.NDArray[np.bool_]) -> None:
        self.keys: Final = groups.keys
        """The distinct keys of the batch, an array."""
        self.is_new: Final = is_new
        """For each key, True if the state had no row of it."""
        self._groups: Final = groups
        self._batch: Final = batch

    def __len__(self) -> int:
        return len(self.keys)

    def count(self) -> Any:
        """The number of rows of each key, an array of int64."""
        return array_from(self._groups.counts())

    def lists(self, column: str) -> Any:
        """The values of each key in order of arrival, a list array."""
        order, ends = self._groups.by_key()
        return pa.LargeListArray.from_arrays(array_from(ends), column_in(self._batch, column).take(array_from(order)))

    def aggregate(self, kind: str, column: str) -> Any:
        """`sum`, `min`, `max`, `any`, `all`, `first` or `last` of a column, an array."""
        source = column_in(self._batch, column)
        if kind in ("first", "last"):
            return source.take(array_from(self._groups.first_rows() if kind == "first" else self._groups.last_rows()))
        type_ = _type_of_sum(source.type) if kind == "sum" else source.type
        if kind not in AGGREGATES or not AGGREGATES[kind].has(type_):
            raise InputError(
                "this type has no such aggregate",
                aggregate=kind,
                column=column,
                type=str(source.type),
            )
        if is_text_or_bytes(type_):
            rows = picked(self._groups, ranked(source)[0], last=kind == "max")
            return _taken(source, rows, rows >= 0, pa.nulls(len(rows), type_))
        return stored(AGGREGATES[kind].of_rows(self._groups, vector_of(source)), type_, column, self.keys)


Step = Callable[[MergeSides], Mapping[str, Any]]
"""Makes some new columns. Changes nothing, so that an error in a later step leaves the state as it was."""


def planned(how: How, schema: Any, batch_schema: Any, order_by: str | None) -> Sequence[Step]:
    """The steps of `how`, for a state and a batch with these schemas.

    Raises `InputError` where `how` does not fit them: a column that is not there or is named twice, a type that does
    not fit, an aggregate that the type has not.
    """
    if not isinstance(cast("object", how), Mapping) or not how:
        raise InputError("`how` must map columns of the state to aggregates", how=repr(how)[:80])
    return [*_Planner(how, schema, batch_schema, order_by).steps()]


class _Planner:
    def __init__(self, how: How, schema: Any, batch_schema: Any, order_by: str | None) -> None:
        self.how: Final = how
        self.schema: Final = schema
        self.batch_schema: Final = batch_schema
        self.order_by: Final = order_by
        self.written: Final[set[str]] = set()

    def steps(self) -> Iterator[Step]:
        if self.order_by is not None:
            self.type_in_batch(self.order_by)
        for into, what in self.how.items():
            names = (into,) if isinstance(into, str) else into
            if callable(what):
                self.write(*names)
                yield _function_step(into, what)
            elif isinstance(into, str):
                yield self.step(into, what)
            else:
                raise InputError("only a function makes several columns at a time", columns=names, what=repr(what))

    def step(self, name: str, what: object) -> Step:
        kind, column = self.checked(name, what)
        self.write(*_parts(name, kind))
        if kind == "count":
            self.check_type(name, _types.is_integer, kind)
            return _count_step(name, column)
        assert column is not None
        if kind == "mean":
            return self.mean(name, column)
        if kind == "count_distinct":
            _, sketch = _parts(name, kind)
            check_sketches(self.schema, name, sketch, column, self.type_in_batch(column))
            return partial(merged_sketches, name, sketch, column)
        if kind in ("first", "last"):
            self.check_fits(column, name)
            return self.pick(name, column, last=kind == "last")
        self.check_type(name, AGGREGATES[kind].has, kind)
        self.check_fits(column, name)
        if is_text_or_bytes(self.schema.field(name).type):
            return _text_step(name, column, last=kind == "max")
        return _aggregate_step(name, column, kind)

    def mean(self, name: str, column: str) -> Step:
        _, total, count = _parts(name, "mean")
        self.check_type(name, _types.is_floating, "mean")
        self.check_type(total, lambda type_: AGGREGATES["sum"].has(type_) and not _types.is_duration(type_), "sum")
        self.check_type(count, _types.is_integer, "count")
        self.check_fits(column, total)
        return _mean_step(name, total, count, column)

    def pick(self, name: str, column: str, *, last: bool) -> Step:
        if self.order_by is None:
            return _last_step(name, column) if last else _first_step(name, column)
        wanted = ("max" if last else "min", self.order_by)
        kept = next((into for into, what in self.how.items() if what == wanted), None)
        if kept is None:
            raise InputError(
                "to recognise rows that come late, the state must keep this aggregate: add a column for it to `how`",
                order_by=self.order_by,
                column=name,
                aggregate=wanted,
            )
        return _pick_step(name, column, cast("str", kept), self.order_by, last=last)

    def checked(self, name: str, what: object) -> tuple[str, str | None]:
        """The aggregate and the column of the batch, which is there."""
        if what == "count":
            return "count", None
        pair = cast("tuple[object, ...]", what)
        if not (isinstance(what, tuple) and len(pair) == 2 and pair[0] in KINDS and isinstance(pair[1], str)):
            raise InputError(
                'an aggregate is "count", a pair such as ("sum", "amount"), or a function',
                column=name,
                what=repr(cast("object", what))[:80],
                known=KINDS,
            )
        self.type_in_batch(pair[1])
        return cast("str", pair[0]), pair[1]

    def write(self, *names: str) -> None:
        for name in names:
            if self.schema.names.count(name) != 1:
                raise InputError(
                    "`how` names a column that the state does not have", column=name, known=self.schema.names
                )
            if name in self.written:
                raise InputError("`how` writes a column twice", column=name)
            self.written.add(name)

    def type_in_batch(self, column: str) -> Any:
        if (found := self.batch_schema.names.count(column)) != 1:
            raise InputError(
                "the batch must have exactly one column of that name",
                column=column,
                found=found,
                known=self.batch_schema.names,
            )
        return self.batch_schema.field(column).type

    def check_fits(self, column: str, name: str) -> None:
        source, target = self.type_in_batch(column), self.schema.field(name).type
        if not fits(source, target):
            raise InputError(
                "a column of the batch does not fit the state's: cast it, or widen the state's column",
                column=column,
                type=str(source),
                state_column=name,
                state_type=str(target),
            )

    def check_type(self, name: str, has: Callable[[Any], bool], kind: str) -> None:
        if not has(type_ := self.schema.field(name).type):
            raise InputError(
                "the state's column is of a type that has no such aggregate",
                column=name,
                type=str(type_),
                aggregate=kind,
            )


def _parts(name: str, kind: str) -> tuple[str, ...]:
    """The columns of the state that an aggregate is kept in: a mean as its sum and count, too."""
    return (
        name,
        *(f"{name}_{part}" for part in {"mean": ("sum", "count"), "count_distinct": ("sketch",)}.get(kind, ())),
    )


def _count_step(name: str, column: str | None) -> Step:
    def step(sides: MergeSides) -> Mapping[str, Any]:
        return {name: sides.stored(_count(sides, name, column), name)}

    return step


def _count(sides: MergeSides, name: str, column: str | None) -> Vector:
    valid = None if column is None else valid_of(column_in(sides.batch, column))
    old = vector_of(sides.old.column(name)).or_else(0)
    return Vector(old.astype(np.int64) + counted(sides.groups, valid).values)


def _aggregate(sides: MergeSides, name: str, column: str, kind: str) -> Vector:
    rows = vector_of(sides.source(column, sides.type_of(name)))
    return AGGREGATES[kind].combined(vector_of(sides.old.column(name)), AGGREGATES[kind].of_rows(sides.groups, rows))


def _aggregate_step(name: str, column: str, kind: str) -> Step:
    def step(sides: MergeSides) -> Mapping[str, Any]:
        return {name: sides.stored(_aggregate(sides, name, column, kind), name)}

    return step


def _mean_step(name: str, total: str, count: str, column: str) -> Step:
    def step(sides: MergeSides) -> Mapping[str, Any]:
        sums, counts = _aggregate(sides, total, column, "sum"), _count(sides, count, column)
        scale = type_.scale if _types.is_decimal(type_ := sides.type_of(total)) else 0
        means = (sums.or_else(0) / np.maximum(counts.values, 1)).astype(np.float64) / 10**scale
        return {
            name: sides.stored(Vector(means, counts.values > 0), name),
            total: sides.stored(sums, total),
            count: sides.stored(counts, count),
        }

    return step


def _last_step(name: str, column: str) -> Step:
    def step(sides: MergeSides) -> Mapping[str, Any]:
        source = sides.source(column, sides.type_of(name))
        return {name: source if sides.groups.codes is None else source.take(array_from(sides.groups.last_rows()))}

    return step


def _first_step(name: str, column: str) -> Step:
    def step(sides: MergeSides) -> Mapping[str, Any]:
        source, old = sides.source(column, sides.type_of(name)), sides.old.column(name)
        return {name: _taken(source, sides.groups.first_rows(), sides.is_new, old)}

    return step


def _pick_step(name: str, column: str, kept: str, order_by: str, *, last: bool) -> Step:
    """The value of the row that is last, or first, by another column, which the state keeps in `kept`."""

    def step(sides: MergeSides) -> Mapping[str, Any]:
        source, old = sides.source(column, sides.type_of(name)), sides.old.column(name)
        rows, is_better = _picked(sides, order_by, kept, last=last)
        return {name: _taken(source, rows, is_better, old)}

    return step


def _text_step(name: str, column: str, *, last: bool) -> Step:
    """The smallest or largest text is that of the row that is first or last in its order."""
    return _pick_step(name, column, name, column, last=last)


def _picked(sides: MergeSides, order_by: str, kept: str, *, last: bool) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """For each key its row, and if that goes before what the state has."""
    source, old = sides.source(order_by, sides.type_of(kept)), sides.old.column(kept)
    if is_text_or_bytes(old.type):
        new_order, old_order = ranked(source, old)
    else:
        new_order, old_order = vector_of(source), vector_of(old)
    rows = picked(sides.groups, new_order, last=last)
    if not len(rows):
        return rows, np.empty(0, bool)
    found, there = sortable(new_order)[rows], sortable(old_order)
    is_better = found >= there if last else found < there
    if old_order.valid is not None:
        is_better |= ~old_order.valid
    return rows, is_better & (rows >= 0)


def _function_step(into: str | tuple[str, ...], function: Function) -> Step:
    names = (into,) if isinstance(into, str) else into

    def step(sides: MergeSides) -> Mapping[str, Any]:
        made = function(sides.old, GroupedColumns(sides.groups, sides.batch, sides.is_new))
        columns = {into: made} if isinstance(into, str) else _named(made, names)
        return {name: column_for(columns[name], sides.type_of(name), name, len(sides.groups)) for name in names}

    return step


def _named(made: Any, names: tuple[str, ...]) -> Mapping[str, Any]:
    found = dict(zip(made.schema.names, made.columns, strict=True)) if hasattr(made, "schema") else made
    if not isinstance(found, Mapping) or set(cast("Mapping[str, Any]", found)) != set(names):
        raise InputError("the function must return a mapping with exactly these columns", columns=names)
    return cast("Mapping[str, Any]", found)


def _taken(source: Any, rows: Ints, is_taken: npt.NDArray[np.bool_], old: Any) -> Any:
    """For each key the value of its row if `is_taken`, else the old one."""
    if not is_taken.any():
        return old
    found = source.take(array_from(np.maximum(rows, 0)))
    return found if is_taken.all() else pc.if_else(array_from(is_taken), found, old)


def _type_of_sum(type_: Any) -> Any:
    if _types.is_decimal(type_):
        return pa.decimal128(38, type_.scale)
    if _types.is_integer(type_):
        return pa.int64() if _types.is_signed_integer(type_) else pa.uint64()
    return pa.float64() if _types.is_floating(type_) else type_
