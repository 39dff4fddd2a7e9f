"""How the rows of a state are laid out in Arrow: a column for the key group, one for the key, and those of the value.

    key_group: int32    key: string, int64, binary, or a struct of these    value: see `shapes`

A columnar state has its own columns in place of `value`; one of them that is named `key` or `key_group` is called
`value.key` or `value.key_group`. Operator state has a row per element, and nulls for key and key group.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, Final, cast

import msgspec
import numpy as np

from statebackend._codec.cells import Cell, split, unpack
from statebackend._codec.change_sets.changes import KeyGroups
from statebackend._codec.change_sets.column_changes import ColumnChanges
from statebackend._codec.columns import Fixed, Flags
from statebackend._codec.plain import plain
from statebackend._codec.serializers import OWN, decode_many, serializer_of
from statebackend._columns.arrow import Array, DataType, RecordBatch, Schema, array_from, array_of, pa
from statebackend._columns.table_schema import ColumnSchema, TableSchema, read_schema, stored_columns, type_in
from statebackend._reading.asked_of_state import check_known
from statebackend._reading.rows.merged_rows import ChosenRows, StoredRows
from statebackend._reading.rows.shapes import Entries, Items, Leaf, Record, Shape, key_shape_of, shape_of
from statebackend._reading.what_to_read import Expiry
from statebackend._state.columnar.expiring_rows import WRITTEN
from statebackend._state.kinds import list_state, map_state
from statebackend._state.time import timers
from statebackend._state.values import Upcast, upcast
from statebackend.errors import InputError, KeyTypeError, ValueDecodeError
from statebackend.ids import Key, StateDescriptor

KEY: Final = "key"
KEY_GROUP: Final = "key_group"
VALUE: Final = "value"
_TAKEN: Final = (KEY, KEY_GROUP)
_TIME_BYTES: Final = 8
_SCALARS: Final = {str: pa.string(), int: pa.int64(), bytes: pa.binary()}


class Keys:
    """The column of keys: all are of one type, that of the first one, or text in JSON if that was asked for."""

    def __init__(self, first: Key | None, *, as_json: bool) -> None:
        self._as_json = as_json
        self.type: DataType = pa.string() if as_json or first is None else _type_of(first)

    def array(self, keys: Sequence[Key]) -> Array:
        """The keys. Raises `KeyTypeError` for one of another type."""
        if self._as_json:
            return pa.array([msgspec.json.encode(plain(key)).decode() for key in keys], self.type)
        return self._array(keys, self.type)

    def _array(self, keys: Sequence[Any], type_: DataType) -> Array:
        if not pa.types.is_struct(type_):
            if set(map(type, keys)) <= {next(kind for kind, found in _SCALARS.items() if found == type_)}:
                return pa.array(keys, type_)
        elif all(type(key) is tuple and len(key) == type_.num_fields for key in keys):
            parts = zip(*keys, strict=True) if keys else [()] * type_.num_fields
            arrays = [self._array(part, type_.field(place).type) for place, part in enumerate(parts)]
            return pa.StructArray.from_arrays(arrays, fields=list(type_))
        raise KeyTypeError(
            "the state has keys of several types: ask for them as text, by key_as_json=True or --key-as-json",
            type=str(type_),
        )


class Cells:
    """Decodes the cells of a state. `migrate`: the upcasts that its declaration has, perhaps a later one with more."""

    def __init__(self, state: StateDescriptor, schema: str, shape: Shape, migrate: Sequence[Upcast]) -> None:
        self._state = state
        self.shape: Final = shape
        self._serializer = None if schema.startswith(OWN) else serializer_of(shape.python)
        self._migrate = migrate

    def decode(self, cells: Sequence[bytes]) -> Sequence[Any]:
        """The values. Raises `ValueDecodeError`."""
        if not self._state.version and self._serializer is not None:
            try:
                return decode_many(self._serializer, cells)
            except ValueDecodeError:  # some cell has a time or a version, or is damaged: which one, tells what follows
                pass
        found = list(map(unpack, cells))
        if all(cell.version == self._state.version for cell in found):
            return self.values([cell.value for cell in found])
        return list(map(self._value, found))

    def values(self, many: Sequence[bytes]) -> Sequence[Any]:
        """The values of bytes that have no version or time, as the keys within a map. Raises `ValueDecodeError`."""
        return many if self._serializer is None else decode_many(self._serializer, many)

    def _value(self, cell: Cell) -> Any:
        if cell.version == self._state.version:
            return self.values([cell.value])[0]
        if cell.version > self._state.version or len(self._migrate) < self._state.version:
            raise ValueDecodeError(
                "a stored value is of another version: give `migrate` as in the state's declaration to read_state,"
                " export, diff or spark.register, or --migrate to a command; get and dump show it as it was written",
                state=self._state.name,
                version_written=cell.version,
                version_declared=self._state.version,
            )
        try:
            upcasts = self._migrate[cell.version : self._state.version]
            return self.values([upcast(cell.value, upcasts, is_msgpack=self._serializer is not None)])[0]
        except Exception as error:
            raise ValueDecodeError(f"a stored value cannot be upcast: {error}", state=self._state.name) from error


class Layout(ABC):
    """The columns of one state's rows."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The schema of all batches. Of a keyed state it is known once there was a row, or that there is none."""

    @abstractmethod
    def batch(self, rows: Any) -> RecordBatch:
        """The rows that a `Merge` yields. Raises `ValueDecodeError`, `KeyTypeError`."""


