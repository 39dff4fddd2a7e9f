"""Rows by key, in columns: what a columnar state reads and writes, logs, restores and makes its bases of.

A row number stands for a key until the key is dropped. The row is used again for another key, but only after the drop
was drained. A key that was never written in a column is null there.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from statebackend._codec.change_sets.changes import PART_BYTES_MAX, PART_RECORDS_MAX, Changes, KeyGroups, of_kind
from statebackend._codec.change_sets.column_changes import ColumnChanges, Typed
from statebackend._codec.change_sets.paged_changes import orders_of
from statebackend._codec.columns import Column, Fixed, Flags, Integers, Strings
from statebackend._codec.xxh64 import Hashes
from statebackend._columns.arrow import (
    Array,
    DataType,
    RecordBatch,
    Schema,
    array_of,
    column_of,
    in_one,
    item_of,
    pa,
    zeroed,
)
from statebackend._columns.growable import FixedColumn, StringColumn, grown
from statebackend._columns.key_rows import KeyRows
from statebackend._columns.keys import (
    KEY_BYTES_MAX,
    HashedKeys,
    HashKeys,
    IntegerKeys,
    KeyColumns,
    Parts,
    StringKeys,
    hash_parts,
    taken,
)
from statebackend._columns.one_row import OneRow
from statebackend._columns.table_schema import TableSchema, check_key_types, default_column, stored_columns, type_in
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.placed import Placed, PlacedInMemory, WantedEntries
from statebackend._tables.table import Table, TableSize
from statebackend.errors import InputError, KeyTypeError


class ColumnTable(OneRow, Table):
    """Columns by key. Rows are numpy int64 arrays, -1 for a key that is not there. Every method is bulk.

    Not safe for several threads at a time; a `copy` is, as long as it is only read.
    """

    @property
    def rows_leave(self) -> bool:
        """True if a row may be another key's before the next drain, once the next of the `pieces` was asked for."""
        return False

    is_strewn = False
    """As of `KeyRows`."""

    def __init__(self, schema: TableSchema, keys: OwnedKeys, *, hash_keys: HashKeys = hash_parts) -> None:
        self._described = schema
        self._has_text_keys = [(each.name, each.type) for each in schema.keys] == [("", "string")]
        self._key_type = schema.key_type
        self._owned = keys
        self._rows = KeyRows(key_columns(schema), keys, hash_keys, is_strewn=self.is_strewn)
        self._columns = {each.name: _column_for(each.type) for each in schema.columns}
        self._types = {each.name: type_in(each.type) for each in schema.columns}
        self._is_touched: Flags = np.zeros(0, np.bool_)
        self._touched: list[Integers] = []
        self._in_window: Integers = np.zeros(0, np.int64)  # rows that are still to be in the window
        self._added: list[Integers] = []  # rows that did not have their keys at the last drain

    @property
    def schema(self) -> Schema:
        """The value columns."""
        return self._described.arrow

    @property
    def described(self) -> TableSchema:
        """The schema in words."""
        return self._described

    @property
    def key_type(self) -> DataType:
        """The type of an array of keys."""
        return self._key_type

    @property
    def num_rows(self) -> int:
        """The number of keys."""
        return len(self._rows)

    def forget(self) -> None:
        """As `Table.forget`."""
        vars(self).clear()

    def hashed(self, keys: Array) -> HashedKeys:
        """Keys to look up. Raises `KeyTypeError` for nulls or another type, `KeyGroupError` for foreign keys."""
        keys = in_one(keys)
        if keys.type != self._key_type:
            raise KeyTypeError(
                "the keys are of another type than the state's: cast them",
                type=str(keys.type),
                type_declared=str(self._key_type),
            )
        arrays = keys.flatten() if self._described.has_tuples else [keys]
        if keys.null_count or any(each.null_count for each in arrays):
            raise KeyTypeError("a key cannot be null: filter the rows without one", nulls=keys.null_count)
        parts = [column_of(each) for each in arrays]
        if any(isinstance(each, Strings) and each.lengths.max(initial=0) > KEY_BYTES_MAX for each in parts):
            raise KeyTypeError("a key is too long: use a hash of it", bytes_max=KEY_BYTES_MAX)
        hashes = self._rows.hash(parts)
        self._rows.check_owned(hashes)
        return HashedKeys(parts, hashes)

    def find(self, keys: Array | HashedKeys) -> Integers:
        """The row of each key. Raises what `hashed` does."""
        return self._rows.find(*(keys if isinstance(keys, HashedKeys) else self.hashed(keys)))

    def find_or_add(self, keys: Array | HashedKeys) -> tuple[Integers, Flags]:
        """The row of each key, and whether it is new: then every column of it is null, until it is written.

        Raises what `hashed` does, before anything is added.
        """
        rows, is_new = self._find_or_add(*(keys if isinstance(keys, HashedKeys) else self.hashed(keys)))
        if is_new.any():
            self._touch(rows[is_new])
            self._added.append(rows[is_new])
        return rows, is_new

    def gather(self, rows: Integers, names: Sequence[str] | None = None) -> RecordBatch:
        """The value columns of these rows, or those of `names`."""
        wanted = self._known(self._columns if names is None else names)
        arrays = [array_of(self._columns[name].read(rows), self._types[name]) for name in wanted]
        schema = pa.schema([(name, self._types[name]) for name in wanted])
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def columns_numpy(self, rows: Integers, name: str) -> tuple[npt.NDArray[Any], Flags | None]:
        """The values of a column of fixed width, and which of them are not null, `None` if none is. Nulls are zero."""
        column = self._fixed(name).read(rows)
        return column.values, column.valid

    def write_numpy(self, rows: Integers, name: str, values: npt.NDArray[Any], valid: Flags | None = None) -> None:
        """Set a column of fixed width. Values that are not `valid` become null."""
        column = self._fixed(name)
        self._check_rows(rows, len(values))
        if values.dtype != column.dtype:
            raise InputError("values of another type than the column's", column=name, dtype=str(values.dtype))
        column.write(rows, Fixed(zeroed(values, valid), valid))
        self._touch(rows)

    def scatter(self, rows: Integers, columns: RecordBatch) -> None:
        """Set some columns, or all, of these rows; of a row given twice, the last values count.

        Raises `InputError` for an unknown column, one of another type, another number of rows, and for rows that are
        not there, before anything is changed.
        """
        names = self._known(columns.schema.names)
        self._check_rows(rows, columns.num_rows)
        found: dict[str, Column] = {}
        for number, name in enumerate(names):
            array = columns.column(number)
            if array.type != self._types[name]:
                raise InputError(
                    "a column is of another type than the state's: cast it",
                    column=name,
                    type=str(array.type),
                    type_declared=str(self._types[name]),
                )
            found[name] = column_of(array)
        for name, column in found.items():
            self._columns[name].write(rows, column)
        self._touch(rows)
        self._tidy()

    def setting(self, state_id: int, keys: Array, columns: Mapping[str, Array]) -> ColumnChanges:
        """The changes that would set these keys, with their hashes. `columns`: arrays of the declared types.

        The table stays as it is. Raises what `hashed` does.
        """
        hashed = self.hashed(keys)
        return ColumnChanges(
            state_id,
            self._rows.groups_of(hashed.hashes),
            [Typed(each.type, part) for each, part in zip(self._described.keys, hashed.parts, strict=True)],
            {each.name: Typed(each.type, column_of(columns[each.name])) for each in self._described.columns},
            hashes=hashed.hashes,
        )

    def drop(self, rows: Integers) -> None:
        """Remove the keys of these rows. The rows must not be used any more."""
        rows = np.unique(rows)
        self._check_rows(rows, len(rows))
        self._touch(rows)
        self._remove(rows)

    def keys(self, rows: Integers) -> Array:
        """The keys of these rows."""
        arrays = [
            array_of(part, type_in(each.type))
            for part, each in zip(self._rows.keys(rows), self._described.keys, strict=True)
        ]
        if not self._described.has_tuples:
            return arrays[0]
        return pa.StructArray.from_arrays(arrays, fields=list(self._key_type))

    def pieces(self) -> Iterator[Integers]:
        """The rows of all keys, in pieces: each is good until the next is asked for. Here all are in one."""
        yield self.live_rows()

    def live_rows(self) -> Integers:
        """The rows of all keys that are in memory."""
        return self._rows.live()

    def window(self, count: int) -> Integers:
        """Some rows, about as many as asked for, and others with each call until there were all of them."""
        if not len(self._in_window):
            self._in_window = self._rows.live()
        some, self._in_window = self._in_window[:count], self._in_window[count:]
        return some[self._rows.which_live(some)]

    def which_live(self, rows: Integers) -> Flags:
        """For each of these rows, True if it has kept its key since it was found."""
        return self._rows.which_live(rows)

    def groups(self, rows: Integers) -> KeyGroups:
        """The key group of each row's key."""
        return self._rows.groups_of(self._rows.hashes(rows))

    @property
    def is_touched(self) -> bool:
        """True if rows were written since the last drain."""
        return bool(self._touched)

    def drain(self, state_id: int) -> Iterator[ColumnChanges]:
        """The rows written since the last drain, and the keys of then that are gone. All of it is drained by the call.

        The rows of dropped keys may be used again from then on.
        """
        rows = self._take_touched()
        added, self._added = self._added, []
        is_live = self._rows.which_live(rows)
        if is_live.all():
            return iter(self._changes(state_id, rows, rows[:0]))
        rows, dropped = rows[is_live], rows[~is_live]
        # A key that has come back has another row, which replaces what the key had.
        is_gone = self._rows.find(self._rows.keys(dropped), self._rows.hashes(dropped)) < 0
        if added:  # nothing was ever drained of these; if the key was there before, it had another row
            is_gone &= ~np.isin(dropped, np.concatenate(added))
        drained = self._changes(state_id, rows, dropped[is_gone])
        self._rows.release(dropped)
        return iter(drained)

    def arrange(self) -> None:
        """Drain what was written so far in the order of the rows, not in the order in which they were written."""
        if self._touched:
            self._touched = [np.sort(np.concatenate(self._touched))]

    def __len__(self) -> int:
        return self.num_rows

    def size(self) -> TableSize:
        """Each row takes the width of its columns, null or not, and its strings."""
        keys, columns = self._rows.count, self._columns.values()
        width = sum(each.dtype.itemsize for each in columns if isinstance(each, FixedColumn))
        strings = sum(each.used_bytes for each in columns if isinstance(each, StringColumn))
        return TableSize(keys, keys * width + strings)

    def apply(self, changes: Changes) -> None:
        """Replay changes: nothing of it is drained. Raises `ValueDecodeError` where they do not fit the schema."""
        changes = of_kind(changes, ColumnChanges)
        columns = stored_columns(changes, self._described)
        check_key_types([each.type for each in changes.keys], self._described)
        sets, parts = changes.sets, changes.key_parts
        if changes.hashes is not None and not changes.drops and self._rows.can_append:
            used = self._rows.used
            rows = self._rows.append(parts, changes.hashes)
            self._reserve(rows, used)
        else:
            hashes = self._rows.hash(parts) if changes.hashes_ahead is None else changes.hashes_ahead
            self._drop_keys(taken(parts, slice(sets, None)), hashes[sets:])
            rows, _ = self._find_or_add(taken(parts, slice(0, sets)), hashes[:sets])
        for name, column in columns.items():
            self._columns[name].write(rows, column)
        self._tidy()

    def look_at(self, changes: Changes) -> bool:
        if isinstance(changes, ColumnChanges) and changes.hashes_ahead is None:
            changes.hashes_ahead = self._rows.hash(changes.key_parts)
        return True

    def copy(self) -> Self:
        """The table as it is now, for reading only, by any thread. About 10 ms per million rows and three columns."""
        return self._copy_of(None)

    def _copy_of(self, rows: Integers | None) -> Self:
        """As `copy`, of these rows, one behind the other; of all as they are where there is `None`."""
        copied = type(self)(self._described, self._owned, hash_keys=self._rows.hash)
        copied._rows = self._rows.copy(rows)
        some = slice(self._rows.used) if rows is None else rows
        copied._columns = {name: column.copy(some) for name, column in self._columns.items()}
        return copied

    def placed(self, wanted: WantedEntries) -> Placed:
        """The rows by key group, within it by place, with their hashes."""
        rows = self._rows.live()
        wanted.pause()
        rows = rows[wanted.which()[self.groups(rows)]]
        wanted.pause()
        rows = rows[np.argsort(orders_of(self._rows.hashes(rows), self.groups(rows)), kind="stable")]
        wanted.pause()

        def changes_of(start: int, end: int) -> Iterator[ColumnChanges]:
            for changes in self._changes(wanted.state_id, rows[start:end], rows[:0], hashed=True):
                yield from changes.cut(PART_BYTES_MAX)

        return PlacedInMemory(self.groups(rows), changes_of, at_once=PART_RECORDS_MAX)

    def evolve(self, schema: TableSchema) -> None:
        """Give the table another schema of the same keys: columns are added, dropped, widened, or change their order.

        A column that is added has its default in every row. Nothing of this is drained: a restore with the new schema
        gives the same rows. `misread_columns` says if a schema may follow.
        """
        assert schema.keys == self._described.keys, "keys never change their type"
        used, live = self._rows.used, self._rows.live()
        columns: dict[str, FixedColumn | StringColumn] = {}
        for each in schema.columns:
            column, item = self._columns.get(each.name), item_of(type_in(each.type))
            if column is None:
                column = _column_for(each.type)
                column.reserve(0, used)
                if each.default is not None:
                    column.write(live, default_column(each, len(live)))
            elif isinstance(column, FixedColumn) and item is not None and column.dtype != item:
                column = column.widened(used, item)
            columns[each.name] = column
        self._described, self._columns = schema, columns
        self._types = {each.name: type_in(each.type) for each in schema.columns}

    def _find_or_add(self, parts: Parts, hashes: Hashes) -> tuple[Integers, Flags]:
        used = self._rows.used
        rows, is_new = self._rows.find_or_add(parts, hashes)
        self._reserve(rows[is_new], used)
        return rows, is_new

    def _reserve(self, added: Integers, used: int) -> None:
        """Make every column null at rows that were added, `used` of which had been used before."""
        self._is_touched = grown(self._is_touched, used, self._rows.used)
        reused = added[added < used]
        for column in self._columns.values():
            column.reserve(used, self._rows.used)
            if len(reused):
                column.forget(reused)

    def _drop_keys(self, parts: Parts, hashes: Hashes) -> None:
        """Replay drops: the rows are free at once."""
        if len(hashes):
            rows = self._rows.find(parts, hashes)
            rows = np.unique(rows[rows >= 0])
            self._remove(rows)
            self._rows.release(rows)

    def _remove(self, rows: Integers) -> None:
        self._rows.remove(rows)
        for column in self._columns.values():
            if isinstance(column, StringColumn):
                column.forget(rows)

    def _known(self, names: Collection[str]) -> Sequence[str]:
        names = list(names)
        unknown = [name for name in names if name not in self._columns]
        if unknown or len(set(names)) < len(names):
            raise InputError("not columns of this state, or named twice", columns=names, declared=list(self._columns))
        return names

    def _fixed(self, name: str) -> FixedColumn:
        (name,) = self._known([name])
        column = self._columns[name]
        if not isinstance(column, FixedColumn):
            raise InputError("the column is not of fixed width", column=name, type=str(self._types[name]))
        return column

    def _check_rows(self, rows: Integers, count: int) -> None:
        if len(rows) != count:
            raise InputError("a column must have one value per row", rows=len(rows), values=count)
        if not self._rows.are_live(rows):
            raise InputError("a row is not there: its key was dropped, or never added")

    def _touch(self, rows: Integers) -> None:
        fresh = rows[~self._is_touched[rows]]
        if len(fresh):
            self._is_touched[fresh] = True
            self._touched.append(fresh)

    def _take_touched(self) -> Integers:
        if not self._touched:
            return np.zeros(0, np.int64)
        rows = self._touched[0] if len(self._touched) == 1 else np.concatenate(self._touched)
        self._touched = []
        if np.count_nonzero(self._is_touched[: self._rows.used]) < len(rows):  # some were given twice in one call
            rows = np.unique(rows)
        self._is_touched[rows] = False
        return rows

    def _changes(
        self, state_id: int, rows: Integers, dropped: Integers, *, hashed: bool = False
    ) -> Sequence[ColumnChanges]:
        both = np.concatenate([rows, dropped]) if len(dropped) else rows
        steps = [slice(start, start + PART_RECORDS_MAX) for start in range(0, len(both), PART_RECORDS_MAX)]
        return [self._some_changes(state_id, both[step], rows[step], hashed) for step in steps]

    def _some_changes(self, state_id: int, rows: Integers, sets: Integers, hashed: bool) -> ColumnChanges:
        hashes = self._rows.hashes(rows)
        return ColumnChanges(
            state_id,
            self._rows.groups_of(hashes),
            [Typed(each.type, part) for each, part in zip(self._described.keys, self._rows.keys(rows), strict=True)],
            {each.name: Typed(each.type, self._columns[each.name].read(sets)) for each in self._described.columns},
            drops=len(rows) - len(sets),
            hashes=hashes if hashed else None,
        )

    def _tidy(self) -> None:
        for column in self._columns.values():
            if isinstance(column, StringColumn) and column.is_wasteful:
                column.tidy(self._rows.live())


def key_columns(schema: TableSchema) -> KeyColumns:
    """Columns for the keys of a state, empty."""
    return KeyColumns([IntegerKeys() if each.type == "int64" else StringKeys() for each in schema.keys])


def _column_for(type_: str) -> FixedColumn | StringColumn:
    item = item_of(type_in(type_))
    return StringColumn() if item is None else FixedColumn(item)
