"""Decides if a column of a batch fits a column of a state: every value must be one of the state's type, too."""

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import numpy as np

from statebackend._columns.arrow import array_from, pa
from statebackend.errors import InputError, ValueEncodeError

_types: Any = pa.types

_UNITS: Final = ("s", "ms", "us", "ns")
_FLOAT_HOLDS_BITS: Final = {32: 16, 64: 32}
"""The widest integers of which a float of so many bits holds every one."""


def fits(source: Any, target: Any) -> bool:
    """True if values of type `source` can be taken into a column of type `target` without loss.

    Text fits text, and bytes bytes, however they are laid out. Numbers fit wider ones: an int64 does not fit a float64,
    which cannot hold every one. Times fit finer units, with time zone or without as the target.
    """
    if source == target or _types.is_null(source):
        return True
    if _types.is_dictionary(source):
        return fits(source.value_type, target)
    if _types.is_struct(source) or _types.is_struct(target):
        return _struct_fits(source, target)
    return any(is_one(target) and rule(source, target) for is_one, rule in _RULES)


def fitted(array: Any, target: Any, name: str) -> Any:
    """The array as one of type `target`, which its type fits. Raises `InputError` for a time out of range."""
    if array.type == target:
        return array
    if _types.is_struct(target) and _types.is_struct(array.type):  # Arrow's own cast goes by name
        fields = [target.field(index) for index in range(target.num_fields)]
        parts = [fitted(part, field.type, name) for part, field in zip(array.flatten(), fields, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=fields)
    try:
        return array.cast(target)
    except pa.ArrowInvalid as error:
        raise InputError(f"a value does not fit the state: {error}", column=name, type=str(target)) from error


def array_of_values(values: Sequence[Any], target: Any, name: str) -> Any:
    """Python values as an array of type `target`. Raises `ValueEncodeError` for one that would become another value.

    Arrow itself would cut 1.5 to the integer 1, and take bytes for text.
    """
    try:
        array = pa.array(values, type=target)
        is_same = _types.is_floating(target) or [*map(_instant, array.to_pylist())] == [*map(_instant, values)]
    except (TypeError, ValueError, ArithmeticError) as error:  # pyarrow's errors are some of these
        raise ValueEncodeError(
            f"a value is not of its column's type: {error}", column=name, type=str(target)
        ) from error
    if not is_same:
        raise ValueEncodeError("a value is not of its column's type: convert it", column=name, type=str(target))
    return array


def _instant(value: Any) -> Any:
    """A time with a zone as one of UTC, any other value as it is.

    Python takes an hour that is there twice, since clocks go back, for another one than any of another zone (PEP 495).
    """
    is_aware = isinstance(value, dt.datetime) and value.utcoffset() is not None
    return value.astimezone(dt.UTC) if is_aware else value


def check_names(names: Sequence[str], schema: Any) -> None:
    """Raise `InputError` unless each is the name of a column of the state, and there once."""
    if unknown := [name for name in names if name not in schema.names or names.count(name) > 1]:
        raise InputError(
            "the state has no column of that name, or it is named twice", column=unknown[0], known=schema.names
        )


def column_for(made: Any, target: Any, name: str, length: int) -> Any:
    """A column that a user made, from Arrow, numpy or Python, as an array of type `target`.

    Raises `InputError` if it has another length, or values that do not fit.
    """
    if isinstance(made, pa.ChunkedArray):
        made = made.combine_chunks()
    elif not isinstance(made, pa.Array):
        made = _array_from(made, target, name)
    if len(made) != length or not fits(made.type, target):
        raise InputError(
            "a column must have one value per key, of the type of the state's column",
            column=name,
            type=str(made.type),
            state_type=str(target),
            keys=length,
            values=len(made),
        )
    return fitted(made, target, name)


def _array_from(made: Any, target: Any, name: str) -> Any:
    if (
        type(cast("object", made)) is np.ndarray
        and made.ndim == 1
        and made.dtype.kind in "iufb"
        and made.dtype.isnative
    ):
        return array_from(made)
    if hasattr(made, "dtype") and hasattr(made, "tolist"):  # numpy, or what behaves like it
        try:
            return pa.array(made)
        except (TypeError, ValueError) as error:
            raise InputError(f"a column cannot be read: {error}", column=name) from error
    if not isinstance(made, Sequence) or isinstance(made, str | bytes):
        raise InputError(
            "a column must be an Arrow array, a numpy array or a list",
            column=name,
            given=type(cast("object", made)).__name__,
        )
    return array_of_values(cast("Sequence[Any]", made), target, name)


def _text_fits(source: Any, _: Any) -> bool:
    return bool(_types.is_string(source) or _types.is_large_string(source) or _types.is_string_view(source))


def _bytes_fit(source: Any, target: Any) -> bool:
    if _types.is_fixed_size_binary(target):
        return False
    return any(
        is_one(source)
        for is_one in (
            _types.is_binary,
            _types.is_large_binary,
            _types.is_binary_view,
            _types.is_fixed_size_binary,
        )
    )


def _int_fits(source: Any, target: Any) -> bool:
    if _types.is_signed_integer(source):
        return bool(_types.is_signed_integer(target) and source.bit_width <= target.bit_width)
    if not _types.is_unsigned_integer(source):
        return False
    return bool(source.bit_width < target.bit_width + (1 if _types.is_unsigned_integer(target) else 0))


def _float_fits(source: Any, target: Any) -> bool:
    if _types.is_integer(source):
        return int(source.bit_width) <= _FLOAT_HOLDS_BITS.get(target.bit_width, 0)
    return bool(_types.is_floating(source) and source.bit_width <= target.bit_width)


def _timestamp_fits(source: Any, target: Any) -> bool:
    is_alike = _types.is_timestamp(source) and (source.tz is None) == (target.tz is None)
    return is_alike and _is_finer(source, target)


def _duration_fits(source: Any, target: Any) -> bool:
    return bool(_types.is_duration(source)) and _is_finer(source, target)


def _decimal_fits(source: Any, target: Any) -> bool:
    if not _types.is_decimal(source):
        return False
    return bool(source.scale <= target.scale and source.precision - source.scale <= target.precision - target.scale)


def _date_fits(source: Any, target: Any) -> bool:
    return bool(_types.is_date32(source) and _types.is_date64(target))


def _struct_fits(source: Any, target: Any) -> bool:
    """By position: the names of a key's parts say nothing."""
    if not (_types.is_struct(source) and _types.is_struct(target)) or source.num_fields != target.num_fields:
        return False
    return all(fits(source.field(index).type, target.field(index).type) for index in range(target.num_fields))


def _is_finer(source: Any, target: Any) -> bool:
    return _UNITS.index(source.unit) <= _UNITS.index(target.unit)


_RULES: Final[tuple[tuple[Callable[[Any], bool], Callable[[Any, Any], bool]], ...]] = (
    (_types.is_string, _text_fits),
    (_types.is_large_string, _text_fits),
    (_types.is_binary, _bytes_fit),
    (_types.is_large_binary, _bytes_fit),
    (_types.is_integer, _int_fits),
    (_types.is_floating, _float_fits),
    (_types.is_timestamp, _timestamp_fits),
    (_types.is_duration, _duration_fits),
    (_types.is_decimal, _decimal_fits),
    (_types.is_date64, _date_fits),
)
