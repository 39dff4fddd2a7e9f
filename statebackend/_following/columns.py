"""Columns that go on answering as of one commit while the changes of the next are applied to them, piece by piece.

A row number stands for the key that had it at the commit. Before a piece is applied, the rows that it changes are kept
in a table of their own, under the number that each of them had; rows that the pieces add are not shown.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from statebackend._codec.change_sets.changes import Changes, KeyGroups, of_kind
from statebackend._codec.change_sets.column_changes import ColumnChanges
from statebackend._codec.columns import Flags, Integers
from statebackend._columns.arrow import Array, RecordBatch, array_from, pa, values_of
from statebackend._columns.column_table import ColumnTable
from statebackend._columns.growable import grown
from statebackend._columns.keys import HashedKeys, hash_parts
from statebackend._columns.table_schema import TableSchema
from statebackend.ids import Key

ROWS_AT_ONCE: Final = 2048
"""Rows applied in one go, while the loop waits: one to three milliseconds."""
ADDED: Final = -1
"""In place of the number of a kept row: the pieces have added this one."""


class ColumnsAtCommit:
    """A table of columns, for reading; changes are applied to the one inside."""

    def __init__(self, inside: ColumnTable, empty: Callable[[], ColumnTable]) -> None:
        """`empty` makes another table of the same keys."""
        self.inside: Final = inside
        self._empty = empty
        self._kept: ColumnTable | None = None  # the rows that were changed since, as they were
        self._rows_kept: Integers = np.zeros(0, np.int64)  # by the row in `_kept`: the row that it was
        self._places: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        """By row: 1 + the row in `_kept` if it was changed or dropped, 0 if not, `ADDED` if it was not there."""
        self._count = 0

    # ------------------------------------------------------------------------------------------------------- applying

    @property
    def at_once(self) -> int:
        """As `AtCommit.at_once`."""
        return ROWS_AT_ONCE

    def advance(self, changes: Changes) -> None:
        """As `AtCommit.advance`."""
        changes = of_kind(changes, ColumnChanges)
        if self._kept is None:
            self._kept = self._empty()
            self._kept.evolve(self.inside.described)
            self._count = self.inside.num_rows
        hashed = HashedKeys(changes.key_parts, hash_parts(changes.key_parts))
        changes.hashes_ahead = hashed.hashes
        rows = self.inside.find(hashed)
        there = np.flatnonzero(rows >= 0)
        unkept = there[self._places_of(rows[there]) == 0]
        self.keep(rows[unkept], hashed.taken(unkept))
        self.inside.apply(changes)
        if len(there) < len(rows):
            rows = self.inside.find(hashed)
            rows = rows[rows >= 0]
            added = rows[self._places_of(rows) == 0]
            self._places[added] = ADDED

    def let_go(self) -> dict[Key, Any]:
        """As `AtCommit.let_go`. To free arrays takes no time."""
        self._kept = None
        self._rows_kept, self._places = np.zeros(0, np.int64), np.zeros(0, np.int32)
        return {}

    def keep(self, rows: Integers, keys: HashedKeys) -> None:
        """Keep these rows of these keys, which are about to be changed and were not kept before."""
        assert self._kept is not None
        kept, is_new = self._kept.find_or_add(keys)
        assert is_new.all()
        self._kept.scatter(kept, self.inside.gather(rows))
        self._rows_kept = np.concatenate([self._rows_kept, rows])
        self._places[rows] = kept + 1

    def _places_of(self, rows: Integers) -> npt.NDArray[np.int32]:
        """As `_places`, which gets a place for each of these rows; -1 is in the place of some other row."""
        self._places = grown(self._places, len(self._places), int(rows.max(initial=0)) + 1)
        return self._places[rows]

    # -------------------------------------------------------------------------------------------------------- reading

    def find(self, keys: Array | HashedKeys) -> Integers:
        """As that of the table inside."""
        if self._kept is None:
            return self.inside.find(keys)
        hashed = keys if isinstance(keys, HashedKeys) else self.inside.hashed(keys)
        rows = self.inside.find(hashed)
        others = np.flatnonzero((rows < 0) | (self._places_of(rows) != 0))
        if len(others):
            kept = self._kept.find(hashed.taken(others))
            rows[others] = np.where(kept < 0, -1, np.append(self._rows_kept, -1)[kept])
        return rows

    def find_one(self, key: object) -> int | None:
        """As that of the table inside."""
        row = self.inside.find_one(key)
        if self._kept is None or row is None:
            return row
        if row >= 0 and (row >= len(self._places) or not self._places.item(row)):
            return row
        kept = self._kept.find_one(key)
        return kept if kept is None or kept < 0 else self._rows_kept.item(kept)

    def plain_row(self, row: int, names: Sequence[str]) -> dict[str, Any]:
        """As that of the table inside."""
        if self._kept is not None and row < len(self._places) and (place := self._places.item(row)):
            return self._kept.plain_row(place - 1, names)
        return self.inside.plain_row(row, names)

    def gather(self, rows: Integers, names: Sequence[str] | None = None) -> RecordBatch:
        """As that of the table inside."""
        found = self._split(rows)
        if found is None:
            return self.inside.gather(rows, names)
        table, kept, order = found
        one, other = self.inside.gather(table, names), self._former().gather(kept, names)
        columns = [pa.concat_arrays(pair).take(order) for pair in zip(one.columns, other.columns, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=one.schema)

    def keys(self, rows: Integers) -> Array:
        """As that of the table inside."""
        found = self._split(rows)
        if found is None:
            return self.inside.keys(rows)
        table, kept, order = found
        return pa.concat_arrays([self.inside.keys(table), self._former().keys(kept)]).take(order)

    def groups(self, rows: Integers) -> KeyGroups:
        """As that of the table inside."""
        found = self._split(rows)
        if found is None:
            return self.inside.groups(rows)
        table, kept, order = found
        both = np.concatenate([self.inside.groups(table), self._former().groups(kept)])
        return both.take(values_of(order))

    def columns_numpy(self, rows: Integers, name: str) -> tuple[npt.NDArray[Any], Flags | None]:
        """As that of the table inside."""
        values, valid = self.inside.columns_numpy(rows, name)
        if self._kept is not None and len(kept := np.flatnonzero(places := self._places_of(rows))):
            values[kept], were_valid = self._kept.columns_numpy(places[kept].astype(np.int64) - 1, name)
            valid = np.ones(len(rows), np.bool_) if valid is None else valid
            valid[kept] = True if were_valid is None else were_valid
        return values, valid

    def live_rows(self) -> Integers:
        """As that of the table inside."""
        rows = self.inside.live_rows()
        if self._kept is None:
            return rows
        return np.sort(np.concatenate([rows[self._places_of(rows) == 0], self._rows_kept]))

    def pieces(self) -> Iterator[Integers]:
        """As that of the table inside."""
        yield self.live_rows()

    def which_live(self, rows: Integers) -> Flags:
        """As that of the table inside."""
        if self._kept is None:
            return self.inside.which_live(rows)
        places = self._places_of(rows)
        return np.where(places == 0, self.inside.which_live(rows), places > 0)

    @property
    def num_rows(self) -> int:
        """As that of the table inside."""
        return self.inside.num_rows if self._kept is None else self._count

    def __len__(self) -> int:
        return self.num_rows

    def evolve(self, schema: TableSchema) -> None:
        """As that of the table inside."""
        self.inside.evolve(schema)
        if self._kept is not None:
            self._kept.evolve(schema)

    def apply(self, changes: Changes) -> None:
        """Replay changes, which show at once."""
        self.inside.apply(changes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inside, name)

    def _former(self) -> ColumnTable:
        assert self._kept is not None
        return self._kept

    def _split(self, rows: Integers) -> tuple[Integers, Integers, Array] | None:
        """The rows that are read inside, those of `_kept`, and the order of both in `rows`; `None` for no kept ones."""
        if self._kept is None or not (places := self._places_of(rows)).any():
            return None
        inside, kept = np.flatnonzero(places == 0), np.flatnonzero(places)
        order = np.empty(len(rows), np.int64)
        order[np.concatenate([inside, kept])] = np.arange(len(rows))
        return rows[inside], (places[kept] - 1).astype(np.int64), array_from(order)
