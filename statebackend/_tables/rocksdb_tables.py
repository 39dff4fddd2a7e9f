"""Tables whose entries lie in RocksDB, for state that is larger than memory.

    key    := state_id:u32 key_group:u16 msgpack(key)          big-endian, so that the keys of a group lie together
    value  := the entry: a cell, a list's framed elements, or a map's entries, framed key and framed cell in turn

The newest writes wait in a dictionary for their batch. The list or map of one key is read and written as a whole; while
it waits it is changed in place.
"""

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from itertools import islice
from typing import Any, Final, Generic, Self, TypeVar, cast

import msgspec

from statebackend._codec.cells import framed, split
from statebackend._codec.records import as_key
from statebackend._tables.heap import ListTable, MapTable, ValueTable
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.rocksdb import PointInTimeView, RocksStore
from statebackend._tables.table import AnyTable, Table
from statebackend.ids import Key

E = TypeVar("E")

WRITTEN_AT_ONCE: Final = 64
"""Writes of a bulk call between two checks of the batch's size: few enough not to exceed it by much."""
_PREFIX: Final = struct.Struct(">IH")
_STATE: Final = struct.Struct(">I")
_MISSING: Final = object()

_encode_key: Final = msgspec.msgpack.Encoder().encode
_decode_key: Final = msgspec.msgpack.Decoder().decode


class RocksEntries(MutableMapping[Key, E], Generic[E]):
    """The entries of one state. `len` counts them one by one; an iteration shows the keys there when it began."""

    def __init__(
        self,
        store: RocksStore,
        keys: OwnedKeys,
        state_id: int,
        *,
        encode: Callable[[E], bytes],
        decode: Callable[[bytes], E],
        view: PointInTimeView | None = None,
    ) -> None:
        self._store = store
        self._state_id = state_id
        self._encode = encode
        self._decode = decode
        self._view = view
        self._read = store.get if view is None else view.get
        self._keys = keys
        self._group_of = keys.group_of
        self._prefixes = {group: _PREFIX.pack(state_id, group) for group in keys.key_groups}
        self._pending: dict[Key, E | None] = {}  # None: removed

    def copy(self) -> "RocksEntries[E]":
        """The entries as they are now, for reading only."""
        return RocksEntries(
            self._store,
            self._keys,
            self._state_id,
            encode=self._encode,
            decode=self._decode,
            view=self._store.view(),
        )

    def get(self, key: Key, default: Any = None) -> Any:
        """The key's entry: the very object if it waits to be written, otherwise a fresh one."""
        found: Any = self._pending.get(key, _MISSING)
        if found is _MISSING:
            data = self._read(self._prefixes[self._group_of(key)] + _encode_key(key))
            return default if data is None else self._decode(data)
        return default if found is None else found

    def put(self, key: Key, entry: E | None, size_bytes: int) -> None:
        """Set the key's entry, or remove it for `None`. `size_bytes`: how much it has grown."""
        assert self._view is None, "a copy is only read"
        if not self._pending:
            self._store.register(self)
        self._pending[key] = entry
        self._store.wrote(size_bytes)

    def update(self, written: Mapping[Key, E]) -> None:  # type: ignore[override]  # nobody gives it anything else
        """Set each of these entries, some at a time: a batch may be sent in between."""
        assert self._view is None, "a copy is only read"
        remaining = iter(written.items())
        # Without room, since the disk has refused the last batch, one more write tries again.
        while some := dict(islice(remaining, max(1, min(WRITTEN_AT_ONCE, self._store.room)))):
            if not self._pending:
                self._store.register(self)
            self._pending.update(some)
            self._store.wrote(sum(map(len, cast("Iterable[bytes]", some.values()))), len(some))

    def __getitem__(self, key: Key) -> E:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return cast("E", found)

    def __setitem__(self, key: Key, entry: E) -> None:
        assert self._view is None, "a copy is only read"
        if not self._pending:
            self._store.register(self)
        self._pending[key] = entry
        self._store.wrote(len(cast("bytes", entry)))  # all entries have a length

    def __delitem__(self, key: Key) -> None:
        if key not in self:
            raise KeyError(key)
        self.put(key, None, 0)

    def __contains__(self, key: object) -> bool:
        return self.get(cast("Key", key)) is not None

    def __iter__(self) -> Iterator[Key]:
        return self._found(_STATE.pack(self._state_id))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def pop(self, key: Key, *default: Any) -> Any:
        """Remove the key and return its entry, or `default`."""
        found = self.get(key)
        if found is None:
            if default:
                return default[0]
            raise KeyError(key)
        self.put(key, None, 0)
        return found

    def keys_of(self, group: int) -> Iterator[Key]:
        """The keys of one key group."""
        return self._found(self._prefixes[group])

    def writes(self) -> Iterable[tuple[bytes, bytes | None]]:
        """The writes that wait for their batch."""
        keys, prefixes, encode = list(self._pending), self._prefixes, self._encode
        raw = [prefixes[group] + _encode_key(key) for key, group in zip(keys, self._keys.groups_of(keys), strict=True)]
        found = self._pending.values()
        if encode is not _same:
            return zip(raw, [None if entry is None else encode(entry) for entry in found], strict=True)
        return zip(raw, cast("Iterable[bytes | None]", found), strict=True)

    def sent(self) -> None:
        """Forget the pending writes."""
        self._pending.clear()

    def _found(self, prefix: bytes) -> Iterator[Key]:
        view = self._view or self._store.view()
        return (as_key(_decode_key(raw[_PREFIX.size :])) for raw in view.keys(prefix))


