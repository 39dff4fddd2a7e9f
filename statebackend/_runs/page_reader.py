"""Reads pages of many parts, by numbers that count through the pages of all of them.

    part         A A A B B C ...
    number       0 1 2 3 4 5

Where the files of all that are wanted are mapped, their pages are copied by one call for a thousand of them.
"""

import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from statebackend._codec.columns import Flags, Integers, Octets
from statebackend._codec.pages import PageLayout, PageRows
from statebackend._runs.mapped import copied
from statebackend._runs.run_file import RunPart, WantedPages, proper, read_together


class PageReader:
    """The pages of `parts`, each of which is proved when it is first read."""

    def __init__(self, parts: Sequence[RunPart]) -> None:
        self._parts = parts
        first: Integers = np.cumsum([0, *(part.head.pages for part in parts)])
        self.first_pages: Final = first
        """The number of the first page of each part, and behind them the number of all pages."""
        self._checksums = np.concatenate([np.empty(0, np.uint32), *(part.tail.checksums for part in parts)])
        self._is_proved: Flags = np.zeros(len(self._checksums), np.bool_)  # of those that were copied

    def parts_of(self, pages: Integers) -> Integers:
        """The number of each page's part."""
        found: Integers = np.searchsorted(self.first_pages, pages, side="right") - 1
        return found

    def read(self, layout: PageLayout, pages: Integers, buffer: Octets) -> tuple[str, PageRows]:
        """The first row of each of these pages, of which neighbours may be the same; and the object they are from.

        They lie in `buffer` from then on. Raises as `read_together`.
        """
        distinct, where = _distinct(pages)
        read = buffer[: len(distinct) * layout.page_bytes]
        pieces = self._pieces(distinct)
        if not self._copied(distinct, pieces, layout.page_bytes, read):
            read_together([each.wanted(distinct, layout.page_bytes, read) for each in pieces])
        key = pieces[0].part.key
        return key, proper(key, lambda: layout.rows(read, where, np.zeros(len(where), np.int64)))

    def _pieces(self, pages: Integers) -> Sequence["_PagesOfPart"]:
        """Neighbours of one part together."""
        part_of = self.parts_of(pages)
        begins = np.flatnonzero(part_of[1:] != part_of[:-1]) + 1
        numbers = [int(part_of[0]), *part_of[begins].tolist()]
        firsts = self.first_pages[numbers].tolist()
        return [
            _PagesOfPart(self._parts[number], begin, end, first)
            for number, (begin, end), first in zip(
                numbers, pairwise([0, *begins.tolist(), len(pages)]), firsts, strict=True
            )
        ]

    def _copied(self, pages: Integers, pieces: Sequence["_PagesOfPart"], page_bytes: int, into: Octets) -> bool:
        """Copy these pages from where their files are mapped, and prove the new ones. False if that cannot be."""
        places: list[int] = []  # where page 0 would begin, if all lay as those of the part
        for part, _, _, first in pieces:
            if (address := part.file.address) is None:
                return False
            places.append(address + part.offset - first * page_bytes)
        fresh = np.flatnonzero(~self._is_proved[pages])
        if len(fresh):
            for each in pieces:
                each.part.hasten(each.numbers(pages)[~self._is_proved[each.of(pages)]])
        addresses = np.repeat(np.array(places, np.int64), [each.end - each.begin for each in pieces])
        addresses += pages * page_bytes
        if not copied(addresses, page_bytes, into):
            return False
        view, expected = into.data, self._checksums[pages[fresh]].tolist()
        for number, checksum in zip(fresh.tolist(), expected, strict=True):
            if zlib.crc32(view[number * page_bytes : (number + 1) * page_bytes]) != checksum:
                return False
        self._is_proved[pages[fresh]] = True
        return True


class _PagesOfPart(NamedTuple):
    """Pages of one part, from `begin` to `end` of all that are wanted. `first`: the number of the part's first page."""

    part: RunPart
    begin: int
    end: int
    first: int

    def of(self, pages: Integers) -> Integers:
        """These of the pages."""
        return pages[self.begin : self.end]

    def numbers(self, pages: Integers) -> Integers:
        """Their numbers within the part."""
        return self.of(pages) - self.first

    def wanted(self, pages: Integers, page_bytes: int, into: Octets) -> WantedPages:
        """As `read_together` takes them."""
        place = into[self.begin * page_bytes : self.end * page_bytes]
        return WantedPages(self.part, self.numbers(pages), place)


def _distinct(pages: Integers) -> tuple[Integers, Integers]:
    """The pages without those that their neighbour is, and the place of each page among them."""
    is_next = np.ones(len(pages), np.bool_)
    is_next[1:] = pages[1:] != pages[:-1]
    return pages[is_next], np.cumsum(is_next) - 1
