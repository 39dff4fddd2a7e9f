"""The rows of a columnar state as its users see them: those that have expired are not there.

A row with a time-to-live has the time of its last write in a hidden column. An expired row is null in every column
until it is written again; a drain drops some of those that never are.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from statebackend._codec.change_sets.changes import PART_BYTES_MAX, Changes
from statebackend._codec.change_sets.column_changes import ColumnChanges
from statebackend._codec.columns import Flags, Integers
from statebackend._columns.arrow import array_from, pa
from statebackend._columns.column_table import ColumnTable
from statebackend._columns.table_schema import TableSchema, misread_columns
from statebackend._state.forgotten import refuse_change
from statebackend._state.time.ttl import SWEEP_KEYS, TimeToLive
from statebackend.errors import InputError, StateTypeError

WRITTEN: Final = "__written__"
"""The hidden column: when the row was last written, in seconds. Null without a time-to-live, and before its clock."""
READ_AT_ONCE: Final = 1 << 16


class ExpiringRows:
    """The rows of a table, under a time-to-live or without one. Rows are numpy int64 arrays, -1 for none."""

    __slots__ = ("_comings", "_is_stamped", "_moves", "_written", "closed_as", "drains", "names", "table", "ttl")

    def __init__(self, table: ColumnTable) -> None:
        self.table: Final = table
        self.ttl: TimeToLive | None = None
        self.names: Sequence[str] = ()
        """The columns, without the hidden one."""
        self.drains = 0
        self.closed_as = ""
        """The name of the state once its backend is closed: then rows refuse to be changed, and a read is no use."""
        self._is_stamped = False
        self._moves = 0  # how often keys may have got or lost a row, also by writing to an expired one
        self._comings = 0  # how often keys came or went
        self._written = 0  # rows written since the last drain

    def declare(self, columns: TableSchema, ttl: TimeToLive | None) -> None:
        """Apply a declaration. Raises `StateTypeError` where the table has rows that cannot get these columns."""
        if columns != self.table.described:
            if reason := misread_columns(self.table.described.words, columns):
                raise StateTypeError("the state in memory has other columns", reason=reason)
            self.table.evolve(columns)
            self._moves += 1
        self.ttl = ttl
        self.names = [each.name for each in columns.columns if each.name != WRITTEN]
        self._is_stamped = len(self.names) < len(columns.columns)

    @property
    def version(self) -> tuple[int, int]:
        """Another one whenever a key may have got another row, or lost it."""
        return self.drains, self._moves

    @property
    def changes(self) -> tuple[int, int]:
        """Another one whenever a row may have been written or dropped, until the next drain."""
        return self._moves, self._written

    def find(self, keys: Any) -> Integers:
        """The rows of keys, an array or hashed; -1 for those that are not there. Raises as `ColumnTable.find`."""
        rows = self.table.find(keys)
        there = np.flatnonzero(rows >= 0)
        is_expired = self.expired(rows[there])
        if is_expired is not None:
            rows[there[is_expired]] = -1
        return rows

    def one(self, key: object) -> dict[str, Any] | None:
        """The row of one key, as Python values; `None` where it has to be looked up as many are, which tells more.

        Raises `KeyError` for a key that is not there.
        """
        row = self.table.find_one(key)
        if row is None or (self.ttl is not None and self.ttl.on_read):
            return None
        if row < 0:
            raise KeyError(key)
        if self.ttl is not None and self.expired(np.array([row])) is not None:
            raise KeyError(key)
        try:
            return self.table.plain_row(row, self.names)
        except (ValueError, OverflowError):
            return None

    @contextmanager
    def adding(self, keys: Any) -> Generator[tuple[Integers, Flags]]:
        """The rows of keys, and which were added just now: where the body raises, these are removed again.

        Raises as `ColumnTable.find_or_add`, and `BackendClosedError`.
        """
        self._check_open()
        rows, is_added = self.table.find_or_add(keys)
        self._moves += 1
        self._comings += bool(is_added.any())
        try:
            yield rows, is_added
        except BaseException:
            if is_added.any():
                self.table.drop(rows[is_added])
                self._moves += 1
                self._comings += 1
            raise

    def pieces(self) -> Iterator[Integers]:
        """The rows of all keys, in pieces: each is good until the next is asked for.

        Raises `InputError` where keys came or went between two of them.
        """
        before = self.drains, self._comings
        for rows in self.table.pieces():
            self._check_same_keys(before)
            is_expired = self.expired(rows)
            yield rows if is_expired is None else rows[~is_expired]

    def __len__(self) -> int:
        return self.table.num_rows if self.ttl is None else sum(map(len, self.pieces()))

    def expired(self, rows: Integers) -> Flags | None:
        """For each of these rows, True if it has expired; `None` if none has."""
        if self.ttl is None:
            return None
        now = self.ttl.read_clock()
        written, valid = self.table.columns_numpy(rows, WRITTEN)
        is_expired: Flags = written + self.ttl.seconds <= now
        lifetime = self.ttl.lifetime
        if lifetime is not None and lifetime.gone_until_s is not None:
            is_expired |= written <= lifetime.gone_until_s
        if valid is not None:
            is_gone = lifetime is not None and not lifetime.is_live(None, self.ttl.seconds, now)
            is_expired = np.where(valid, is_expired, is_gone)
        return is_expired if is_expired.any() else None

    def gather(self, rows: Integers, is_hidden: Flags | None, names: Sequence[str] | None = None) -> Any:
        """The columns of rows, all or those of `names`, null where they are hidden."""
        names = self.names if names is None else names
        if is_hidden is None or not is_hidden.any():
            return self.table.gather(rows, names)
        found = self.table.gather(rows[~is_hidden], names)
        places = np.cumsum(~is_hidden) - 1
        return found.take(array_from(places, ~is_hidden))

    def write(self, rows: Integers, columns: Mapping[str, Any]) -> None:
        """Set some columns of rows, all of them or, where one is refused, none."""
        columns = self._stamped(columns, len(rows))
        self.table.scatter(rows, pa.RecordBatch.from_arrays([*columns.values()], names=[*columns]))
        self._written += len(rows)

    def setting(self, state_id: int, keys: Any, columns: Mapping[str, Any]) -> ColumnChanges:
        """As `ColumnTable.setting`, of rows that are written now."""
        return self.table.setting(state_id, keys, self._stamped(columns, len(keys)))

    def _stamped(self, columns: Mapping[str, Any], count: int) -> Mapping[str, Any]:
        if not self._is_stamped:
            return columns
        # By null without a time-to-live, or before there is a time: see `Lifetime`.
        at = None if self.ttl is None else self.ttl.stamp()
        valid = np.zeros(count, np.bool_) if at is None else None
        return {**columns, WRITTEN: array_from(np.full(count, at or 0.0), valid)}

    def note_read(self, rows: Integers) -> None:
        """Count a read as a use, where the time-to-live does so."""
        if self.closed_as:
            return
        if self.ttl is not None and self.ttl.on_read and (at := self.ttl.stamp()) is not None:
            self.table.write_numpy(rows, WRITTEN, np.full(len(rows), at))

    def drop(self, rows: Integers) -> None:
        """Remove the keys of rows. Raises `BackendClosedError`."""
        if len(rows):
            self._check_open()
            self.table.drop(rows)
            self._moves += 1
            self._comings += 1

    def chunks(self, rows: Integers) -> Iterator[Integers]:
        """The rows, some at a time. Raises `InputError` where keys came or went meanwhile."""
        before = self.drains, self._comings
        for start in range(0, len(rows), READ_AT_ONCE):
            self._check_same_keys(before)
            yield rows[start : start + READ_AT_ONCE]

    def drain(self, state_id: int) -> Iterator[Changes]:
        """The rows written and the keys dropped since the last drain, after expired ones were dropped.

        It looks at more rows the more was written, so that expired ones do not far outnumber live ones.
        """
        self.drains += 1
        if self.ttl is not None:
            self._sweep(SWEEP_KEYS + self._written)
        self._written = 0
        for changes in self.table.drain(state_id):
            yield from changes.cut(PART_BYTES_MAX)

    def _sweep(self, count: int) -> None:
        some = self.table.window(count)
        is_expired = self.expired(some)
        if is_expired is not None:
            self.drop(some[is_expired])

    def _check_open(self) -> None:
        if self.closed_as:
            refuse_change(self.closed_as)

    def _check_same_keys(self, before: tuple[int, int]) -> None:
        if (self.drains, self._comings) != before:
            raise InputError("the state's keys changed while it was read: read all of it first")
