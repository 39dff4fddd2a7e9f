"""What is held of a state, whoever declares it, and wherever it lies: in dictionaries, or in RocksDB.

A table belongs to one state. What it holds per key is its entry; the states read and write entries, a restore applies
changes, and a base is made of the changes that would rebuild a copy.
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
"""Keys that are placed between two pauses."""

Renew = Callable[[bytes], bytes | None]
"""A cell as it is to be written anew, `None` where it has expired."""


class Table(ABC, Generic[E]):
    """Entries by key, in a dictionary unless another mapping is given. Live writes and replay leave the same."""

    __slots__ = ("entries",)

    def __init__(self, entries: MutableMapping[Key, E] | None = None) -> None:
        self.entries: Final[MutableMapping[Key, E]] = {} if entries is None else entries

    @abstractmethod
    def apply(self, change: StateChange) -> None:
        """Replay one change. Raises `UnsupportedVersionError` for an operation that this release does not know."""

    def apply_many(self, changes: Sequence[StateChange]) -> None:
        """Replay changes in order: what `apply` of each leaves, and raises. After an error some of them are applied."""
        for change in changes:
            self.apply(change)

    @abstractmethod
    def copy(self) -> Self:
        """What it holds now, not to be written to, whatever happens to the original. Any thread may read it."""

    @abstractmethod
    def changes(self, state_id: int, group: int, key: Key, renew: Renew | None) -> Iterator[StateChange]:
        """Changes that rebuild the key's entry from nothing."""

    def scan(self) -> Iterator[Key]:
        """The keys that are there now, whatever is written while they are looked at."""
        return iter(list(self.entries))

    def placed(
        self, keys: OwnedKeys, groups: Collection[int], pause: Callable[[], None]
    ) -> Mapping[int, Iterable[Key]]:
        """The keys of those of these groups that have some.

        Half a second per million keys, whatever the groups; `pause` is called a thousand times meanwhile.
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
"""An empty table for the state of this id, which does what one of this class does on the heap."""


class TableFiles(Protocol):
    """Tables whose entries are files, so that a base is a copy of them. Methods block on the disk."""

    def copy_files(self, directory: Path) -> None:
        """Copy everything written so far, as files, to `directory`, which must not exist yet."""
        ...

    def adopt(self, directory: Path) -> None:
        """Replace the tables, which must be empty, with those that `copy_files` made in `directory`."""
        ...
