"""Values to bytes and back, by msgspec.

A value that is accepted comes back: `encode` proves it at once, by decoding. msgspec encodes a value of *any* type that
it knows, whatever was declared; if that failed, or lost a part, only when it is read back, the value would be lost.
"""

from collections.abc import Callable, Sequence
from types import GenericAlias
from typing import Any, Final, Generic, TypeGuard, TypeVar, cast

import msgspec

from statebackend._codec.schema import check_depth, misread, schema_of
from statebackend.abc import Buffer, Serializer
from statebackend.errors import InputError, ValueDecodeError, ValueEncodeError, in_python_words
from statebackend.settings import MiB

T = TypeVar("T")

VALUE_BYTES_MAX: Final = 512 * MiB
"""A larger value is refused when it is set, because the frame with it could not be written."""

OWN: Final = "own:"
"""Prefix of the schema of a user's own serializer. Without it such a schema might look like one of ours, in JSON."""

BLOCK_VALUES: Final = 4096
"""How many values are proved or decoded in one call, for which the interpreter lock is held."""

TRIMMED_BYTES_MAX: Final = MiB
"""More bytes than this are not trimmed together, since for a moment that takes twice as many again."""

NAME_CHARACTERS_MAX: Final = 80
"""A longer name of a type is cut off in an error."""

_SELF_EVIDENT: Final = (str, bytes, bool, int, float)
"""Types of which every instance either fails to encode, or decodes to an equal value: no proof is needed."""

_encode_sorted: Final = msgspec.msgpack.Encoder(order="sorted").encode
_encode_bytes: Final = msgspec.msgpack.Encoder().encode
_decode_bytes: Final = msgspec.msgpack.Decoder(list[bytes]).decode


class MsgspecSerializer(Generic[T]):
    """MessagePack of any type that msgspec can encode *and* decode: structs, dataclasses, builtins, unions, ...

    Raises `InputError` when made with a type that msgspec cannot decode.
    """

    __slots__ = ("_bytes_max", "_decode", "_decode_list", "_encode", "_rows", "_self_evident", "_type", "schema")

    def __init__(self, type_: type[T], *, value_bytes_max: int = VALUE_BYTES_MAX) -> None:
        try:
            check_depth(type_)
            self._decode = msgspec.msgpack.Decoder(type_).decode
            self.schema: Final = schema_of(type_)
        except (TypeError, NameError) as error:
            raise InputError(f"not a type that can be stored: {error}", type=repr(type_)) from error
        except RecursionError as error:  # its `repr` would be one, too
            raise InputError("not a type that can be stored: it is nested too deeply") from error
        self._type = type_
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode_list = msgspec.msgpack.Decoder(list[type_]).decode  # type: ignore[valid-type]
        self._rows: dict[int, Callable[[bytes], tuple[Any, ...]]] = {}  # decoders of `decode_row`, by count
        self._self_evident = next((known for known in _SELF_EVIDENT if known is type_), None)
        self._bytes_max = value_bytes_max

    def encode(self, value: T) -> bytes:
        """Return the bytes of `value`. Raises `ValueEncodeError` if it would not come back as the declared type.

        A value that msgspec stores in the same way is accepted, and comes back as the declared type: a list for a
        tuple, an int for a float, a dict for a struct with exactly those fields.
        """
        try:
            data = self._encode(value)
            if type(value) is not self._self_evident:
                decoded = self._decode(data)
                if self._encode(decoded) != data and not _same_value(value, decoded):
                    raise TypeError("a part of it would be lost")
        except (TypeError, ValueError, OverflowError, AttributeError, RecursionError) as error:
            raise ValueEncodeError(
                f"not a value of the declared type: {in_python_words(error)}",
                value_type=type(value).__name__,
                declared=_name_of(self._type),
            ) from error
        if len(data) > self._bytes_max:
            raise ValueEncodeError("the value is too large", size_bytes=len(data), bytes_max=self._bytes_max)
        return data

    def encode_many(self, values: Sequence[T]) -> list[bytes]:
        """Return the bytes of each value, and raise, as `encode` does. Proving them together is cheaper."""
        found: list[bytes] = []
        for start in range(0, len(values), BLOCK_VALUES):
            block = values[start : start + BLOCK_VALUES]
            found += self._proved(block) or map(self.encode, block)  # one by one: the error then names the wrong one
        return found

    def decode_many(self, many: Sequence[bytes]) -> list[T]:
        """Return fresh values, as `decode` does."""
        if len(many) <= BLOCK_VALUES:
            return self._decode_block(many)
        found: list[T] = []
        for start in range(0, len(many), BLOCK_VALUES):
            found += self._decode_block(many[start : start + BLOCK_VALUES])
        return found

    def decode_joined(self, count: int, data: bytearray) -> list[T]:
        """Return `count` fresh values, stored one after the other. Raises `ValueDecodeError`, naming none."""
        try:
            return self._decode_list(_array_head(count) + data)
        except (ValueError, RecursionError) as error:
            raise ValueDecodeError(
                f"stored values do not decode: {in_python_words(error)}", schema=self.schema
            ) from error

    def decode_row(self, count: int, row: Buffer) -> list[T]:
        """Return `count` fresh values of a row that `count_small` has counted. Raises `ValueDecodeError`, naming none.

        For few values: each count has a decoder of its own, which is made once and then kept.
        """
        if (decode := self._rows.get(count)) is None:
            pairs = GenericAlias(tuple, (int, self._type) * count)  # by place: a value may be an int, too
            decode = self._rows[count] = msgspec.msgpack.Decoder(pairs).decode
        try:
            return list(decode(_array_head(2 * count) + row)[1::2])
        except (ValueError, RecursionError) as error:
            raise ValueDecodeError(
                f"stored values do not decode: {in_python_words(error)}", schema=self.schema
            ) from error

    def _decode_block(self, many: Sequence[bytes]) -> list[T]:
        try:
            return self._decode_list(_as_array(many))
        except (ValueError, RecursionError):
            return list(map(self.decode, many))

    def misread(self, schema: str) -> str | None:
        """Say why values written with another schema would be misread, `None` if they come back."""
        if schema.startswith(OWN):
            return "it was written by a user's own serializer"
        return misread(schema, self._type)

    def _proved(self, values: Sequence[T]) -> list[bytes] | None:
        """Return the bytes of each value if all of them together come back, else `None`."""
        try:
            encoded = list(map(self._encode, values))
            if self._self_evident is not None and set(map(type, values)) == {self._self_evident}:
                return encoded if max(map(len, encoded)) <= self._bytes_max else None
            array = _as_array(encoded)
            if len(array) > self._bytes_max and max(map(len, encoded)) > self._bytes_max:
                return None
            return encoded if self._encode(self._decode_list(array)) == array else None
        except (TypeError, ValueError, OverflowError, AttributeError, RecursionError):
            return None

    def decode(self, data: Buffer) -> T:
        """Return a fresh value: changing it changes nothing stored. Raises `ValueDecodeError`."""
        try:
            return self._decode(data)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise ValueDecodeError(
                f"the stored value does not decode: {in_python_words(error)}", schema=self.schema
            ) from error


