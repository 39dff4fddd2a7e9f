"""The base class of the kinds with one encoded value per key: value, reducing and aggregating states."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

from statebackend._codec.change_sets.changes import KeyGroups
from statebackend._codec.change_sets.keyed_changes import SET, KeyedChanges, of_cells
from statebackend._codec.change_sets.state_change import SCALARS
from statebackend._codec.plain import UNCHANGING
from statebackend._state.bulk_arguments import Arrow, as_list, check_as_many, keys_as_list
from statebackend._state.kinds.every_kind import KeyedState, SetChanges
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.table import AnyTable
from statebackend.ids import Key

V = TypeVar("V")
T = TypeVar("T")


class CellState(KeyedState[bytes, V]):
    """One cell per key. A write replaces it, so a drain logs each touched key once, with its newest cell.

    If the entries are in memory, `_dirty` remembers each touched key's cell, or `None` for a removed key, so that the
    drain need not look it up. That costs no memory: it is the same object. Cells in RocksDB must not be held without a
    bound: there the drain asks the table, which caches what was written last.
    """

    __slots__ = ("_find_many", "_remembers")

    def __init__(self, name: str, table: AnyTable, keys: OwnedKeys) -> None:
        super().__init__(name, table, keys)
        self._remembers = isinstance(table.entries, dict)
        self._find_many = table.find_many

    def setting(self, entries: Sequence[Any]) -> SetChanges:
        """As `KeyedState.setting`. An entry is what is stored: a value, or the accumulator of an aggregate."""
        return SetChanges(SET * len(entries), self._values.encode_many(entries))

    def _is_live(self, entry: bytes, now: float) -> bool:
        ttl = self._values.ttl
        return ttl is None or ttl.is_live(entry, now)

    def _remove(self, key: Key) -> None:
        self._touch(key)
        self._dirty[key] = None
        del self._entries[key]

    def _expire(self, key: Key, now: float) -> None:
        if not self._is_live(self._entries[key], now):
            self._remove(key)

    def _logged(self, state_id: int, groups: KeyGroups, keys: list[Key], found: list[object]) -> Iterator[KeyedChanges]:
        cells = cast("list[bytes | None]", found) if self._remembers else self._find_many(keys, keep=False)
        yield of_cells(state_id, groups, keys, cells)

    def _cell(self, key: Key) -> bytes | None:
        """The key's cell for a read, `None` where there is none or it has expired."""
        cell = self._find(key)
        ttl = self._values.ttl
        if cell is None or ttl is None:
            return cell
        now = ttl.read_clock()
        if not ttl.is_live(cell, now):
            return None
        if ttl.on_read:
            cell = self._values.touched(cell, now)
            self._set(key, cell)
        return cell

    def _set(self, key: Key, cell: bytes) -> None:
        if type(key) not in SCALARS or key not in self._dirty:
            self._touch(key)
        if self._remembers:
            self._dirty[key] = cell
        self._entries[key] = cell

    def _get_many(self, keys: list[Key], missing: Callable[[Key], T]) -> list[V | T]:
        """Fresh values, and `missing(key)` for a key without one."""
        if self._values.ttl is None and SCALARS.issuperset(map(type, keys)):
            cells = self._find_many(keys)
            if all(cells):  # quicker than looking for None, and wrong only for an empty cell, which is handled below
                return cast("list[V | T]", self._values.decode_many(cast("list[bytes]", cells)))
            self._check_many([key for key, cell in zip(keys, cells, strict=True) if cell is None])
        else:
            cells = [self._cell(key) for key in keys]
        values = iter(self._values.decode_many([cell for cell in cells if cell is not None]))
        return [missing(key) if cell is None else next(values) for key, cell in zip(keys, cells, strict=True)]

    def _put_many(self, keys: list[Key], values: list[V]) -> None:
        """Write all of them or, where one is refused, none."""
        check_as_many(keys, values)
        self._check_many(keys)
        written = dict(zip(keys, self._values.encode_to_keep(values), strict=True))
        touched: dict[Key, Any] = written if self._remembers else dict.fromkeys(written)
        # First, as in a single write: where the disk fails halfway, the part it took is logged.
        if self._dirty:
            self._dirty.update(touched)
        else:
            self._dirty = touched
        self._entries.update(written)

    def _fold_many(
        self,
        keys: Iterable[Key] | Arrow,
        values: Iterable[T] | Arrow,
        first: Callable[[Key, T], V],
        combine: Callable[[V, T], V],
    ) -> None:
        """Combine each value with its key's, in order. A key is decoded and encoded once; all of them or none."""
        keys, values = keys_as_list(keys), as_list(values)
        check_as_many(keys, values)
        self._check_many(keys)  # before any lookup: True would be taken for 1
        distinct = list(dict.fromkeys(keys))
        nothing = object()
        folded: dict[Key, Any] = dict(zip(distinct, self._get_many(distinct, lambda _: nothing), strict=True))
        for key, value in zip(keys, values, strict=True):
            found = folded[key]
            made = first(key, value) if found is nothing else combine(found, value)
            # The caller's own object is not changed in place by the next call, nor is it that of two keys.
            is_given = made is cast("object", value) and type(made) not in UNCHANGING
            folded[key] = self._copied(made) if is_given else made
        self._put_many(distinct, list(folded.values()))

    def _copied(self, value: V) -> V:
        serializer = self._values.serializer
        return serializer.decode(serializer.encode(value))
