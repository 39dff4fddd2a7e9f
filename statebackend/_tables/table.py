"""A table: the entries of one state by key, in dictionaries or in RocksDB.

States read and write entries, a restore applies changes, and a base is made of the changes that would rebuild a copy.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from statebackend._codec.records import StateChange
from statebackend._tables.key_groups import OwnedKeys
from statebackend.ids import Key

E = TypeVar("E")

PLACED_AT_ONCE: Final = 1024
"""Keys whose groups are computed between two pauses."""

Renew = Callable[[bytes], bytes | None]
"""From a cell to the cell that a base holds: upcast to the newest version, `None` where it has expired."""


class Table(ABC, Generic[E]):
    """Entries by key, in a dictionary unless another mapping is given. Live writes and replay give the same entries."""

    __slots__ = ("entries",)

    def __init__(self, entries: MutableMapping[Key, E] | None = None) -> None:
        self.entries: Final[MutableMapping[Key, E]] = {} if entries is None else entries

    @abstractmethod
    def apply(self, change: StateChange) -> None:
        """Replay one change. Raises `UnsupportedVersionError` for an operation that this release does not know."""

    def apply_many(self, changes: Sequence[StateChange]) -> None:
        """Replay changes in order, as `apply` of each would. After an error some of them are applied."""
        for change in changes:
            self.apply(change)

    @abstractmethod
    def copy(self) -> Self:
        """The table as it is now, for reading only, by any thread. Later writes to the original do not show."""

    @abstractmethod
    def changes(self, state_id: int, group: int, key: Key, renew: Renew | None) -> Iterator[StateChange]:
        """Changes that rebuild the key's entry from nothing."""

    def find_many(self, keys: Sequence[Key], *, keep: bool = True) -> list[E | None]:
        """The entries of many keys, in their order, `None` for a key without one.

        `keep`: they are likely to be used again soon, so a table may cache what it has to read.
        """
        return list(map(self.entries.get, keys))

    def scan(self) -> Iterator[Key]:
        """The keys as of now: the table may be written to during the iteration."""
        return iter(list(self.entries))

    def placed(
        self, keys: OwnedKeys, groups: Collection[int], pause: Callable[[], None]
    ) -> Mapping[int, Iterable[Key]]:
        """The keys by group, for those of `groups` that have any.

        Takes half a second per million keys of the table, calling `pause` a thousand times.
        """
        found: dict[int, list[Key]] = {}
        remaining = iter(self.entries)
        while some := list(islice(remaining, PLACED_AT_ONCE)):
            pause()
            for key, group in zip(some, keys.groups_of(some), strict=True):
                found.setdefault(group, []).append(key)
        return {group: found[group] for group in groups if group in found}


AnyTable = Table[Any]
OpenTable = Callable[[type[AnyTable], int], AnyTable]
"""From a class of `heap` and a state id to an empty table for that state, which behaves as that class does."""


class TableFiles(Protocol):
    """Tables whose entries are files, so that a base is a copy of them. Methods block on the disk."""

    def copy_files(self, directory: Path) -> None:
        """Copy everything written so far, as files, to `directory`, which must not exist yet."""
        ...

    def adopt(self, directory: Path) -> None:
        """Replace the tables, which must be empty, with those that `copy_files` made in `directory`."""
        ...
