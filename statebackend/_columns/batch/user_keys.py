"""Keys as users give them, in columns of a batch or as Python values, and as a state has them: arrays of one type."""

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import numpy as np

from statebackend._codec.columns import Fixed
from statebackend._columns.arrow import OFFSETS_MAX, array_of, pa
from statebackend._columns.batch.numbered_keys import column_in
from statebackend._columns.fitting import fits, fitted
from statebackend.errors import InputError, KeyTypeError
from statebackend.ids import Key

_types: Any = pa.types

FEW: Final = 1024
"""Keys up to which it is not worth the import of pandas to have an array of them a little faster."""

_PLAIN: Final[tuple[tuple[Callable[[Any], bool], type], ...]] = (
    (_types.is_string, str),
    (_types.is_int64, int),
    (_types.is_binary, bytes),
)


def keys_of(batch: Any, on: str | Sequence[str], key_type: Any) -> Any:
    """The key of each row as an array of `key_type`: a column, or several that make a struct.

    Raises `InputError` for a column that is not there or has nulls, `KeyTypeError` for one of another type.
    """
    if isinstance(on, str):
        return checked_keys(column_in(batch, on), key_type, on)
    names = [*on]
    if not pa.types.is_struct(key_type):
        if len(names) == 1:
            return keys_of(batch, names[0], key_type)
        raise KeyTypeError("the state's keys are not tuples: name one column", on=names, key_type=str(key_type))
    if len(names) != key_type.num_fields:
        raise KeyTypeError("a key of several parts needs a column for each of them", on=names, key_type=str(key_type))
    fields = [key_type.field(index) for index in range(key_type.num_fields)]
    columns = [
        checked_keys(column_in(batch, name), field.type, name) for name, field in zip(names, fields, strict=True)
    ]
    return pa.StructArray.from_arrays(columns, fields=fields)


def checked_keys(keys: Any, key_type: Any, name: str) -> Any:
    """The keys as an array of `key_type`, without nulls. Raises as `keys_of`."""
    if not fits(keys.type, key_type):
        raise KeyTypeError(
            "the keys are of another type than the state's: cast them",
            column=name,
            type=str(keys.type),
            key_type=str(key_type),
        )
    keys = fitted(keys, key_type, name)
    if nulls := _nulls(keys):
        raise InputError("a key is null: filter such rows, or give them a key", column=name, rows=nulls)
    return keys


def keys_from(keys: Sequence[object], key_type: Any) -> Any:
    """Python keys as an array of `key_type`. Raises `KeyTypeError` for a key of another type."""
    if not _types.is_struct(key_type):
        return _part_from(keys, key_type)
    for key in keys:
        if type(key) is not tuple or len(cast("tuple[object, ...]", key)) != key_type.num_fields:
            raise KeyTypeError(
                "the state's keys are tuples: give one of as many parts",
                key=ascii(cast("object", key))[:80],
                key_type=str(key_type),
            )
    fields = [key_type.field(index) for index in range(key_type.num_fields)]
    parts = [[cast("tuple[object, ...]", key)[index] for key in keys] for index in range(len(fields))]
    arrays = [_part_from(part, field.type) for part, field in zip(parts, fields, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields)


def plain_keys(keys: Any) -> list[Key]:
    """The keys of an array as Python values."""
    found = keys.to_pylist()
    return [tuple(key.values()) for key in found] if _types.is_struct(keys.type) else found


def _part_from(keys: Sequence[object], type_: Any) -> Any:
    wanted = next(plain for is_one, plain in _PLAIN if is_one(type_))
    for key in keys:
        if type(key) is not wanted:  # not isinstance: True is an int and equals 1
            raise KeyTypeError("the key is of another type than the state's", key=ascii(key)[:80], key_type=str(type_))
    try:
        if wanted is int:
            return array_of(Fixed(np.array(keys, np.int64)), type_)
        return _string_array(cast("Sequence[str | bytes]", keys), type_)
    except (UnicodeEncodeError, OverflowError) as error:
        raise KeyTypeError(f"a key cannot be stored: {error}", key_type=str(type_)) from error


def _string_array(keys: Sequence[str | bytes], type_: Any) -> Any:
    """Texts or bytes as an array. `pa.array` takes half a second to import pandas, if that is there: not for a few."""
    if len(keys) <= FEW:
        raw = [key.encode() if isinstance(key, str) else key for key in keys]
        ends = np.cumsum([0, *map(len, raw)])
        if ends[-1] <= OFFSETS_MAX:
            parts = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(raw))]
            return pa.Array.from_buffers(type_, len(raw), parts)
    return pa.array(keys, type_)


def _nulls(keys: Any) -> int:
    """Rows whose key is null, or has a part that is."""
    if not pa.types.is_struct(keys.type):
        return int(keys.null_count)
    return int(keys.null_count) or max(map(_nulls, keys.flatten()))
