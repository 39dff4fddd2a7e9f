"""The rows of some keys of a columnar state, to read and write as columns."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import numpy as np

from statebackend._codec.columns import Flags, Integers
from statebackend._columns.arrow import pa
from statebackend._columns.batch.numbered_keys import grouped
from statebackend._columns.fitting import check_names, column_for
from statebackend._state.columnar.expiring_rows import ExpiringRows
from statebackend.errors import InputError


class ColumnarRows:
    """The rows of some keys, in the order in which the keys were given, for any logic on whole columns.

        rows = fleet.rows(pc.unique(table["tailnum"]))
        old = rows.gather()                     # a `RecordBatch`: nulls where `is_new`
        rows.scatter({"n": pc.add(pc.fill_null(old["n"], 0), 1)})

    They can be used up to the next checkpoint, while the backend is open. After that every method raises `InputError`.
    """

    __slots__ = ("_columns", "_drains", "_found", "_hashed", "_rows", "_version", "is_new", "keys")

    def __init__(self, rows: ExpiringRows, columns: Any, keys: Any) -> None:
        self.keys: Final = keys
        """The keys, a `pyarrow.Array`."""
        self._rows: Final = rows
        self._columns: Final = columns
        self._drains: Final = rows.drains
        self._version: tuple[int, int] = rows.version
        self._hashed: Final = rows.table.hashed(keys)
        self._found = rows.find(self._hashed)
        self.is_new: Final[Flags] = self._found < 0
        """For each key, True if the state had no row of it when the rows were asked for."""

    def __len__(self) -> int:
        return len(self.keys)

    def gather(self, columns: Sequence[str] | None = None) -> Any:
        """The columns, or some of them, a `pyarrow.RecordBatch` with a row per key: nulls for a key without a row."""
        names = self._columns.names if columns is None else [*columns]
        check_names(names, self._columns)
        found = self._now()
        is_missing = found < 0
        self._rows.note_read(found[~is_missing])
        return self._rows.gather(found, is_missing, names)

    def scatter(self, columns: Any) -> None:
        """Write columns, one value per key; keys that have no row are added, with nulls in columns not written.

        `columns` is a `RecordBatch`, a `Table`, or a mapping from names to Arrow or numpy arrays or lists, of some
        columns of the state. Raises `InputError`, before anything is changed, for a column that is not there or does
        not fit, another number of values than keys, and a key that is there twice.
        """
        given = self._given(columns)
        check_names([*given], self._columns)
        found = self._now()
        written = {
            name: column_for(array, self._columns.field(name).type, name, len(self)) for name, array in given.items()
        }
        self._check_distinct()
        with self._rows.adding(self._hashed) as (rows, is_added):
            is_fresh = is_added | (found < 0)  # an expired row is there, but nothing of it shows any more
            if (is_fresh & ~is_added).any():
                written = {**self._whole(rows, is_fresh), **written}
            self._rows.write(rows, written)

    def drop(self) -> None:
        """Remove the keys, those that are there."""
        found = self._now()
        self._rows.drop(np.unique(found[found >= 0]))

    def _now(self) -> Integers:
        """The rows of the keys as they are now."""
        if self._rows.drains != self._drains:
            raise InputError("rows can be used up to the next checkpoint, or the backend's end: ask for them again")
        if self._rows.version != self._version:
            self._found, self._version = self._rows.find(self._hashed), self._rows.version
        return self._found

    def _whole(self, rows: Integers, is_fresh: Flags) -> Mapping[str, Any]:
        old = self._rows.gather(rows, is_fresh)
        return dict(zip(old.schema.names, old.columns, strict=True))

    def _check_distinct(self) -> None:
        if grouped(self.keys, self._rows.table.hashed).codes is not None:
            raise InputError("a key is there twice, so it is not clear what to write: give each key once")

    def _given(self, columns: Any) -> dict[str, Any]:
        if isinstance(columns, pa.Table | pa.RecordBatch):
            check_names(columns.schema.names, self._columns)
            return dict(zip(columns.schema.names, columns.columns, strict=True))
        if isinstance(columns, Mapping):
            return dict(cast("Mapping[str, Any]", columns))
        raise InputError(
            "columns must be a RecordBatch, a Table, or a mapping from names to arrays", given=repr(columns)[:80]
        )
