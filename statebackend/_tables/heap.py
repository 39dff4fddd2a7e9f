"""Entries in plain dictionaries under the user's own keys, in one of three kinds of table.

    ValueTable    key -> cell                     value, reducing and aggregating states; the timers of a key
    ListTable     key -> cells in a row           an append to a bytearray moves nothing, and logs only the new cells
    MapTable      key -> {entry key -> cell}      one entry is found and logged without the others

Entries stay encoded, for two reasons. The garbage collector does not track bytes or bytearrays nor, before Python 3.14,
a dictionary of bytes, while it would walk a list per key again and again. And every read decodes fresh objects: a user
who changes one in place cannot make memory and log differ.

An empty list or map has no entry. Live writes and replay go through the same methods. Nothing expires here: the states
ask `_state/time/ttl.py`.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Final, Self

from statebackend._codec.cells import framed, split
from statebackend._codec.change_sets.changes import Changes, KeyGroups
from statebackend._codec.change_sets.keyed_changes import SET, ChangeColumns, KeyedChanges
from statebackend._codec.change_sets.state_change import Operation
from statebackend._tables.placed import IsLive
from statebackend._tables.table import EntryTable, Table, TableSize
from statebackend.errors import UnsupportedVersionError
from statebackend.ids import Key

CHUNK_BYTES: Final = 1 << 20
"""A longer list is logged in several changes, because a change must fit into a frame."""

# To look up an enum's attribute takes as long as the rest of a change.
_CLEAR, _SET, _ADD, _PUT, _REMOVE = map(
    int, (Operation.CLEAR, Operation.SET, Operation.ADD, Operation.PUT, Operation.REMOVE)
)


class ValueTable(EntryTable[bytes]):
    """One cell per key.

    To look up the cell that a write replaces, for its size, would cost half as much again as the write. So a cell that
    is gone counts as an average one: bytes are exact if all cells are of a size, and if none is ever replaced.
    """

    __slots__ = ("_keys", "_set", "_set_bytes", "_size_bytes")

    def __init__(self, entries: MutableMapping[Key, bytes] | None = None) -> None:
        super().__init__(entries)
        self._keys, self._size_bytes = 0, 0.0  # when `size` was last called
        self._set, self._set_bytes = 0, 0  # cells set since then

    def note(self, changes: Changes) -> None:
        assert isinstance(changes, KeyedChanges)
        self._set += changes.operations.count(SET)
        self._set_bytes += changes.data_bytes

    def apply(self, changes: Changes) -> None:
        super().apply(changes)
        none_gone = len(self.entries) == self._keys + self._set
        if none_gone or self._set >= self._keys:  # otherwise the average is that of before these change sets
            self.size()

    def size(self) -> TableSize:
        keys = len(self.entries)
        stayed = keys - self._set  # of the cells there were; negative if some of the new ones are gone, too
        if stayed >= 0:
            self._size_bytes = self._size_bytes * min(1.0, stayed / max(1, self._keys)) + self._set_bytes
        else:
            self._size_bytes = self._set_bytes * keys / self._set
        self._keys, self._set, self._set_bytes = keys, 0, 0
        return TableSize(keys, round(self._size_bytes))

    def replay(self, changes: KeyedChanges) -> None:
        """`SET` sets the cell, `CLEAR` removes it."""
        if changes.all_set:
            self.put_all(changes.keys, changes.data)
            return
        entries = self.entries
        for operation, key, data in zip(changes.operations, changes.keys, changes.data, strict=True):
            cell = cell_of(operation, data)
            if cell is None:
                entries.pop(key, None)
            else:
                entries[key] = cell

    def put_all(self, keys: Sequence[Key], cells: Sequence[bytes]) -> None:
        """Set the cell of each key; of a repeated key the last counts."""
        self.entries.update(zip(keys, cells, strict=True))

    def copy(self) -> Self:
        """A copy of the dictionary: cells never change."""
        return type(self)(dict(self.entries))

    def set_data(self, entries: Sequence[bytes], is_live: IsLive | None) -> Sequence[bytes | None]:
        return entries if is_live is None else [cell if is_live(cell) else None for cell in entries]

    def rebuilding(
        self, state_id: int, groups: KeyGroups, keys: Sequence[Key], entries: Sequence[bytes], is_live: IsLive | None
    ) -> Iterator[KeyedChanges]:
        """One `SET` for each key whose cell has not expired."""
        if is_live is None:
            yield KeyedChanges(state_id, groups, SET * len(keys), keys, entries)
            return
        columns = ChangeColumns(state_id)
        for group, key, cell in zip(groups.tolist(), keys, entries, strict=True):
            if is_live(cell):
                columns.add(group, _SET, key, cell)
        yield from columns.take()


class ListTable(EntryTable[bytearray]):
    """The framed elements of each key in one bytearray, which a copy shares until it is written to."""

    __slots__ = ("_own", "_size_bytes")

    def __init__(self, entries: MutableMapping[Key, bytearray] | None = None) -> None:
        super().__init__(entries)
        self._size_bytes = 0
        self._own: set[Key] | None = None  # keys whose bytearray is shared with no copy; None: all of them

    def replay(self, changes: KeyedChanges) -> None:
        """`SET` replaces the elements, `ADD` appends some, `CLEAR` removes all."""
        for operation, key, data in zip(changes.operations, changes.keys, changes.data, strict=True):
            if operation == _ADD:
                self.extend(key, data)
            elif operation == _SET:
                self.replace(key, data)
            elif operation == _CLEAR:
                self.replace(key, b"")
            else:
                raise _unknown(operation)

    def size(self) -> TableSize:
        return TableSize(len(self.entries), self._size_bytes)

    def extend(self, key: Key, row: bytes) -> None:
        """Append framed elements."""
        found = self.entries.get(key)
        if found is None or (self._own is not None and key not in self._own):
            self.replace(key, row if found is None else found + row)
        else:
            found += row
            self._size_bytes += len(row)

    def replace(self, key: Key, row: bytes | bytearray) -> None:
        """Replace the key's elements by these framed ones; without any, remove the key."""
        self._size_bytes += len(row) - len(self.entries.get(key, b""))
        if not row:
            self.entries.pop(key, None)
            return
        self.entries[key] = bytearray(row)
        if self._own is not None:
            self._own.add(key)

    def copy(self) -> Self:
        """Shares the elements: the next append to a key copies them, once."""
        self._own = set()
        return type(self)(dict(self.entries))

    def set_data(
        self, entries: Sequence[bytearray], is_live: IsLive | None
    ) -> Sequence[bytes | bytearray | None] | None:
        if max(map(len, entries), default=0) > CHUNK_BYTES:
            return None
        return entries if is_live is None else [_living(row, is_live) or None for row in entries]

    def rebuilding(
        self,
        state_id: int,
        groups: KeyGroups,
        keys: Sequence[Key],
        entries: Sequence[bytearray],
        is_live: IsLive | None,
    ) -> Iterator[KeyedChanges]:
        """For each key one `SET`, then one `ADD` for each further chunk."""
        columns = ChangeColumns(state_id)
        for group, key, found in zip(groups.tolist(), keys, entries, strict=True):
            row = bytes(found) if is_live is None else _living(found, is_live)
            for operation, chunk in row_changes(row, _SET):
                columns.add(group, operation, key, chunk)
                if columns.is_full:
                    yield from columns.take()
        yield from columns.take()


