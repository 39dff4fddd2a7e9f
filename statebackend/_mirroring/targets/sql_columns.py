"""The columns of a mirrored table in Postgres, and its rows as CSV for `COPY`. Pure.

A struct has no place in a column: that of the key, and that of the value, become a column for each field; any other
nested value is `jsonb`.
"""

import importlib
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from statebackend._codec.plain import plain
from statebackend._columns.arrow import Array, DataType, RecordBatch, Schema, pa, pc, plain_of
from statebackend._mirroring.target import GONE, OP
from statebackend._reading.rows.layouts import KEY, VALUE
from statebackend.errors import InputError, KeyTypeError, MirrorSchemaError

NUL: Final = "\x00"
_GONE: Final = pa.array(GONE)


class SqlColumn(NamedTuple):
    """A column: its name and type in SQL, and where its values are: the column of the rows, and the field of that."""

    name: str
    type: str
    source: str
    field: int | None
    arrow: DataType

    @property
    def is_key(self) -> bool:
        """True if it is a part of the primary key."""
        return self.source == KEY


def columns_of(schema: Schema, *, place: str) -> list[SqlColumn]:
    """The columns for rows of that schema. Raises `MirrorSchemaError`, which names one that Postgres cannot hold."""
    found: list[SqlColumn] = []
    parts: list[tuple[str, DataType, int | None]]
    for field in schema:
        if field.name in (KEY, VALUE) and pa.types.is_struct(field.type):
            prefix = f"{KEY}_" if field.name == KEY else ""
            parts = [(f"{prefix}{each.name.lstrip('_')}", each.type, at) for at, each in enumerate(field.type)]
        else:
            parts = [(field.name, field.type, None)]
        for name, type_, at in parts:
            sql = sql_type(type_, is_key=field.name == KEY)
            if sql is None:
                raise MirrorSchemaError(
                    "Postgres has no column for that type: mirror another state, or cast the column",
                    column=name,
                    type=str(type_),
                    target=place,
                )
            found.append(SqlColumn(name, sql, field.name, at, type_))
    names = [each.name for each in found]
    for each in names:
        if names.count(each) > 1:
            raise MirrorSchemaError(
                "two columns of the table would have one name: rename a field of the value", column=each, target=place
            )
    return found


def sql_type(type_: DataType, *, is_key: bool = False) -> str | None:
    """The type in Postgres, `None` if it has none that holds all such values."""
    types = pa.types
    if types.is_nested(type_):
        return None if is_key else "jsonb"
    if types.is_decimal(type_):
        return f"numeric({type_.precision},{type_.scale})"
    if types.is_timestamp(type_) and type_.unit != "ns":
        return "timestamp with time zone" if type_.tz is not None else "timestamp without time zone"
    if types.is_time(type_) and type_.unit != "ns":
        return "time without time zone"
    if types.is_duration(type_) and type_.unit == "us":
        return "interval"
    return next((sql for is_type, sql in _TYPES if is_type(type_)), None)


_TYPES: Final[Sequence[tuple[Callable[[DataType], bool], str]]] = (
    (pa.types.is_string, "text"),
    (pa.types.is_large_string, "text"),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "smallint"),
    (pa.types.is_int16, "smallint"),
    (pa.types.is_uint8, "smallint"),
    (pa.types.is_int32, "integer"),
    (pa.types.is_uint16, "integer"),
    (pa.types.is_int64, "bigint"),
    (pa.types.is_uint32, "bigint"),
    (pa.types.is_uint64, "numeric(20,0)"),
    (pa.types.is_float16, "real"),
    (pa.types.is_float32, "real"),
    (pa.types.is_float64, "double precision"),
    (pa.types.is_binary, "bytea"),
    (pa.types.is_large_binary, "bytea"),
    (pa.types.is_fixed_size_binary, "bytea"),
    (pa.types.is_date32, "date"),
)


def csv_of(batches: Iterator[RecordBatch], columns: Sequence[SqlColumn]) -> Iterator[tuple[bytes, bool]]:
    """The rows as `COPY ... (FORMAT csv)` takes them: all text is in quotes, so no null is; and if some keys are gone.

    Raises `KeyTypeError` and `InputError` for text that Postgres has no place for.
    """
    csv = importlib.import_module("pyarrow.csv")  # takes long to import
    options = csv.WriteOptions(include_header=False, quoting_style="needed")
    for batch in batches:
        arrays = [_text(_values(batch, column), column) for column in columns]
        text = io.BytesIO()
        csv.write_csv(pa.RecordBatch.from_arrays(arrays, [each.name for each in columns]), text, options)
        yield text.getvalue(), bool(pc.any(pc.is_in(batch.column(OP), _GONE)).as_py())


def _values(batch: RecordBatch, column: SqlColumn) -> Array:
    found = batch.column(column.source)
    return found if column.field is None else pc.struct_field(found, column.field)


def _text(array: Array, column: SqlColumn) -> Array:
    """The values as CSV can write them, in the words of Postgres."""
    types, type_ = pa.types, column.arrow
    if types.is_string(type_) or types.is_large_string(type_):
        _check_text(array, column)
        return array
    if types.is_nested(type_):
        found = (_with_objects(each, type_) for each in plain_of(array))
        texts = [None if each is None else msgspec.json.encode(plain(each)).decode() for each in found]
        return pa.array(texts, pa.string())
    if types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_):
        return pa.array([None if each is None else f"\\x{each.hex()}" for each in array.to_pylist()], pa.string())
    if types.is_duration(type_):
        counts = array.cast(pa.int64()).to_pylist()
        return pa.array([None if each is None else f"{each} microseconds" for each in counts], pa.string())
    if types.is_timestamp(type_) and type_.tz is not None:  # Arrow is 20 times as long about a time with its zone
        return array.cast(pa.timestamp(type_.unit))  # the session's zone is UTC
    return array.cast(pa.float32()) if types.is_float16(type_) else array


def _with_objects(value: Any, type_: DataType) -> Any:
    """The value with its maps, which Arrow has as pairs, as dicts: objects in JSON where their keys are text."""
    types = pa.types
    if value is None or not types.is_nested(type_):
        return value
    if types.is_map(type_):
        return {key: _with_objects(each, type_.item_type) for key, each in value}
    if types.is_struct(type_):
        return {field.name: _with_objects(value[field.name], field.type) for field in type_}
    return [_with_objects(each, type_.value_type) for each in value]


def _check_text(array: Array, column: SqlColumn) -> None:
    if pc.any(pc.match_substring(array, NUL)).as_py():
        if column.is_key:
            raise KeyTypeError(
                "a key has the character NUL in it, which text in SQL cannot have: mirror it into another target",
                column=column.name,
            )
        raise InputError(
            "a value has the character NUL in it, which text in SQL cannot have: drop it from the state, or mirror the"
            " state into another target",
            column=column.name,
        )
