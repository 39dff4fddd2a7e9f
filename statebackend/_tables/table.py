"""A table: the entries of one state, in dictionaries or in RocksDB.

States read and write entries, a restore applies changes, and a base is made of the changes that would rebuild a copy.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import numpy as np

from statebackend._codec.change_sets.changes import GROUP, PART_BYTES_MAX, Changes, KeyGroups
from statebackend._codec.change_sets.keyed_changes import KeyedChanges
from statebackend._tables.files_copy import FilesCopy
from statebackend._tables.key_groups import OwnedKeys
from statebackend.errors import DataError
from statebackend.ids import Key, KeyGroupRange

E = TypeVar("E")

PLACED_AT_ONCE: Final = 4096
"""Keys whose groups are computed between two pauses."""
REBUILT_AT_ONCE: Final = 2048
"""Entries of a base that are encoded together: they stay in the processor's cache meanwhile."""

Renew = Callable[[bytes], bytes | None]
"""From a cell to the cell that a base holds: upcast to the newest version, `None` where it has expired."""


class Placed(ABC):
    """The entries of some key groups of a table, to be read group by group."""

    @abstractmethod
    def changes(self, span: KeyGroupRange) -> Iterator[Changes]:
        """Changes that rebuild from nothing the entries of those of these groups that were asked for, in their order.

        Raises `ValueDecodeError` for a value of an earlier version that cannot be upcast.
        """


class Table(ABC):
    """The entries of one state, of one kind of changes. Live writes and replay give the same entries."""

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int:
        """The number of keys, including those whose values have expired but were not dropped yet."""

    @abstractmethod
    def apply(self, changes: Changes) -> None:
        """Replay changes. Raises `UnsupportedVersionError` for an operation that this release does not know.

        After an error some of them are applied. Raises `DataError` for changes of another kind.
        """

    @abstractmethod
    def copy(self) -> Self:
        """The table as it is now, for reading only, by any thread. Later writes to the original do not show."""

    @abstractmethod
    def placed(
        self,
        state_id: int,
        keys: OwnedKeys,
        groups: Sequence[int],
        renew: Renew | None,
        pause: Callable[[], None],
    ) -> Placed:
        """The entries of these key groups, which are in ascending order. To be called on a copy.

        Unless the table lies in key groups, this finds the group of every key: a tenth of a second per million keys,
        calling `pause` some hundred times.
        """


class EntryTable(Table, Generic[E]):
    """Entries by key, in a dictionary unless another mapping is given."""

    __slots__ = ("entries",)

    def __init__(self, entries: MutableMapping[Key, E] | None = None) -> None:
        self.entries: Final[MutableMapping[Key, E]] = {} if entries is None else entries

    def __len__(self) -> int:
        return len(self.entries)

    def apply(self, changes: Changes) -> None:
        if not isinstance(changes, KeyedChanges):
            raise DataError("changes of another kind than the state's", state_id=changes.state_id, kind=changes.kind)
        self.replay(changes)

    @abstractmethod
    def replay(self, changes: KeyedChanges) -> None:
        """Apply changes of keys, in order."""

    @abstractmethod
    def rebuilding(
        self, state_id: int, groups: KeyGroups, keys: Sequence[Key], entries: Sequence[E], renew: Renew | None
    ) -> Iterator[KeyedChanges]:
        """Changes that rebuild these entries from nothing, in their order."""

    def find_many(self, keys: Sequence[Key], *, keep: bool = True) -> list[E | None]:
        """The entries of many keys, in their order, `None` for a key without one.

        `keep`: they are likely to be used again soon, so a table may cache what it has to read.
        """
        return list(map(self.entries.get, keys))

    def scan(self) -> Iterator[Key]:
        """The keys as of now: the table may be written to during the iteration."""
        return iter(list(self.entries))

    def placed(
        self,
        state_id: int,
        keys: OwnedKeys,
        groups: Sequence[int],
        renew: Renew | None,
        pause: Callable[[], None],
    ) -> Placed:
        found = list(self.entries)
        of_all = np.empty(len(found), dtype=GROUP)
        for at in range(0, len(found), PLACED_AT_ONCE):
            pause()
            of_all[at : at + PLACED_AT_ONCE] = keys.placed(found[at : at + PLACED_AT_ONCE])
        is_wanted = np.zeros(keys.key_groups.last + 1, dtype=np.bool_)
        is_wanted[[group for group in groups if group in keys.key_groups]] = True
        wanted = np.flatnonzero(is_wanted[of_all])
        order = wanted[np.argsort(of_all[wanted], kind="stable")]

        def changes_of(start: int, end: int) -> Iterator[KeyedChanges]:
            places = order[start:end].tolist()
            entries = list(map(values.__getitem__, places))
            some_keys = list(map(found.__getitem__, places))
            for changes in self.rebuilding(state_id, of_all[order[start:end]], some_keys, entries, renew):
                for piece in changes.cut(PART_BYTES_MAX):
                    yield piece.packed()

        values = list(self.entries.values())
        return PlacedInMemory(of_all[order], changes_of, at_once=REBUILT_AT_ONCE)


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


AnyTable = EntryTable[Any]
OpenTable = Callable[[Callable[[], Table], int], Table]
"""From a class of `heap` and a state id to an empty table for that state, which behaves as that class does.

For a table that lies in memory whatever the others do, it gets a function that makes one.
"""


class TableFiles(Protocol):
    """Tables whose entries are files, so that a base is a copy of them."""

    def copy_files(self, directory: Path) -> FilesCopy:
        """Copy everything written so far, as files, to `directory`, which must not exist yet, when the result is `run`.

        Does not block, and raises nothing. The tables may be read and written to meanwhile.
        """
        ...

    def adopt(self, directory: Path) -> None:
        """Replace the tables, which must be empty, with those that `copy_files` made in `directory`. Blocks."""
        ...
