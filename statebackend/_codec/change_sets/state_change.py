"""One change as an object, for tests and the command line, and the rows in which early releases stored changes.

    rows   := block+
    block  := length:u32 msgpack([change, ...])          1 to 4096 changes, little-endian length
    change := [key_group, operation, state_id, key, data]

Rows are only read; what is written now is in `parts`. The codes of the operations are stored: never reuse one.
"""

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, Final, cast

import msgspec

from statebackend.errors import ValueDecodeError
from statebackend.ids import Key

SCALARS: Final = frozenset({str, int, bytes})
"""A key of exactly one of these types equals no key of another type. Others may: `True == 1` and `(1.0,) == (1,)`."""
_LENGTH = struct.Struct("<I")
_SEQUENCES: Final = frozenset({list, tuple})


class Operation(IntEnum):
    """The effect of a change on its key. Only operations that states log have a code."""

    CLEAR = 0
    SET = 1
    ADD = 2
    """Elements are appended to the key's list."""
    PUT = 3
    """One entry of the key's map is set."""
    REMOVE = 4
    """One entry of the key's map is removed."""


class StateChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One logged mutation. `data` is what the operation needs, empty for `CLEAR`. `key` is as the user gave it.

    `gc=False`: a change is never part of a cycle, and the collector must not walk a million of them.
    """

    key_group: int
    operation: int
    state_id: int
    key: Any  # Key: msgspec refuses a union of str and bytes, which MessagePack tells apart by itself
    data: bytes = b""


_decoder = msgspec.msgpack.Decoder(list[StateChange])


def decode_rows(raw: bytes | bytearray | memoryview) -> Iterator[list[StateChange]]:
    """Yield the changes, a block at a time. Raises `ValueError` for bytes that are no rows."""
    view = memoryview(raw)
    offset = 0
    while offset < len(view):
        if offset + _LENGTH.size > len(view):
            raise ValueError(f"block length cut off at {offset}")
        (length,) = _LENGTH.unpack_from(view, offset)
        offset += _LENGTH.size
        if offset + length > len(view):
            raise ValueError(f"block cut off at {offset}")
        yield _decoder.decode(view[offset : offset + length])
        offset += length


def as_key(found: object) -> Key:
    """Return as a key what MessagePack decoded as `found`. Raises `ValueDecodeError` if it is no key."""
    if type(found) in SCALARS:
        return cast("Key", found)
    if type(found) in _SEQUENCES and found:
        return tuple(map(as_key, cast("Sequence[object]", found)))
    raise ValueDecodeError("a stored key is not a key", type=type(found).__name__)
