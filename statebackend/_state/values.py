"""The values of one state: encoded with their version and time, decoded from whatever version they are of."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from statebackend._codec.cells import Cell, count_small, joined, pack, split, unpack
from statebackend._codec.messagepack import decode_any
from statebackend._codec.serializers import (
    BLOCK_VALUES,
    MsgspecSerializer,
    decode_many,
    encode_many,
    serializer_of,
    trimmed,
)
from statebackend._state.time.job_clock import NOT_BEGUN
from statebackend._state.time.ttl import TimeToLive
from statebackend.abc import Serializer
from statebackend.errors import InputError, ValueDecodeError

V = TypeVar("V")

Upcast = Callable[[Any], Any]
"""From a value of one version to the next version: builtins, or bytes if the state has a `Serializer` of its own.

The last one may return the value itself; with a `Serializer` one that is not of type bytes.
"""

SMALL_ROW_BYTES_MAX: Final = 256
"""A row up to this is decoded by a decoder for its count, so that there are at most 128 of them."""

ENCODED_AT_ONCE: Final = 1024
"""Values of a bulk write that are encoded together: few enough to stay in the processor's cache until they are used."""


def upcast(data: bytes, upcasts: Sequence[Upcast], *, is_msgpack: bool) -> Any:
    """The bytes of a value after these upcasts, or the value itself where the last one has made it of the user's bytes.

    Each gets what it would if the outcome of the one before had been stored. Raises what an upcast does.
    """
    value: Any = data
    for each in upcasts:
        value = msgspec.msgpack.encode(each(decode_any(value))) if is_msgpack else each(value)
    return value


class Values(Generic[V]):
    """Turns values into cells and back, with a serializer, upcasts, and a time-to-live.

    The version of a state is the number of its upcasts. A cell of an earlier version is upcast whenever it is read, and
    stored in the new version when it is next written: by nothing but a write, so that no base decides what it reads as.
    """

    __slots__ = (
        "_is_msgpack",
        "_plain",
        "_upcasts",
        "decode_plain",
        "encode",
        "is_plain",
        "serializer",
        "ttl",
        "version",
    )

    def __init__(
        self,
        type_: type[V] | Serializer[V],
        *,
        ttl: TimeToLive | None = None,
        migrate: Upcast | Sequence[Upcast] = (),
    ) -> None:
        upcasts = (migrate,) if callable(migrate) else migrate
        if not isinstance(cast("object", upcasts), Sequence) or not all(map(callable, upcasts)):
            raise InputError("`migrate` must be a function, or a sequence of one per version", migrate=repr(migrate))
        if not isinstance(cast("object", ttl), TimeToLive | None):
            raise InputError("`ttl` must be a `TimeToLive`: it needs a clock", ttl=repr(ttl))
        self._upcasts: Final = tuple(upcasts)
        self.serializer: Final = serializer_of(type_)
        self.version: Final = len(self._upcasts)
        self.ttl = ttl
        self._is_msgpack = isinstance(self.serializer, MsgspecSerializer)
        self.is_plain: Final = self._is_msgpack and not self.version and ttl is None
        """True if new cells are just what the serializer writes, without version or time."""
        self.encode: Callable[[V], bytes] = self.serializer.encode if self.is_plain else self._encode
        self._plain = self.serializer if isinstance(self.serializer, MsgspecSerializer) and self.is_plain else None
        self.decode_plain: Callable[[bytes], V] = self.serializer.decode if self.is_plain else self.decode
        """Quick `decode` for a cell that most likely has no version or time. If it raises, call `decode`."""

    def read_only(self) -> None:
        """Have no read count as a use from now on: it would be a change."""
        if self.ttl is not None and self.ttl.on_read:
            self.ttl = msgspec.structs.replace(self.ttl, on_read=False)

    def encode_many(self, values: Sequence[V]) -> list[bytes]:
        """The cells of many values, all with the same time."""
        many = encode_many(self.serializer, values)
        return many if self.is_plain else self._packed(many, self._stamp())

    def encode_to_keep(self, values: Sequence[V]) -> Iterator[bytes]:
        """As `encode_many`, but lazily, some at a time, and in less memory: for cells that go into a table as they are.

        Raises when it comes to a wrong value.
        """
        stamp = self._stamp()
        blocks = (values[at : at + ENCODED_AT_ONCE] for at in range(0, len(values), ENCODED_AT_ONCE))
        many = (encode_many(self.serializer, block) for block in blocks)
        return chain.from_iterable(trimmed(each) if self.is_plain else self._packed(each, stamp) for each in many)

    def decode_many(self, cells: Sequence[bytes]) -> list[V]:
        """Fresh values, as `decode` gives them one by one."""
        if self.is_plain:
            try:
                return decode_many(self.serializer, cells)
            except ValueDecodeError:  # some cell has a version or time, or is damaged: `decode` tells which
                pass
        return list(map(self.decode, cells))

    def decode_row(self, row: bytes | bytearray) -> list[V]:
        """Fresh values of a row of framed cells, as `decode` gives them one by one, expired or not."""
        if (plain := self._plain) is not None:
            try:
                if (found := joined(row)) is not None and found[0] <= BLOCK_VALUES:
                    return plain.decode_joined(*found)
                if len(row) <= SMALL_ROW_BYTES_MAX and (count := count_small(row)):
                    return plain.decode_row(count, row)
            except ValueDecodeError:  # as in `decode_many`
                pass
        return self.decode_many(split(bytes(row)))

    def decode(self, cell: bytes) -> V:
        """A fresh value, expired or not. Raises `ValueDecodeError`, also where an upcast fails."""
        return self._decode(unpack(cell))

    def touched(self, cell: bytes, now: float) -> bytes:
        """The cell with the time `now`; with the one that it has before the job's clock has begun."""
        found = unpack(cell)
        return pack(found.value, found.version, found.stamp if now == NOT_BEGUN else now)

    def _encode(self, value: V) -> bytes:
        return pack(self.serializer.encode(value), self.version, self._stamp())

    def _packed(self, many: Sequence[bytes], stamp: float | None) -> list[bytes]:
        return [pack(data, self.version, stamp) for data in many]

    def _stamp(self) -> float | None:
        return None if self.ttl is None else self.ttl.stamp()

    def _decode(self, cell: Cell) -> V:
        if cell.version == self.version:
            return self.serializer.decode(cell.value)
        if cell.version > self.version:
            raise ValueDecodeError(
                "a stored value is of a later version: declare the state with all of its upcasts",
                version_written=cell.version,
                version_declared=self.version,
            )
        try:
            value = upcast(cell.value, self._upcasts[cell.version :], is_msgpack=self._is_msgpack)
            return self.serializer.decode(value) if type(value) is bytes else value
        except Exception as error:
            raise ValueDecodeError(
                f"a stored value cannot be upcast: {error}",
                version_written=cell.version,
                version_declared=self.version,
            ) from error
