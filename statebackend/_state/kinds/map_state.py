"""A map per key, whose entries are read, written and logged one by one."""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from statebackend._codec.cells import framed
from statebackend._codec.change_sets.changes import KeyGroups
from statebackend._codec.change_sets.keyed_changes import ChangeColumns, KeyedChanges
from statebackend._codec.change_sets.state_change import SCALARS, Operation
from statebackend._codec.serializers import VALUE_BYTES_MAX, MsgspecSerializer, serializer_of
from statebackend._state.bulk_arguments import Arrow, as_list, check_as_many, keys_as_list
from statebackend._state.kinds.every_kind import KeyedState, SetChanges
from statebackend._state.values import Values
from statebackend._tables.heap import MapTable
from statebackend._tables.key_groups import OwnedKeys
from statebackend.abc import Serializer
from statebackend.errors import InputError
from statebackend.ids import Key

K = TypeVar("K")
V = TypeVar("V")

KIND: Final = "map"
_CLEAR, _PUT, _REMOVE = map(int, (Operation.CLEAR, Operation.PUT, Operation.REMOVE))

_PAIR: Final = {"key", "value"}

_encode_ordered: Final = msgspec.msgpack.Encoder(order="deterministic").encode


class EntryKeys(Generic[K]):
    """Encodes the keys within a key's map. They may have any type, and are told apart by their bytes.

    So equal keys must have equal bytes. Values that msgspec takes for the same key get the same bytes: an int for a
    float, sets and dicts in any order. Not so some that only Python takes for the same: 0.0 and -0.0, decimals with
    more or fewer zeros, an instant in two zones. These are two keys.
    """

    __slots__ = ("_is_own", "_scalar", "_serializer", "decode", "schema")

    def __init__(self, type_: type[K] | Serializer[K]) -> None:
        self._serializer: Final = serializer_of(type_)
        self._is_own = isinstance(self._serializer, MsgspecSerializer)
        self._scalar = next((known for known in SCALARS if known is type_), None)
        self.schema: Final = self._serializer.schema
        self.decode: Final = self._serializer.decode

    def encode(self, key: K) -> bytes:
        """The bytes that identify the entry. Raises `ValueEncodeError`."""
        if type(key) is self._scalar:
            try:
                data = _encode_ordered(key)
            except (UnicodeEncodeError, OverflowError):
                return self._serializer.encode(key)  # raises, and says why
            if len(data) <= VALUE_BYTES_MAX:
                return data
        data = self._serializer.encode(key)
        return _encode_ordered(self.decode(data)) if self._is_own else data


