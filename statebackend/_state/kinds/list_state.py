"""Many elements per key, in the order in which they were appended."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar, cast, overload

from statebackend._codec.cells import count, framed, split
from statebackend._codec.change_sets.changes import KeyGroups
from statebackend._codec.change_sets.keyed_changes import ChangeColumns, KeyedChanges
from statebackend._codec.change_sets.state_change import SCALARS, Operation
from statebackend._state.bulk_arguments import Arrow, as_list, check_as_many, keys_as_list
from statebackend._state.kinds.every_kind import KeyedState, SetChanges
from statebackend._state.values import Values
from statebackend._tables.heap import ListTable, row_changes
from statebackend._tables.key_groups import OwnedKeys
from statebackend.ids import Key

V = TypeVar("V")

KIND: Final = "list"
_REPLACED: Final = -1
_CLEAR, _SET, _ADD = map(int, (Operation.CLEAR, Operation.SET, Operation.ADD))


class ListState(KeyedState[bytearray, V], Mapping[Key, "ListView[V]"]):
    """A mapping from key to a list that survives this process.

        hops = backend.list_state("hops", str)
        hops["N14228"].append("EWR")

    `hops[key]` and `hops.get(key)` are a view of the key's list, which is empty for a missing key. A key is in the
    mapping while its list is not empty. `hops[key] = [...]` replaces the list, `del hops[key]` and `hops[key].clear()`
    remove it.

    Elements are copied in and out. An append logs only the new element, however long the list is; reading decodes the
    whole list, even for one index. Errors are those of `ValueState`.
    """

    __slots__ = ("_counted", "_logged_to", "_table")

    def __init__(self, name: str, table: ListTable, keys: OwnedKeys) -> None:
        super().__init__(name, table, keys)
        self._table = table
        self._logged_to: dict[Key, int] = {}  # bytes of a touched key's list that are logged already
        self._counted: tuple[bytearray | None, int, int] = None, 0, 0  # the list read last, its bytes, its elements

    def declare(self, values: Values[V]) -> None:
        """Apply a declaration: the first, or a later one of the same type."""
        self._values = values

    def __getitem__(self, key: Key) -> "ListView[V]":
        if type(key) not in SCALARS or key not in self._entries:
            self._check(key)
        return ListView(self, key)

    def __setitem__(self, key: Key, elements: Iterable[V]) -> None:
        self._replace(key, self._row(elements))

    def append(self, key: Key, element: V) -> None:
        """Append one element to the key's list."""
        self._extend(key, framed(self._values.encode(element)))

    def extend(self, key: Key, elements: Iterable[V]) -> None:
        """Append all of them, or none."""
        self._extend(key, self._row(elements))

    def read(self, key: Key) -> list[V]:
        """The key's elements as a new list: changing it does not change the state."""
        row = self._entries.get(key) if type(key) in SCALARS else None
        if row is None and (row := self._find(key)) is None:
            return []
        ttl = self._values.ttl
        if ttl is None:
            elements = self._values.decode_row(row)
            self._counted = row, len(row), len(elements)
            return elements
        now = ttl.read_clock()
        cells = [cell for cell in split(bytes(row)) if ttl.is_live(cell, now)]
        if ttl.on_read and cells:
            self._replace(key, b"".join(framed(self._values.touched(cell, now)) for cell in cells))
        return self._values.decode_many(cells)

    def length(self, key: Key) -> int:
        """The number of elements of the key's list, without decoding them."""
        row = self._find(key)
        if row is None:
            return 0
        ttl = self._values.ttl
        if ttl is None:
            # `list(hops[key])` asks for the length next to the elements: that of the list read last is known
            counted, size_bytes, found = self._counted
            return found if counted is row and size_bytes == len(row) else count(row)
        now = ttl.read_clock()
        return sum(ttl.is_live(cell, now) for cell in split(bytes(row)))

    def remove(self, key: Key) -> None:
        """Remove the key's list, if there is one."""
        if self._find(key) is not None:
            self._remove(key)

    def get_many(self, keys: Iterable[Key] | Arrow) -> list[list[V]]:
        """The lists of `keys`, in their order."""
        return list(map(self.read, keys_as_list(keys)))

    def put_many(self, keys: Iterable[Key] | Arrow, lists: Iterable[Iterable[V]] | Arrow) -> None:
        """Replace each key's list by the one at the same index; of a repeated key the last counts. All, or none."""
        for key, row in self._rows(keys, lists):
            self._replace(key, row)

    def extend_many(self, keys: Iterable[Key] | Arrow, lists: Iterable[Iterable[V]] | Arrow) -> None:
        """Append to each key's list the elements at the same index. All of them, or none."""
        for key, row in self._rows(keys, lists):
            self._extend(key, row)

    def append_many(self, keys: Iterable[Key] | Arrow, elements: Iterable[V] | Arrow) -> None:
        """Append to each key's list the element at the same index. All of them, or none."""
        keys, elements = keys_as_list(keys), as_list(elements)
        check_as_many(keys, elements)
        self._check_many(keys)
        for key, cell in zip(keys, self._values.encode_many(elements), strict=True):
            self._extend(key, framed(cell))

    def setting(self, entries: Sequence[Iterable[V]]) -> SetChanges:
        """As `KeyedState.setting`. An entry is the elements of a key."""
        found = [row_changes(self._row(elements), _SET) for elements in entries]
        operations, data = bytes(each for row in found for each, _ in row), [each for row in found for _, each in row]
        return SetChanges(operations, data, list(map(len, found)))

    def _rows(self, keys: Iterable[Key] | Arrow, lists: Iterable[Iterable[V]] | Arrow) -> list[tuple[Key, bytes]]:
        keys, lists = keys_as_list(keys), as_list(lists)
        check_as_many(keys, lists)
        self._check_many(keys)
        return list(zip(keys, map(self._row, lists), strict=True))

    def _row(self, elements: Iterable[V]) -> bytes:
        return b"".join(map(framed, self._values.encode_many(as_list(elements))))

    def _extend(self, key: Key, row: bytes) -> None:
        if type(key) not in SCALARS or key not in self._dirty:
            self._touch(key)
        if row:
            self._logged_to.setdefault(key, len(self._entries.get(key, b"")))
            self._table.extend(key, row)

    def _replace(self, key: Key, row: bytes) -> None:
        self._touch(key)
        self._logged_to[key] = _REPLACED
        self._table.replace(key, row)

    def _is_live(self, entry: bytearray, now: float) -> bool:
        ttl = self._values.ttl
        return ttl is None or any(ttl.is_live(cell, now) for cell in split(bytes(entry)))

    def _remove(self, key: Key) -> None:
        self._replace(key, b"")

    def _expire(self, key: Key, now: float) -> None:
        ttl = self._values.ttl
        assert ttl is not None
        cells = split(bytes(self._entries[key]))
        living = [cell for cell in cells if ttl.is_live(cell, now)]
        if len(living) < len(cells):
            self._replace(key, b"".join(map(framed, living)))

    def _logged(self, state_id: int, groups: KeyGroups, keys: list[Key], found: list[object]) -> Iterator[KeyedChanges]:
        columns = ChangeColumns(state_id)
        for key, group in zip(keys, groups.tolist(), strict=True):
            for operation, data in self._outcome(key):
                columns.add(group, operation, key, data)
                if columns.is_full:
                    yield from columns.take()
        yield from columns.take()

    def _outcome(self, key: Key) -> Iterable[tuple[int, bytes]]:
        """The operations on a touched key since it was last logged, and their data."""
        start = self._logged_to.pop(key, None)
        if start is None:
            return ()
        row = self._entries.get(key)
        if row is None:
            return ((_CLEAR, b""),)
        if start == _REPLACED:
            return row_changes(bytes(row), _SET)
        return row_changes(bytes(row[start:]), _ADD)


class ListView(Sequence[V]):
    """The list of one key, always as it is now. It equals a list with the same elements."""

    __slots__ = ("_key", "_state")
    __hash__ = None  # type: ignore[assignment]  # it is mutable

    def __init__(self, state: ListState[V], key: Key) -> None:
        self._state = state
        self._key = key

    def append(self, element: V) -> None:
        """Append one element."""
        self._state.append(self._key, element)

    def extend(self, elements: Iterable[V]) -> None:
        """Append all of them, or none."""
        self._state.extend(self._key, elements)

    def clear(self) -> None:
        """Remove every element."""
        self._state.remove(self._key)

    def __iter__(self) -> Iterator[V]:
        return iter(self._state.read(self._key))

    def __len__(self) -> int:
        return self._state.length(self._key)

    @overload
    def __getitem__(self, index: int) -> V: ...
    @overload
    def __getitem__(self, index: slice) -> list[V]: ...
    def __getitem__(self, index: int | slice) -> V | list[V]:
        return self._state.read(self._key)[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | ListView):
            return NotImplemented
        return list(self) == list(cast("Iterable[object]", other))

    def __repr__(self) -> str:
        return f"ListView({list(self)!r})"
