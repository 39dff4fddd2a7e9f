"""Filters of pages that were read, so that a key that is not there is rarely looked for in one of them again.

    page      of 84 rows       84 bytes of `octets`, or 42, or 21: of these bits each row sets three, or two, or one
    a key     is not in a page that is known and lacks one of its bits; else one time in thirty, six, or two and a half

It is kept where most look-ups find nothing: in layers, which have few of the keys, and in bases where keys are new.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from statebackend._codec.columns import Flags, Integers, Octets
from statebackend._codec.xxh64 import Hashes

SET_OF: Final = {8: 3, 4: 2, 2: 1}
"""How many bits each row sets, by how many there are for it."""
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)  # the hashes of a page have their beginning and their end in common
_EACH: Final = np.uint64(21)
_MASK: Final = np.uint64((1 << 21) - 1)


def bits_for(rows: int, bytes_max: int) -> int:
    """How many bits there is room for, for each of so many rows: 8, 4 or 2; 0 if there is not even for these."""
    return next((bits for bits in SET_OF if rows * bits <= 8 * bytes_max), 0)


class PageFilters:
    """Filters of pages, by number. `first_rows`: how many rows are before each, and behind them the number of all.

    `bits`: for each row, 8, 4 or 2.
    """

    def __init__(self, first_rows: Integers, bits: int = 8) -> None:
        self._first_rows = first_rows
        self._bits = bits
        self._is_known: Flags = np.zeros(len(first_rows) - 1, np.bool_)
        size = self._first_octets(np.array([len(first_rows) - 1]))
        self._octets: Octets = np.zeros(int(size[0]), np.uint8)  # resident as far as pages are known

    def which_may(self, pages: Integers, hashes: Hashes) -> Flags:
        """For each page and the hash of a key, if the key can be there."""
        may = ~self._is_known[pages]
        known = np.flatnonzero(~may)
        if len(known):
            first, rows = self._first_octets(pages[known]), self.counts(pages[known])
            found: Octets = np.full(len(known), 1, np.uint8)
            for place in self._bits_of(hashes[known], rows):
                found &= self._octets[first + (place >> 3)] >> (place & 7).astype(np.uint8)
            may[known] = found.view(np.bool_)
        return may

    def which_new(self, pages: Integers) -> Integers:
        """The places of those of these pages that are not known."""
        return np.flatnonzero(~self._is_known[pages])

    def counts(self, pages: Integers) -> Integers:
        """The number of rows that each of these pages should have."""
        counts: Integers = self._first_rows[pages + 1] - self._first_rows[pages]
        return counts

    def add(self, pages: Integers, hashes: Hashes) -> None:
        """Know these pages. `hashes`: those of all their rows, page by page."""
        counts = self.counts(pages)
        sizes = (counts * self._bits + 7) >> 3
        begins = np.cumsum(sizes) - sizes
        first_bits, rows = np.repeat(begins << 3, counts), np.repeat(counts, counts)
        bits: Flags = np.zeros(8 * int(sizes.sum()), np.bool_)
        for place in self._bits_of(hashes, rows):
            bits[first_bits + place] = True
        places = np.repeat(self._first_octets(pages) - begins, sizes)
        places += np.arange(len(places))
        self._octets[places] = np.packbits(bits, bitorder="little")
        self._is_known[pages] = True

    def _first_octets(self, pages: Integers) -> Integers:
        """Where the bits of each page begin: no byte is of two pages."""
        first: Integers = (self._first_rows[pages] * self._bits >> 3) + pages
        return first

    def _bits_of(self, hashes: Hashes, rows: Integers) -> Iterator[Integers]:
        """The bits of each key, in a page with so many rows."""
        mixed = hashes * _SPREAD
        for _ in range(SET_OF[self._bits]):
            share: Integers = (mixed & _MASK).view(np.int64)
            share *= rows * self._bits
            share >>= 21
            yield share
            mixed >>= _EACH
