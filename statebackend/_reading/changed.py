"""Finds what the change sets of one commit put and deleted: the net effect on each key, newest first.

"update"    the key has this value now; of a map: these entries
"append"    these elements were added to the key's list
"delete"    the key is gone; of a map also: the entries under these keys are
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from statebackend._codec.cells import split
from statebackend._codec.change_sets.changes import Changes, of_kind
from statebackend._codec.change_sets.column_changes import ColumnChanges
from statebackend._codec.change_sets.keyed_changes import KeyedChanges
from statebackend._codec.change_sets.state_change import Operation
from statebackend._codec.columns import Flags
from statebackend._codec.commit import Commit
from statebackend._codec.xxh64 import Hashes
from statebackend._columns.arrow import Array, DataType, RecordBatch, Schema, pa
from statebackend._columns.key_rows import KeyRows
from statebackend._columns.keys import Parts, hash_parts, taken
from statebackend._columns.table_schema import TableSchema
from statebackend._reading.rows.layouts import (
    KEY,
    KEY_GROUP,
    ColumnsLayout,
    KeyedLayout,
    Layout,
    MapLayout,
    groups_array,
)
from statebackend._reading.rows.merged_rows import ChosenRows, HashBits, Merge, StoredRows, groups_of, key_rows
from statebackend._state.kinds import list_state, map_state
from statebackend._tables.heap import cell_of
from statebackend._tables.key_groups import OwnedKeys
from statebackend.ids import Key

CHECKPOINT_ID: Final = "checkpoint_id"
BATCH_ID: Final = "batch_id"
CHANGE_TYPE: Final = "change_type"
UPDATE: Final = "update"
APPEND: Final = "append"
DELETE: Final = "delete"
OLD_VALUE: Final = "old_value"
"""The column of what the key had before the commit."""


class Changed(NamedTuple):
    """Rows of one type of change. `has_values`: false if only the keys are there."""

    type: str
    rows: Any
    has_values: bool = True


class _KeysOfPart(NamedTuple):
    """The keys of one part, in columns."""

    parts: Parts
    hashes: Hashes


class ChangedCells(Merge):
    """For the kinds with one cell per key."""

    def __init__(self) -> None:
        self._seen: set[Key] = set()

    def newer(self, changes: Changes) -> Iterator[Changed]:
        found = of_kind(changes, KeyedChanges)
        newest = {key: place for place, key in enumerate(found.keys) if key not in self._seen}
        self._seen.update(newest)
        cells = {key: cell_of(found.operations[place], found.data[place]) for key, place in newest.items()}
        groups = {key: int(found.groups[place]) for key, place in newest.items()}
        yield from _rows(DELETE, groups, dict.fromkeys(key for key, cell in cells.items() if cell is None))
        yield from _rows(UPDATE, groups, {key: cell for key, cell in cells.items() if cell is not None})

    def base(self, changes: Changes) -> Iterator[Changed]:
        raise AssertionError("a commit's own changes are in no base")


class ChangedRows(Merge):
    """For columnar states. Within one part keys differ; those of several are told apart by their hashes, as a rule."""

    def __init__(self, schema: TableSchema, keys: OwnedKeys) -> None:
        self._open_rows = partial(key_rows, schema, keys)
        self._seen: KeyRows | None = None
        """Once two parts may have the same key."""
        self._may_be_seen = HashBits()
        self._last: _KeysOfPart | None = None
        """Not noted yet: mostly no other part follows."""
        self._noted: list[_KeysOfPart] = []

    def newer(self, changes: Changes) -> Iterator[Changed]:
        found = of_kind(changes, ColumnChanges)
        parts = found.key_parts
        keys = _KeysOfPart(parts, hash_parts(parts) if found.hashes is None else found.hashes)
        places = np.flatnonzero(self._are_new(keys))
        for type_, some in ((DELETE, places[places >= found.sets]), (UPDATE, places[places < found.sets])):
            if len(some):
                rows = found if len(some) == found.records else found.taken(some)
                yield Changed(type_, ChosenRows(rows, None), has_values=type_ == UPDATE)

    def _are_new(self, keys: "_KeysOfPart") -> Flags:
        """True for each that no newer part has."""
        if self._last is not None:
            self._may_be_seen.add(self._last.hashes)
            self._noted.append(self._last)
        self._last = keys
        are_new = np.ones(len(keys.hashes), np.bool_)
        maybe = np.flatnonzero(self._may_be_seen.has(keys.hashes))  # few, as a rule
        hashes = keys.hashes[maybe]
        if self._seen is None:
            if not any(_has_any(each.hashes, hashes) for each in self._noted):
                return are_new
            self._seen = self._open_rows()
        for each in self._noted:
            self._seen.find_or_add(each.parts, each.hashes)
        self._noted.clear()
        are_new[maybe] = self._seen.find(taken(keys.parts, maybe), hashes) < 0
        return are_new

    def base(self, changes: Changes) -> Iterator[Changed]:
        raise AssertionError("a commit's own changes are in no base")


def _has_any(hashes: Hashes, few: Hashes) -> bool:
    """True if one of the few is among the hashes."""
    if not len(few):
        return False
    is_low_word = np.zeros(1 << 16, np.bool_)  # the bits that have chosen the few are the upper ones
    is_low_word[few.astype(np.uint16)] = True
    return bool(np.isin(few, hashes[is_low_word[hashes.astype(np.uint16)]]).any())


class ChangedEntries(Merge):
    """For lists and maps, of which several changes of one key add up. In memory are the changes of one commit."""

    def __init__(self, kind: str) -> None:
        self._apply = {list_state.KIND: _change_list, map_state.KIND: _change_map}[kind]
        self._newer: list[KeyedChanges] = []

    def newer(self, changes: Changes) -> Iterator[Changed]:
        self._newer.append(of_kind(changes, KeyedChanges))
        yield from ()

    def base(self, changes: Changes) -> Iterator[Changed]:
        raise AssertionError("a commit's own changes are in no base")

    def rest(self) -> Iterator[Changed]:
        found: dict[Key, dict[str, Any]] = {}
        groups: dict[Key, int] = {}
        while self._newer:
            for change in self._newer.pop().rows():
                groups[change.key] = change.key_group
                self._apply(found.setdefault(change.key, {}), change.operation, change.data)
        cleared = {key: None for key, effects in found.items() if effects.get(DELETE, 0) is None}
        yield from _rows(DELETE, groups, cleared)
        for type_ in (DELETE, UPDATE, APPEND):
            yield from _rows(
                type_, groups, {key: effects[type_] for key, effects in found.items() if effects.get(type_)}
            )


def _change_list(effects: dict[str, Any], operation: int, data: bytes) -> None:
    """Note one change of a list: what is appended to an update belongs to it."""
    if operation == Operation.ADD:
        type_ = APPEND if not effects or APPEND in effects else UPDATE
        effects.pop(DELETE, None)
        effects.setdefault(type_, bytearray()).extend(data)
        return
    effects.clear()
    effects.update({UPDATE: bytearray(data)} if data else {DELETE: None})


def _change_map(effects: dict[str, Any], operation: int, data: bytes) -> None:
    """Note one change of a map. `DELETE` has the keys of entries that are gone; `None`: all that there were are."""
    if operation == Operation.PUT:
        entry_key, cell = split(data)
        effects.setdefault(UPDATE, {})[entry_key] = cell
        if (gone := effects.get(DELETE)) is not None:
            gone.pop(entry_key, None)
    elif operation == Operation.REMOVE:
        effects.setdefault(UPDATE, {}).pop(data, None)
        if (gone := effects.setdefault(DELETE, {})) is not None:
            gone[data] = None
    else:
        effects.clear()
        effects[DELETE] = None


def _rows(type_: str, groups: Mapping[Key, int], entries: Mapping[Key, Any]) -> Iterator[Changed]:
    if entries:
        keys, values = list(entries), list(entries.values())
        yield Changed(type_, StoredRows(groups_of(keys, groups), keys, values), values[0] is not None)


class ChangesLayout(Layout):
    """The columns of a state behind those of the feed: checkpoint, batch and type of change. `own`: of the state.

    `old_values`: there is a column more in the schema, `old_value`. Its caller adds it to the batches.
    """

    def __init__(self, own: KeyedLayout | ColumnsLayout, commit: Commit, *, old_values: bool = False) -> None:
        self._own = own
        self._ids = (int(commit.checkpoint_id), None if commit.source is None else commit.source.batch_id)
        self._old_values = old_values

    @property
    def schema(self) -> Schema:
        """As `Layout.schema`."""
        old = [(OLD_VALUE, self.value_type)] if self._old_values else []
        return pa.schema([*self._schema, *(pa.field(*each) for each in old)])

    @property
    def value_type(self) -> DataType:
        """The type of the state's values; of a columnar state, a struct of its columns."""
        own = [field for field in self._own.schema if field.name not in (KEY, KEY_GROUP)]
        return pa.struct(own) if isinstance(self._own, ColumnsLayout) else own[0].type

    @property
    def _schema(self) -> Schema:
        head = [(CHECKPOINT_ID, pa.int64()), (BATCH_ID, pa.int64()), (CHANGE_TYPE, pa.string())]
        return pa.schema([*(pa.field(*each) for each in head), *self._own.schema])

    def batch(self, rows: Changed) -> RecordBatch:
        """The rows that a merge of this module yields. Raises as the state's own layout."""
        own = self._own_arrays(rows)
        head = [*self._ids, rows.type]
        types = [field.type for field in self._schema][: len(head)]
        arrays = [pa.repeat(pa.scalar(each, type_), len(own[0])) for each, type_ in zip(head, types, strict=True)]
        return pa.RecordBatch.from_arrays([*arrays, *own], schema=self._schema)

    def _own_arrays(self, changed: Changed) -> Sequence[Array]:
        own, rows = self._own, changed.rows
        if changed.has_values and not (changed.type == DELETE and isinstance(own, MapLayout)):
            found: Sequence[Array] = own.batch(rows).columns
            return found
        keys = own.keys(rows.changes) if isinstance(own, ColumnsLayout) else own.keys(rows.keys)
        groups = groups_array(rows.changes.groups if isinstance(own, ColumnsLayout) else rows.groups)
        if changed.has_values and isinstance(own, MapLayout):
            return [groups, keys, own.removed(rows.entries)]
        others = [field.type for field in own.schema if field.name not in (KEY, KEY_GROUP)]
        return [groups, keys, *(pa.nulls(len(keys), type_) for type_ in others)]


def changes_of_kind(kind: str, schema: TableSchema | None, keys: OwnedKeys) -> Callable[[], Merge]:
    """Opens the reading of one commit's changes of a state of that kind. `schema`: of a columnar state."""
    if schema is not None:
        return lambda: ChangedRows(schema, keys)
    if kind in (list_state.KIND, map_state.KIND):
        return lambda: ChangedEntries(kind)
    return ChangedCells
