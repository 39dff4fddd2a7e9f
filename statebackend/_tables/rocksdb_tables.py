"""Tables whose entries lie in RocksDB, for state that is larger than memory.

    key    := state_id:u32 key_group:u16 msgpack(key)          big-endian, so that the keys of a group lie together
    value  := the entry: a cell, a list's framed elements, or a map's entries, framed key and framed cell in turn

`rocks_mapping` has the entries. The list or map of one key is read and written as a whole; in memory it is changed in
place.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Self, TypeVar, cast

import numpy as np

from statebackend._codec.cells import framed, split
from statebackend._codec.change_sets.changes import GROUP, PART_BYTES_MAX, Changes
from statebackend._codec.change_sets.keyed_changes import KeyedChanges
from statebackend._tables.heap import ListTable, MapTable, ValueTable, cell_of
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.placed import Placed, WantedEntries
from statebackend._tables.rocks_mapping import READ_AT_ONCE, RocksEntries, RocksMaps, as_it_is
from statebackend._tables.rocksdb import RocksStore
from statebackend._tables.table import EntryTable, Table, TableSize
from statebackend.ids import Key, KeyGroupRange, ranges_of

E = TypeVar("E")


class _InRocks(EntryTable[E]):
    """A table in RocksDB. A copy is a view of the files, which stay until the view is gone."""

    __slots__ = ()

    @property
    def rocks(self) -> RocksEntries[E]:
        """The entries, by their own type."""
        return cast("RocksEntries[E]", self.entries)

    def copy(self) -> Self:
        return type(self)(self.rocks.copy())

    def find_many(self, keys: Sequence[Key], *, keep: bool = True) -> list[E | None]:
        return self.rocks.find_many(keys, keep=keep)

    def scan(self) -> Iterator[Key]:
        """The keys as of now. They are never all in memory at once."""
        return iter(self.entries)

    def size(self) -> TableSize:
        """An estimate of all tables of the database: its files do not tell them apart."""
        return self.rocks.database_size()

    def note(self, changes: Changes) -> None:
        """Nothing is learned from what was drained: whether a key is new is not known."""

    def apply(self, changes: Changes) -> None:
        EntryTable[E].apply(self, changes)

    def placed(self, wanted: WantedEntries) -> Placed:
        """The keys of each of these groups, read when they are asked for."""
        return _InGroups(self, wanted)


class _InGroups(Placed):
    """Entries that lie in key groups already. They are never all in memory at once."""

    def __init__(self, table: _InRocks[Any], wanted: WantedEntries) -> None:
        self._table = table
        self._wanted = wanted

    def changes(self, span: KeyGroupRange) -> Iterator[Changes]:
        table, get, wanted = self._table, self._table.entries.__getitem__, self._wanted
        ranges = ranges_of(wanted.within(span.intersection(wanted.keys.key_groups)))
        remaining = chain.from_iterable(map(table.rocks.keys_in, ranges))
        while some := list(islice(remaining, READ_AT_ONCE)):
            groups = np.array([group for group, _ in some], dtype=GROUP)
            keys = [key for _, key in some]
            for changes in table.rebuilding(wanted.state_id, groups, keys, list(map(get, keys)), wanted.is_live):
                yield from changes.cut(PART_BYTES_MAX)


class RocksValueTable(_InRocks[bytes], ValueTable):
    """One cell per key."""

    __slots__ = ()

    def replay(self, changes: KeyedChanges) -> None:
        cells: Sequence[bytes | None] = changes.data
        if not changes.all_set:
            cells = [cell_of(*change) for change in zip(changes.operations, changes.data, strict=True)]
        self.rocks.replay(changes.groups, changes.keys, cells)


class RocksListTable(_InRocks[bytearray], ListTable):
    """The framed elements of each key in a row. Appending writes the whole row again, once per batch."""

    __slots__ = ()

    def replay(self, changes: KeyedChanges) -> None:
        if changes.all_set:
            self.rocks.replay(changes.groups, changes.keys, [row or None for row in changes.data])
        else:
            self.rocks.replay_on(ListTable, changes)

    def extend(self, key: Key, row: bytes) -> None:
        found = self.entries.get(key)
        if found is None:
            self.replace(key, row)
        else:
            found += row
            self.rocks.put(key, found, len(row))

    def replace(self, key: Key, row: bytes | bytearray) -> None:
        if row:
            self.entries[key] = bytearray(row)
        else:
            self.entries.pop(key, None)


class RocksMapTable(_InRocks[dict[bytes, bytes]], MapTable):
    """The encoded entries of each key. Setting one writes all of them again, once per batch."""

    __slots__ = ()

    def replay(self, changes: KeyedChanges) -> None:
        self.rocks.replay_on(MapTable, changes)

    def put(self, key: Key, entry_key: bytes, cell: bytes) -> None:
        self.put_many(key, {entry_key: cell})

    def put_many(self, key: Key, cells: Mapping[bytes, bytes]) -> None:
        entries = self.entries.get(key)
        if entries is None:
            entries = {}
        entries.update(cells)
        self.rocks.put(key, entries, sum(map(len, cells)) + sum(map(len, cells.values())))

    def remove(self, key: Key, entry_key: bytes) -> None:
        entries = self.entries.get(key)
        if entries is not None and entries.pop(entry_key, None) is not None:
            if entries:
                self.rocks.put(key, entries, 0)
            else:
                del self.entries[key]

    def drop(self, key: Key) -> None:
        self.entries.pop(key, None)


def open_table(store: RocksStore, keys: OwnedKeys, heap: Callable[[], Table], state_id: int) -> Table:
    """The table in `store` of the state `state_id`, which behaves as one of the class `heap` does in memory.

    What is no class makes a table that is always in memory.
    """
    if not isinstance(heap, type):
        return heap()
    if issubclass(heap, MapTable):
        return RocksMapTable(RocksMaps(store, keys, state_id, encode=_encode_map, decode=_decode_map))
    if issubclass(heap, ListTable):
        return RocksListTable(
            RocksEntries(store, keys, state_id, encode=bytes, decode=bytearray, rows=store.cache.rows())
        )
    return RocksValueTable(
        RocksEntries(store, keys, state_id, encode=as_it_is, decode=as_it_is, rows=store.cache.rows())
    )


def _encode_map(entries: dict[bytes, bytes]) -> bytes:
    return b"".join(framed(part) for entry in entries.items() for part in entry)


def _decode_map(data: bytes) -> dict[bytes, bytes]:
    parts = iter(split(data))
    return dict(zip(parts, parts, strict=True))
