"""Rows of a columnar state in pages, as a base has them: they can be looked up where they are stored.

    body   := head_length:u32 head page+ tail                                            little-endian
    head   := msgpack([page_bytes, pages, [["", type, item], ...], [[name, type, item], ...]])
    item   := "i1" "i2" "i4" "i8" "u1" "u2" "u4" "u8" "f2" "f4" "f8" "?" | "V" and a number | "string"
    page   := see `_codec/pages.py`: `page_bytes` bytes, a power of two from 4096 on
    tail   := order:u64* begin:u32* checksum:u32*                                 one of each for each page
    order  := key group << 32 | hash >> 32        of the page's first row
    begin  := number of rows before the page
    checksum := crc32 of the page

Rows are in order of key group, then of hash, and there are no drops. The frame of such a part is not compressed. A
reader of all rows sees the same changes as in a part of kind 2; a look-up reads head and tail once, and then a page.
"""

import re
import struct
import zlib
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt

from statebackend._codec.change_sets.changes import PART_BYTES_MAX, Changes, KeyGroups
from statebackend._codec.change_sets.column_changes import ColumnChanges, Typed
from statebackend._codec.columns import Column, Fixed, Integers, Octets
from statebackend._codec.crc32_parts import Checksums
from statebackend._codec.pages import PAGE_BYTES_MIN, PageLayout, RowsInPages, StoredColumn, item_for, item_of
from statebackend._codec.xxh64 import Hashes

Orders = npt.NDArray[np.int64]

HEAD_LENGTH: Final = struct.Struct("<I")
_ITEM: Final = re.compile(r"[iu][1248]|f[248]|V[1-9]\d{0,8}|\?|string")
_ORDER: Final = np.dtype("<i8")
_BEGIN: Final = np.dtype("<u4")
_CHECKSUM: Final = np.dtype("<u4")
TAIL_BYTES_OF_PAGE: Final = _ORDER.itemsize + _BEGIN.itemsize + _CHECKSUM.itemsize
"""Each page adds so many to the tail."""


