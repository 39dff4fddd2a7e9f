"""The schema of a columnar state, in Arrow's words and in those of the commit, and how it may change.

    schema := JSON without spaces: [[name, type], [name, type, default], ...]      the columns, in order
    keys   := JSON without spaces: type | [[name, type], ...]                      several: tuples of them
    type   := "bool" | "int8" ... "int64" | "uint8" ... "uint64" | "float16" | "float32" | "float64"
            | "date32" | "date64" | "time32(unit)" | "time64(unit)" | "duration(unit)"
            | "timestamp(unit)" | "timestamp(unit,zone)" | "decimal128(precision,scale)" | "binary(width)"
            | "string" | "large_string" | "binary" | "large_binary"
    unit   := "s" | "ms" | "us" | "ns"
    default := hexadecimal digits of the value's bytes, as in a change of columns

Keys are of the types int64, string and binary. A default is that of a column which was added: rows written before have
it. These texts are in every commit: to word a type differently would lock out the states written before.

From one run to the next a column may be added, dropped, or widened: to a wider integer, float or decimal that holds all
its values, or from text or bytes to the large kind of them.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from statebackend._codec.change_sets.column_changes import ColumnChanges, Typed
from statebackend._codec.columns import Column, Fixed, Strings
from statebackend._columns.arrow import DataType, Schema, column_of, item_of, pa
from statebackend._columns.fitting import array_of_values
from statebackend.errors import InputError, UnsupportedVersionError, ValueDecodeError, ValueEncodeError

_INTEGER: Final = re.compile(r"(u?)int(\d+)")
_DECIMAL: Final = re.compile(r"decimal128\((\d+),(-?\d+)\)")
_WORDS: Final = re.compile(r"(\w+)(?:\((.*)\))?")
_FLOATS: Final = ("float16", "float32", "float64")
_PLAIN: Final[Mapping[str, str]] = {
    "bool": "bool_",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{each: each for each in (*_FLOATS, "date32", "date64", "string", "large_string", "binary", "large_binary")},
}


class ColumnSchema(msgspec.Struct, frozen=True):
    """One column: its name, its type in words, and the default as bytes in hexadecimal digits, `None` for null."""

    name: str
    type: str
    default: str | None = None


class TableSchema(msgspec.Struct, frozen=True):
    """The columns of the values, and the parts of the keys: one without a name unless the keys are tuples."""

    columns: tuple[ColumnSchema, ...]
    keys: tuple[ColumnSchema, ...]

    @property
    def words(self) -> str:
        """The columns as they are written in a commit."""
        plain = [[each.name, each.type] + ([] if each.default is None else [each.default]) for each in self.columns]
        return _text(plain)

    @property
    def key_words(self) -> str:
        """The keys as they are written in a commit."""
        if not self.has_tuples:
            return _text(self.keys[0].type)
        return _text([[each.name, each.type] for each in self.keys])

    @property
    def has_tuples(self) -> bool:
        """True if keys are tuples."""
        return bool(self.keys[0].name)

    @property
    def arrow(self) -> Schema:
        """The columns as an Arrow schema."""
        return pa.schema([(each.name, type_in(each.type)) for each in self.columns])

    @property
    def key_type(self) -> DataType:
        """The type of an array of keys."""
        if not self.has_tuples:
            return type_in(self.keys[0].type)
        return pa.struct([(each.name, type_in(each.type)) for each in self.keys])


def table_schema(schema: Schema, key: DataType, defaults: Mapping[str, Any] | None = None) -> TableSchema:
    """The schema of a state with these columns and keys; `defaults` are those of columns that are added.

    Raises `InputError` for no columns, two of one name, a type that cannot be kept, and a default that does not fit.
    """
    if not isinstance(schema, pa.Schema) or not len(schema):
        raise InputError(
            "the schema of a columnar state must be a pyarrow.Schema of at least one column", schema=schema
        )
    names = list(schema.names)
    if len(set(names)) < len(names) or not all(names):
        raise InputError("the columns of a state need different names, none of them empty", names=names)
    defaults = defaults or {}
    if unknown := defaults.keys() - set(names):
        raise InputError(
            "a default is for a column that the schema does not have", columns=sorted(unknown), names=names
        )
    columns = [ColumnSchema(each.name, _words_of(each), _default_of(each, defaults)) for each in schema]
    return TableSchema(tuple(columns), _key_parts(key))


def read_schema(words: str, key_words: str) -> TableSchema:
    """The schema that a commit has in these words. Raises `UnsupportedVersionError` for words of a later release."""
    try:
        columns = [ColumnSchema(*each) for each in json.loads(words)]
        keys: Any = json.loads(key_words)
        parts = [ColumnSchema("", keys)] if isinstance(keys, str) else [ColumnSchema(*each) for each in keys]
        for each in (*columns, *parts):
            type_in(each.type)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnsupportedVersionError(
            "this release does not know the schema of a columnar state: upgrade", schema=words, keys=key_words
        ) from error
    return TableSchema(tuple(columns), tuple(parts))


def misread_columns(written: str, declared: TableSchema) -> str | None:
    """Say why columns written with the schema `written` cannot be read as these; `None` if they can."""
    found = {each.name: each for each in read_schema(written, '"int64"').columns}
    for each in declared.columns:
        old = found.get(each.name)
        if old is None:
            continue
        if old.type != each.type and not is_wider(each.type, old.type):
            return f"{each.name}: {old.type} cannot become {each.type}"
        if _widened_default(old, each.type) != each.default:
            return f"{each.name}: its default cannot change"
    return None


def returned_column(newest: str, earlier: Iterable[str], declared: TableSchema) -> str | None:
    """Say which column was dropped once and is declared again; `None` if none is.

    Rows that were not written since would be restored with what the column had, but have its default in memory.
    """
    before = {each.name for words in earlier for each in read_schema(words, '"int64"').columns}
    before -= {each.name for each in read_schema(newest, '"int64"').columns}
    found = sorted(before & {each.name for each in declared.columns})
    return f"{found[0]}: it was dropped once, so another name is needed" if found else None


def is_wider(type_: str, old: str) -> bool:
    """True if a column may be of this type after it was of the type `old`: every value has its like."""
    if type_ in _FLOATS and old in _FLOATS:
        return _FLOATS.index(type_) > _FLOATS.index(old)
    if (new_int := _INTEGER.fullmatch(type_)) and (old_int := _INTEGER.fullmatch(old)):
        same_sign = new_int[1] == old_int[1]
        return int(new_int[2]) > int(old_int[2]) and (same_sign or not new_int[1])
    if (new_decimal := _DECIMAL.fullmatch(type_)) and (old_decimal := _DECIMAL.fullmatch(old)):
        return int(new_decimal[1]) > int(old_decimal[1]) and new_decimal[2] == old_decimal[2]
    return old in ("string", "binary") and type_ == f"large_{old}"


def words_of(type_: DataType) -> str:
    """A type in words. Raises `InputError` for one that cannot be kept."""
    item_of(type_)
    types = pa.types
    if types.is_decimal128(type_):
        return f"decimal128({type_.precision},{type_.scale})"
    if types.is_timestamp(type_):
        return f"timestamp({type_.unit}{'' if type_.tz is None else ',' + type_.tz})"
    if types.is_time(type_) or types.is_duration(type_):
        kind = "duration" if types.is_duration(type_) else f"time{type_.bit_width}"
        return f"{kind}({type_.unit})"
    if types.is_fixed_size_binary(type_):
        return f"binary({type_.byte_width})"
    return next(word for word, name in _PLAIN.items() if getattr(pa, name)() == type_)


def type_in(words: str) -> DataType:
    """The type of these words. Raises `ValueError` or `KeyError` for words that are none."""
    found = _WORDS.fullmatch(words)
    if found is None:
        raise ValueError(f"no type: {words}")
    kind, particulars = found[1], found[2]
    if particulars is None:
        return getattr(pa, _PLAIN[kind])()
    if kind == "decimal128":
        precision, scale = map(int, particulars.split(","))
        return pa.decimal128(precision, scale)
    if kind == "binary":
        return pa.binary(int(particulars))
    unit, _, zone = particulars.partition(",")
    makers: Mapping[str, Callable[..., Any]] = {
        "timestamp": pa.timestamp,
        "time32": pa.time32,
        "time64": pa.time64,
        "duration": pa.duration,
    }
    return makers[kind](unit, zone) if zone else makers[kind](unit)


def default_column(schema: ColumnSchema, count: int) -> Column:
    """A column of so many defaults."""
    item = item_of(type_in(schema.type))
    is_null = schema.default is None
    octets = np.frombuffer(bytes.fromhex(schema.default or ""), np.uint8)
    valid = np.zeros(count, np.bool_) if is_null else None
    if item is None:
        return Strings(octets, np.zeros(count, np.int64), np.full(count, len(octets), np.int64), valid)
    one = np.zeros(1, item) if is_null else octets.view(item)
    return Fixed(np.repeat(one, count), valid)


def stored_columns(changes: ColumnChanges, declared: TableSchema) -> Mapping[str, Column]:
    """A column of the changes for each declared one, as `declared_columns`."""
    return declared_columns(changes.columns, changes.sets, declared)


def declared_columns(stored: Mapping[str, Typed], count: int, declared: TableSchema) -> Mapping[str, Column]:
    """Of `count` stored rows, a column for each declared one: widened, or of defaults if there is none.

    Raises `ValueDecodeError` for one of a type that cannot become the declared one.
    """
    found: dict[str, Column] = {}
    for each in declared.columns:
        typed = stored.get(each.name)
        if typed is None:
            found[each.name] = default_column(each, count)
        elif typed.type == each.type:
            found[each.name] = typed.column
        elif is_wider(each.type, typed.type):
            found[each.name] = _widened(typed.column, item_of(type_in(each.type)))
        else:
            raise ValueDecodeError(
                "a stored column is of another type", column=each.name, type=typed.type, type_declared=each.type
            )
    return found


def check_key_types(types: Sequence[str], declared: TableSchema) -> None:
    """Raise `ValueDecodeError` unless stored keys, of these types in words, are of those of the schema."""
    if [*types] != [each.type for each in declared.keys]:
        raise ValueDecodeError("stored keys are of another type than the state's", types=types)


def _widened(column: Column, item: npt.DTypeLike | None) -> Column:
    if isinstance(column, Strings) or item is None or column.values.dtype.kind == "V":
        return column
    return Fixed(column.values.astype(item), column.valid)


def _words_of(field: Any) -> str:
    try:
        return words_of(field.type)
    except InputError as error:
        raise InputError(error.message, column=field.name, type=str(field.type)) from None


def _default_of(field: Any, defaults: Mapping[str, Any]) -> str | None:
    value = defaults.get(field.name)
    if value is None:
        return None
    try:
        column = column_of(array_of_values([value], field.type, field.name))
    except ValueEncodeError as error:
        raise InputError(
            "a default is not of its column's type: convert it",
            column=field.name,
            type=str(field.type),
            default=repr(value),
        ) from error
    return _hexadecimal(column)


def _widened_default(schema: ColumnSchema, type_: str) -> str | None:
    """The default that a column has once it is of a type that is as wide, or wider."""
    return (
        None if schema.default is None else _hexadecimal(_widened(default_column(schema, 1), item_of(type_in(type_))))
    )


def _hexadecimal(column: Column) -> str:
    """The bytes of a column of one value."""
    if isinstance(column, Fixed):
        return column.values.tobytes().hex()
    return column.data[: int(column.lengths[0])].tobytes().hex()


def _key_parts(key: DataType) -> tuple[ColumnSchema, ...]:
    if not isinstance(key, pa.DataType):
        raise InputError("the type of a columnar state's keys must be a pyarrow.DataType", key=repr(key))
    if not pa.types.is_struct(key):
        return (ColumnSchema("", _key_words(key, key)),)
    fields = [key.field(number) for number in range(key.num_fields)]
    names = [field.name for field in fields]
    if not names or not all(names) or len(set(names)) < len(names):
        raise InputError("the parts of a key need different names, none of them empty", names=names)
    return tuple(ColumnSchema(field.name, _key_words(field.type, key)) for field in fields)


def _key_words(type_: DataType, key: DataType) -> str:
    if pa.types.is_int64(type_) or pa.types.is_string(type_) or pa.types.is_binary(type_):
        return words_of(type_)
    raise InputError("the type of keys must be string, int64, binary, or a struct of these", key=str(key))


def _text(plain: Any) -> str:
    return json.dumps(plain, separators=(",", ":"))
