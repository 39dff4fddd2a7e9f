"""Values to bytes and back, by msgspec.

What is accepted comes back: `encode` proves it on the spot. msgspec encodes a value of *any* type it knows, whatever
was declared, and a value that fails, or lacks a part, only when it is read back is a value that is lost.
"""

from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from statebackend._codec.schema import schema_of
from statebackend.errors import InputError, ValueDecodeError, ValueEncodeError
from statebackend.settings import MiB

T = TypeVar("T")

VALUE_BYTES_MAX: Final = 512 * MiB
"""A larger value is refused when it is set: the frame that carries it could not be written."""

_SELF_EVIDENT: Final = (str, bytes, bool, int, float)
"""Types whose every instance either fails to encode or decodes to an equal value."""

_encode_sorted: Final = msgspec.msgpack.Encoder(order="sorted").encode


class MsgspecSerializer(Generic[T]):
    """MessagePack of any type that msgspec can encode *and* decode: structs, dataclasses, builtins, unions, ...

    Raises `InputError` when made with a type that msgspec cannot decode.
    """

    __slots__ = ("_bytes_max", "_decode", "_encode", "_self_evident", "schema")

    def __init__(self, type_: type[T], *, value_bytes_max: int = VALUE_BYTES_MAX) -> None:
        try:
            self._decode = msgspec.msgpack.Decoder(type_).decode
            self.schema: Final = schema_of(type_)
        except (TypeError, NameError) as error:
            raise InputError(f"not a type that can be stored: {error}", type=repr(type_)) from error
        self._encode = msgspec.msgpack.Encoder().encode
        self._self_evident = next((known for known in _SELF_EVIDENT if known is type_), None)
        self._bytes_max = value_bytes_max

    def encode(self, value: T) -> bytes:
        """Bytes of `value`. Raises `ValueEncodeError` where it would not come back as a value of the declared type.

        What msgspec takes for the same is accepted, and comes back as it was declared: a list for a tuple, an int for
        a float, a dict for a struct with exactly those fields.
        """
        try:
            data = self._encode(value)
            if type(value) is not self._self_evident:
                decoded = self._decode(data)
                if self._encode(decoded) != data and not _same_value(value, decoded):
                    raise TypeError("a part of it would be lost")
        except (TypeError, ValueError, OverflowError, AttributeError, RecursionError) as error:
            raise ValueEncodeError(
                f"not a value of the declared type: {error}", value_type=type(value).__name__
            ) from error
        if len(data) > self._bytes_max:
            raise ValueEncodeError("the value is too large", size_bytes=len(data), bytes_max=self._bytes_max)
        return data

    def decode(self, data: bytes | bytearray | memoryview) -> T:
        """A fresh value: changing it changes nothing stored. Raises `ValueDecodeError`."""
        try:
            return self._decode(data)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise ValueDecodeError(f"the stored value does not decode: {error}", schema=self.schema) from error


def _same_value(value: object, decoded: object) -> bool:
    """Whether nothing of `value` is missing in `decoded`, such as the fields that a subclass adds.

    Asked only when their bytes differ. What has no equality of its own, or holds a NaN, is compared part by part.
    """
    return decoded == value or _same(*(msgspec.msgpack.decode(_encode_sorted(each)) for each in (value, decoded)))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        parts, others = cast("dict[Any, Any]", one), cast("dict[Any, Any]", other)
        return parts.keys() == others.keys() and all(_same(part, others[key]) for key, part in parts.items())
    if isinstance(one, list) and isinstance(other, list):
        items, other_items = cast("list[Any]", one), cast("list[Any]", other)
        return len(items) == len(other_items) and all(map(_same, items, other_items))
    return bool(one == other or (one != one and other != other))  # noqa: PLR0124  # NaN is as good as NaN
