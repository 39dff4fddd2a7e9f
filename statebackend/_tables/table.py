"""A table: the entries of one state, in dictionaries or in RocksDB.

States read and write entries, a restore applies changes, and a base is made of the changes that would rebuild a copy.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, Protocol, Self, TypeVar

from statebackend._codec.change_sets.changes import Changes, KeyGroups, of_kind
from statebackend._codec.change_sets.keyed_changes import KeyedChanges
from statebackend._tables.files_copy import FilesCopy
from statebackend._tables.placed import IsLive, Placed, WantedEntries, placed_as_bytes, placed_as_objects
from statebackend.ids import Key

E = TypeVar("E")


class TableSize(NamedTuple):
    """The keys and bytes of a table; those of `database` where a table has no count of its own: an estimate."""

    keys: int
    size_bytes: int
    database: object = None


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
    def size(self) -> TableSize:
        """How much there is, without looking at the entries. Expired ones count until they are dropped.

        To be called when everything that was written is drained.
        """

    def note(self, changes: Changes) -> None:  # noqa: B027  # most tables know by themselves
        """Learn from changes that were drained what `size` needs, where the writes themselves do not say it."""

    def look_at(self, changes: Changes) -> bool:
        """Compute for changes what `apply` will need, in any thread. True if it is worth while for the next ones too.

        It must not touch the entries: other changes are applied meanwhile.
        """
        return False

    @abstractmethod
    def forget(self) -> None:
        """Free the memory of the entries. The table is not used any more."""

    @abstractmethod
    def copy(self) -> Self:
        """The table as it is now, for reading only, by any thread. Later writes to the original do not show."""

    @abstractmethod
    def placed(self, wanted: WantedEntries) -> Placed:
        """The wanted entries. To be called on a copy.

        Unless the table lies in key groups, this finds the group of every key: some 0.3 s per million keys.
        """


class EntryTable(Table, Generic[E]):
    """Entries by key, in a dictionary unless another mapping is given."""

    __slots__ = ("entries",)

    def __init__(self, entries: MutableMapping[Key, E] | None = None) -> None:
        self.entries: Final[MutableMapping[Key, E]] = {} if entries is None else entries

    def __len__(self) -> int:
        return len(self.entries)

    def apply(self, changes: Changes) -> None:
        changes = of_kind(changes, KeyedChanges)
        self.replay(changes)
        self.note(changes)

    def forget(self) -> None:
        if isinstance(self.entries, dict):  # entries in files go with these
            self.entries.clear()

    @abstractmethod
    def replay(self, changes: KeyedChanges) -> None:
        """Apply changes of keys, in order."""

    @abstractmethod
    def rebuilding(
        self, state_id: int, groups: KeyGroups, keys: Sequence[Key], entries: Sequence[E], is_live: IsLive | None
    ) -> Iterator[KeyedChanges]:
        """Changes that rebuild these entries from nothing, in their order."""

    def set_data(self, entries: Sequence[E], is_live: IsLive | None) -> Sequence[bytes | bytearray | None] | None:
        """The data of the one `SET` that rebuilds each of these entries, `None` for one that has expired.

        `None` instead of all if they take other changes: then `rebuilding` makes them.
        """
        return None

    def find_many(self, keys: Sequence[Key], *, keep: bool = True) -> list[E | None]:
        """The entries of many keys, in their order, `None` for a key without one.

        `keep`: they are likely to be used again soon, so a table may cache what it has to read.
        """
        return list(map(self.entries.get, keys))

    def scan(self) -> Iterator[Key]:
        """The keys as of now: the table may be written to during the iteration."""
        return iter(list(self.entries))

    def placed(self, wanted: WantedEntries) -> Placed:
        found = placed_as_bytes(self.entries, self.set_data, wanted)
        return placed_as_objects(self.entries, self.rebuilding, wanted) if found is None else found


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
