"""Groups a batch's rows by key: sorted in Arrow, cut where the key changes, made Python objects a slab at a time.

There is no function call and no table per key here: in Arrow a key costs one comparison, while a slice of its own would
cost more than its rows. Within a key, rows are in the order in which they came, or in that of `order_by`, with ties in
the order in which they came.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from statebackend._codec.plain import python_values
from statebackend._processing.column_names import check_one
from statebackend.errors import InputError
from statebackend.ids import Key

_pa: Any = pa  # it ships no types
_pc: Any = pc

Rows = Sequence[Mapping[str, Any]]
"""Rows of one key, in order: each a mapping from column to Python value."""

SLAB_ROWS: Final = 65_536
"""Most rows that are Python objects at a time. A key is never split, so one with more rows is a slab by itself."""


def by_key(
    table: Any, key: Sequence[str], order_by: Sequence[str] = (), *, slab_rows: int = SLAB_ROWS
) -> Iterator[tuple[Key, Rows]]:
    """Each key of a `pyarrow.Table` once, with all of its rows. The keys come in no particular order.

    `key` names the key column; with several columns, keys are tuples. Key columns must hold text, whole numbers or
    bytes, and no nulls. Raises `InputError` if they do not, if a column is missing or cannot be ordered, and for a
    value that Python cannot hold. Everything is sorted by the call, before the first key.
    """
    codes = _codes(table, key)
    order = _order(table, codes, order_by)
    ends = _pc.run_end_encode(codes.take(order)).run_ends.to_pylist()
    return _by_slab(table.take(order), _slabs(ends, slab_rows), key)


def check_columns(table: Any, key: Sequence[str], order_by: Sequence[str] = (), *, allows_nulls: bool = False) -> None:
    """Raise what `by_key` would for these columns, whichever rows of the table are processed in the end.

    `allows_nulls`: in the key, for code that gets the table as it is.
    """
    for name in key:
        column = _key_column(table, name)
        if not allows_nulls:
            _check_nulls(name, column)
    if order_by:
        _order(table.slice(0, 1), _pa.array([0], _pa.int32()), order_by)


def in_order(table: Any, key: Sequence[str], order_by: Sequence[str]) -> Any:
    """The table sorted, so that the rows of a key are together and in order. Raises as `by_key`."""
    return table.take(_order(table, _codes(table, key), order_by))


def _codes(table: Any, key: Sequence[str]) -> Any:
    """A number per row, equal for rows of the same key: cheaper to sort and to compare than the key."""
    return functools.reduce(_combine, (_codes_of(table, name) for name in key))


def _codes_of(table: Any, name: str) -> Any:
    column = _key_column(table, name)
    _check_nulls(name, column)
    chunks = column.dictionary_encode().chunks  # they share one dictionary
    return _pa.chunked_array([chunk.indices for chunk in chunks], type=_pa.int32()).combine_chunks()


def _key_column(table: Any, name: str) -> Any:
    column = _column(table, name)
    if not _can_be_key(column.type):
        raise InputError(
            "a key column must hold text, whole numbers or bytes: cast it", column=name, type=str(column.type)
        )
    return column


def _check_nulls(name: str, column: Any) -> None:
    if column.null_count:
        raise InputError("a key is null: filter such rows, or give them a key", column=name, rows=column.null_count)


def _combine(codes: Any, others: Any) -> Any:
    """A number per pair of numbers. Encoded anew, so that it stays below the row count, whatever the column count."""
    width = (_pc.max(others).as_py() or 0) + 1
    pairs = _pc.add(_pc.multiply(codes.cast(_pa.int64()), width), others.cast(_pa.int64()))
    return pairs.dictionary_encode().indices


def _order(table: Any, codes: Any, order_by: Sequence[str]) -> Any:
    """The row numbers, ordered by code and then by the columns. Arrow's sort is stable."""
    columns = {name: _column(table, name) for name in order_by}
    if not columns:
        return _pc.sort_indices(codes)
    names = ["", *columns]  # Spark has no column with an empty name
    keys = [(name, "ascending") for name in names]
    try:
        return _pc.sort_indices(_pa.table([codes, *columns.values()], names=names), sort_keys=keys)
    except _pa.ArrowException as error:
        types = {name: str(column.type) for name, column in columns.items()}
        raise InputError("order_by needs columns that have an order", columns=types) from error


def _column(table: Any, name: str) -> Any:
    check_one(name, table.column_names)
    return table.column(name)


def _values(name: str, column: Any) -> list[Any]:
    try:
        return python_values(column)
    except (OverflowError, ValueError) as error:  # a time beyond the year 9999, for one
        raise InputError(
            f"a column has a value for which Python has no object ({error}): cast it, or drop it before the sink",
            column=name,
            type=str(column.type),
        ) from error


def _can_be_key(type_: Any) -> bool:
    types = _pa.types
    return any(
        is_one(type_)
        for is_one in (
            types.is_signed_integer,
            types.is_string,
            types.is_large_string,
            types.is_binary,
            types.is_large_binary,
        )
    )


def _slabs(ends: Sequence[int], rows_max: int) -> Iterator[Sequence[int]]:
    """The ends of runs, grouped so that a group has at most `rows_max` rows, or is a single run."""
    first = begin = 0
    for number, end in enumerate(ends):
        if number > first and end - begin > rows_max:
            yield ends[first:number]
            first, begin = number, ends[number - 1]
    if first < len(ends):
        yield ends[first:]


def _by_slab(rows: Any, slabs: Iterator[Sequence[int]], key: Sequence[str]) -> Iterator[tuple[Key, Rows]]:
    begin = 0
    for slab in slabs:
        yield from _cut(rows.slice(begin, slab[-1] - begin), [end - begin for end in slab], key)
        begin = slab[-1]


def _cut(slab: Any, ends: Sequence[int], key: Sequence[str]) -> Iterator[tuple[Key, Rows]]:
    names = slab.column_names
    columns = [_values(name, column) for name, column in zip(names, slab.columns, strict=True)]
    # Two thirds of the time of `dict(zip(names, values))` in a loop. The columns of a table are of one length.
    rows = list(map(dict, map(zip, itertools.repeat(names), zip(*columns, strict=True))))
    keys = [columns[names.index(name)] for name in key]
    of_row = keys[0] if len(key) == 1 else list(zip(*keys, strict=True))
    begin = 0
    for end in ends:
        yield of_row[begin], rows[begin:end]
        begin = end