class BoundedSerializer(Generic[T]):
    """A user's own serializer, checked for what storage needs: it must return bytes, and not too many."""

    __slots__ = ("_bytes_max", "_own", "schema")

    def __init__(self, own: Serializer[T], *, value_bytes_max: int = VALUE_BYTES_MAX) -> None:
        if type(own.schema) is not str:
            raise InputError("a serializer's schema is a str", schema=repr(own.schema))
        self.schema: Final = OWN + own.schema
        self._own = own
        self._bytes_max = value_bytes_max

    def encode(self, value: T) -> bytes:
        """Encode by the user's serializer. Raises `ValueEncodeError` if the result cannot be stored."""
        data = self._own.encode(value)
        if type(data) is not bytes or len(data) > self._bytes_max:
            raise ValueEncodeError(
                "a serializer must return bytes, and not too many", type=type(data).__name__, bytes_max=self._bytes_max
            )
        return data

    def decode(self, data: Buffer) -> T:
        """Decode by the user's serializer."""
        return self._own.decode(data)

    def misread(self, schema: str) -> str | None:
        """Any other schema is refused: only the user knows whether it can be read, and says so by an upcast."""
        return f"a serializer reads its own schema only, not {schema}"


def serializer_of(type_: type[T] | Serializer[T]) -> MsgspecSerializer[T] | BoundedSerializer[T]:
    """Return the serializer of a type, or the one given instead. Raises `InputError` if it cannot be stored."""
    return BoundedSerializer(type_) if is_serializer(type_) else MsgspecSerializer(cast("type[T]", type_))


def encode_many(serializer: Serializer[T], values: Sequence[T]) -> list[bytes]:
    """Return the bytes of each value. Raises `ValueEncodeError` for the first that cannot be encoded."""
    if isinstance(serializer, MsgspecSerializer):
        return serializer.encode_many(values)
    return list(map(serializer.encode, values))


def trimmed(many: Sequence[bytes]) -> Sequence[bytes]:
    """Return the same bytes, each in just the memory that it needs, unless all of them together are large.

    msgspec leaves room behind what it encodes, which stays allocated: 14 bytes take 80, and not 48; 1,000 take 1,540.
    """
    return _decode_bytes(_encode_bytes(many)) if sum(map(len, many)) <= TRIMMED_BYTES_MAX else many


def decode_many(serializer: Serializer[T], many: Sequence[bytes]) -> list[T]:
    """Return fresh values. Raises `ValueDecodeError` for the first that does not decode."""
    if isinstance(serializer, MsgspecSerializer):
        return serializer.decode_many(many)
    return list(map(serializer.decode, many))


def is_serializer(type_: type[T] | Serializer[T]) -> TypeGuard[Serializer[T]]:
    """True if it is a serializer, and not a type to make one for."""
    return not isinstance(type_, type) and all(hasattr(type_, name) for name in ("encode", "decode", "schema"))


def _as_array(many: Sequence[bytes]) -> bytes:
    """Return an array in MessagePack of items that are MessagePack already, with the shortest head, as msgspec does."""
    return _array_head(len(many)) + b"".join(many)


def _array_head(length: int) -> bytes:
    if length < 1 << 4:
        return bytes((0x90 | length,))
    if length < 1 << 16:
        return b"\xdc" + length.to_bytes(2, "big")
    return b"\xdd" + length.to_bytes(4, "big")


def _same_value(value: object, decoded: object) -> bool:
    """True if nothing of `value` is missing in `decoded`, such as the fields that a subclass adds.

    Called only if their bytes differ. Values without an equality of their own, or with NaN, are compared part by part.
    """
    return decoded == value or _same(*(msgspec.msgpack.decode(_encode_sorted(each)) for each in (value, decoded)))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        parts, others = cast("dict[Any, Any]", one), cast("dict[Any, Any]", other)
        return parts.keys() == others.keys() and all(_same(part, others[key]) for key, part in parts.items())
    if isinstance(one, list) and isinstance(other, list):
        items, other_items = cast("list[Any]", one), cast("list[Any]", other)
        return len(items) == len(other_items) and all(map(_same, items, other_items))
    return bool(one == other or (one != one and other != other))  # noqa: PLR0124  # both are NaN


def _name_of(type_: object) -> str:
    return type_.__name__ if isinstance(type_, type) else repr(type_)[:NAME_CHARACTERS_MAX]