class MapTable(EntryTable[dict[bytes, bytes]]):
    """The encoded entries of each key by their encoded keys, which a copy shares until they are written to."""

    __slots__ = ("_own", "_size_bytes")

    def __init__(self, entries: MutableMapping[Key, dict[bytes, bytes]] | None = None) -> None:
        super().__init__(entries)
        self._size_bytes = 0
        self._own: set[Key] | None = None  # as in `ListTable`

    def replay(self, changes: KeyedChanges) -> None:
        """`PUT` sets an entry, `REMOVE` removes one, `CLEAR` removes all."""
        for operation, key, data in zip(changes.operations, changes.keys, changes.data, strict=True):
            if operation == _PUT:
                entry_key, cell = split(data)
                self.put(key, entry_key, cell)
            elif operation == _REMOVE:
                self.remove(key, data)
            elif operation == _CLEAR:
                self.drop(key)
            else:
                raise _unknown(operation)

    def size(self) -> TableSize:
        return TableSize(len(self.entries), self._size_bytes)

    def put(self, key: Key, entry_key: bytes, cell: bytes) -> None:
        """Set one entry."""
        found = self.entries.get(key)
        if found is None or self._own is not None:
            found = self._writable(key)
        replaced = found.get(entry_key)
        self._size_bytes += len(cell) + len(entry_key) if replaced is None else len(cell) - len(replaced)
        found[entry_key] = cell

    def put_many(self, key: Key, cells: Mapping[bytes, bytes]) -> None:
        """Set some entries of the key's map, at least one."""
        for entry_key, cell in cells.items():
            self.put(key, entry_key, cell)

    def remove(self, key: Key, entry_key: bytes) -> None:
        """Remove one entry; fine if it is not there. With the last one the key goes too."""
        if entry_key in self.entries.get(key, ()):
            entries = self._writable(key)
            self._size_bytes -= len(entry_key) + len(entries.pop(entry_key))
            if not entries:
                del self.entries[key]

    def drop(self, key: Key) -> None:
        """Remove all entries of the key; fine if there are none."""
        for entry_key, cell in self.entries.pop(key, {}).items():
            self._size_bytes -= len(entry_key) + len(cell)

    def copy(self) -> Self:
        """Shares the entries: the next write to a key copies them, once."""
        self._own = set()
        return type(self)(dict(self.entries))

    def rebuilding(
        self,
        state_id: int,
        groups: KeyGroups,
        keys: Sequence[Key],
        entries: Sequence[dict[bytes, bytes]],
        is_live: IsLive | None,
    ) -> Iterator[KeyedChanges]:
        """One `PUT` for each entry of each key."""
        columns = ChangeColumns(state_id)
        for group, key, found in zip(groups.tolist(), keys, entries, strict=True):
            for entry_key, cell in found.items():
                if is_live is None or is_live(cell):
                    columns.add(group, _PUT, key, framed(entry_key) + framed(cell))
                    if columns.is_full:
                        yield from columns.take()
        yield from columns.take()

    def _writable(self, key: Key) -> dict[bytes, bytes]:
        found = self.entries.get(key)
        if found is None or (self._own is not None and key not in self._own):
            found = self.entries[key] = {} if found is None else found.copy()
            if self._own is not None:
                self._own.add(key)
        return found


