"""The way between Arrow arrays and numpy arrays. The only module that imports pyarrow for columnar state.

A column in numpy is `Fixed`, items of one width, or `Strings`. A null is a value that is not valid. Its bytes are zero,
or it has the length zero, so that equal columns have equal bytes.
"""

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from statebackend._codec.columns import Column, Fixed, Flags, Strings, gathered
from statebackend._codec.plain import python_rows, python_values
from statebackend.errors import InputError, SettingsError, ValueDecodeError, needs_extra

try:
    import pyarrow  # noqa: ICN001  # `pa` is the same without a type, since it ships none
    import pyarrow.compute
except ImportError as error:
    raise SettingsError(needs_extra("state as columns", "columns"), missing=error.name) from error

pa: Final[Any] = pyarrow
pc: Final[Any] = pyarrow.compute
Array: TypeAlias = Any
"""A `pyarrow.Array` or `pyarrow.ChunkedArray`."""
DataType: TypeAlias = Any
RecordBatch: TypeAlias = Any
Schema: TypeAlias = Any

OFFSETS_MAX: Final = (1 << 31) - 1
"""Most bytes in one array of Arrow's `string` or `binary`."""


def item_of(type_: DataType) -> np.dtype[Any] | None:
    """The numpy type in which values of an Arrow type lie; `None` for strings. Raises `InputError` for other types."""
    types = pa.types
    if types.is_boolean(type_):
        return np.dtype(np.bool_)
    if types.is_integer(type_) or types.is_floating(type_):
        kind = "f" if types.is_floating(type_) else "i" if types.is_signed_integer(type_) else "u"
        return np.dtype(f"{kind}{type_.byte_width}")  # `to_pandas_dtype` imports pandas before pyarrow 24
    if types.is_temporal(type_) and not types.is_interval(type_):
        return np.dtype(f"<i{type_.byte_width}")
    if types.is_decimal128(type_) or (types.is_fixed_size_binary(type_) and type_.byte_width > 0):
        return np.dtype(f"V{type_.byte_width}")
    if is_string(type_):
        return None
    raise InputError(
        "columnar state has no columns of this type: cast it, or use another kind of state", type=str(type_)
    )


def is_string(type_: DataType) -> bool:
    """True for text and binary of any length."""
    types = pa.types
    return bool(
        types.is_string(type_) or types.is_large_string(type_) or types.is_binary(type_) or types.is_large_binary(type_)
    )


def in_one(array: Array) -> Array:
    """The array, its chunks combined."""
    if isinstance(array, pa.ChunkedArray):
        return array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    return array


def plain_of(found: Array | RecordBatch) -> list[Any]:
    """The elements of an array, or the rows of a batch, as Python values. Raises `ValueDecodeError` for one it has not.

    Such as a time with nanoseconds, unless pandas is there, or of the year 10,000.
    """
    try:
        return python_rows(found) if isinstance(found, pa.RecordBatch) else python_values(found)
    except (ValueError, OverflowError) as error:
        raise ValueDecodeError(
            f"Python has no such value: read it as columns, or with pandas if it has nanoseconds: {error}"
        ) from error


def column_of(array: Array) -> Column:
    """The values of an Arrow array. They share its memory where they can: use them before it changes."""
    array, item, count = in_one(array), item_of(array.type), len(array)
    if isinstance(array, pa.ChunkedArray):  # without chunks, or with more than fit into one
        raise InputError("an array is too large for one call: give fewer rows at a time", type=str(array.type))
    valid = _valid_of(array)
    buffers = array.buffers()
    if item is None:
        return _strings_of(array, buffers, valid)
    if pa.types.is_boolean(array.type):
        return Fixed(zeroed(_bits(buffers[1], array.offset, count), valid), valid)
    values = _items(buffers[1], item, array.offset, count)
    return Fixed(zeroed(values, valid), valid)


def array_from(values: npt.NDArray[Any], valid: Flags | None = None) -> Array:
    """An array of numbers or flags. `pa.array`, and `to_numpy` the other way, would import pandas, if that is there.

    That takes half a second, which the first batch after a restart would wait for.
    """
    return array_of(Fixed(values, valid), pa.from_numpy_dtype(values.dtype))


def values_of(array: Array) -> npt.NDArray[Any]:
    """The values of an array of numbers without nulls, which share its memory."""
    column = column_of(array)
    assert isinstance(column, Fixed)
    return column.values


def array_of(column: Column, type_: DataType) -> Array:
    """The Arrow array of a column. Raises `InputError` where it is too large for the type."""
    nulls = 0 if column.valid is None else int(len(column.valid) - np.count_nonzero(column.valid))
    validity = None if nulls == 0 else pa.py_buffer(np.packbits(np.asarray(column.valid), bitorder="little"))
    if isinstance(column, Fixed):
        values = column.values
        data = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else np.ascontiguousarray(values)
        return pa.Array.from_buffers(type_, len(values), [validity, pa.py_buffer(data.view(np.uint8))], nulls)
    is_large = pa.types.is_large_string(type_) or pa.types.is_large_binary(type_)
    offsets = np.zeros(len(column.lengths) + 1, np.int64)
    np.cumsum(column.lengths, out=offsets[1:])
    if not is_large and offsets[-1] > OFFSETS_MAX:
        raise InputError(
            "more bytes than one array of this type holds: take fewer rows",
            type=str(type_),
        )
    offsets = offsets if is_large else offsets.astype(np.int32)
    octets = gathered(column.data, column.starts, column.lengths)
    parts = [validity, pa.py_buffer(offsets), pa.py_buffer(octets)]
    return pa.Array.from_buffers(type_, len(column.lengths), parts, nulls)


def _strings_of(array: Array, buffers: list[Any], valid: Flags | None) -> Strings:
    is_large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    offsets = _items(buffers[1], np.dtype("<i8" if is_large else "<i4"), array.offset, len(array) + 1)
    offsets = offsets.astype(np.int64, copy=False)
    data = np.empty(0, np.uint8) if buffers[2] is None else np.frombuffer(buffers[2], np.uint8)
    data = data[int(offsets[0]) : int(offsets[-1])]
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    if valid is not None:
        lengths = np.where(valid, lengths, 0)
    return Strings(data, starts, lengths, valid)


def _valid_of(array: Array) -> Flags | None:
    """The flags of the values that are not null; `None` if all are."""
    if array.null_count == 0:
        return None
    return _bits(array.buffers()[0], array.offset, len(array))


def _bits(buffer: Any, offset: int, count: int) -> Flags:
    if count == 0:
        return np.empty(0, np.bool_)
    first, last = offset // 8, (offset + count + 7) // 8
    octets = np.frombuffer(buffer, np.uint8)[first:last]
    bits = np.unpackbits(octets, bitorder="little")
    return bits[offset - 8 * first :][:count].view(np.bool_)


def _items(buffer: Any, dtype: np.dtype[Any], offset: int, count: int) -> npt.NDArray[Any]:
    if buffer is None or buffer.size == 0:  # an empty array may have none
        return np.zeros(count, dtype)
    return np.frombuffer(buffer, dtype, count, offset * dtype.itemsize)


def zeroed(values: npt.NDArray[Any], valid: Flags | None) -> npt.NDArray[Any]:
    """The values, with zeros where they are not valid."""
    if valid is None or valid.all():
        return values
    values = values.copy()
    values[~valid] = np.zeros(1, values.dtype)[0]
    return values
