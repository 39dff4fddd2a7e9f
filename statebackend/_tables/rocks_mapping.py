"""The entries of one state as a mapping over RocksDB, for the tables of `rocksdb_tables`.

The newest writes wait in a dictionary for their batch. The cells and lists used last are cached as rows. Of maps, whose
dictionaries take many times the bytes of their rows, only the two decoded last are remembered.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import islice, repeat
from operator import add, itemgetter
from typing import Any, Final, Generic, TypeVar, cast

import msgspec
import numpy as np

from statebackend._codec.change_sets.changes import KeyGroups
from statebackend._codec.change_sets.keyed_changes import KeyedChanges
from statebackend._codec.change_sets.state_change import as_key
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.rocksdb import RocksStore
from statebackend._tables.rocksdb_files import BATCH_WRITES_MAX, PointInTimeView
from statebackend._tables.row_cache import Rows
from statebackend._tables.table import EntryTable, TableSize
from statebackend.ids import Key, KeyGroupRange

E = TypeVar("E")

WRITTEN_AT_ONCE: Final = 64
"""Writes of a bulk call between two checks of the batch's size: few enough not to exceed it by much."""
READ_AT_ONCE: Final = 1024
"""Keys of a bulk call read between two chances for other threads, and entries read together for a base."""
REPLAYED_AT_ONCE: Final = BATCH_WRITES_MAX
"""Changes replayed together where they need the entries before them: so many lists or maps are in memory at a time."""
COUNTED_BYTES: Final = 16 << 10
"""Bytes of rows read one by one that are counted together."""
MAPS_DECODED: Final = 2
"""Maps remembered: the entries of one are often looked for in another."""
_PREFIX: Final = struct.Struct(">IH")
_STATE: Final = struct.Struct(">I")
_MISSING: Final = object()

_encode_key: Final = msgspec.msgpack.Encoder().encode
_decode_key: Final = msgspec.msgpack.Decoder().decode


def as_it_is(cell: bytes) -> bytes:
    """Encode and decode what is bytes already. Bulk writes do not even call it."""
    return cell


