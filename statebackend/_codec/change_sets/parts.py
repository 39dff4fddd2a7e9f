"""The bytes of many changes: one part after the other.

    payload := part+
    part    := kind:u8 state_id:u32 records:u32 length:u32 body      little-endian; `body` has `length` bytes
    kind    := 1 changes of a keyed state (see `keyed_changes`)
             | 2 changes of a columnar state (see `column_changes`)
             | 3 rows of a columnar state in pages (see `paged_changes`)

A part is self-contained: its bytes alone are enough to replay the changes, to leave out some key groups, or to log them
again. The kinds of parts are in `KINDS`.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from statebackend._codec.change_sets.changes import Changes, Only
from statebackend._codec.change_sets.column_changes import ColumnChanges
from statebackend._codec.change_sets.keyed_changes import KeyedChanges
from statebackend._codec.change_sets.paged_changes import PagedChanges

KINDS: Final[Mapping[int, type[Changes]]] = {each.kind: each for each in (KeyedChanges, ColumnChanges, PagedChanges)}
"""The kinds of changes by their code. Codes are stored: never reuse one."""
PART_HEAD: Final = struct.Struct("<BIII")
"""The head of a part: kind, state id, records, and the bytes of the body."""


class UnknownKindError(ValueError):
    """A part of a kind that this release does not know."""


def encode_parts(changes: Iterable[Changes]) -> bytearray:
    """Return the bytes of `changes`, in order.

    The bytes of a part are freed before those of the next one are made: joined at the end, all would be there twice.
    """
    encoded = bytearray()
    for each in changes:
        _append(encoded, each)
    return encoded


class Parts:
    """Parts that follow each other, and their crc32: changes are encoded as they come."""

    def __init__(self) -> None:
        self.encoded: Final = bytearray()
        self.checksum = 0

    def add(self, changes: Changes) -> None:
        """Encode these changes behind the others."""
        begin = len(self.encoded)
        body = _append(self.encoded, changes)
        head = zlib.crc32(self.encoded[begin : begin + PART_HEAD.size], self.checksum)
        self.checksum = changes.checksum_of(body, head)


def _append(encoded: bytearray, changes: Changes) -> Sequence[bytes | bytearray | memoryview]:
    body = changes.body()
    encoded += PART_HEAD.pack(changes.kind, changes.state_id, changes.records, sum(map(len, body)))
    for chunk in body:
        encoded += chunk
    return body


def decode_parts(raw: bytes | bytearray | memoryview, only: Only | None = None) -> Iterator[Changes]:
    """Yield the changes, a part at a time: all of them, or `only` some.

    Raises `ValueError` if the bytes are not as `encode_parts` makes them, `UnknownKindError` for a kind of a later
    release, `ValueDecodeError` for a key that is no key.
    """
    view = memoryview(raw)
    offset = 0
    while offset < len(view):
        if offset + PART_HEAD.size > len(view):
            raise ValueError(f"the head of a part is cut off at {offset}")
        kind, state_id, records, length = PART_HEAD.unpack_from(view, offset)
        offset += PART_HEAD.size
        if offset + length > len(view):
            raise ValueError(f"a part is cut off at {offset}")
        if only is None or only.state_id == state_id:
            if (found := KINDS.get(kind)) is None:
                raise UnknownKindError(f"changes of an unknown kind, {kind}")
            body, columns = view[offset : offset + length], None if only is None else only.columns
            yield found.from_body(state_id, records, body, columns=columns)
        offset += length
