"""The entries of all states of a backend at one moment, as the changes that would rebuild them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from typing import Final

from statebackend._codec.change_sets.changes import Changes
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.placed import IsLive, Placed, WantedEntries
from statebackend._tables.table import Table
from statebackend.ids import KeyGroupRange
from statebackend.settings import KiB

TOGETHER_BYTES: Final = 64 * KiB
"""About as much of neighbouring key groups is read together: groups of a few keys would cost a call each."""


class StatesSnapshot:
    """Every entry of the states at one moment. Later writes do not show, and any thread may read it."""

    def __init__(self, tables: Mapping[int, Table], is_live: Mapping[int, IsLive | None], keys: OwnedKeys) -> None:
        self.tables: Final = tables
        self._is_live = is_live
        self._keys = keys

    def changes(self, groups: frozenset[int], pause: Callable[[], None] = lambda: None) -> Iterator[Changes]:
        """The changes that rebuild the entries of these key groups from nothing, in the order of the groups.

        As `placed` and then `PlacedStates.changes`. Each call starts from the beginning.
        """
        yield from self.placed(groups, pause).changes(sorted(groups))

    def placed(
        self,
        groups: frozenset[int],
        pause: Callable[[], None] = lambda: None,
        placed: Callable[[Table, WantedEntries], Placed | None] = lambda table, wanted: table.placed(wanted),
    ) -> "PlacedStates":
        """The entries of these key groups, to be read group by group; or those of each table that it has `placed`.

        `pause` is called after each step here and later, some milliseconds apart.
        """
        wanted = sorted(groups)
        found = [
            placed(table, WantedEntries(state_id, self._keys, wanted, self._is_live.get(state_id), pause))
            for state_id, table in self.tables.items()
        ]
        return PlacedStates([each for each in found if each is not None], pause)


class PlacedStates:
    """The entries of some key groups of all states."""

    def __init__(self, tables: Sequence[Placed], pause: Callable[[], None]) -> None:
        self._tables = tables
        self._pause = pause

    def changes(self, groups: Sequence[int], *, one_by_one: bool = False) -> Iterator[Changes]:
        """The changes that rebuild the entries of these groups, which are in ascending order, from nothing.

        Small neighbouring groups come together, state after state where all begin with one group; with `one_by_one`
        each group comes by itself. No changes begin with a group below that of those before them. Values that had
        expired by the moment of the snapshot are left out; the others are as they were written.
        """
        at, count = 0, 1
        while at < len(groups):
            span = KeyGroupRange(groups[at], groups[at : at + count][-1])
            size_bytes = 0
            # By the first group of each: where a new segment begins with a group, nothing of those before it is left.
            for changes in merge(*(table.changes(span) for table in self._tables), key=_first_group):
                size_bytes += changes.size_bytes
                yield changes
                self._pause()
            if not size_bytes:
                self._pause()
            at += count
            if not one_by_one:  # as many groups as would have made the size, but at most twice as many as this time
                count = max(1, min(2 * count, count * TOGETHER_BYTES // max(1, size_bytes)))


def _first_group(changes: Changes) -> int:
    return changes.span.first