class MapState(KeyedState[dict[bytes, bytes], V], Mapping[Key, "MapView[K, V]"], Generic[K, V]):
    """A mapping from key to a map that survives this process.

        seen = backend.map_state("seen", str, int)
        seen["N14228"]["EWR"] = 3

    `seen[key]` and `seen.get(key)` are a view of the key's map, which is empty for a missing key. A key is in the
    mapping while its map is not empty. `seen[key] = {...}` replaces the map, `del seen[key]` and `seen[key].clear()`
    remove it.

    Entries are copied in and out. Changing an entry logs only that entry, however large the map is. The keys within a
    map may have any type, which cannot evolve; they are told apart by their bytes, so `Decimal("1.0")` and
    `Decimal("1.00")` are two keys, and so are 1 and True. A dict has room for one of them: `get_many` refuses such a
    map, which the views have whole. Errors are those of `ValueState`, for keys of both levels.
    """

    __slots__ = ("_entry_keys", "_table", "_touched")

    def __init__(self, name: str, table: MapTable, keys: OwnedKeys) -> None:
        super().__init__(name, table, keys)
        self._table = table
        # entries of a touched key that are not logged yet; the first is None if the map was replaced or removed
        self._touched: dict[Key, dict[bytes | None, None]] = {}

    def declare(self, values: Values[V], entry_keys: EntryKeys[K]) -> None:
        """Apply a declaration: the first, or a later one of the same types."""
        self._values = values
        self._entry_keys = entry_keys

    def __getitem__(self, key: Key) -> "MapView[K, V]":
        if type(key) not in SCALARS or key not in self._entries:
            self._check(key)
        return MapView(self, key)

    def __setitem__(self, key: Key, entries: Mapping[K, V]) -> None:
        self._replace(key, self._encoded(entries))

    def put(self, key: Key, entry_key: K, value: V) -> None:
        """Set one entry of the key's map."""
        encoded, cell = self._entry_keys.encode(entry_key), self._values.encode(value)
        if type(key) not in SCALARS or key not in self._dirty:
            self._touch(key)
        self._put(key, encoded, cell)

    def read(self, key: Key) -> dict[K, V]:
        """The key's map as a new dictionary: changing it does not change the state. Raises as `get_many`."""
        entries = self._living(key)
        names = list(map(self._entry_keys.decode, entries))
        values = self._values.decode_many(list(entries.values()))
        found: dict[K, V] = {}
        with suppress(TypeError):  # a name that has no hash, as a list
            found = dict(zip(names, values, strict=True))
        if len(found) < len(entries):
            raise InputError(
                "no dict can hold the map: Python takes some of its names for equal, or they have no hash: take the"
                " items of `state[key]`",
                state=self.name,
                key=ascii(key)[:80],
                entries=len(entries),
                in_a_dict=len(found),
            )
        ttl = self._values.ttl
        if ttl is not None and ttl.on_read and entries:
            now = ttl.read_clock()
            self._touch(key)
            self._put_many(key, {encoded: self._values.touched(cell, now) for encoded, cell in entries.items()})
        return found

    def read_entry(self, key: Key, entry_key: K) -> V:
        """The value of one entry. Raises `KeyError` where there is none."""
        encoded = self._entry_keys.encode(entry_key)
        cell = self._cell(key, encoded)
        if cell is None:
            raise KeyError(entry_key)
        ttl = self._values.ttl
        if ttl is not None and ttl.on_read:
            self._touch(key)
            self._put(key, encoded, self._values.touched(cell, ttl.read_clock()))
        return self._values.decode(cell)

    def remove_entry(self, key: Key, entry_key: K) -> None:
        """Remove one entry. Raises `KeyError` where there is none."""
        encoded = self._entry_keys.encode(entry_key)
        if self._cell(key, encoded) is None:
            raise KeyError(entry_key)
        self._touch(key)
        self._touched.setdefault(key, {})[encoded] = None
        self._table.remove(key, encoded)

    def entry_keys(self, key: Key) -> list[K]:
        """The keys of the key's map."""
        return list(map(self._entry_keys.decode, self._living(key)))

    def last_entry_key(self, key: Key) -> K:
        """The key of the entry that was added last. Raises `KeyError` where there is none."""
        for encoded in reversed(self._find(key) or {}):
            if self._cell(key, encoded) is not None:
                return self._entry_keys.decode(encoded)
        raise KeyError("the map is empty")

    def has_entry(self, key: Key, entry_key: K) -> bool:
        """True if the key's map has the entry."""
        return self._cell(key, self._entry_keys.encode(entry_key)) is not None

    def length(self, key: Key) -> int:
        """The number of entries of the key's map."""
        return len(self._living(key))

    def remove(self, key: Key) -> None:
        """Remove the key's map, if there is one."""
        if self._find(key) is not None:
            self._remove(key)

    def get_many(self, keys: Iterable[Key] | Arrow) -> list[dict[K, V]]:
        """The maps of `keys`, in their order, as new dictionaries.

        Raises `InputError` for a map that no dict can hold, with 0.0 beside -0.0 or lists for names: `state[key]` can.
        """
        return list(map(self.read, keys_as_list(keys)))

    def put_many(self, keys: Iterable[Key] | Arrow, maps: Iterable[Mapping[K, V]] | Arrow) -> None:
        """Replace each key's map by the one at the same index; of a repeated key the last counts. All, or none."""
        for key, entries in self._all_encoded(keys, maps):
            self._replace(key, entries)

    def update_many(self, keys: Iterable[Key] | Arrow, maps: Iterable[Mapping[K, V]] | Arrow) -> None:
        """Set in each key's map the entries at the same index. All of them, or none."""
        for key, entries in self._all_encoded(keys, maps):
            self._touch(key)
            self._put_many(key, entries)

    def setting(self, entries: Sequence[Mapping[K, V]]) -> SetChanges:
        """As `KeyedState.setting`. An entry is the map of a key."""
        maps = list(map(self._encoded, entries))
        data = [framed(encoded) + framed(cell) for own in maps for encoded, cell in own.items()]
        return SetChanges(bytes([_PUT]) * len(data), data, list(map(len, maps)))

    def _all_encoded(
        self, keys: Iterable[Key] | Arrow, maps: Iterable[Mapping[K, V]] | Arrow
    ) -> list[tuple[Key, dict[bytes, bytes]]]:
        keys, maps = keys_as_list(keys), as_list(maps)
        check_as_many(keys, maps)
        self._check_many(keys)
        return list(zip(keys, map(self._encoded, maps), strict=True))

    def _encoded(self, entries: Mapping[K, V]) -> dict[bytes, bytes]:
        names, values = list[K](), list[V]()  # and no dict of them: a `MapView` may have more names
        for name, value in _pairs_of(entries):
            names.append(name)
            values.append(value)
        return dict(zip(map(self._entry_keys.encode, names), self._values.encode_many(values), strict=True))

    def _cell(self, key: Key, encoded: bytes) -> bytes | None:
        """The cell of one entry, `None` where there is none or it has expired."""
        entries, ttl = self._find(key), self._values.ttl
        cell = None if entries is None else entries.get(encoded)
        return cell if cell is None or ttl is None or ttl.is_live(cell, ttl.read_clock()) else None

    def _living(self, key: Key) -> Mapping[bytes, bytes]:
        """The key's entries that have not expired; empty for a missing key."""
        entries = self._find(key) or {}
        ttl = self._values.ttl
        if ttl is None:
            return entries
        now = ttl.read_clock()
        return {entry_key: cell for entry_key, cell in entries.items() if ttl.is_live(cell, now)}

    def _put(self, key: Key, encoded: bytes, cell: bytes) -> None:
        touched = self._touched.get(key)
        if touched is None:
            touched = self._touched[key] = {}
        touched[encoded] = None
        self._table.put(key, encoded, cell)

    def _put_many(self, key: Key, cells: Mapping[bytes, bytes]) -> None:
        if cells:
            self._touched.setdefault(key, {}).update(dict.fromkeys(cells))
            self._table.put_many(key, cells)

    def _replace(self, key: Key, entries: Mapping[bytes, bytes]) -> None:
        self._touch(key)
        self._touched[key] = {None: None}
        self._table.drop(key)
        self._put_many(key, entries)

    def _is_live(self, entry: dict[bytes, bytes], now: float) -> bool:
        ttl = self._values.ttl
        return ttl is None or any(ttl.is_live(cell, now) for cell in entry.values())

    def _remove(self, key: Key) -> None:
        self._replace(key, {})

    def _expire(self, key: Key, now: float) -> None:
        ttl = self._values.ttl
        assert ttl is not None
        for encoded in [encoded for encoded, cell in self._entries[key].items() if not ttl.is_live(cell, now)]:
            self._touch(key)
            self._touched.setdefault(key, {})[encoded] = None
            self._table.remove(key, encoded)

    def _logged(self, state_id: int, groups: KeyGroups, keys: list[Key], found: list[object]) -> Iterator[KeyedChanges]:
        columns = ChangeColumns(state_id)
        for key, group in zip(keys, groups.tolist(), strict=True):
            entries = self._entries.get(key, {})
            for encoded in self._touched.pop(key, {}):
                if encoded is None:
                    columns.add(group, _CLEAR, key)
                elif (cell := entries.get(encoded)) is not None:
                    columns.add(group, _PUT, key, framed(encoded) + framed(cell))
                else:
                    columns.add(group, _REMOVE, key, encoded)
                if columns.is_full:
                    yield from columns.take()
        yield from columns.take()


