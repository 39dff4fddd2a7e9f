"""The aggregates of columns by key: of the rows of one batch, and of what a state has with what a batch brings.

Nulls are skipped, as in SQL: an aggregate of no value at all is null, a count 0. NaN is larger than any number, as in
Spark. Sums of whole numbers are exact until they are checked against the type that they are stored in.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from statebackend._columns.arrow import pa
from statebackend._columns.batch.numbered_keys import Grouped, Ints
from statebackend._columns.batch.vectors import Vector, array_from, exact, outside, sortable
from statebackend.errors import InputError

_types: Any = pa.types


class ColumnAggregate(NamedTuple):
    """An aggregate whose outcomes for two batches give that for both: of rows by key, and of two outcomes."""

    has: Callable[[Any], bool]
    """True for the Arrow types that have it."""
    of_rows: Callable[[Grouped, Vector], Vector]
    combined: Callable[[Vector, Vector], Vector]


def counted(groups: Grouped, valid: npt.NDArray[np.bool_] | None = None) -> Vector:
    """The number of rows of each key, or of those that are valid."""
    if valid is None:
        return Vector(groups.counts())
    if groups.codes is None:
        return Vector(valid.astype(np.int64))
    return Vector(np.bincount(groups.codes[valid], minlength=len(groups)).astype(np.int64))


def picked(groups: Grouped, order: Vector, *, last: bool) -> Ints:
    """For each key the row that comes last in `order`, or first; -1 for a key of whose rows none has a place in it.

    Of rows at the same place it is the one that arrived last, or first.
    """
    ranks, rows = sortable(order), np.arange(len(order.values))
    if order.valid is not None:
        rows = rows[order.valid]
    best = _extreme(np.maximum if last else np.minimum, groups, Vector(ranks, order.valid)).values
    rows = rows[ranks[rows] == best[rows if groups.codes is None else groups.codes[rows]]]
    return groups.last_rows(rows) if last else groups.first_rows(rows)


def stored(vector: Vector, type_: Any, column: str, keys: Any) -> Any:
    """The array of these numbers for a column of the state. Raises `InputError` where one does not fit its type."""
    if len(wrong := outside(vector, type_)):
        raise InputError(
            "a number does not fit the state's column, and nothing was changed: widen the column",
            column=column,
            type=str(type_),
            key=keys[int(wrong[0])].as_py(),
            number=int(vector.values[wrong[0]]),
        )
    return array_from(vector, type_)


def _sum(groups: Grouped, vector: Vector) -> Vector:
    values = vector.or_else(0)
    if values.dtype.kind == "f":
        values = values.astype(np.float64, copy=False)
    else:
        values = exact(values, int(groups.counts().max(initial=0)))
    if groups.codes is None:
        return Vector(values, vector.valid)
    total = np.zeros(len(groups), values.dtype)
    np.add.at(total, groups.codes, values)
    return Vector(total, _any_valid(groups, vector))


def _added(old: Vector, new: Vector) -> Vector:
    one, other = old.or_else(0), new.or_else(0)
    if one.dtype.kind != "f":
        one, other = exact(one, 2), exact(other, 2)
    return Vector(one + other, _either(old, new))


def _extreme(best: np.ufunc, groups: Grouped, vector: Vector) -> Vector:
    if groups.codes is None:
        return vector
    values, codes = vector.values, groups.codes
    first = groups.first_rows(None if vector.valid is None else np.flatnonzero(vector.valid))
    found = values[first]  # where there is none, -1 finds any
    if vector.valid is not None:
        values, codes = values[vector.valid], codes[vector.valid]
    with np.errstate(invalid="ignore"):  # numpy warns of a NaN here
        best.at(found, codes, values)
    return Vector(found, None if vector.valid is None else first >= 0)


def _extreme_of_two(best: np.ufunc, old: Vector, new: Vector) -> Vector:
    values = best(old.values, new.values)
    if new.valid is not None:
        values = np.where(new.valid, values, old.values)
    if old.valid is not None:
        values = np.where(old.valid, values, new.values)
    return Vector(values, _either(old, new))


def _any_valid(groups: Grouped, vector: Vector) -> npt.NDArray[np.bool_] | None:
    return None if vector.valid is None else counted(groups, vector.valid).values > 0


def _either(old: Vector, new: Vector) -> npt.NDArray[np.bool_] | None:
    return None if old.valid is None or new.valid is None else old.valid | new.valid


def _is_number(type_: Any) -> bool:
    return bool(_types.is_integer(type_) or _types.is_floating(type_) or _types.is_decimal(type_))


def _can_be_added(type_: Any) -> bool:
    return _is_number(type_) or bool(_types.is_duration(type_))


def _is_ordered(type_: Any) -> bool:
    return _is_number(type_) or bool(_types.is_temporal(type_)) or is_text_or_bytes(type_)


def is_text_or_bytes(type_: Any) -> bool:
    """True for the types whose arrays are no vectors."""
    return any(
        is_one(type_)
        for is_one in (
            _types.is_string,
            _types.is_large_string,
            _types.is_binary,
            _types.is_large_binary,
            _types.is_fixed_size_binary,
        )
    )


def _extreme_by(best: np.ufunc, has: Callable[[Any], bool]) -> ColumnAggregate:
    return ColumnAggregate(has, partial(_extreme, best), partial(_extreme_of_two, best))


AGGREGATES: Final[Mapping[str, ColumnAggregate]] = {
    "sum": ColumnAggregate(_can_be_added, _sum, _added),
    "min": _extreme_by(np.fmin, _is_ordered),  # NaN is the largest: `fmin` leaves it out, `maximum` keeps it
    "max": _extreme_by(np.maximum, _is_ordered),
    "any": _extreme_by(np.maximum, _types.is_boolean),
    "all": _extreme_by(np.minimum, _types.is_boolean),
}
"""By name. Of text and bytes, `min` and `max` are the row that `picked` finds by its rank."""