class PagesHead(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The head of a body: how rows lie in its pages, and how many pages there are."""

    page_bytes: int
    pages: int
    keys: tuple[StoredColumn, ...]
    columns: tuple[StoredColumn, ...]

    def layout(self) -> PageLayout:
        """How rows lie in a page."""
        return _layout_of(self.keys, self.columns, self.page_bytes)

    @property
    def tail_bytes(self) -> int:
        """The size of the tail."""
        return self.pages * TAIL_BYTES_OF_PAGE

    def encoded(self) -> bytes:
        """The head, behind its length."""
        raw = msgspec.msgpack.encode(self)
        return HEAD_LENGTH.pack(len(raw)) + raw


_decode_head: Final = msgspec.msgpack.Decoder(PagesHead).decode
_layout_of: Final = lru_cache(maxsize=256)(PageLayout)


class PagedChanges(ColumnChanges):
    """Rows set, with the hashes of their keys, and none dropped; in any order in memory, sorted when stored."""

    __slots__ = ()

    kind = 3

    def body(self) -> Sequence[bytes | bytearray | memoryview]:
        laid = self.in_pages()
        return [laid.head.encoded(), laid.pages.data, laid.tail.encoded()]

    def in_pages(self) -> "LaidRows":
        """The rows in order, as they lie in the smallest pages that hold each of them."""
        assert self.hashes is not None, "rows in pages have hashes"
        assert not self.drops, "rows in pages are not dropped"
        hashes, groups = self.hashes, self.groups
        keys = [each.column for each in self.keys]
        columns = [each.column for each in self.columns.values()]
        orders = orders_of(hashes, groups)
        if (orders[1:] <= orders[:-1]).any():
            places = places_in_order(orders, hashes)
            hashes, groups, orders = hashes[places], groups[places], orders[places]
            keys, columns = [each.taken(places) for each in keys], [each.taken(places) for each in columns]
        stored_keys = tuple(StoredColumn("", each.type, item_of(each.column)) for each in self.keys)
        stored = tuple(StoredColumn(name, each.type, item_of(each.column)) for name, each in self.columns.items())
        strings = _string_bytes((*keys, *columns), len(groups))
        layout = layout_for(stored_keys, stored, int(strings.max()))
        begins = layout.begins(strings)
        pages = layout.written(begins, hashes, groups, keys, columns)
        head = PagesHead(layout.page_bytes, len(begins) - 1, stored_keys, stored)
        first = np.asarray(begins[:-1], np.int64)
        tail = PagesTail(orders[first], first, checksums_of(pages, layout.page_bytes))
        return LaidRows(head, pages, tail, int(orders[-1]))

    @classmethod
    def read_body(
        cls, state_id: int, records: int, body: memoryview, *, columns: Collection[str] | None = None
    ) -> Iterator[Self]:
        (length,) = HEAD_LENGTH.unpack_from(body)
        head = read_head(body[HEAD_LENGTH.size : HEAD_LENGTH.size + length])
        begin, end = HEAD_LENGTH.size + length, len(body) - head.tail_bytes
        if end - begin != head.pages * head.page_bytes:
            raise ValueError(f"{end - begin} bytes where there are {head.pages} pages of {head.page_bytes}")
        layout, found = head.layout(), 0
        together = max(1, PART_BYTES_MAX // head.page_bytes) * head.page_bytes
        for at in range(begin, end, together):
            rows = layout.all_rows(np.frombuffer(body[at : min(end, at + together)], np.uint8).copy())
            found += len(rows)
            yield cls.of_rows(state_id, rows, columns=columns)
        if found != records:
            raise ValueError(f"{found} rows where the part says {records}")

    @classmethod
    def of_rows(cls, state_id: int, rows: RowsInPages, *, columns: Collection[str] | None = None) -> Self:
        """The changes that set rows of pages. Strings share the memory of the pages. Raises as `read_body`."""
        groups = rows.groups()
        if groups.min(initial=0) < 0:
            raise ValueError("a key group that is none")
        layout, wanted = rows.layout, None if columns is None else dict.fromkeys(columns)
        return cls(
            state_id,
            groups,
            [Typed(each.type, column) for each, column in zip(layout.keys, rows.keys(), strict=True)],
            {each.name: Typed(each.type, column) for each, column in rows.columns(wanted).items()},
            hashes=rows.hashes(),
        )


def is_paged(changes: Changes) -> bool:
    """True for rows in pages."""
    return isinstance(changes, PagedChanges)


def read_head(data: bytes | memoryview) -> PagesHead:
    """The head of a body. Raises `ValueError` for one that no writer makes."""
    return _read_head(bytes(data))


@lru_cache(maxsize=1024)
def _read_head(data: bytes) -> PagesHead:
    """Of all parts of a state only the numbers of pages differ, and mostly not even these."""
    head = _decode_head(data)
    names = [each.name for each in head.columns]
    if head.page_bytes < PAGE_BYTES_MIN or head.page_bytes & (head.page_bytes - 1) or head.pages < 1 or not head.keys:
        raise ValueError("the head of pages contradicts itself")
    if len(set(names)) < len(names) or any(_ITEM.fullmatch(each.item) is None for each in (*head.keys, *head.columns)):
        raise ValueError("two columns of one name, or a column of unknown items")
    for each in (*head.keys, *head.columns):
        if each.item != (item_for(each.type) or each.item):
            raise ValueError(f"items {each.item} in a column of the type {each.type}")
    if head.layout().fixed_bytes(1) > head.page_bytes:
        raise ValueError("pages in which no row fits")
    return head


class PagesTail(NamedTuple):
    """For each page the order of its first row, the number of rows before it, and its checksum."""

    orders: Orders
    begins: Integers
    checksums: Checksums

    def encoded(self) -> bytes:
        """One array behind the other."""
        items = (self.orders, _ORDER), (self.begins, _BEGIN), (self.checksums, _CHECKSUM)
        return b"".join(array.astype(item).tobytes() for array, item in items)


class LaidRows(NamedTuple):
    """Rows in pages that follow each other, and the order of the last one."""

    head: PagesHead
    pages: Octets
    tail: PagesTail
    last: int


def read_tail(data: bytes | memoryview, head: PagesHead, records: int) -> PagesTail:
    """The tail of a body with so many rows. Raises `ValueError` for one that no writer makes."""
    count = head.pages
    orders = np.frombuffer(data, _ORDER, count).astype(np.int64)
    begins = np.frombuffer(data, _BEGIN, count, count * _ORDER.itemsize).astype(np.int64)
    checksums = np.frombuffer(data, _CHECKSUM, count, count * (_ORDER.itemsize + _BEGIN.itemsize)).astype(np.uint32)
    if (orders[:-1] > orders[1:]).any() or orders[0] < 0 or begins[0] or (np.diff(begins, append=records) < 1).any():
        raise ValueError("pages that are not in order")
    return PagesTail(orders, begins, checksums)


def orders_of(hashes: Hashes, groups: KeyGroups) -> Orders:
    """The order of rows in pages: by key group, then by the upper half of the hash."""
    orders = groups.astype(np.int64) << 32
    orders |= (hashes >> np.uint64(32)).view(np.int64)
    return orders


def places_in_order(orders: Orders, hashes: Hashes, *, kind: Literal["stable", "quicksort"] = "stable") -> Integers:
    """The places of rows as pages have them, by order, then by hash. `kind`: stable for few runs that are in order."""
    places: Integers = np.argsort(orders, kind=kind)
    in_order = orders[places]
    alike = np.flatnonzero(in_order[1:] == in_order[:-1])
    if len(alike):
        found = hashes[places]
        if (found[alike] > found[alike + 1]).any():
            some = np.union1d(alike, alike + 1)
            rows = places[some]
            places[some] = rows[np.lexsort((rows, hashes[rows], in_order[some]))]
    return places


def layout_for(keys: Sequence[StoredColumn], columns: Sequence[StoredColumn], strings: int) -> PageLayout:
    """The layout in the smallest pages that hold a row with so many bytes of strings."""
    page_bytes = PAGE_BYTES_MIN
    while (layout := PageLayout(keys, columns, page_bytes)).room < strings:
        page_bytes *= 2
    return layout


def checksums_of(pages: Octets, page_bytes: int) -> Checksums:
    """The crc32 of each page."""
    view = pages.data
    found = [zlib.crc32(view[at : at + page_bytes]) for at in range(0, len(view), page_bytes)]
    return np.array(found, np.uint32)


def _string_bytes(columns: Sequence[Column], count: int) -> Integers:
    """The bytes of each row's strings."""
    total = np.zeros(count, np.int64)
    for each in columns:
        if not isinstance(each, Fixed):
            total += each.lengths
    return total
