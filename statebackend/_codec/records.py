"""One change, one change set, and the bytes of many changes.

    changes := block+
    block   := length:u32 msgpack([change, ...])          1 to 4096 changes, little-endian length
    change  := [key_group, operation, state_id, key, data]

Changes come in blocks so that neither encoding nor decoding holds the interpreter for long: both keep the lock, and
an event loop in the same process waits meanwhile. The operations' codes are on disk: never reuse one.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import islice
from typing import Any, Final, cast

import msgspec

from statebackend.errors import ValueDecodeError
from statebackend.ids import Key, KeyGroupRange, SequenceNumber

BLOCK_CHANGES_MAX: Final = 4096
SCALARS: Final = frozenset({str, int, bytes})
"""A key of these types equals no key of another type; but `True == 1` and `(1.0,) == (1,)`."""
_LENGTH = struct.Struct("<I")
_SEQUENCES: Final = frozenset({list, tuple})


class Operation(IntEnum):
    """What a change does to its key. Only what a state logs today has a code."""

    CLEAR = 0
    SET = 1
    ADD = 2
    """Elements appended to what the key's list holds."""
    PUT = 3
    """One entry of the key's map."""
    REMOVE = 4
    """One entry of the key's map, gone."""


class StateChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One logged mutation. `data` is what the operation needs, empty for `CLEAR`. `key` is as the user gave it.

    `gc=False`: a change holds no cycle, and the collector must not walk a million of them.
    """

    key_group: int
    operation: int
    state_id: int
    key: Any  # Key; msgspec refuses a type with both str and bytes in it, and MessagePack tells them apart itself
    data: bytes = b""


class ChangeSet(msgspec.Struct, frozen=True):
    """The changes of one writer under one sequence number. Immutable once it is made; never empty."""

    log_id: str
    sequence_number: SequenceNumber
    changes: Sequence[StateChange]
    key_groups: KeyGroupRange
    """The smallest range that holds every change."""
    size_bytes: int
    """Estimate of the encoded size, before compression."""


def change_set(
    log_id: str, sequence_number: SequenceNumber, changes: Sequence[StateChange], size_bytes: int = 0
) -> ChangeSet:
    """A change set of `changes`, which must not be empty."""
    groups = [change.key_group for change in changes]
    return ChangeSet(log_id, sequence_number, changes, KeyGroupRange(min(groups), max(groups)), size_bytes)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[StateChange])


def encode_changes(changes: Iterable[StateChange]) -> bytes:
    """The bytes of `changes`, in order."""
    remaining = iter(changes)
    parts: list[bytes] = []
    while block := list(islice(remaining, BLOCK_CHANGES_MAX)):
        encoded = _encoder.encode(block)
        parts += (_LENGTH.pack(len(encoded)), encoded)
    return b"".join(parts)


def decode_changes(raw: bytes | bytearray | memoryview) -> Iterator[list[StateChange]]:
    """The changes, a block at a time. Raises `ValueError` where the bytes are not what `encode_changes` makes."""
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


def key_of(change: StateChange) -> Key:
    """The change's key as the user gave it: MessagePack has no tuples, so an array was one.

    Raises `ValueDecodeError` for what no user can have given.
    """
    return as_key(change.key)


def as_key(found: object) -> Key:
    """The key that MessagePack gave back as `found`. Raises `ValueDecodeError` for what no user can have given."""
    if type(found) in SCALARS:
        return cast("Key", found)
    if type(found) in _SEQUENCES and found:
        return tuple(map(as_key, cast("Sequence[object]", found)))
    raise ValueDecodeError("a stored key is not a key", type=type(found).__name__)