class _InRocks(Table[E]):
    """A table in RocksDB. A copy is a view of the files, which stay until the view is gone."""

    __slots__ = ()

    @property
    def rocks(self) -> RocksEntries[E]:
        """The entries, by their own type."""
        return cast("RocksEntries[E]", self.entries)

    def copy(self) -> Self:
        return type(self)(self.rocks.copy())

    def scan(self) -> Iterator[Key]:
        """The keys as of now. They are never all in memory at once."""
        return iter(self.entries)

    def placed(
        self, keys: OwnedKeys, groups: Collection[int], pause: Callable[[], None]
    ) -> Mapping[int, Iterable[Key]]:
        """The keys of each of these groups, read when they are iterated."""
        return {group: self.rocks.keys_of(group) for group in groups}


class RocksValueTable(_InRocks[bytes], ValueTable):
    """One cell per key."""

    __slots__ = ()


class RocksListTable(_InRocks[bytearray], ListTable):
    """The framed elements of each key in a row. Appending writes the whole row again, once per batch."""

    __slots__ = ()

    def extend(self, key: Key, row: bytes) -> None:
        found = self.entries.get(key)
        if found is None:
            self.replace(key, row)
        else:
            found += row
            self.rocks.put(key, found, len(row))


class RocksMapTable(_InRocks[dict[bytes, bytes]], MapTable):
    """The encoded entries of each key. Setting one writes all of them again, once per batch."""

    __slots__ = ()

    def put(self, key: Key, entry_key: bytes, cell: bytes) -> None:
        entries = self.entries.get(key)
        if entries is None:
            entries = {}
        entries[entry_key] = cell
        self.rocks.put(key, entries, len(entry_key) + len(cell))

    def remove(self, key: Key, entry_key: bytes) -> None:
        entries = self.entries.get(key)
        if entries is not None and entries.pop(entry_key, None) is not None:
            if entries:
                self.rocks.put(key, entries, 0)
            else:
                del self.entries[key]


def open_table(store: RocksStore, keys: OwnedKeys, heap: type[AnyTable], state_id: int) -> AnyTable:
    """The table in `store` of the state `state_id`, which behaves as one of the class `heap` does in memory."""
    if issubclass(heap, ListTable):
        return RocksListTable(RocksEntries(store, keys, state_id, encode=bytes, decode=bytearray))
    if issubclass(heap, MapTable):
        return RocksMapTable(RocksEntries(store, keys, state_id, encode=_encode_map, decode=_decode_map))
    return RocksValueTable(RocksEntries(store, keys, state_id, encode=_same, decode=_same))


def _same(cell: bytes) -> bytes:
    return cell


def _encode_map(entries: dict[bytes, bytes]) -> bytes:
    return b"".join(framed(part) for entry in entries.items() for part in entry)


def _decode_map(data: bytes) -> dict[bytes, bytes]:
    parts = iter(split(data))
    return dict(zip(parts, parts, strict=True))
