"""Output rows as a table of `output_schema`, refused before they are committed if they do not fit."""

import copy
import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa

from statebackend._codec.plain import UNCHANGING
from statebackend.errors import InputError

_pa: Any = pa  # it ships no types
_types: Any = _pa.types

_WHOLE: Final[tuple[tuple[Callable[[Any], bool], type], ...]] = (
    (_types.is_integer, int),
    (_types.is_floating, float),
    (_types.is_string, str),
    (_types.is_binary, bytes),
    (_types.is_timestamp, dt.datetime),
    (_types.is_date32, dt.date),
)


def as_yielded(row: Any) -> Any:
    """A copy of a row, made when it is yielded: the processor may change its own then, and what it holds, in place.

    What is no row is left as it is.
    """
    if not isinstance(row, Mapping):
        return row
    return {name: _as_it_is(each) for name, each in cast("Mapping[Any, Any]", row).items()}


def _as_it_is(value: Any) -> Any:
    if type(value) in UNCHANGING:
        return value
    if isinstance(value, dict):
        return {name: _as_it_is(each) for name, each in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return list(map(_as_it_is, cast("list[Any]", value)))
    if type(value) is tuple:
        return tuple(map(_as_it_is, cast("tuple[Any, ...]", value)))
    return copy.copy(cast("Any", value)) if isinstance(value, bytearray | np.ndarray) else value


def table_of_rows(rows: Sequence[Mapping[str, Any]], schema: Any) -> Any:
    """A `pyarrow.Table` of rows that must all have exactly the columns of the schema, in any order.

    Raises `InputError`.
    """
    names = set(cast("list[str]", schema.names))
    for row in rows:
        if not isinstance(cast("object", row), Mapping):
            raise InputError("an output row must be a mapping from columns to values", row=repr(row)[:80])
        if set(row) != names:
            raise InputError(
                "an output row must have exactly the columns of output_schema", row=row, expected=schema.names
            )
    columns = [_column([row[field.name] for row in rows], field) for field in schema]
    return checked_nulls(_pa.table(columns, schema=schema))


def _column(values: list[Any], field: Any) -> Any:
    """The values as an array. Arrow itself would cut 1.5 to the integer 1, and a time to a day."""
    try:
        array = _pa.array(values, type=field.type)
        is_whole = {*map(type, values)} <= _taken_whole(field.type) and _have_zone(values, field.type)
        is_same = is_whole or _is_same(array.to_pylist(), values)
    except (_pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"an output row does not fit output_schema: {error}") from error
    if not is_same:
        raise InputError(
            "a value of an output row would become another one in its column: convert it, or change output_schema; a "
            "time needs a zone, such as at.astimezone(datetime.UTC), just where its column has one",
            column=field.name,
            type=str(field.type),
        )
    return array


def _taken_whole(type_: Any) -> set[type]:
    """The Python types of which Arrow keeps every value in such a column: there is nothing to compare then."""
    whole = next((python for is_one, python in _WHOLE if is_one(type_)), type(None))
    return set() if _types.is_timestamp(type_) and type_.unit in {"s", "ms"} else {type(None), whole}


def _is_same(read: Any, given: Any) -> bool:
    """True if Arrow reads back what it was given. A float may be rounded.

    Arrow takes a time without a zone for one of UTC, and drops the zone of another: Spark would then read an instant as
    a time of the session.
    """
    if isinstance(given, Mapping):  # a struct may have more fields; a map has its pairs
        read, given = dict(read), cast("Mapping[Any, Any]", given)
        return all(name in read and _is_same(read[name], given[name]) for name in given)
    if isinstance(read, dict):  # a struct that was given as pairs
        return _is_same(cast("object", read), dict(given))
    if isinstance(read, list | tuple):
        parts = cast("Sequence[Any]", read)
        return all(map(_is_same, parts, given))
    if isinstance(read, dt.datetime) and isinstance(given, dt.datetime):
        return _instant(read) == _instant(given)
    return read is None or isinstance(read, float) or bool(read == given)


def _have_zone(values: Sequence[Any], type_: Any) -> bool:
    """True unless this is a column of times, and one of them has a zone just where the column has none."""
    if not _types.is_timestamp(type_):
        return True
    return all(at is None or (at.tzinfo is None) == (type_.tz is None) for at in values)


def _instant(at: dt.datetime) -> dt.datetime:
    """A time with a zone as one of UTC: an hour that is there twice equals none of another zone (PEP 495)."""
    return at if at.utcoffset() is None else at.astimezone(dt.UTC)


def _drops_zone(given: Any, wanted: Any) -> bool:
    """True if a cast would make times of instants, or instants of times, at any depth."""
    if wanted is None:
        return False
    if _types.is_timestamp(given) and _types.is_timestamp(wanted):
        return (given.tz is None) != (wanted.tz is None)
    if not _types.is_nested(given) or not _types.is_nested(wanted):
        return False
    if _types.is_struct(given) and _types.is_struct(wanted):  # by name, as they are cast
        types = {field.name: field.type for field in wanted}
        return any(_drops_zone(field.type, types.get(field.name)) for field in given)
    return given.num_fields == wanted.num_fields == 1 and _drops_zone(given.field(0).type, wanted.field(0).type)


def fitted(table: Any, schema: Any) -> Any:
    """The table with the columns of the schema, in its order and of its types. Raises `InputError`."""
    if sorted(table.column_names) != sorted(schema.names):
        raise InputError(
            "the output table must have exactly the columns of output_schema",
            columns=table.column_names,
            expected=schema.names,
        )
    table = table.select(schema.names)
    for given, wanted in zip(table.schema, schema, strict=True):
        if _drops_zone(given.type, wanted.type):
            raise InputError(
                "the output table has times with a zone where output_schema has none, or the reverse: cast them",
                column=given.name,
                type=str(given.type),
                expected=str(wanted.type),
            )
    try:
        found = table.cast(schema)
    except (_pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(f"the output table does not fit output_schema: {error}") from error
    return checked_nulls(found)


def has_rows(returned: object) -> bool:
    """True for a table of any library, and for whatever else one could iterate over, but for text."""
    return hasattr(returned, "__arrow_c_stream__") or (
        isinstance(returned, Iterable) and not isinstance(returned, str | bytes)
    )


def checked_nulls(table: Any) -> Any:
    """The table. Raises `InputError` for a null that its schema rules out, at any depth: Arrow itself lets it pass."""
    for field, column in zip(table.schema, table.columns, strict=True):
        for array in column.chunks:
            if (found := _forbidden_null(field, array)) is not None:
                raise InputError(
                    "output has a null where its schema says that there is none: put out a value, or declare the "
                    "field as nullable",
                    field=found,
                )
    return table


def _forbidden_null(field: Any, array: Any) -> str | None:
    """The name of the field at fault, behind those that it lies in."""
    if not field.nullable and array.null_count:
        return cast("str", field.name)
    type_ = field.type
    if _types.is_struct(type_):
        inner = [*zip(type_, array.drop_null().flatten(), strict=True)]  # below a null struct anything may lie
    elif _types.is_map(type_):
        present = array.drop_null()
        items = _pa.ListArray.from_arrays(present.offsets, present.items)  # a map itself cannot be flattened
        inner = [(type_.item_field, items.flatten())]
    elif _types.is_nested(type_) and type_.num_fields == 1 and not _types.is_union(type_):
        inner = [(type_.field(0), array.flatten())]
    else:
        return None
    found = (_forbidden_null(each, values) for each, values in inner)
    return next((f"{field.name}.{name}" for name in found if name is not None), None)
