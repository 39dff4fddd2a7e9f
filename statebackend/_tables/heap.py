"""Entries in plain dictionaries under the user's own keys, in one of three kinds of table.

    ValueTable    key -> cell                     value, reducing and aggregating states; the timers of a key
    ListTable     key -> cells in a row           an append to a bytearray moves nothing, and logs only the new cells
    MapTable      key -> {entry key -> cell}      one entry is found and logged without the others

Entries stay encoded, for two reasons. The garbage collector does not track bytes or bytearrays nor, before Python 3.14,
a dictionary of bytes, while it would walk a list per key again and again. And every read decodes fresh objects: a user
who changes one in place cannot make memory and log differ.

An empty list or map has no entry. Live writes and replay go through the same methods.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Final, Self

from statebackend._codec.cells import framed, split
from statebackend._codec.records import SCALARS, Operation, StateChange, key_of
from statebackend._tables.table import AnyTable, Renew, Table
from statebackend.errors import UnsupportedVersionError
from statebackend.ids import Key

CHUNK_BYTES: Final = 1 << 20
"""A longer list is logged in several changes, because a change must fit into a frame."""

_SET: Final = int(Operation.SET)  # to look up an enum's attribute takes as long as to make the change


class ValueTable(Table[bytes]):
    """One cell per key."""

    __slots__ = ()

    def apply(self, change: StateChange) -> None:
        """`SET` sets the cell, `CLEAR` removes it."""
        if change.operation == _SET:
            self.entries[key_of(change)] = change.data
        elif change.operation == Operation.CLEAR:
            self.entries.pop(key_of(change), None)
        else:
            raise _unknown(change)

    def apply_many(self, changes: Sequence[StateChange]) -> None:
        entries = self.entries
        for change in changes:
            if change.operation == _SET and type(change.key) in SCALARS:  # most are: no call for these
                entries[change.key] = change.data
            else:
                self.apply(change)

    def copy(self) -> Self:
        """A copy of the dictionary: cells never change."""
        return type(self)(dict(self.entries))

    def changes(self, state_id: int, group: int, key: Key, renew: Renew | None) -> Iterator[StateChange]:
        """One `SET`."""
        cell = self.entries[key] if renew is None else renew(self.entries[key])
        if cell is not None:
            yield StateChange(group, _SET, state_id, key, cell)


class ListTable(Table[bytearray]):
    """The framed elements of each key in one bytearray, which a copy shares until it is written to."""

    __slots__ = ("_own",)

    def __init__(self, entries: MutableMapping[Key, bytearray] | None = None) -> None:
        super().__init__(entries)
        self._own: set[Key] | None = None  # keys whose bytearray is shared with no copy; None: all of them

    def apply(self, change: StateChange) -> None:
        """`SET` replaces the elements, `ADD` appends some, `CLEAR` removes all."""
        if change.operation == Operation.ADD:
            self.extend(key_of(change), change.data)
        elif change.operation == Operation.SET:
            self.replace(key_of(change), change.data)
        elif change.operation == Operation.CLEAR:
            self.entries.pop(key_of(change), None)
        else:
            raise _unknown(change)

    def extend(self, key: Key, row: bytes) -> None:
        """Append framed elements."""
        found = self.entries.get(key)
        if found is None or (self._own is not None and key not in self._own):
            self.replace(key, row if found is None else found + row)
        else:
            found += row

    def replace(self, key: Key, row: bytes | bytearray) -> None:
        """Replace the key's elements by these framed ones; without any, remove the key."""
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

    def changes(self, state_id: int, group: int, key: Key, renew: Renew | None) -> Iterator[StateChange]:
        """One `SET`, then one `ADD` for each further chunk."""
        row = bytes(self.entries[key])
        if renew is not None:
            row = b"".join(framed(cell) for cell in map(renew, split(row)) if cell is not None)
        return row_changes(state_id, group, key, row, Operation.SET)


class MapTable(Table[dict[bytes, bytes]]):
    """The encoded entries of each key by their encoded keys, which a copy shares until they are written to."""

    __slots__ = ("_own",)

    def __init__(self, entries: MutableMapping[Key, dict[bytes, bytes]] | None = None) -> None:
        super().__init__(entries)
        self._own: set[Key] | None = None  # as in `ListTable`

    def apply(self, change: StateChange) -> None:
        """`PUT` sets an entry, `REMOVE` removes one, `CLEAR` removes all."""
        if change.operation == Operation.PUT:
            entry_key, cell = split(change.data)
            self.put(key_of(change), entry_key, cell)
        elif change.operation == Operation.REMOVE:
            self.remove(key_of(change), change.data)
        elif change.operation == Operation.CLEAR:
            self.entries.pop(key_of(change), None)
        else:
            raise _unknown(change)

    def put(self, key: Key, entry_key: bytes, cell: bytes) -> None:
        """Set one entry."""
        found = self.entries.get(key)
        if found is None or self._own is not None:
            found = self._writable(key)
        found[entry_key] = cell

    def remove(self, key: Key, entry_key: bytes) -> None:
        """Remove one entry; fine if it is not there. With the last one the key goes too."""
        if entry_key in self.entries.get(key, ()):
            entries = self._writable(key)
            del entries[entry_key]
            if not entries:
                del self.entries[key]

    def copy(self) -> Self:
        """Shares the entries: the next write to a key copies them, once."""
        self._own = set()
        return type(self)(dict(self.entries))

    def changes(self, state_id: int, group: int, key: Key, renew: Renew | None) -> Iterator[StateChange]:
        """One `PUT` per entry."""
        for entry_key, found in self.entries[key].items():
            cell = found if renew is None else renew(found)
            if cell is not None:
                yield StateChange(group, Operation.PUT, state_id, key, framed(entry_key) + framed(cell))

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


def heap_table(heap: type[AnyTable], _: int) -> AnyTable:
    """An empty table on the heap: an `OpenTable`."""
    return heap()


def row_changes(state_id: int, group: int, key: Key, row: bytes, first: Operation) -> Iterator[StateChange]:
    """The changes that write a list's framed elements: none for no elements, several for more than `CHUNK_BYTES`."""
    for at in range(0, len(row), CHUNK_BYTES):
        operation = Operation.ADD if at else first
        yield StateChange(group, operation, state_id, key, row[at : at + CHUNK_BYTES])


def _unknown(change: StateChange) -> UnsupportedVersionError:
    return UnsupportedVersionError("this kind of state does not know this operation", operation=change.operation)
