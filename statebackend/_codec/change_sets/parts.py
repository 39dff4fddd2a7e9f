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
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
import numpy as np

from statebackend._codec.change_sets.changes import Changes, Only
from statebackend._codec.change_sets.column_changes import ColumnChanges
from statebackend._codec.change_sets.keyed_changes import KeyedChanges
from statebackend._codec.change_sets.paged_changes import LaidRows, PagedChanges, PagesHead, PagesTail
from statebackend._codec.crc32_parts import combined, of_pages

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
    """Parts that follow each other, and their crc32: changes are encoded as they come.

    Rows in pages that come in order become one part, however often some are added: to open it, one tail is read.
    """

    def __init__(self) -> None:
        self._encoded = bytearray()
        self._checksum = 0
        self._pages: _PartOfPages | None = None  # the last part, while it grows

    @property
    def size_bytes(self) -> int:
        """Bytes of what was added, without the tail of the last part."""
        return len(self._encoded)

    def add(self, changes: Changes) -> None:
        """Encode these changes behind the others."""
        if isinstance(changes, PagedChanges):
            rows = changes.in_pages()
            if self._pages is None or not self._pages.goes_on_with(changes.state_id, rows):
                self._end_part()
                self._pages = _PartOfPages(self._encoded, changes.state_id, rows.head)
            self._pages.add(rows, changes.records)
        else:
            self._end_part()
            begin = len(self._encoded)
            _append(self._encoded, changes)
            self._checksum = zlib.crc32(memoryview(self._encoded)[begin:], self._checksum)

    def ended(self) -> tuple[bytearray, int]:
        """The bytes of all parts, and their crc32. Nothing can be added then."""
        self._end_part()
        return self._encoded, self._checksum

    def _end_part(self) -> None:
        if self._pages is not None:
            self._checksum, self._pages = self._pages.ended(self._checksum), None


class _PartOfPages:
    """A part at the end of `encoded` that rows in pages are added to. What its head says is known at the end only."""

    def __init__(self, encoded: bytearray, state_id: int, head: PagesHead) -> None:
        self._encoded = encoded
        self._begin = len(encoded)
        self._state_id = state_id
        self._head = head
        self._tails: list[PagesTail] = []
        self._last = self._pages = self._records = 0
        self._front_bytes = PART_HEAD.size + len(head.encoded())
        encoded += bytes(self._front_bytes)

    def goes_on_with(self, state_id: int, rows: LaidRows) -> bool:
        """True if these can be added: they lie alike, and come later in the order."""
        alike = msgspec.structs.replace(rows.head, pages=self._head.pages) == self._head
        return state_id == self._state_id and alike and int(rows.tail.orders[0]) >= self._last

    def add(self, rows: LaidRows, records: int) -> None:
        """Add the pages of so many rows."""
        self._encoded += rows.pages.data
        self._tails.append(rows.tail._replace(begins=rows.tail.begins + self._records))
        self._last, self._pages, self._records = rows.last, self._pages + rows.head.pages, self._records + records

    def ended(self, checksum: int) -> int:
        """Write head and tail. Returns the crc32 of the part, on from that of what lies before it."""
        tail = PagesTail(*map(np.concatenate, zip(*self._tails, strict=True)))
        head, end = msgspec.structs.replace(self._head, pages=self._pages), tail.encoded()
        raw, size_bytes = head.encoded(), head.pages * head.page_bytes
        length = len(raw) + size_bytes + len(end)
        front = PART_HEAD.pack(PagedChanges.kind, self._state_id, self._records, length) + raw
        self._encoded[self._begin : self._begin + self._front_bytes] = front
        self._encoded += end
        (of_all,) = of_pages(tail.checksums, head.page_bytes, [head.pages])
        return zlib.crc32(end, combined(zlib.crc32(front, checksum), of_all, size_bytes))


def _append(encoded: bytearray, changes: Changes) -> None:
    body = changes.body()
    encoded += PART_HEAD.pack(changes.kind, changes.state_id, changes.records, sum(map(len, body)))
    for chunk in body:
        encoded += chunk


def decode_parts(raw: bytes | bytearray | memoryview, only: Only | None = None) -> Iterator[Changes]:
    """Yield the changes, a part or some of its pages at a time: all of them, or `only` some.

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
            yield from found.read_body(state_id, records, body, columns=columns)
        offset += length
