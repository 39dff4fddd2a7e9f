"""Reads the rows of an iteration ahead, many at a time, so that asking key by key costs little more than a scan.

`items()`, `values()` and loops ask for the row of the key that the iteration gave last; `dict(state)` takes all keys
first, and then asks for one after the other. Whatever is written meanwhile shows, as in a dict: rows that were read
ahead are then read again, at first one by one.
"""

from collections.abc import Iterator
from typing import Any, Final, cast

from statebackend._codec.columns import Integers
from statebackend._columns.arrow import plain_of
from statebackend._columns.batch.user_keys import plain_keys
from statebackend._state.columnar.expiring_rows import ExpiringRows
from statebackend.errors import ValueDecodeError
from statebackend.ids import Key

AHEAD_MAX: Final = 1024
"""Rows that are read ahead."""


class RowsAhead:
    """The rows of an iteration, up to the next drain: after that, a row may be another key's."""

    __slots__ = ("_begin", "_changes", "_given", "_keys", "_next", "_plain", "_rows", "_size", "_table")

    def __init__(self, table: ExpiringRows, rows: Integers) -> None:
        self._table = table
        self._rows = rows
        self._given: tuple[Key | None, int] = None, -1  # the key that the iteration gave last, and its place
        self._next = 0  # the place behind that of the row that was read last
        self._begin, self._size = 0, 1
        self._keys: list[Key] = []  # of the rows read ahead, from `_begin` on
        self._plain: list[dict[str, Any]] = []
        self._changes: tuple[int, int] | None = None  # the table's, when they were read

    def giving(self) -> Iterator[Key]:
        """The keys. Raises as `ExpiringRows.chunks`."""
        place = 0
        for some in self._table.chunks(self._rows):
            for key in plain_keys(self._table.table.keys(some)):
                self._given = key, place
                place += 1
                yield key

    def row(self, key: object) -> dict[str, Any] | None:
        """A copy of the key's row, if it is the one to come; `None` where it must be looked up, as it may be gone."""
        given, place = self._given
        if key is not given:
            place = self._next
        one = self._rows[place : place + 1]
        table = self._table
        is_there = len(one) and table.table.which_live(one)[0] and table.expired(one) is None
        if not is_there or not self._is_read(place):
            return None
        at = place - self._begin
        if key is not given and not _is_same(key, self._keys[at]):
            self._next = len(self._rows)  # they are asked for in another order
            return None
        self._next = place + 1
        table.note_read(one)
        return self._plain[at].copy()

    def _is_read(self, place: int) -> bool:
        """Read the row at `place`, and others behind it, if it is not read yet, or was changed since."""
        table, is_unchanged = self._table, self._changes == self._table.changes
        if is_unchanged and 0 <= place - self._begin < len(self._keys):
            return True
        self._size = min(2 * self._size, AHEAD_MAX) if is_unchanged and place == self._begin + len(self._keys) else 1
        rows = self._rows[place : place + self._size]
        try:
            self._plain = plain_of(table.gather(rows, None))
        except ValueDecodeError:  # perhaps in the row of another key
            self._changes = None
            return False
        self._keys, self._begin, self._changes = plain_keys(table.table.keys(rows)), place, table.changes
        return True


def _is_same(key: object, other: object) -> bool:
    """True for equal keys of the same types: True equals 1, and is no key."""
    return type(key) is type(other) and key == other and _types_in(key) == _types_in(other)


def _types_in(key: object) -> list[type]:
    return [*map(type, cast("tuple[object, ...]", key))] if isinstance(key, tuple) else []
