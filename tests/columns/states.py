"""Columnar states on their tables alone, without a backend."""

from collections.abc import Sequence
from typing import Any, cast

from statebackend import TimeToLive
from statebackend._codec.change_sets.column_changes import ColumnChanges
from statebackend._columns.arrow import pa
from statebackend._columns.column_table import ColumnTable
from statebackend._columns.table_schema import table_schema
from statebackend._state.columnar.columnar_state import ColumnarState
from statebackend._state.columnar.expiring_rows import WRITTEN
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.placed import WantedEntries
from statebackend.ids import KeyGroupRange, all_key_groups

ALL = KeyGroupRange(0, 127)


def columnar(schema: Any, key: Any, *, key_groups: KeyGroupRange = ALL, ttl: TimeToLive | None = None) -> ColumnarState:
    """A new state."""
    if ttl is not None:
        schema = schema.append(pa.field(WRITTEN, pa.float64()))
    keys = OwnedKeys(key_groups, 128)
    state = ColumnarState("fleet", ColumnTable(table_schema(schema, key), keys), keys)
    state.declare(table_schema(schema, key), ttl)
    return state


def base_of(table: ColumnTable, groups: Sequence[int], max_parallelism: int, state_id: int = 0) -> list[ColumnChanges]:
    """The changes that rebuild the rows of these key groups."""
    all_groups = all_key_groups(max_parallelism)
    placed = table.placed(WantedEntries(state_id, OwnedKeys(all_groups, max_parallelism), groups))
    return [cast("ColumnChanges", changes) for changes in placed.changes(all_groups)]


def restored(
    state: ColumnarState, *, onto: ColumnarState | None = None, ttl: TimeToLive | None = None
) -> ColumnarState:
    """Another state, after a replay of the changes of this one."""
    other = columnar(state.schema, state.key_type, ttl=ttl) if onto is None else onto
    for changes in state.drain(0):
        other._rows.table.apply(changes)  # type: ignore[arg-type]
    return other
