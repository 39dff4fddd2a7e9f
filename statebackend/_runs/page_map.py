"""Where the rows of one state lie: which page has the row of a key, over all the segments that hold the state.

    fence   0<<32   first page of base A, groups 0 to 62        a key is in the page of the last fence that is not
    fence   ...     each further page of A                      behind its order, or before that if the orders are equal
    fence  63<<32   first page of base B, group 63
    fence  64<<32   no page: no base has these groups

No two bases stand for one key group, so neither do two pages for one key. Immutable: a copy of a table shares it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.change_sets.column_changes import Typed
from statebackend._codec.change_sets.paged_changes import PagedChanges, orders_of
from statebackend._codec.columns import Flags, Integers, Octets, packed
from statebackend._codec.pages import PageLayout, PageRows, RowsInPages
from statebackend._columns.keys import HashedKeys
from statebackend._runs.in_page import Scratch, matching
from statebackend._runs.overlay_memory import OverlayMemory
from statebackend._runs.page_reader import AskedPages, PageReader
from statebackend._runs.run_file import RunPart, decoded, proper
from statebackend._tables.key_groups import groups_of_hashes
from statebackend._tables.placed import Placed, WantedEntries
from statebackend.ids import KeyGroupRange, all_key_groups, ranges_of
from statebackend.settings import KiB, MiB

if TYPE_CHECKING:
    from statebackend._runs.layers import Layers

READ_BYTES_MAX: Final = 8 * MiB
"""Pages that a look-up reads together."""
STREAMED_BYTES_MAX: Final = 512 * KiB
"""Pages of a part that are read together, one behind the other: at least one."""
NO_PAGE: Final = -1
_BITS: Final = 32


class PlacedPart(NamedTuple):
    """A part, and the key groups that its base stands for now, and whether these are all that it was written for."""

    part: RunPart
    key_groups: tuple[KeyGroupRange, ...]
    is_whole: bool

    def without(self, key_groups: frozenset[int]) -> "PlacedPart | None":
        """The part without these key groups, `None` if nothing is left of it."""
        groups = [group for each in self.key_groups for group in each]
        left = [group for group in groups if group not in key_groups]
        if len(left) == len(groups):
            return self
        return PlacedPart(self.part, ranges_of(left), is_whole=False) if left else None

    def num_rows(self) -> int:
        """The number of rows of these key groups. Unless that is all of them, pages are read."""
        if self.is_whole:
            return self.part.records
        return sum(
            self._rows_before((each.last + 1) << _BITS) - self._rows_before(each.first << _BITS)
            for each in self.key_groups
        )

    def _rows_before(self, order: int) -> int:
        """The number of rows of the part before those of this order."""
        part = self.part
        page = int(np.searchsorted(part.tail.orders, order, side="left")) - 1
        if page < 0:
            return 0
        read = np.empty(part.head.page_bytes, np.uint8)
        part.read(np.array([page]), read)
        rows = _all_rows(part, read)
        found = proper(part.key, lambda: orders_of(rows.hashes(), rows.groups()))
        return int(part.tail.begins[page]) + int(np.searchsorted(found, order, side="left"))


class FoundRows(NamedTuple):
    """Rows that a look-up has found, good until the next ones, and their numbers among the keys."""

    numbers: Integers
    rows: PageRows
    key: str

    def values(self) -> Mapping[str, Typed]:
        """The values, by column: they stay good. Raises `CorruptSegmentError`."""
        columns = proper(self.key, self.rows.columns)
        return {each.name: Typed(each.type, packed(column)) for each, column in columns.items()}


class TakesRuns(ABC):
    """A table that looks up in pages: `RunTable`, which needs an extra, so that not everybody can import it."""

    epoch: int
    """Number of copies made so far; of a copy, which one it is."""
    num_new: int | None
    """Of a copy: how many keys that have changed are in no run, if that is known."""

    memory: OverlayMemory
    """The memory that the table takes, alone or with others."""

    @property
    @abstractmethod
    def runs(self) -> "Layers":
        """The layers that it looks up in."""

    @property
    @abstractmethod
    def groups_in_no_run(self) -> frozenset[int]:
        """The key groups of rows that no run has."""

    has_strays = False
    """True if rows that were restored are in no run, though a base may have them: only a new base mends that."""

    @property
    @abstractmethod
    def has_too_many_drops(self) -> bool:
        """True if a base is wanted, so that dropped keys can be forgotten."""

    @abstractmethod
    def attach(self, parts: Sequence[PlacedPart]) -> None:
        """Have the rows of these parts over those that there are: first of the restored bases, then of each layer.

        Call it when the drops of the layer are applied, and before newer changes are.
        """

    @abstractmethod
    def replace(self, parts: Sequence[PlacedPart], key_groups: frozenset[int], copied: "TakesRuns") -> None:
        """Have these parts in place of what there was of `key_groups`, in all layers: they were made of that copy.

        No layer has a row outside these key groups: `Layers.num_rows_outside`.
        """

    @abstractmethod
    def put_layer(self, parts: Sequence[PlacedPart], layer: int, copied: "TakesRuns") -> None:
        """Have these parts in place of this layer and those over it: they were made of that copy."""

    @abstractmethod
    def placed_over(self, wanted: WantedEntries, layer: int) -> Placed:
        """The wanted rows that a new `layer` consists of. As `placed`, on a copy."""

    @abstractmethod
    def dropped(self, state_id: int, layer: int) -> Iterator[Changes]:
        """The changes that drop what is gone from below a new `layer`. On a copy."""


class _StreamedPages(NamedTuple):
    """Pages of a part that are streamed together. `order`: the least that a row of the groups can have in them."""

    part: RunPart
    groups: KeyGroupRange
    pages: range
    order: int

    def rows(self) -> PagedChanges | None:
        """The rows of the groups. Raises as `RunPart.read`."""
        part = self.part
        pages = np.empty(len(self.pages) * part.head.page_bytes, np.uint8)
        part.read(np.arange(self.pages.start, self.pages.stop), pages)
        return decoded(part, pages).of_groups((self.groups,))


class KeysInOrder(NamedTuple):
    """Keys to look up, by key group and hash: the number and order of each."""

    numbers: Integers
    keys: HashedKeys
    orders: Integers

    def taken(self, chosen: Any) -> "KeysInOrder":
        """Those at these places."""
        return KeysInOrder(self.numbers[chosen], self.keys.taken(chosen), self.orders[chosen])


def in_order_of_pages(keys: HashedKeys, max_parallelism: int) -> KeysInOrder:
    """These keys in order. Once for all layers: sorting takes as long as finding the pages of a layer."""
    orders = orders_of(keys.hashes, groups_of_hashes(keys.hashes, max_parallelism))
    numbers = np.argsort(orders)
    return KeysInOrder(numbers, keys.taken(numbers), orders[numbers])


class _Sought(NamedTuple):
    """As `KeysInOrder`, and the fence whose page should have each."""

    numbers: Integers
    keys: HashedKeys
    orders: Integers
    fences: Integers

    def taken(self, chosen: Any) -> "_Sought":
        """Those at these places."""
        return _Sought(self.numbers[chosen], self.keys.taken(chosen), self.orders[chosen], self.fences[chosen])


class PageMap:
    """The pages of one state. `parts` are in order within each base. `filter_bytes_max`: as of `PageReader`."""

    def __init__(
        self,
        parts: Sequence[PlacedPart] = (),
        *,
        max_parallelism: int,
        scratch: "Scratch | None" = None,
        filter_bytes_max: int = 8 * MiB,
    ) -> None:
        self.parts: Final = tuple(parts)
        self.max_parallelism: Final = max_parallelism
        self._scratch = Scratch() if scratch is None else scratch
        self._parts = [each.part for each in self.parts]
        self._reader = PageReader(self._parts, filter_bytes_max)
        self._layouts: list[PageLayout] = []
        self._layout_of = np.array([self._layout_number(part) for part in self._parts], np.int64)
        self._fences, self._pages, self._is_first = self._fenced(self._reader.first_pages)
        self.all_groups: Final = all_key_groups(max_parallelism)
        self.num_new: int | None = None
        """How many of its rows have a key that no layer below has, once that is counted (`Layers`)."""

    @cached_property
    def count(self) -> int:
        """The number of rows. Counting those of a base that stands for a part of its groups reads pages of it."""
        return sum(each.num_rows() for each in self.parts)

    def find(self, keys: KeysInOrder) -> Iterator[FoundRows]:
        """The rows of those keys that are there. Raises as `RunPart.read`."""
        if not self._parts or not len(keys.numbers):
            return
        largest = max(layout.page_bytes for layout in self._layouts)
        wanted = max(largest, min(READ_BYTES_MAX, len(keys.numbers) * largest))
        buffer = self._scratch.take(wanted)
        yield from self._find(keys, buffer)
        self._scratch.give(buffer)

    def _find(self, keys: KeysInOrder, buffer: Octets) -> Iterator[FoundRows]:
        sought = _Sought(*keys, np.searchsorted(self._fences, keys.orders, side="right") - 1)
        while len(sought.numbers):
            there = np.flatnonzero(self._pages[sought.fences] != NO_PAGE)
            sought = sought if len(there) == len(sought.numbers) else sought.taken(there)
            is_found = np.zeros(len(sought.numbers), np.bool_)
            may_be = self._which_may_be(sought)
            wanted = sought if len(may_be) == len(sought.numbers) else sought.taken(may_be)
            for begin, end, asked in self._asked_ahead(wanted):
                for found in self._find_in(wanted.taken(slice(begin, end)), buffer, asked):
                    numbers = begin + found.numbers
                    is_found[may_be[numbers]] = True
                    yield found._replace(numbers=wanted.numbers[numbers])
            left = np.flatnonzero(~is_found)
            if 2 * len(left) > len(is_found):
                self._reader.keep_filters()
            # The page before may end with rows of the same order.
            behind = sought.fences[left]
            again = (self._fences[behind] == sought.orders[left]) & ~self._is_first[behind]
            sought = sought.taken(left[again])._replace(fences=behind[again] - 1)

    def which(self, keys: HashedKeys) -> Flags:
        """For each key, if there is a row of it."""
        there = np.zeros(len(keys.hashes), np.bool_)
        for found in self.find(in_order_of_pages(keys, self.max_parallelism)):
            there[found.numbers] = True
        return there

    def stream(self, span: KeyGroupRange) -> Iterator[tuple[PagedChanges, int]]:
        """The rows of these key groups, in order, some pages at a time.

        With each the least order that the next ones can have, or one beyond the last.
        """
        pieces = sorted(self._pieces(span), key=lambda piece: piece.groups.first)
        orders = [each.order for each in pieces[1:]]
        for piece, beyond in zip(pieces, [*orders, (span.last + 1) << _BITS], strict=False):
            if (wanted := piece.rows()) is not None:
                yield wanted, beyond
            del wanted  # before the next pages are read

    def _pieces(self, span: KeyGroupRange) -> Iterator["_StreamedPages"]:
        """The steps of a stream of these key groups, in order within each base."""
        for key_groups, numbers in self._bases:
            wanted = list(filter(None, (each.intersection(span) for each in key_groups)))
            if not wanted:
                continue
            orders = self._orders_in(numbers)  # of all parts: a part ends where the next one begins
            for groups in wanted:
                begin, end = _places_of(groups, orders)
                first = 0
                for part in (self._parts[number] for number in numbers):
                    beyond = first + part.head.pages
                    together = max(1, STREAMED_BYTES_MAX // part.head.page_bytes)
                    for at in range(max(begin, first), min(end, beyond), together):
                        pages = range(at - first, min(end, beyond, at + together) - first)
                        yield _StreamedPages(part, groups, pages, max(groups.first << _BITS, int(orders[at])))
                    first = beyond

    @cached_property
    def _bases(self) -> Sequence[tuple[tuple[KeyGroupRange, ...], Sequence[int]]]:
        """The key groups of each base, and the numbers of its parts."""
        found: dict[tuple[str, tuple[KeyGroupRange, ...]], list[int]] = {}
        for number, placed in enumerate(self.parts):
            found.setdefault((placed.part.key, placed.key_groups), []).append(number)
        return [(key_groups, numbers) for (_, key_groups), numbers in found.items()]

    def _orders_in(self, numbers: Sequence[int]) -> Integers:
        return np.concatenate([self._parts[number].tail.orders for number in numbers])

    def _layout_number(self, part: RunPart) -> int:
        layout = part.head.layout()
        for number, each in enumerate(self._layouts):
            if (each.page_bytes, each.keys, each.columns) == (layout.page_bytes, layout.keys, layout.columns):
                return number
        self._layouts.append(layout)
        return len(self._layouts) - 1

    def _fenced(self, first: Integers) -> tuple[Integers, Integers, Flags]:
        """The fences in order, the page of each, and whether the page before is of other key groups."""
        fences: list[Integers] = [np.zeros(1, np.int64)]
        pages: list[Integers] = [np.full(1, NO_PAGE)]
        is_first: list[Flags] = [np.ones(1, np.bool_)]
        for key_groups, numbers in self._bases:
            orders = self._orders_in(numbers)
            own: Integers = np.concatenate(
                [np.arange(int(first[number]), int(first[number + 1])) for number in numbers]
            )
            for groups in key_groups:
                begin, end = _places_of(groups, orders)
                if begin < end:  # these pages, and then nothing
                    low, high = groups.first << _BITS, (groups.last + 1) << _BITS
                    fences += [np.maximum(orders[begin:end], low), np.array([high])]
                    pages += [own[begin:end], np.full(1, NO_PAGE)]
                    flags = np.zeros(end - begin + 1, np.bool_)
                    flags[0] = flags[-1] = True
                    is_first.append(flags)
        all_fences, all_pages = np.concatenate(fences), np.concatenate(pages)
        # Of equal ones those without a page come first, so that a base that begins there counts.
        order = np.lexsort((all_pages, all_fences))
        return all_fences[order], all_pages[order], np.concatenate(is_first)[order]

    def _together(self, fences: Integers) -> Iterator[tuple[int, int]]:
        """From where to where keys are looked up together: their pages fit into memory."""
        most = max(1, READ_BYTES_MAX // max(layout.page_bytes for layout in self._layouts))
        begins = np.flatnonzero(fences[1:] != fences[:-1]) + 1
        if len(fences):
            yield from pairwise([0, *begins[most - 1 :: most].tolist(), len(fences)])

    def _asked_ahead(self, sought: _Sought) -> Iterator[tuple[int, int, AskedPages | None]]:
        """As `_together`. While one piece is looked up in, the disk reads the pages of the next."""
        pieces = [*self._together(sought.fences)]
        if len(pieces) == 1 or len(self._layouts) > 1:
            yield from ((begin, end, None) for begin, end in pieces)
            return
        pages = self._pages[sought.fences]
        asked: list[AskedPages | None] = []
        for number, (begin, end) in enumerate(pieces):
            for first, last in pieces[len(asked) : number + 2]:
                asked.append(self._reader.ask(self._layouts[0], pages[first:last], asked[-1] if asked else None))
            yield begin, end, asked[number]

    def _which_may_be(self, sought: _Sought) -> Integers:
        """The places of those that may be in their pages, as far as that is known without reading them."""
        filters = self._reader.filters
        if filters is None:
            return np.arange(len(sought.numbers))
        return np.flatnonzero(filters.which_may(self._pages[sought.fences], sought.keys.hashes))

    def _find_in(self, sought: _Sought, buffer: Octets, asked: AskedPages | None) -> Iterator[FoundRows]:
        """The rows of these keys in their pages, one for each key, in order; numbers count from the first of them."""
        pages = self._pages[sought.fences]
        layouts = self._layout_of[self._reader.parts_of(pages)]
        for number, layout in enumerate(self._layouts):
            if not len(chosen := np.flatnonzero(layouts == number)):
                continue
            if len(chosen) < len(pages):
                wanted, read = sought.taken(chosen), pages[chosen]
            else:
                wanted, read = sought, pages
            key, rows = self._reader.read(layout, read, buffer, asked)
            low = self._fences[wanted.fences]
            high = self._fences.take(wanted.fences + 1, mode="clip")
            shares = (wanted.orders - low) / np.maximum(high - low, 1)
            match = partial(matching, rows, wanted.orders, wanted.keys.hashes, wanted.keys.parts, shares)
            found, steps = proper(key, match)
            if len(found):
                yield FoundRows(chosen[found], rows.taken(found).moved(steps), key)


def _places_of(groups: KeyGroupRange, orders: Integers) -> tuple[int, int]:
    """Of pages with these orders: the one that the groups begin in, and beyond those that begin within them."""
    begin = max(0, int(np.searchsorted(orders, groups.first << _BITS, side="left")) - 1)
    return begin, int(np.searchsorted(orders, (groups.last + 1) << _BITS, side="left"))


def _all_rows(part: RunPart, pages: Octets) -> RowsInPages:
    return proper(part.key, lambda: part.head.layout().all_rows(pages))


def in_order(parts: Sequence[RunPart]) -> bool:
    """True if rows of one state in these parts of a segment are in order throughout: they can be looked up."""
    orders = np.concatenate([part.tail.orders for part in parts])
    return bool((orders[:-1] <= orders[1:]).all())
