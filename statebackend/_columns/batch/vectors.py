"""Columns as numbers to calculate with.

A vector has the numbers of an array: a bool as 0 or 1, a time as its count of units, a decimal as its unscaled whole
number. Whole numbers are exact: where a result could leave 64 bits, they are Python's own ints, in an array of objects.
"""

from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from statebackend._codec.columns import Fixed, Flags
from statebackend._columns.arrow import array_of, column_of, item_of, pa, pc, values_of

_INT64_END: Final = 1 << 63
_LOW_HALF: Final = (1 << 64) - 1


class Vector(NamedTuple):
    """Numbers, and which of them are there: `None` for all. A number that is not there may be any."""

    values: npt.NDArray[Any]
    valid: Flags | None = None

    def or_else(self, value: Any) -> npt.NDArray[Any]:
        """The numbers, `value` for each that is not there."""
        return self.values if self.valid is None else np.where(self.valid, self.values, value)


def vector_of(array: Any) -> Vector:
    """The numbers of an array of any type but text and bytes. Shares memory where it can."""
    column = column_of(array)
    assert isinstance(column, Fixed)
    values = column.values
    if values.dtype == np.bool_:
        values = values.view(np.uint8)
    return Vector(_unscaled(values) if pa.types.is_decimal(array.type) else values, column.valid)


def valid_of(array: Any) -> Flags | None:
    """The elements of an array of any type that are not null; `None` for all."""
    if pa.types.is_dictionary(array.type):  # nulls may lie among its values, and do not count as the array's
        array = array.dictionary_decode()
    elif pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    return values_of(array.is_valid()) if array.null_count else None


def array_from(vector: Vector, type_: Any) -> Any:
    """The array of `type_` with these numbers, none of which is `outside` it."""
    values = vector.values
    if pa.types.is_decimal(type_):
        return array_of(Fixed(_scaled(vector.or_else(0)), vector.valid), type_)
    if values.dtype == object:  # a number that is not there may be out of range
        values = vector.or_else(0)
    return array_of(Fixed(values.astype(item_of(type_), copy=False), vector.valid), type_)


def outside(vector: Vector, type_: Any) -> npt.NDArray[np.intp]:
    """The indices of the whole numbers that do not fit `type_`; none for floats."""
    if pa.types.is_floating(type_) or pa.types.is_boolean(type_):
        return np.empty(0, np.intp)
    if pa.types.is_decimal(type_):
        end = 10**type_.precision
        lowest, highest = 1 - end, end - 1
    else:
        info = np.iinfo(cast("Any", item_of(type_)))
        lowest, highest = int(info.min), int(info.max)
    values = vector.or_else(0)
    if not len(values) or (lowest <= int(values.min()) and int(values.max()) <= highest):
        return np.empty(0, np.intp)
    return np.flatnonzero([not lowest <= int(value) <= highest for value in values])


def exact(values: npt.NDArray[Any], times: int) -> npt.NDArray[Any]:
    """Whole numbers of which `times` many can be added without leaving their type: int64, or Python's ints."""
    if values.dtype == object:
        return values
    largest = max(int(values.max()), -int(values.min())) if len(values) else 0
    return values.astype(np.int64, copy=False) if largest * times < _INT64_END else values.astype(object)


def sortable(vector: Vector) -> npt.NDArray[Any]:
    """Numbers in the order of these, of which any two that are equal are the same: for floats NaN is the largest."""
    values = vector.values
    if values.dtype.kind != "f":
        return values
    whole = np.where(np.isnan(values), np.nan, values.astype(np.float64) + 0.0).view(np.int64)
    return whole ^ ((whole >> 63) & np.int64(_INT64_END - 1))


def ranked(*arrays: Any) -> list[Vector]:
    """Numbers in the order of the elements of all arrays together, whatever their type."""
    together = pa.concat_arrays(arrays)
    ranks = values_of(pc.rank(together, tiebreaker="dense")).astype(np.int64)
    ends = np.cumsum([len(array) for array in arrays])[:-1]
    return [Vector(part, valid_of(array)) for part, array in zip(np.split(ranks, ends), arrays, strict=True)]


def _unscaled(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The whole numbers of decimals: int64 where all fit."""
    halves = np.ascontiguousarray(values).view("<i8").reshape(-1, 2)
    low, high = halves[:, 0], halves[:, 1]
    if (high == low >> 63).all():
        return low
    whole: npt.NDArray[Any] = high.astype(object) * (1 << 64) + low.view("<u8").astype(object)
    return whole


def _scaled(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    halves = np.empty((len(values), 2), "<i8")
    if values.dtype == object:
        halves[:, 0] = (values & _LOW_HALF).astype(np.uint64).view(np.int64)
        halves[:, 1] = (values >> 64).astype(np.int64)
    else:
        halves[:, 0] = values
        halves[:, 1] = halves[:, 0] >> 63
    return halves.view("V16").reshape(-1)
