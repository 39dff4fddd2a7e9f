"""Reads pages of many parts, by numbers that count through the pages of all of them.

    part         A A A B B C ...
    number       0 1 2 3 4 5

Where the files of all that are wanted are mapped, their pages are copied by one call for a thousand of them. Those that
the system has dropped from memory are read from the disk all at once before.
"""

import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from threading import Thread
from typing import Final, NamedTuple

import numpy as np

from statebackend._codec.columns import Flags, Integers, Octets
from statebackend._codec.pages import PageLayout, PageRows
from statebackend._runs.far_pages import FarFile
from statebackend._runs.mapped import copied, hastened, may_hasten, which_absent
from statebackend._runs.page_filters import PageFilters, bits_for
from statebackend._runs.run_file import RunPart, WantedPages, proper, read_together


class PageReader:
    """The pages of `parts`, each of which is proved when it is first read. `filter_bytes_max`: for `filters`."""

    def __init__(self, parts: Sequence[RunPart], filter_bytes_max: int) -> None:
        self._parts = parts
        first: Integers = np.cumsum([0, *(part.head.pages for part in parts)])
        self.first_pages: Final = first
        """The number of the first page of each part, and behind them the number of all pages."""
        self.filters: PageFilters | None = None
        """Tell which keys pages cannot have, once `keep_filters` was called."""
        self._filter_bytes_max = filter_bytes_max
        self._records = sum(part.records for part in parts)
        # Where page 0 would begin in the file, if all lay as those of the part.
        self._offsets: Integers = np.array([part.offset for part in parts], np.int64)
        self._offsets -= first[:-1] * np.array([part.head.page_bytes for part in parts], np.int64)
        self._file_of = _numbered([part.key for part in parts])
        self._checksums = np.concatenate([np.empty(0, np.uint32), *(part.tail.checksums for part in parts)])
        self._is_proved: Flags = np.zeros(len(self._checksums), np.bool_)  # of those that were copied

    def keep_filters(self) -> None:
        """Remember from now on what pages that are read cannot have, if there is room for it."""
        bits = bits_for(self._records, self._filter_bytes_max)
        if self.filters is None and bits:
            rows = np.cumsum([0, *(part.records for part in self._parts)])
            begins = [part.tail.begins + row for part, row in zip(self._parts, rows.tolist(), strict=False)]
            self.filters = PageFilters(np.concatenate([*begins, rows[-1:]]), bits)

    def parts_of(self, pages: Integers) -> Integers:
        """The number of each page's part."""
        found: Integers = np.searchsorted(self.first_pages, pages, side="right") - 1
        return found

    def ask(self, layout: PageLayout, pages: Integers, after: "AskedPages | None") -> "AskedPages | None":
        """Have the system read these pages from the disk meanwhile, once it was asked for all those of `after`.

        `None` where that cannot be.
        """
        if not may_hasten():
            return None
        wanted = self._distinct(pages)
        located = self._located(wanted.pages, wanted.part_of, layout.page_bytes)
        if located is None or not len(located.absent):
            return located and AskedPages(wanted, located, None)
        places = located.places[located.absent]

        def run() -> None:
            if after is not None:
                after.waited()
            hastened(places, layout.page_bytes)

        thread = Thread(target=run, name="statebackend-ahead", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the container has as many as it may
            return None
        return AskedPages(wanted, located, thread)

    def read(
        self, layout: PageLayout, pages: Integers, buffer: Octets, asked: "AskedPages | None" = None
    ) -> tuple[str, PageRows]:
        """The first row of each of these pages, of which neighbours may be the same; and the object they are from.

        They lie in `buffer` from then on. `asked`: for the same pages. Raises as `read_together`.
        """
        distinct, where, part_of = self._distinct(pages) if asked is None else asked.wanted
        read = buffer[: len(distinct) * layout.page_bytes]
        if not self._copied(distinct, part_of, layout.page_bytes, read, asked):
            read_together([each.wanted(distinct, layout.page_bytes, read) for each in self._pieces(part_of)])
        key = self._parts[int(part_of[0])].key
        if self.filters is not None:
            proper(key, partial(self._remember, layout, distinct, read))
        return key, proper(key, lambda: layout.rows(read, where, np.zeros(len(where), np.int64)))

    def _distinct(self, pages: Integers) -> "_DistinctPages":
        """The pages without those that their neighbour is."""
        is_next = np.ones(len(pages), np.bool_)
        is_next[1:] = pages[1:] != pages[:-1]
        distinct = pages[is_next]
        return _DistinctPages(distinct, np.cumsum(is_next) - 1, self.parts_of(distinct))

    def _pieces(self, part_of: Integers) -> Sequence["_PagesOfPart"]:
        """Neighbours of one part together."""
        return [
            _PagesOfPart(self._parts[number], begin, end, int(self.first_pages[number]))
            for number, begin, end in _alike(part_of)
        ]

    def _copied(
        self, pages: Integers, part_of: Integers, page_bytes: int, into: Octets, asked: "AskedPages | None"
    ) -> bool:
        """Copy these pages from where their files are mapped, and prove the new ones. False if that cannot be."""
        located = self._located(pages, part_of, page_bytes) if asked is None or asked.waited() else asked.located
        if located is None:
            return False
        places, absent = located
        if len(absent) and not (may_hasten() and hastened(places[absent], page_bytes)):
            for part, begin, end in _alike(part_of[absent]):
                self._parts[part].hasten(pages[absent[begin:end]] - int(self.first_pages[part]))
        if not copied(places, page_bytes, into):
            return False
        fresh = np.flatnonzero(~self._is_proved[pages])
        view, expected = into.data, self._checksums[pages[fresh]].tolist()
        for number, checksum in zip(fresh.tolist(), expected, strict=True):
            if zlib.crc32(view[number * page_bytes : (number + 1) * page_bytes]) != checksum:
                return False
        self._is_proved[pages[fresh]] = True
        return True

    def _located(self, pages: Integers, part_of: Integers, page_bytes: int) -> "_LocatedPages | None":
        """Where these pages are; `None` if not all files are mapped."""
        places = self._offsets[part_of] + pages * page_bytes
        absent: list[Integers] = []
        for _, begin, end in _alike(self._file_of[part_of]):
            file = self._parts[int(part_of[begin])].file
            if isinstance(file, FarFile) or (address := file.address) is None:
                return None
            places[begin:end] += address
            absent.append(begin + np.flatnonzero(which_absent(places[begin:end], page_bytes)))
        return _LocatedPages(places, np.concatenate(absent))

    def _remember(self, layout: PageLayout, pages: Integers, read: Octets) -> None:
        """Put those of the pages that are new into the filters."""
        assert self.filters is not None
        new = self.filters.which_new(pages)
        new = new[layout.counts(read)[new] == self.filters.counts(pages[new])]
        if len(new):
            counts = self.filters.counts(pages[new])
            numbers = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
            self.filters.add(pages[new], layout.rows(read, np.repeat(new, counts), numbers).hashes())


class _DistinctPages(NamedTuple):
    """Pages, each once; the place among them of each that was given; and their parts."""

    pages: Integers
    where: Integers
    part_of: Integers


class _LocatedPages(NamedTuple):
    """The address of each page, and the numbers of those that are on the disk alone."""

    places: Integers
    absent: Integers


class AskedPages(NamedTuple):
    """Pages that the system was asked for."""

    wanted: _DistinctPages
    located: _LocatedPages
    thread: Thread | None
    """Asks for them; `None` if all were there."""

    def waited(self) -> bool:
        """Wait until all were asked for. False if none had to be; else some may have been dropped again since."""
        if self.thread is None:
            return False
        self.thread.join()
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


def _alike(numbers: Integers) -> Iterator[tuple[int, int, int]]:
    """Neighbours that are equal, together: their number, and from where to where they are."""
    begins = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    ends = [0, *begins.tolist(), len(numbers)]
    yield from ((int(numbers[begin]), begin, end) for begin, end in pairwise(ends))


def _numbered(names: Sequence[str]) -> Integers:
    """For each name a number, the same for equal ones."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)