class _Prefixes(dict[int, bytes]):
    """By key group, how the keys of one state begin. Each is made when it is first asked for."""

    def __init__(self, state_id: int, key_groups: KeyGroupRange) -> None:
        super().__init__()
        self._state_id = state_id
        self._key_groups = key_groups

    def __missing__(self, group: int) -> bytes:
        if group not in self._key_groups:
            raise KeyError(group)
        found = self[group] = _PREFIX.pack(self._state_id, group)
        return found


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
        rows: Rows[E] | None = None,
    ) -> None:
        self._store = store
        self._state_id = state_id
        self._encode = encode
        self._decode = decode
        self._view = view
        self._rows = rows
        self._read = store.get if view is None else view.get
        self._keys = keys
        self._group_of = keys.group_of
        self._prefixes = _Prefixes(state_id, keys.key_groups)
        self._pending: dict[Key, E | None] = {}  # None: removed
        self._waiting_bytes = 0
        self._read_bytes = 0

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
        """The key's entry: the very object if it waits to be written or is cached, otherwise a fresh one."""
        rows = self._rows
        found: Any = _MISSING if rows is None else rows.young.get(key, _MISSING)
        if found is _MISSING:
            found = self._pending.get(key, _MISSING)
            if found is _MISSING:
                found = self._fetched(key)
        return default if found is None else found

    def find_many(self, keys: Sequence[Key], *, keep: bool) -> list[E | None]:
        """As `get` for each key. `keep`: what is read from the files is cached."""
        if self._rows is None:
            return list(map(self.get, keys))
        found = cast("list[Any]", list(map(self._rows.young.get, keys, repeat(_MISSING))))
        if _MISSING in found:
            missing = [at for at, entry in enumerate(found) if entry is _MISSING]
            for first in range(0, len(missing), READ_AT_ONCE):
                places = missing[first : first + READ_AT_ONCE]
                for at, entry in zip(places, self._fetched_many([keys[at] for at in places], keep), strict=True):
                    found[at] = entry
        return found

    def put(self, key: Key, entry: E | None, size_bytes: int) -> None:
        """Set the key's entry, or remove it for `None`. `size_bytes`: how much it has grown."""
        assert self._view is None, "a copy is only read"
        if not self._pending:
            self._store.register(self)
        self._pending[key] = entry
        if self._rows is not None:
            self._rows.young[key] = entry
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
            if self._rows is not None:
                self._rows.young.update(some)
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
        if self._rows is not None:
            self._rows.young[key] = entry
        self._store.wrote(len(cast("bytes", entry)))  # all entries have a length

    def __delitem__(self, key: Key) -> None:
        if key not in self:
            raise KeyError(key)
        self.put(key, None, 0)

    def __contains__(self, key: object) -> bool:
        return self.get(cast("Key", key)) is not None

    def __iter__(self) -> Iterator[Key]:
        state = _STATE.pack(self._state_id)
        return (as_key(_decode_key(raw[_PREFIX.size :])) for raw in self._found(state, state))

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

    def database_size(self) -> TableSize:
        """An estimate of all that the database holds, not only of this state."""
        return TableSize(*self._store.estimate(), self._store)

    def keys_in(self, span: KeyGroupRange) -> Iterator[tuple[int, Key]]:
        """The keys of these key groups, each with its group. One search, however many groups there are."""
        found = self._found(self._prefixes[span.first], self._prefixes[span.last])
        return ((_PREFIX.unpack_from(raw)[1], as_key(_decode_key(raw[_PREFIX.size :]))) for raw in found)

    def writes(self) -> tuple[Sequence[bytes], Sequence[bytes | None]]:
        """The writes that wait for their batch."""
        raw, data, encode = self._raw(list(self._pending)), list[Any](self._pending.values()), self._encode
        if encode is not as_it_is:
            data = [None if entry is None else encode(entry) for entry in data]
        self._waiting_bytes = sum(map(len, raw)) + sum(map(len, filter(None, data)))
        return raw, data

    def sent(self) -> None:
        """Forget the pending writes."""
        self._pending.clear()
        if self._rows is not None:
            self._rows.count(self._waiting_bytes)

    def replay(self, groups: KeyGroups, keys: Sequence[Key], data: Sequence[bytes | None]) -> None:
        """Set each key, of that group, to what is encoded in `data`, `None` to remove it; of a repeated key the last.

        No key is hashed, and no entry is made. Of a table that is filled there is nothing to cache. They are written
        in order of key groups, for RocksDB takes neighbours in half the time. To sort the keys as well would cost more
        than it saves.
        """
        if self._rows is not None:
            self._rows.clear()
        if len(keys) > 1:
            pick = itemgetter(*(order := np.argsort(groups, kind="stable")).tolist())
            groups, keys, data = groups[order], pick(keys), pick(data)
        self._store.write(self._placed(groups.tolist(), keys), data)

    def replay_on(self, table: Callable[[dict[Key, E]], EntryTable[E]], changes: KeyedChanges) -> None:
        """Replay changes that depend on the entries before them, on a `table` in memory of the entries they concern.

        Each entry is read and written once, in order of key groups, and no key is hashed.
        """
        if self._rows is not None:
            self._rows.clear()
        self._store.flush()
        ordered = changes.taken(np.argsort(changes.groups, kind="stable"))
        for first in range(0, changes.records, REPLAYED_AT_ONCE):
            some = ordered.between(first, first + REPLAYED_AT_ONCE)
            raw = self._placed(some.groups.tolist(), some.keys)
            concerned = list(dict.fromkeys(raw))
            found = zip(concerned, self._store.get_many(concerned), strict=True)
            entries: dict[Key, E] = {each: self._decode(data) for each, data in found if data is not None}
            table(entries).replay(KeyedChanges(self._state_id, some.groups, some.operations, raw, some.data))
            left = map(entries.get, concerned)
            self._store.write(concerned, [None if entry is None else self._encode(entry) for entry in left])

    def _raw(self, keys: Sequence[Key]) -> list[bytes]:
        """The keys as RocksDB has them. Raises for a wrong or foreign key."""
        return self._placed(self._keys.groups_of(keys), keys)

    def _placed(self, groups: Sequence[int], keys: Sequence[Key]) -> list[bytes]:
        return list(map(add, map(self._prefixes.__getitem__, groups), map(_encode_key, keys)))

    def _fetched(self, key: Key) -> E | None:
        """The entry of a key that is neither young nor waits to be written."""
        rows = self._rows
        if rows is not None and (found := rows.old.get(key, _MISSING)) is not _MISSING:
            rows.use(key, cast("E | None", found))
            return cast("E | None", found)
        raw = self._prefixes[self._group_of(key)] + _encode_key(key)
        data = self._read(raw)
        entry = None if data is None else self._decode(data)
        if rows is not None:
            rows.young[key] = entry
            self._read_bytes += len(raw) if data is None else len(raw) + len(data)
            if self._read_bytes > COUNTED_BYTES:
                rows.count(self._read_bytes)
                self._read_bytes = 0
        return entry

    def _fetched_many(self, keys: list[Key], keep: bool) -> list[E | None]:
        """As `_fetched`, for tables with rows."""
        rows = self._rows
        assert rows is not None
        found = cast("list[Any]", list(map(self._pending.get, keys, map(rows.old.get, keys, repeat(_MISSING)))))
        absent = [at for at, entry in enumerate(found) if entry is _MISSING]
        raw = self._raw([keys[at] for at in absent])
        data = self._store.get_many(raw)
        for at, each in zip(absent, data, strict=True):
            found[at] = None if each is None else self._decode(each)
        if keep:
            rows.use_many(keys, found)
        return found

    def _found(self, first: bytes, last: bytes) -> Iterator[bytes]:
        view = self._view or self._store.view()
        return view.keys(first, last)


class RocksMaps(RocksEntries[dict[bytes, bytes]]):
    """The entries of a map state, which are written by `put` and `replay_on` only.

    A map is asked for entry by entry, and would be decoded for each. So it is remembered until another two are, or
    the writes of a batch were sent: it may be large.
    """

    def __init__(
        self,
        store: RocksStore,
        keys: OwnedKeys,
        state_id: int,
        *,
        encode: Callable[[dict[bytes, bytes]], bytes],
        decode: Callable[[bytes], dict[bytes, bytes]],
    ) -> None:
        super().__init__(store, keys, state_id, encode=encode, decode=decode)
        self._decoded: dict[Key, dict[bytes, bytes]] = {}

    def put(self, key: Key, entry: dict[bytes, bytes] | None, size_bytes: int) -> None:
        self._decoded.pop(key, None)
        super().put(key, entry, size_bytes)

    def sent(self) -> None:
        self._decoded.clear()
        super().sent()

    def replay_on(
        self, table: Callable[[dict[Key, dict[bytes, bytes]]], EntryTable[dict[bytes, bytes]]], changes: KeyedChanges
    ) -> None:
        self._decoded.clear()
        super().replay_on(table, changes)

    def _fetched(self, key: Key) -> dict[bytes, bytes] | None:
        found = self._decoded.get(key)
        if found is None and (found := super()._fetched(key)) is not None:
            if len(self._decoded) == MAPS_DECODED:
                del self._decoded[next(iter(self._decoded))]
            self._decoded[key] = found
        return found