KINDS: Final[Mapping[str, type[ValueTable | ListTable | MapTable]]] = {
    "value": ValueTable,
    "reducing": ValueTable,
    "aggregating": ValueTable,
    "timers": ValueTable,
    "list": ListTable,
    "map": MapTable,
}
"""The table of each kind of state. The names of the kinds are stored in commits: never change one."""


def heap_table(heap: Callable[[], Table], _: int) -> Table:
    """An empty table on the heap: an `OpenTable`."""
    return heap()


def cell_of(operation: int, data: bytes) -> bytes | None:
    """The cell that an operation on a cell leaves, `None` where it removes it."""
    if operation == _SET:
        return data
    if operation == _CLEAR:
        return None
    raise _unknown(operation)


def row_changes(row: bytes, first: int) -> Sequence[tuple[int, bytes]]:
    """The operations that write a list's framed elements, and their data, the first one being `first`.

    There are none for no elements, and several for more than `CHUNK_BYTES`.
    """
    return [(_ADD if at else first, row[at : at + CHUNK_BYTES]) for at in range(0, len(row), CHUNK_BYTES)]


def _living(row: bytearray, is_live: IsLive) -> bytes:
    return b"".join(framed(cell) for cell in split(bytes(row)) if is_live(cell))


def _unknown(operation: int) -> UnsupportedVersionError:
    return UnsupportedVersionError("this kind of state does not know this operation", operation=operation)
