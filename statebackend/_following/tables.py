"""Tables that go on answering as of one commit while the changes of the next are applied to them, piece by piece.

Before a piece is applied, the entries that it changes are kept as they were, and reads look there first. With the last
piece all that was kept is dropped at once: in that moment every state is of the next commit. So there is one copy of
the state, and of the changes under way.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, cast

from statebackend._codec.change_sets.changes import Changes, of_kind
from statebackend._codec.change_sets.keyed_changes import KeyedChanges
from statebackend._tables.table import EntryTable, OpenTable, Table
from statebackend.ids import Key

IN_MEMORY_AT_ONCE: Final = 1024
IN_FILES_AT_ONCE: Final = 256
"""Changes applied in one go, while the loop waits: one to three milliseconds. Not fewer: between two goes
a busy loop does what else it has to."""

_NOT_KEPT: Final = object()


class AtCommit(Protocol):
    """A table that answers as of one commit: `TableAtCommit`, or `ColumnsAtCommit`."""

    @property
    def inside(self) -> Table:
        """The table itself, which is ahead of it while changes are being applied."""
        ...

    @property
    def at_once(self) -> int:
        """How many changes a piece may have."""
        ...

    def advance(self, changes: Changes) -> None:
        """Apply a piece of changes, of which nothing shows before `let_go`."""
        ...

    def let_go(self) -> dict[Key, Any]:
        """Answer as the table is now. Returns what was kept: to free that takes time."""
        ...


class EntriesAtCommit(Mapping[Key, Any]):
    """The entries of a table as they were before the changes that are being applied. For reading only."""

    __slots__ = ("_entries", "kept")

    def __init__(self, entries: Mapping[Key, Any]) -> None:
        self._entries = entries
        self.kept: dict[Key, Any] = {}
        """The entries that were changed since, as they were; `None` where there was none."""

    def get(self, key: Key, default: Any = None) -> Any:
        """The key's entry, `default` where there is none."""
        if self.kept:
            found = self.kept.get(key, _NOT_KEPT)
            if found is not _NOT_KEPT:
                return default if found is None else found
        return self._entries.get(key, default)

    def __getitem__(self, key: Key) -> Any:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def __contains__(self, key: object) -> bool:
        return self.get(cast("Key", key)) is not None

    def __iter__(self) -> Iterator[Key]:
        kept = self.kept
        if not kept:
            yield from self._entries
            return
        yield from (key for key in self._entries if key not in kept)
        yield from (key for key, entry in kept.items() if entry is not None)

    def __len__(self) -> int:
        entries = self._entries
        return len(entries) + sum((found is not None) - (key in entries) for key, found in self.kept.items())


class TableAtCommit:
    """A table of keys whose `entries` are `EntriesAtCommit`; changes are applied to the one inside."""

    def __init__(self, inside: EntryTable[Any]) -> None:
        self.inside: Final = inside
        self.entries: Final = EntriesAtCommit(inside.entries)

    @property
    def at_once(self) -> int:
        """As `AtCommit.at_once`."""
        return IN_MEMORY_AT_ONCE if isinstance(self.inside.entries, dict) else IN_FILES_AT_ONCE

    def advance(self, changes: Changes) -> None:
        """As `AtCommit.advance`."""
        changes = of_kind(changes, KeyedChanges)
        self.keep(changes)
        self.inside.apply(changes)

    def keep(self, changes: KeyedChanges) -> None:
        """Keep the entries that these changes are about to change, unless they are kept already."""
        kept = self.entries.kept
        keys: Sequence[Key] = changes.keys
        if not kept.keys().isdisjoint(keys):
            keys = [key for key in keys if key not in kept]
        found = self.inside.find_many(keys, keep=False)
        if isinstance(next((entry for entry in found if entry is not None), None), bytearray | dict):
            found = [None if entry is None else entry.copy() for entry in found]
        kept.update(zip(keys, found, strict=True))

    def let_go(self) -> dict[Key, Any]:
        """As `AtCommit.let_go`."""
        kept, self.entries.kept = self.entries.kept, {}
        return kept

    def find_many(self, keys: Sequence[Key], *, keep: bool = True) -> list[Any]:
        """As that of the table inside."""
        if self.entries.kept:
            return list(map(self.entries.get, keys))
        return self.inside.find_many(keys, keep=keep)

    def scan(self) -> Iterator[Key]:
        """The keys as of now."""
        return iter(list(self.entries))

    def apply(self, changes: Changes) -> None:
        """Replay changes, which show at once."""
        self.inside.apply(changes)

    def look_at(self, changes: Changes) -> bool:
        """As that of the table inside."""
        return self.inside.look_at(changes)

    def __len__(self) -> int:
        return len(self.entries)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inside, name)


class FollowedTables:
    """The tables of one state of a job by the ids of its states: an `OpenTable` that returns those opened before."""

    def __init__(self, open_table: OpenTable) -> None:
        self.tables: Final[dict[int, AtCommit]] = {}
        self._open_table = open_table

    def __call__(self, heap: Callable[[], Table], state_id: int) -> Table:
        if state_id not in self.tables:
            opened = self._open_table(heap, state_id)
            if isinstance(opened, EntryTable):
                self.tables[state_id] = TableAtCommit(cast("EntryTable[Any]", opened))
            else:
                from statebackend._following.columns import ColumnsAtCommit  # noqa: PLC0415  # it needs an extra

                self.tables[state_id] = ColumnsAtCommit(cast("Any", opened), cast("Any", heap))
        return cast("Table", self.tables[state_id])

    def let_go(self) -> list[dict[Key, Any]]:
        """As `AtCommit.let_go`, for all tables at once."""
        return [table.let_go() for table in self.tables.values()]

    def plain(self, heap: Callable[[], Table], state_id: int) -> Table:
        """As calling it, for a backend: the tables inside, which can be written to."""
        self(heap, state_id)
        return self.tables[state_id].inside
