"""The entries of a table by key group, for a base: found once, then read group by group."""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress, islice
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from statebackend._codec.change_sets.changes import GROUP, PART_BYTES_MAX, Changes, KeyGroups
from statebackend._codec.change_sets.encoded_items import EncodedItems
from statebackend._codec.change_sets.keyed_changes import KeyedChanges, key_columns
from statebackend._codec.columns import Flags, Integers
from statebackend._tables.key_groups import OwnedKeys
from statebackend.ids import Key, KeyGroupRange

PLACED_AT_ONCE: Final = 2048
"""Keys whose groups are computed between two pauses."""
REBUILT_AT_ONCE: Final = 2048
"""Entries of a base that are encoded together: they stay in the processor's cache meanwhile."""
GATHERED_AT_ONCE: Final = 4096
"""Entries of a base that are gathered together where they are encoded already."""
COPIED_BYTES_MAX: Final = 256
"""Mean bytes up to which entries are encoded beforehand: they take that much memory while the base is written."""

IsLive = Callable[[bytes], bool]
"""True for a cell that goes into a base: it has not expired. A base holds each cell as it was written."""


class WantedEntries(NamedTuple):
    """The entries of one state that a base is made of: those of `groups`, in ascending order.

    `pause` is called some hundred times for a million keys.
    """

    state_id: int
    keys: OwnedKeys
    groups: Sequence[int]
    is_live: IsLive | None = None
    pause: Callable[[], None] = lambda: None

    def which(self) -> Flags:
        """For each key group up to the last one owned, true if it is wanted."""
        is_wanted = np.zeros(self.keys.key_groups.last + 1, dtype=np.bool_)
        is_wanted[self.within(self.keys.key_groups)] = True
        return is_wanted

    def within(self, span: KeyGroupRange) -> Sequence[int]:
        """Those of the groups that are in `span`, which are found without asking for each."""
        return self.groups[bisect_left(self.groups, span.first) : bisect_right(self.groups, span.last)]


class Placed(ABC):
    """The entries of some key groups of a table, to be read group by group."""

    @abstractmethod
    def changes(self, span: KeyGroupRange) -> Iterator[Changes]:
        """Changes that rebuild from nothing the entries of those of these groups that were asked for, in order."""


class PlacedInMemory(Placed):
    """`sorted_groups`: the group of each entry, ascending. `changes_of`: the changes of entries from one to another."""

    def __init__(
        self, sorted_groups: KeyGroups, changes_of: Callable[[int, int], Iterable[Changes]], *, at_once: int
    ) -> None:
        self._groups = sorted_groups
        self._changes_of = changes_of
        self._at_once = at_once

    def changes(self, span: KeyGroupRange) -> Iterator[Changes]:
        start, end = np.searchsorted(self._groups, (span.first, span.last + 1)).tolist()
        for at in range(start, end, self._at_once):
            yield from self._changes_of(at, min(end, at + self._at_once))


def placed_as_bytes(
    entries: Mapping[Key, Any],
    data_of: Callable[[Sequence[Any], IsLive | None], Sequence[bytes | bytearray | None] | None],
    wanted: WantedEntries,
) -> PlacedInMemory | None:
    """Entries of which each is rebuilt by setting its key: they are encoded in the order in which they lie.

    `data_of`: as `EntryTable.set_data`. Returns `None` if keys are of several types, or entries are large.
    """
    of_all, parts, data = [np.empty(0, GROUP)], list[EncodedItems](), EncodedItems()
    is_wanted, arity, count = wanted.which(), -1, 0
    remaining_keys, remaining_entries = iter(entries.keys()), iter(entries.values())
    while keys := list(islice(remaining_keys, PLACED_AT_ONCE)):
        wanted.pause()
        found = data_of(list(islice(remaining_entries, PLACED_AT_ONCE)), wanted.is_live)
        if found is None:
            return None
        groups = wanted.keys.placed(keys)
        chosen = is_wanted[groups]
        if wanted.is_live is not None:
            chosen &= np.fromiter((each is not None for each in found), np.bool_, len(found))
        if not chosen.all():
            groups, keys, found = groups[chosen], list(compress(keys, chosen)), list(compress(found, chosen))
        if not keys:
            continue
        columns = key_columns(keys)
        if arity < 0:
            arity, parts = columns.arity, [EncodedItems() for _ in columns.parts]
        count += len(keys)
        are_alike = columns.arity == arity and all(map(EncodedItems.append, parts, columns.parts))
        if not are_alike or not data.append(found) or data.size_bytes > COPIED_BYTES_MAX * count:
            return None
        of_all.append(groups)
    for each in (*parts, data) if count else ():
        wanted.pause()
        each.end()
    wanted.pause()
    unsorted = np.concatenate(of_all)
    order = np.argsort(unsorted, kind="stable")
    sorted_groups = unsorted[order]

    def changes_of(start: int, end: int) -> Iterator[Changes]:
        columns = [each.array(order[start:end]) for each in (*parts, data)]
        changes = KeyedChanges.of_arrays(wanted.state_id, sorted_groups[start:end], arity, columns)
        yield from changes.cut(PART_BYTES_MAX)

    return PlacedInMemory(sorted_groups, changes_of, at_once=GATHERED_AT_ONCE)


Rebuilding = Callable[[int, KeyGroups, Sequence[Key], Sequence[Any], IsLive | None], Iterable[KeyedChanges]]
"""As `EntryTable.rebuilding`."""


def placed_as_objects(entries: Mapping[Key, Any], rebuilding: Rebuilding, wanted: WantedEntries) -> PlacedInMemory:
    """Entries of any kind, encoded when they are read."""
    found = list(entries)
    of_all = np.empty(len(found), dtype=GROUP)
    for at in range(0, len(found), PLACED_AT_ONCE):
        wanted.pause()
        of_all[at : at + PLACED_AT_ONCE] = wanted.keys.placed(found[at : at + PLACED_AT_ONCE])
    chosen: Integers = np.flatnonzero(wanted.which()[of_all])
    order: npt.NDArray[np.intp] = chosen[np.argsort(of_all[chosen], kind="stable")]

    def changes_of(start: int, end: int) -> Iterator[KeyedChanges]:
        places = order[start:end].tolist()
        keys, some = list(map(found.__getitem__, places)), list(map(values.__getitem__, places))
        for changes in rebuilding(wanted.state_id, of_all[order[start:end]], keys, some, wanted.is_live):
            for piece in changes.cut(PART_BYTES_MAX):
                yield piece.packed()

    values = list(entries.values())
    return PlacedInMemory(of_all[order], changes_of, at_once=REBUILT_AT_ONCE)
