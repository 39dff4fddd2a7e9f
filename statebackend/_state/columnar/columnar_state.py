"""Rows of columns by key, read and written many at a time, in Arrow."""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final, cast

import numpy as np

from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.change_sets.column_changes import ColumnChanges
from statebackend._columns.arrow import pa, plain_of
from statebackend._columns.batch.merge_plan import How, planned
from statebackend._columns.batch.merge_sides import MergeSides
from statebackend._columns.batch.numbered_keys import grouped
from statebackend._columns.batch.user_keys import checked_keys, keys_from, keys_of, plain_keys
from statebackend._columns.column_table import ColumnTable
from statebackend._columns.fitting import array_of_values, check_names
from statebackend._columns.table_schema import TableSchema
from statebackend._state.bulk_arguments import as_list
from statebackend._state.columnar.expiring_rows import WRITTEN, ExpiringRows
from statebackend._state.columnar.rows import ColumnarRows
from statebackend._state.columnar.rows_ahead import RowsAhead
from statebackend._state.forgotten import forget
from statebackend._state.time.ttl import TimeToLive
from statebackend._tables.key_groups import OwnedKeys
from statebackend.errors import InputError
from statebackend.ids import Key, KeyGroupRange

Row = dict[str, Any]


class ColumnarState(MutableMapping[Key, Mapping[str, Any]]):
    """A row of columns per key, in memory, for whole batches at a time.

        fleet = backend.columnar_state("fleet", pa.schema({"n": pa.int64(), "last": pa.float64()}), key=pa.string())
        changed = fleet.merge(table, on="tailnum", how={"n": "count", "last": ("max", "at")})

    `merge` and `rows` take and return Arrow. As a mapping it has a dict of Python values per key, one key at a time:
    a copy, so that changing it changes nothing until it is set again.

    Only one thread may use it at a time, and not during a checkpoint. Nothing is durable before the next `checkpoint`.
    Every method that takes keys raises `KeyTypeError` for keys of another type than the state's and `KeyGroupError`
    for another owner's. After any error the state is as before.
    """

    __slots__ = ("_ahead", "_rows", "_schema", "name")

    def __init__(self, name: str, table: ColumnTable, keys: OwnedKeys) -> None:
        self.name: Final = name
        self._rows: Final = ExpiringRows(table)
        self._ahead: RowsAhead | None = None  # of the iteration that was begun last

    def declare(self, columns: TableSchema, ttl: TimeToLive | None) -> None:
        """Apply a declaration: the first, or a later one. The table gets other columns where it has to."""
        self._rows.declare(columns, ttl)
        self._schema: Any = pa.schema([field for field in self._rows.table.schema if field.name != WRITTEN])

    @property
    def schema(self) -> Any:
        """The columns of a row, a `pyarrow.Schema`."""
        return self._schema

    @property
    def key_type(self) -> Any:
        """The type of a column of keys, a `pyarrow.DataType`."""
        return self._rows.table.key_type

    # -------------------------------------------------------------------------------------------- many keys at once

    def merge(self, batch: Any, *, on: str | Sequence[str], how: How, order_by: str | None = None) -> Any:
        """Merge the rows of a batch into the rows of their keys, and return these as they are now, a `pyarrow.Table`.

        `batch` is a `pyarrow.Table` or `RecordBatch`, or has Arrow's stream interface. `on` is its key column, or
        several for a state whose keys are tuples. `how` says for columns of the state what becomes of them:

            "count"                     rows
            ("count", "amount")         rows in which the column is not null
            ("sum", "amount")           also min, max, any, all, mean, count_distinct
            ("last", "amount")          of the last row, also first: by arrival, or by the column `order_by`
            function                    called with the old columns and the grouped ones, returns a new column

        A tuple of columns with a function stands for a function that returns several, by name. A mean needs two more
        columns, its sum and count: `x_sum` and `x_count` for `x`; a count of distinct values needs `x_sketch`. Columns
        that `how` does not name stay as they are, and are null for new keys.

        The returned table has a row per key of the batch: the key, named as in `on`, and all columns of the state.

        Raises `InputError`, before anything is changed, where `how` does not fit the schemas of the state and of the
        batch, for a null key, and for a whole number that leaves the type of its column.
        """
        batch, names = _batch(batch), [on] if isinstance(on, str) else [*on]
        self._check_key_names(names)
        steps = planned(how, self._schema, batch.schema, order_by)
        groups = grouped(keys_of(batch, on, self.key_type), self._rows.table.hashed)
        with self._rows.adding(groups.hashed) as (rows, is_added):
            is_expired = self._rows.expired(rows)
            is_new = is_added if is_expired is None else is_added | is_expired
            old = self._rows.gather(rows, is_expired)
            sides = MergeSides(groups, batch, old, is_new)
            columns = dict(zip(old.schema.names, old.columns, strict=True))
            changed: Row = {}
            for step in steps:
                changed |= step(sides)
            columns |= changed
            self._rows.write(rows, changed if is_expired is None else columns)
        keys = (
            [groups.keys] if isinstance(on, str) or not self._rows.table.described.has_tuples else groups.keys.flatten()
        )
        return pa.table([*keys, *columns.values()], names=[*names, *columns])

    def rows(self, keys: Any) -> ColumnarRows:
        """The rows of these keys, to read and write as columns. Keys that are not there are added when written.

        `keys` is an Arrow array, or an iterable of keys. The rows can be used up to the next checkpoint.
        """
        return ColumnarRows(self._rows, self._schema, self._key_array(keys))

    def to_arrow(self, columns: Sequence[str] | None = None, *, key: str = "key") -> Any:
        """All rows, a `pyarrow.Table`: the keys in a column of the name `key`, then the columns, or some of them."""
        return pa.Table.from_batches([*self.scan(columns=columns, key=key)], self._scanned_schema(columns, key))

    def scan(
        self,
        key_groups: KeyGroupRange | Iterable[int] | None = None,
        *,
        columns: Sequence[str] | None = None,
        key: str = "key",
    ) -> Iterator[Any]:
        """All rows, or those of some key groups, as `pyarrow.RecordBatch`es of up to 65,536 rows, in no promised order.

        Each is as `to_arrow` would return it. Raises `InputError` where keys come or go between two of them.
        """
        schema, groups = self._scanned_schema(columns, key), None if key_groups is None else list(key_groups)
        for rows in self._rows.pieces():
            wanted = rows if groups is None else rows[np.isin(self._rows.table.groups(rows), groups)]
            for some in self._rows.chunks(wanted):
                arrays = [self._rows.table.keys(some), *self._rows.gather(some, None, schema.names[1:]).columns]
                self._rows.note_read(some)
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def clear(self) -> None:
        """Remove every key."""
        for rows in self._rows.table.pieces():
            self._rows.drop(rows)

    # -------------------------------------------------------------------------------------------- one key at a time

    def __getitem__(self, key: Key) -> Row:
        if self._ahead is not None and (row := self._ahead.row(key)) is not None:
            return row
        if (row := self._rows.one(key)) is not None:
            return row
        rows = self._found(key)
        (found,) = plain_of(self._rows.gather(rows, None))
        self._rows.note_read(rows)
        return cast("Row", found)

    def __setitem__(self, key: Key, row: Mapping[str, Any]) -> None:
        """Set the whole row: a column that `row` does not name becomes null. Raises `ValueEncodeError`."""
        columns = self._columns_of(row)
        with self._rows.adding(self._one(key)) as (rows, _):
            self._rows.write(rows, columns)

    def checked_row(self, key: Key, row: Mapping[str, Any]) -> Row:
        """The row as it will be read once it is set. Raises as setting it does, and changes nothing."""
        self._one(key)
        return {name: plain_of(column)[0] for name, column in self._columns_of(row).items()}

    def __delitem__(self, key: Key) -> None:
        self._rows.drop(self._found(key))

    def __contains__(self, key: object) -> bool:
        return bool(self._rows.find(self._one(key))[0] >= 0)

    def __iter__(self) -> Iterator[Key]:
        for rows in self._rows.pieces():
            ahead = self._ahead = RowsAhead(self._rows, rows)
            yield from ahead.giving()
            if self._rows.table.rows_leave:
                self._ahead = None

    def __len__(self) -> int:
        return len(self._rows)

    def popitem(self) -> tuple[Key, Row]:
        """Remove some key, and return it with its row. Raises `KeyError` where there is none."""
        rows = next((piece[-1:] for piece in self._rows.pieces() if len(piece)), None)
        if rows is None:
            raise KeyError("the state is empty")
        (key,), (row,) = plain_keys(self._rows.table.keys(rows)), plain_of(self._rows.gather(rows, None))
        self._rows.drop(rows)
        return key, row

    # -------------------------------------------------------------------------------------------- the rest

    def setting(self, state_id: int, keys: Any, columns: Mapping[str, Any]) -> ColumnChanges:
        """The changes that would set these keys, an array, to rows of these columns. The state stays as it is."""
        return self._rows.setting(state_id, keys, columns)

    @property
    def is_changed(self) -> bool:
        """As `KeyedState.is_changed`."""
        return self._rows.table.is_touched

    def drain(self, state_id: int) -> Iterator[Changes]:
        """The changes since the last drain; with a time-to-live it drops some expired rows first."""
        self._ahead = None
        return self._rows.drain(state_id)

    def arrange(self) -> None:
        """As `KeyedState.arrange`, for rows that were written in the order of their keys' ranks."""
        self._rows.table.arrange()

    def forget(self) -> None:
        """As `KeyedState.forget`, also for rows that somebody still holds."""
        forget(self._rows)
        forget(self)

    def retire(self) -> None:
        """As `KeyedState.retire`. Rows that were handed out can be used no more."""
        self._rows.drains += 1
        self._rows.closed_as = self.name

    def resume(self) -> None:
        """As `KeyedState.resume`."""
        self._rows.closed_as = ""

    def living(self) -> None:
        """A base takes the rows as they are, also those that have expired and were not dropped yet."""

    def _columns_of(self, row: Mapping[str, Any]) -> Row:
        if not isinstance(cast("object", row), Mapping) or not row.keys() <= set(self._schema.names):
            raise InputError(
                "a row is a mapping from columns of the state to values", row=repr(row)[:80], known=self._schema.names
            )
        return {field.name: array_of_values([row.get(field.name)], field.type, field.name) for field in self._schema}

    def _found(self, key: object) -> Any:
        rows = self._rows.find(self._one(key))
        if rows[0] < 0:
            raise KeyError(key)
        return rows

    def _one(self, key: object) -> Any:
        return keys_from([key], self.key_type)

    def _key_array(self, keys: Any) -> Any:
        if isinstance(keys, pa.ChunkedArray):
            keys = keys.combine_chunks()
        if isinstance(keys, pa.Array):
            return checked_keys(keys, self.key_type, "keys")
        return keys_from(as_list(keys), self.key_type)

    def _scanned_schema(self, columns: Sequence[str] | None, key: str) -> Any:
        names = self._schema.names if columns is None else [*columns]
        check_names(names, self._schema)
        self._check_key_names([key])
        fields = [self._schema.field(name) for name in names]
        return pa.schema([pa.field(key, self.key_type), *fields])

    def _check_key_names(self, names: Sequence[str]) -> None:
        if taken := [name for name in names if name in self._schema.names or names.count(name) > 1]:
            raise InputError(
                "a column of keys needs a name that no other column has: rename one of them",
                column=taken[0],
            )


def _batch(batch: Any) -> Any:
    if isinstance(batch, pa.Table | pa.RecordBatch):
        return batch
    if not hasattr(batch, "__arrow_c_stream__"):
        raise InputError(
            "a batch must be a pyarrow.Table or RecordBatch",
            given=repr(cast("object", type(batch))),
        )
    return pa.table(batch)
