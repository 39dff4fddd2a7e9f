"""Arrays of all rows of many pages, written and read as blocks: they lie alike in pages with as many rows."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from statebackend._codec.columns import Flags, Integers, Octets, starts_of


class _Alike(NamedTuple):
    """The pages that have `each` as the number of their rows, and where these are among all rows."""

    each: int
    pages: Any
    rows: Any


class PageArrays:
    """Arrays of all rows of some pages: each begins in a page at a constant and some bytes for each row of the page.

    So they lie alike in pages with as many rows, which are read and written as one block.
    """

    def __init__(self, pages: Octets, page_bytes: int, counts: Integers) -> None:
        self.pages: Final = pages
        self._blocks = pages.reshape(-1, page_bytes)
        self._records = int(counts.sum())
        self._alike = list(_alike(counts))

    def write(self, constant: int, of_row: int, items: npt.NDArray[Any]) -> None:
        """Put an item of each row there."""
        width = items.dtype.itemsize
        octets = items.view(np.uint8).reshape(-1, width)
        for count, pages, rows in self._alike:
            begin = constant + of_row * count
            self._blocks[pages, begin : begin + width * count] = octets[rows].reshape(-1, width * count)

    def read(self, constant: int, of_row: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """The item of each row."""
        found: npt.NDArray[Any] = np.empty(self._records, dtype)
        for count, pages, rows in self._alike:
            begin = constant + of_row * count
            block = np.ascontiguousarray(self._blocks[pages, begin : begin + dtype.itemsize * count])
            found[rows] = block.view(dtype).reshape(-1)
        return found

    def bits(self, constant: int, of_row: int, number: int) -> Flags:
        """The bit of each row, of the bits with that number among those that begin there."""
        found: Flags = np.empty(self._records, np.bool_)
        for count, pages, rows in self._alike:
            size = (count + 7) // 8
            begin = constant + of_row * count + number * size
            block = np.ascontiguousarray(self._blocks[pages, begin : begin + size])
            found[rows] = np.unpackbits(block, axis=1, count=count, bitorder="little").reshape(-1).view(np.bool_)
        return found


def _alike(counts: Integers) -> Iterator[_Alike]:
    """All pages, those with as many rows together."""
    starts = starts_of(counts)
    distinct: list[int] = np.unique(counts).tolist()
    for count in distinct:
        pages = np.flatnonzero(counts == count)
        if len(pages) == len(counts):
            yield _Alike(count, slice(None), slice(None))
        elif pages[-1] - pages[0] + 1 == len(pages):  # neighbours
            first, start = int(pages[0]), int(starts[pages[0]])
            yield _Alike(count, slice(first, first + len(pages)), slice(start, start + count * len(pages)))
        else:
            places: Integers = np.add.outer(starts[pages], np.arange(count))
            yield _Alike(count, pages, places.reshape(-1))