class MapView(MutableMapping[K, V]):
    """The map of one key, always as it is now. An iteration shows the keys there when it began."""

    __slots__ = ("_key", "_state")

    def __init__(self, state: MapState[K, V], key: Key) -> None:
        self._state = state
        self._key = key

    def __getitem__(self, entry_key: K) -> V:
        return self._state.read_entry(self._key, entry_key)

    def __setitem__(self, entry_key: K, value: V) -> None:
        self._state.put(self._key, entry_key, value)

    def __delitem__(self, entry_key: K) -> None:
        self._state.remove_entry(self._key, entry_key)

    def __contains__(self, entry_key: object) -> bool:
        return self._state.has_entry(self._key, entry_key)  # type: ignore[arg-type]  # a wrong key raises its error

    def __iter__(self) -> Iterator[K]:
        return iter(self._state.entry_keys(self._key))

    def __len__(self) -> int:
        return self._state.length(self._key)

    def popitem(self) -> tuple[K, V]:
        """Remove the entry that was added last, as a `dict` does, and return it. Raises `KeyError` without one."""
        entry_key = self._state.last_entry_key(self._key)
        return entry_key, self.pop(entry_key)

    def clear(self) -> None:
        """Remove every entry."""
        self._state.remove(self._key)

    def __repr__(self) -> str:
        return f"MapView({dict(self)!r})"


def _pairs_of(entries: Any) -> Iterable[Any]:
    """The pairs of a mapping, of a map of Arrow's, or of the list of records that stands for one with null names."""
    if hasattr(entries, "items"):
        return entries.items()  # type: ignore[no-any-return]
    return (_pair_of(cast("dict[str, Any]", each)) if isinstance(each, dict) else each for each in entries)


def _pair_of(record: dict[str, Any]) -> Any:
    if record.keys() != _PAIR:
        raise InputError("give a map as a mapping, as pairs, or as records of `key` and `value`", got=repr(record)[:80])
    return record["key"], record["value"]