class KeyedLayout(Layout):
    """Of a state with a key and a value. `keys`: those asked for, of which the first gives the type."""

    def __init__(self, shape: Shape, first: Key | None, *, as_json: bool, expiry: Expiry | None) -> None:
        self._shape = shape
        self._as_json = as_json
        self._keys = None if first is None and not as_json else Keys(first, as_json=as_json)
        self._expiry = expiry

    @property
    def schema(self) -> Schema:
        if self._keys is None:
            self._keys = Keys(None, as_json=self._as_json)
        return pa.schema([(KEY_GROUP, pa.int32()), (KEY, self._keys.type), (VALUE, self._shape.arrow)])

    def keys(self, keys: Sequence[Key]) -> Array:
        """The column of some keys, at least one. Raises `KeyTypeError`."""
        if self._keys is None:
            self._keys = Keys(keys[0], as_json=self._as_json)
        return self._keys.array(keys)

    def batch(self, rows: StoredRows) -> RecordBatch:
        if self._expiry is not None:
            self.keys(rows.keys[:1])  # it tells the type, also if no row is left
            rows = self._living(rows, self._expiry)
        arrays = [groups_array(rows.groups), self.keys(rows.keys), self._values(rows.entries)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _living(self, rows: StoredRows, expiry: Expiry) -> StoredRows:
        found = [self._living_entry(entry, expiry) for entry in rows.entries]
        there = [place for place, entry in enumerate(found) if entry]
        return StoredRows(rows.groups[there], [rows.keys[at] for at in there], [found[at] for at in there])

    @abstractmethod
    def _living_entry(self, entry: Any, expiry: Expiry) -> Any:
        """The entry without what has expired of it; empty or `None` if nothing is left."""

    @abstractmethod
    def _values(self, entries: Sequence[Any]) -> Array:
        """The column of the values of these entries."""


class CellLayout(KeyedLayout):
    """Of the kinds with one cell per key."""

    def __init__(self, cells: Cells, first: Key | None, *, as_json: bool, expiry: Expiry | None) -> None:
        super().__init__(cells.shape, first, as_json=as_json, expiry=expiry)
        self._cells = cells

    def _living_entry(self, entry: bytes, expiry: Expiry) -> bytes | None:
        return None if expiry.has(unpack(entry).stamp) else entry

    def _values(self, entries: Sequence[bytes]) -> Array:
        return self._shape.array(self._cells.decode(entries))


class ListLayout(KeyedLayout):
    """Of lists."""

    def __init__(self, cells: Cells, first: Key | None, *, as_json: bool, expiry: Expiry | None) -> None:
        super().__init__(Items(cells.shape), first, as_json=as_json, expiry=expiry)
        self._cells = cells

    def _living(self, rows: StoredRows, expiry: Expiry | None) -> StoredRows:
        split_up = StoredRows(rows.groups, rows.keys, [split(bytes(row)) for row in rows.entries])
        return split_up if expiry is None else super()._living(split_up, expiry)

    def batch(self, rows: StoredRows) -> RecordBatch:
        return super().batch(rows if self._expiry is not None else self._living(rows, None))

    def _living_entry(self, entry: list[bytes], expiry: Expiry) -> list[bytes]:
        return [cell for cell in entry if not expiry.has(unpack(cell).stamp)]

    def _values(self, entries: Sequence[list[bytes]]) -> Array:
        return self._shape.array(_cut(self._cells.decode([cell for entry in entries for cell in entry]), entries))


class MapLayout(KeyedLayout):
    """Of maps."""

    def __init__(
        self, entry_keys: Cells, cells: Cells, first: Key | None, *, as_json: bool, expiry: Expiry | None
    ) -> None:
        self._maps = Entries(entry_keys.shape, cells.shape)
        super().__init__(self._maps, first, as_json=as_json, expiry=expiry)
        self._entry_keys, self._cells = entry_keys, cells

    def removed(self, entries: Sequence[Collection[bytes]]) -> Array:
        """The values of maps whose entries under these keys are gone: null under each."""
        return self._maps.array_of_pairs([[(key, None) for key in own] for own in self._keys_within(entries)])

    def _living_entry(self, entry: dict[bytes, bytes], expiry: Expiry) -> dict[bytes, bytes]:
        return {key: cell for key, cell in entry.items() if not expiry.has(unpack(cell).stamp)}

    def _values(self, entries: Sequence[dict[bytes, bytes]]) -> Array:
        values = _cut(self._cells.decode([cell for entry in entries for cell in entry.values()]), entries)
        pairs = zip(self._keys_within(entries), values, strict=True)
        return self._maps.array_of_pairs([list(zip(own, found, strict=True)) for own, found in pairs])

    def _keys_within(self, entries: Sequence[Collection[bytes]]) -> list[Sequence[Any]]:
        return _cut(self._entry_keys.values([key for entry in entries for key in entry]), entries)


class TimersLayout(KeyedLayout):
    """Of timers: the times of each key."""

    def __init__(self, first: Key | None, *, as_json: bool) -> None:
        super().__init__(Leaf(tuple[float, ...], pa.list_(pa.float64())), first, as_json=as_json, expiry=None)

    def _living_entry(self, entry: bytes, expiry: Expiry) -> bytes:
        return entry

    def _values(self, entries: Sequence[bytes]) -> Array:
        return self._shape.array([struct.unpack(f"<{len(entry) // _TIME_BYTES}d", entry) for entry in entries])


class ElementsLayout(Layout):
    """Of operator state: a row per element."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._schema = pa.schema([(KEY_GROUP, pa.int32()), (KEY, pa.string()), (VALUE, cells.shape.arrow)])

    @property
    def schema(self) -> Schema:
        return self._schema

    def batch(self, rows: Sequence[bytes]) -> RecordBatch:
        nulls = [pa.nulls(len(rows), pa.int32()), pa.nulls(len(rows), pa.string())]
        found = self._cells.shape.array(self._cells.decode(rows))
        return pa.RecordBatch.from_arrays([*nulls, found], schema=self.schema)


class ColumnsLayout(Layout):
    """Of a columnar state: `names` of its columns, or all of them."""

    def __init__(self, described: TableSchema, names: Sequence[str] | None, expiry: Expiry | None) -> None:
        known = {each.name: each for each in described.columns if each.name != WRITTEN}
        shown = [known[name] for name in names] if names is not None else list(known.values())
        self._is_stamped = len(known) < len(described.columns)
        self._expiry = expiry if self._is_stamped else None
        self._key_type = described.key_type
        self._keys = described.keys
        hidden = [ColumnSchema(WRITTEN, "float64")] if self._expiry is not None else []
        self._read = TableSchema((*shown, *hidden), described.keys)
        self._shown = [each.name for each in shown]
        fields = [(f"{VALUE}.{each.name}" if each.name in _TAKEN else each.name, type_in(each.type)) for each in shown]
        self._schema = pa.schema([(KEY_GROUP, pa.int32()), (KEY, self._key_type), *fields])

    @property
    def columns(self) -> frozenset[str]:
        """The columns that have to be decoded."""
        return frozenset(each.name for each in self._read.columns)

    @property
    def schema(self) -> Schema:
        return self._schema

    def batch(self, rows: ChosenRows) -> RecordBatch:
        changes, is_chosen = rows
        found = stored_columns(changes, self._read)
        if self._expiry is not None:
            is_live = _is_live(cast("Fixed", found[WRITTEN]), self._expiry)
            is_chosen = is_live if is_chosen is None else is_chosen & is_live
        arrays = [array_of(found[name], self._schema.field(at).type) for at, name in enumerate(self._shown, 2)]
        batch = pa.RecordBatch.from_arrays(
            [groups_array(changes.groups), self.keys(changes), *arrays], schema=self._schema
        )
        # All are laid out as they lie, and then some are left out: Arrow copies strings quicker than numpy picks them.
        return batch if is_chosen is None else batch.filter(array_from(is_chosen))

    def keys(self, rows: ColumnChanges) -> Array:
        """The column of the keys of rows, or of those that are dropped."""
        parts = [array_of(each.column, type_in(each.type)) for each in rows.keys]
        return parts[0] if len(parts) == 1 and not self._keys[0].name else _struct(parts, self._key_type)


def groups_array(groups: KeyGroups) -> Array:
    """The column of key groups."""
    return array_of(Fixed(groups.astype(np.int32)), pa.int32())


def _is_live(written: Fixed, expiry: Expiry) -> Flags:
    has_time = np.ones(len(written.values), np.bool_) if written.valid is None else written.valid
    if not has_time.any():
        return np.full(len(has_time), not expiry.has(None))
    is_live: Flags = written.values + expiry.seconds > expiry.now()
    if expiry.lifetime.gone_until_s is not None:
        is_live &= written.values > expiry.lifetime.gone_until_s
    return np.where(has_time, is_live, not expiry.has(None))


def layout_of(
    state: StateDescriptor,
    *,
    first: Key | None,
    key_as_json: bool,
    columns: Sequence[str] | None,
    expiry: Expiry | None,
    migrate: Sequence[Upcast],
) -> KeyedLayout | ElementsLayout:
    """The layout of a state that is not columnar. Raises `InputError` for columns that its values do not have."""
    if state.kind == timers.KIND:
        _refuse(columns, state)
        return TimersLayout(first, as_json=key_as_json)
    shape = shape_of(state.schema)
    if columns is not None:
        if not isinstance(shape, Record):
            _refuse(columns, state)
        else:
            shape = shape.only(columns)
    cells = Cells(state, state.schema, shape, migrate)
    if state.kind == list_state.KIND:
        return ListLayout(cells, first, as_json=key_as_json, expiry=expiry)
    if state.kind == map_state.KIND:
        key_shape = key_shape_of(state.key_schema)
        entry_keys = Cells(msgspec.structs.replace(state, version=0), state.key_schema, key_shape, ())
        return MapLayout(entry_keys, cells, first, as_json=key_as_json, expiry=expiry)
    if state.kind.startswith("operator"):
        return ElementsLayout(cells)
    return CellLayout(cells, first, as_json=key_as_json, expiry=expiry)


def columns_layout(state: StateDescriptor, names: Sequence[str] | None, expiry: Expiry | None) -> ColumnsLayout:
    """The layout of a columnar state. Raises `InputError` for columns that it does not have."""
    described = read_schema(state.schema, state.key_schema)
    if names is not None:
        check_known("column", names, [each.name for each in described.columns if each.name != WRITTEN])
    return ColumnsLayout(described, names, expiry)


def _refuse(columns: Sequence[str] | None, state: StateDescriptor) -> None:
    if columns is not None:
        raise InputError("the values of this state have no columns to choose from", state=state.name, kind=state.kind)


def _struct(parts: Sequence[Array], type_: DataType) -> Array:
    return pa.StructArray.from_arrays(parts, fields=list(type_))


def _type_of(key: Key) -> DataType:
    if isinstance(key, tuple):
        return pa.struct([(f"_{place}", _type_of(part)) for place, part in enumerate(key, 1)])
    return _SCALARS[type(key)]


def _cut(flat: Sequence[Any], entries: Sequence[Collection[Any]]) -> list[Sequence[Any]]:
    """Cut a row of values into those of each entry."""
    found: list[Sequence[Any]] = []
    at = 0
    for entry in entries:
        found.append(flat[at : at + len(entry)])
        at += len(entry)
    return found
