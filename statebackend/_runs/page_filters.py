"""Filters of pages that were read, so that a key that is not there is rarely looked for in one of them again.

    page      of 84 rows       84 bytes of `octets`, where its rows are among all: of these bits each row sets three
    a key     is not in a page that is known and lacks one of its three bits; else one time in thirty

It is kept where most look-ups find nothing: in layers, which have few of the keys, and in bases where keys are new.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from statebackend._codec.columns import Flags, Integers, Octets
from statebackend._codec.xxh64 import Hashes

BITS: Final = 3
"""Set for each row, of eight."""
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)  # the hashes of a page have their beginning and their end in common
_EACH: Final = np.uint64(21)
_MASK: Final = np.uint64((1 << 21) - 1)


class PageFilters:
    """Filters of pages, by number. `first_rows`: how many rows are before each, and behind them the number of all."""

    def __init__(self, first_rows: Integers) -> None:
        self._first_rows = first_rows
        self._is_known: Flags = np.zeros(len(first_rows) - 1, np.bool_)
        self._octets: Octets = np.zeros(int(first_rows[-1]), np.uint8)  # resident as far as pages are known

    def which_may(self, pages: Integers, hashes: Hashes) -> Flags:
        """For each page and the hash of a key, if the key can be there."""
        may = ~self._is_known[pages]
        known = np.flatnonzero(~may)
        if len(known):
            first = self._first_rows[pages[known]]
            rows = self._first_rows[pages[known] + 1] - first
            found: Octets = np.full(len(known), 1, np.uint8)
            for place in _bits_of(hashes[known], rows):
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
        begins = np.cumsum(counts) - counts
        first_bits, rows = np.repeat(begins << 3, counts), np.repeat(counts, counts)
        bits: Flags = np.zeros(8 * len(hashes), np.bool_)
        for place in _bits_of(hashes, rows):
            bits[first_bits + place] = True
        places = np.repeat(self._first_rows[pages] - begins, counts)
        places += np.arange(len(hashes))
        self._octets[places] = np.packbits(bits, bitorder="little")
        self._is_known[pages] = True


def _bits_of(hashes: Hashes, rows: Integers) -> Iterator[Integers]:
    """The bits of each key, in a page with so many rows."""
    mixed = hashes * _SPREAD
    for _ in range(BITS):
        share: Integers = (mixed & _MASK).view(np.int64)
        share *= rows
        share >>= 18  # eight bits for each row
        yield share
        mixed >>= _EACH
