"""A columnar state that is transformed. Needs pyarrow."""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from statebackend._columns.arrow import pa, plain_of
from statebackend._columns.batch.user_keys import keys_from, plain_keys
from statebackend._columns.column_table import ColumnTable
from statebackend._columns.fitting import array_of_values
from statebackend._state.columnar.expiring_rows import WRITTEN
from statebackend._upkeep.offline.transformed_state import KEYS_AT_ONCE, TransformedState
from statebackend.errors import InputError
from statebackend.ids import Key

Rows = list[tuple[Key, dict[str, Any]]]


class TransformedColumns(TransformedState):
    """The function gets a row as a dict of Python values. A row keeps its time of writing."""

    def steps(self) -> Iterator[int]:
        table = self._table(self._states, self._state.state_id)
        rows = table.live_rows()
        for start in range(0, len(rows), KEYS_AT_ONCE):
            some = rows[start : start + KEYS_AT_ONCE]
            made: dict[str, Rows] = {}
            for key, row in zip(plain_keys(table.keys(some)), plain_of(table.gather(some)), strict=True):
                self._give(key, row, made)
            for name, found in made.items():
                self._write(name, found)
            yield len(some)

    def _give(self, key: Key, row: dict[str, Any], made: dict[str, Rows]) -> None:
        hidden = {WRITTEN: row.pop(WRITTEN)} if WRITTEN in row else {}
        names, before = row.keys(), dict(row)
        found = list(self._returned(key, dict(row)))
        for name, new_key, value in found:
            columns = cast("dict[str, Any]", value)
            if not isinstance(value, dict) or not columns.keys() <= names:
                raise InputError(
                    "a row is a dict from columns of the state to values",
                    state=self._state.name,
                    row=repr(columns)[:80],
                )
            made.setdefault(name, []).append((new_key, {**columns, **hidden}))
        self.unchanged += [(name, new_key, value) for name, new_key, value in found] == [
            (self._state.name, key, before)
        ]

    def _write(self, name: str, found: Rows) -> None:
        table = self._table(self._holder_for(name), self._target(name))
        free: Rows = []
        keys = keys_from([key for key, _ in found], table.key_type)
        there, seen = table.find(keys) >= 0, set[Key]()
        for (key, row), is_there in zip(found, there.tolist(), strict=True):
            if is_there or key in seen:
                self._collided(name, key)
            else:
                seen.add(key)
                free.append((key, row))
        if not free:
            return
        arrays = [
            array_of_values([row.get(field.name) for _, row in free], field.type, field.name) for field in table.schema
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=table.schema)
        rows, is_new = table.find_or_add(keys_from([key for key, _ in free], table.key_type))
        assert np.all(is_new), "it was looked for"
        table.scatter(rows, batch)
        self.keys[name] += len(free)

    def _holder_for(self, name: str) -> Any:
        self._target(name)
        return self._holder(name)

    def _table(self, states: Any, state_id: int) -> ColumnTable:
        table = states.tables[state_id]
        assert isinstance(table, ColumnTable), "a columnar state"
        return table
