"""Rows of a columnar state in pages of one size, in which a row is found and read without decoding the others.

    page    := rows:u32 zero:u32 hash:u64* group:u16* key+ value* valid* bytes* zero*        little-endian
    key, value := item* | place*       places: where each string begins in the page, and where the last one ends
    valid   := bits, the first in the lowest bit of the first byte       for each value column: 0 for a null
    bytes   := those of a column of strings, one behind the other

Rows are in order of key group, then of hash. Where an array begins follows from the number of rows alone, so the same
column of many rows in many pages is read by one call of numpy. Places take two bytes in pages below 64 KiB, else four.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from statebackend._codec.change_sets.changes import GROUP, KeyGroups
from statebackend._codec.columns import (
    Column,
    Fixed,
    Flags,
    Integers,
    Octets,
    Strings,
    gathered,
    items_at,
)
from statebackend._codec.page_arrays import PageArrays
from statebackend._codec.xxh64 import Hashes

PAGE_BYTES_MIN: Final = 4096
STRING: Final = "string"
_HEAD: Final = 8
_ROW: Final = 10  # hash and key group
_SHORT_PLACES_MAX: Final = 1 << 16
_ITEMS: Final[Mapping[str, str]] = {
    "bool": "?",
    **{f"{kind}{8 * octets}": f"{kind[0]}{octets}" for kind in ("int", "uint") for octets in (1, 2, 4, 8)},
    **{f"float{8 * octets}": f"f{octets}" for octets in (2, 4, 8)},
    **dict.fromkeys(("date32", "time32"), "i4"),
    **dict.fromkeys(("date64", "time64", "timestamp", "duration"), "i8"),
    "decimal128": "V16",
    **dict.fromkeys(("string", "large_string", "binary", "large_binary"), STRING),
}

Pages = Octets
"""Pages one behind the other."""


class StoredColumn(msgspec.Struct, frozen=True, array_like=True):
    """A column of the pages: its name, empty for a part of the keys; its type in words; and the items of its array."""

    name: str
    type: str
    item: str


class PageLayout:
    """How rows with these columns lie in pages of `page_bytes`."""

    def __init__(self, keys: Sequence[StoredColumn], columns: Sequence[StoredColumn], page_bytes: int) -> None:
        self.keys: Final = tuple(keys)
        self.columns: Final = tuple(columns)
        self.page_bytes: Final = page_bytes
        self._place = np.dtype("<u2" if page_bytes < _SHORT_PLACES_MAX else "<u4")
        self.arrays: Final = (*self.keys, *self.columns)  # by number: parts of keys may be equal, they have no names
        self._at: list[tuple[int, int]] = []  # where each array begins: a constant, and for each row
        constant, row = _HEAD, _ROW
        for each in self.arrays:
            self._at.append((constant, row))
            row += self.dtype_of(each).itemsize
            constant += self._place.itemsize if each.item == STRING else 0
        self._constant, self._row = constant, row

    @property
    def room(self) -> int:
        """The bytes of strings that a page has room for beside a row of its own."""
        return self.page_bytes - self._constant - self._row - 2 * len(self.columns)

    def dtype_of(self, column: StoredColumn) -> np.dtype[Any]:
        """The items of the column's array."""
        return self._place if column.item == STRING else dtype_of(column.item)

    def fixed_bytes(self, rows: Any) -> Any:
        """The bytes of so many rows, without those of strings."""
        return self._constant + self._row * rows + len(self.columns) * ((rows + 7) // 8)

    def begins(self, strings: Integers) -> Sequence[int]:
        """The row each page begins with, and the number of rows at the end. `strings`: the bytes of each row's.

        Raises `ValueError` for a row that is larger than a page.
        """
        eighth = len(self.columns)  # eighths of a byte for each row, rounded up once for each page
        sizes, room = 8 * (self._row + strings) + eighth, 8 * (self.page_bytes - self._constant - eighth)
        least, most = int(sizes.min(initial=room)), int(sizes.max(initial=0))
        if most > room:
            raise ValueError("a row is larger than a page")
        if least == most:
            return [*range(0, len(strings), room // most), len(strings)]
        ends = np.zeros(len(strings) + 1, np.int64)
        np.cumsum(sizes, out=ends[1:])
        reached, begins = ends.data, [0]
        while (begin := begins[-1]) < len(strings):
            beyond = min(len(strings) + 1, begin + room // least + 2)
            begins.append(bisect_right(reached, reached[begin] + room, begin, beyond) - 1)
        return begins

    # ------------------------------------------------------------------------------------------------------- writing

    def written(
        self,
        begins: Sequence[int],
        hashes: Hashes,
        groups: KeyGroups,
        keys: Sequence[Column],
        columns: Sequence[Column],
    ) -> Pages:
        """The pages of these rows, which are in order. `begins`: as `begins` gives them."""
        starts_with: Integers = np.asarray(begins, np.int64)
        counts: Integers = starts_with[1:] - starts_with[:-1]
        out = np.zeros(len(counts) * self.page_bytes, np.uint8)
        starts = np.arange(len(counts)) * self.page_bytes
        items_at(out, 4)[starts] = counts.astype("<u4").view("V4")
        arrays = PageArrays(out, self.page_bytes, counts)
        arrays.write(_HEAD, 0, np.ascontiguousarray(hashes, "<u8"))
        arrays.write(_HEAD, 8, np.ascontiguousarray(groups, "<u2"))
        free = self.fixed_bytes(counts)  # where in each page the next strings begin
        for (constant, of_row), column in zip(self._at, (*keys, *columns), strict=True):
            if isinstance(column, Fixed):
                arrays.write(constant, of_row, np.ascontiguousarray(column.values))
            else:
                free = self._write_strings(arrays, column, starts_with, free, constant=constant, of_row=of_row)
        self._write_valid(out, columns, counts, starts)
        return out

    def _write_strings(
        self, arrays: PageArrays, column: Strings, begins: Integers, free: Integers, *, constant: int, of_row: int
    ) -> Integers:
        """Write strings and their places. Returns where the strings of the next column begin."""
        octets, width = gathered(column.data, column.starts, column.lengths), self._place.itemsize
        ends = np.zeros(len(column.lengths) + 1, np.int64)
        np.cumsum(column.lengths, out=ends[1:])
        bounds = ends[begins]
        in_page = np.repeat(free - bounds[:-1], np.diff(begins))  # from places in `octets` to places in the page
        arrays.write(constant, of_row, (ends[:-1] + in_page).astype(self._place))
        arrays.write(constant + width, of_row, (ends[1:] + in_page).astype(self._place))
        out, beyond = arrays.pages, free + np.diff(bounds)
        starts = np.arange(len(free)) * self.page_bytes + free
        for to, begin, end in zip(starts.tolist(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            out[to : to + end - begin] = octets[begin:end]
        return beyond

    def _write_valid(self, out: Pages, columns: Sequence[Column], counts: Integers, starts: Integers) -> None:
        octets = (counts + 7) // 8
        begins = starts + self._constant + self._row * counts
        ends = begins + len(columns) * octets
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            out[begin:end] = 255
        for number, column in enumerate(columns):
            if column.valid is not None:
                first = 0
                for begin, count in zip((begins + number * octets).tolist(), counts.tolist(), strict=True):
                    packed = np.packbits(column.valid[first : first + count], bitorder="little")
                    out[begin : begin + len(packed)] = packed
                    first += count

    # ------------------------------------------------------------------------------------------------------- reading

    def counts(self, pages: Pages) -> Integers:
        """The number of rows in each page. Raises `ValueError` for one that no page has."""
        starts = np.arange(0, len(pages), self.page_bytes)
        counts: Integers = items_at(pages, 4)[starts].view("<u4").astype(np.int64)
        if len(counts) and (counts.min() < 1 or self.fixed_bytes(int(counts.max())) > self.page_bytes):
            raise ValueError("a page with an impossible number of rows")
        return counts

    def rows(self, pages: Pages, page: Integers, row: Integers) -> "PageRows":
        """These rows of these pages."""
        return PageRows(self, pages, page * self.page_bytes, row, self.counts(pages)[page])

    def all_rows(self, pages: Pages) -> "RowsInPages":
        """Every row, in order."""
        return AllRows(self, pages, self.counts(pages))

    def place_of(self, number: int) -> tuple[int, int]:
        """Where one of `arrays` begins in a page: a constant, and the bytes for each row of the page before it."""
        return self._at[number]

    @property
    def valid_at(self) -> tuple[int, int]:
        """Where the validity begins in a page, as `place_of`."""
        return self._constant, self._row


class RowsInPages(ABC):
    """Rows of pages, to be read column by column."""

    __slots__ = ("_pages", "layout")

    def __init__(self, layout: PageLayout, pages: Pages) -> None:
        self.layout: Final = layout
        self._pages = pages

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def _page_at(self) -> Integers:
        """Where the page of each row begins."""

    @abstractmethod
    def _items(self, constant: int, of_row: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """An item for each row, of an array that begins in its page behind these bytes, and these for each row."""

    @abstractmethod
    def _bits(self, number: int) -> Flags:
        """The validity of a value column."""

    def hashes(self) -> Hashes:
        """The hash of each row's key."""
        return self._items(_HEAD, 0, np.dtype("<u8"))

    def groups(self) -> KeyGroups:
        """The key group of each row."""
        return self._items(_HEAD, 8, np.dtype("<u2")).astype(GROUP)

    def keys(self) -> Sequence[Column]:
        """The keys, a column for each part. Strings share the memory of the pages."""
        return [self._array(number) for number in range(len(self.layout.keys))]

    def columns(self, names: Mapping[str, Any] | None = None) -> Mapping[StoredColumn, Column]:
        """The value columns, or those of `names`."""
        found: dict[StoredColumn, Column] = {}
        for number, each in enumerate(self.layout.columns):
            if names is None or each.name in names:
                valid = self._bits(number)
                column = self._array(len(self.layout.keys) + number)
                found[each] = column._replace(valid=None if valid.all() else valid)
        return found

    def _array(self, number: int) -> Column:
        column = self.layout.arrays[number]
        constant, of_row = self.layout.place_of(number)
        dtype = self.layout.dtype_of(column)
        values = self._items(constant, of_row, dtype)
        if column.item != STRING:
            return Fixed(values != 0 if dtype == np.bool_ else values)
        starts = values.astype(np.int64)
        ends = self._items(constant + dtype.itemsize, of_row, dtype).astype(np.int64)
        if (starts > ends).any() or ends.max(initial=0) > self.layout.page_bytes:
            raise ValueError("a string that is not in its page")
        return Strings(self._pages, self._page_at + starts, ends - starts)


class PageRows(RowsInPages):
    """Some rows of pages. `at`: where the page of each begins, which has `count` rows."""

    __slots__ = ("_at", "_bit_places", "_count", "_row")

    def __init__(self, layout: PageLayout, pages: Pages, at: Integers, row: Integers, count: Integers) -> None:
        super().__init__(layout, pages)
        self._at = at
        self._row = row
        self._count = count
        self._bit_places: tuple[Integers, Integers, Octets] | None = None

    def __len__(self) -> int:
        return len(self._row)

    def taken(self, chosen: Any) -> "PageRows":
        """The rows at these places."""
        return PageRows(self.layout, self._pages, self._at[chosen], self._row[chosen], self._count[chosen])

    def moved(self, steps: Integers | int) -> "PageRows":
        """The rows so many places behind these, in the same pages."""
        return PageRows(self.layout, self._pages, self._at, self._row + steps, self._count)

    @property
    def counts(self) -> Integers:
        """How many rows the page of each row has."""
        return self._count

    def hashes_from(self, count: int) -> Hashes:
        """The hashes of each row and those behind it, `count` in all, which may be more than the page has."""
        found: Hashes = items_at(self._pages, 8 * count)[self._at + _HEAD + 8 * self._row].view("<u8")
        return found.reshape(-1, count)

    @property
    def _page_at(self) -> Integers:
        return self._at

    def _items(self, constant: int, of_row: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        places = self._at + dtype.itemsize * self._row
        places += constant
        if of_row:
            places += of_row * self._count
        found: npt.NDArray[Any] = items_at(self._pages, dtype.itemsize)[places].view(dtype)
        return found

    def _bits(self, number: int) -> Flags:
        if self._bit_places is None:  # the same for all columns, but for so many bytes more for each
            constant, of_row = self.layout.valid_at
            first = self._at + constant + of_row * self._count + (self._row >> 3)
            self._bit_places = first, (self._count + 7) // 8, (self._row & 7).astype(np.uint8)
        first, size, bit = self._bit_places
        found: Flags = (self._pages[first + number * size] >> bit & 1).view(np.bool_)
        return found


class AllRows(RowsInPages):
    """All rows of some pages, which have `counts` rows."""

    __slots__ = ("_arrays", "_counts")

    def __init__(self, layout: PageLayout, pages: Pages, counts: Integers) -> None:
        super().__init__(layout, pages)
        self._counts = counts
        self._arrays = PageArrays(pages, layout.page_bytes, counts)

    def __len__(self) -> int:
        return int(self._counts.sum())

    @property
    def _page_at(self) -> Integers:
        return np.repeat(np.arange(len(self._counts)) * self.layout.page_bytes, self._counts)

    def _items(self, constant: int, of_row: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        return self._arrays.read(constant, of_row, dtype)

    def _bits(self, number: int) -> Flags:
        constant, of_row = self.layout.valid_at
        return self._arrays.bits(constant, of_row, number)


def dtype_of(item: str) -> np.dtype[Any]:
    """The type of items with this name. Raises `ValueError` or `TypeError` for a name that is none."""
    return np.dtype(item if item[0] in "V?" else f"<{item}")


def item_of(column: Column) -> str:
    """The name of the items of a column."""
    if isinstance(column, Strings):
        return STRING
    return "?" if column.values.dtype == np.bool_ else column.values.dtype.str.lstrip("<|")


def item_for(type_: str) -> str | None:
    """The name of the items in which values of a type lie, by its words; `None` for words that this release has not."""
    kind, _, particulars = type_.partition("(")
    if kind == "binary" and particulars:
        return f"V{particulars.removesuffix(')')}"
    return _ITEMS.get(kind)
