"""A state of columns in a dictionary, and the same merges in plain Python, row by row: the model."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from statebackend._columns.arrow import column_of
from statebackend._columns.batch.merge_plan import How, planned
from statebackend._columns.batch.merge_sides import MergeSides
from statebackend._columns.batch.numbered_keys import grouped
from statebackend._columns.batch.user_keys import keys_of
from statebackend._columns.keys import HashedKeys, hash_parts

Row = dict[str, Any]


def hashed_keys(keys: Any) -> HashedKeys:
    """Keys, an array, with their hashes."""
    parts = [column_of(part) for part in (keys.flatten() if pa.types.is_struct(keys.type) else [keys])]
    return HashedKeys(parts, hash_parts(parts))


class Merged:
    """The rows of a state by key, changed by merges as a columnar state's are."""

    def __init__(self, schema: pa.Schema, key_type: pa.DataType = pa.string()) -> None:  # noqa: B008 - immutable
        self.schema = schema
        self.key_type = key_type
        self.rows: dict[Any, Row] = {}

    def merge(self, batch: Any, how: How, *, on: str | Sequence[str] = "key", order_by: str | None = None) -> None:
        """One merge: either all of it, or an error and nothing."""
        steps = planned(how, self.schema, batch.schema, order_by)
        groups = grouped(keys_of(batch, on, self.key_type), hashed_keys)
        keys = [_hashable(key) for key in groups.keys.to_pylist()]
        none = dict.fromkeys(self.schema.names)
        old = pa.RecordBatch.from_pylist([self.rows.get(key, none) for key in keys], schema=self.schema)
        is_new = np.array([key not in self.rows for key in keys], bool)
        sides = MergeSides(groups, batch, old, is_new)
        columns: dict[str, pa.Array] = {}
        for step in steps:
            columns |= step(sides)
        for name, column in columns.items():
            assert (len(column), column.type) == (len(keys), self.schema.field(name).type)
            column.validate(full=True)
        for key, row in zip(keys, pa.table(columns).to_pylist(), strict=True):
            self.rows[key] = self.rows.get(key, none) | row


def plain_merge(rows: dict[Any, Row], names: Sequence[str], batch: Sequence[Row], how: Mapping[str, Any]) -> None:
    """`how`, row by row, without `order_by`."""
    for row in batch:
        is_new = row["key"] not in rows
        state = rows.setdefault(row["key"], dict.fromkeys(names))
        for name, what in how.items():
            kind, column = ("count", None) if what == "count" else what
            _fold(state, name, kind, 1 if column is None else row[column], is_new=is_new)


def _fold(state: Row, name: str, kind: str, value: Any, *, is_new: bool) -> None:
    old = state[name]
    if kind == "count":
        state[name] = (old or 0) + (value is not None)
    elif kind == "last" or (kind == "first" and is_new):
        state[name] = value
    elif kind == "mean":
        _fold(state, f"{name}_sum", "sum", value, is_new=is_new)
        _fold(state, f"{name}_count", "count", value, is_new=is_new)
        count = state[f"{name}_count"]
        state[name] = float(state[f"{name}_sum"] / count) if count else None
    elif kind != "first" and value is not None:
        state[name] = value if old is None else FOLDS[kind](old, value)


def _largest(one: Any, other: Any) -> Any:
    return one if _place(one) >= _place(other) else other


def _smallest(one: Any, other: Any) -> Any:
    return one if _place(one) <= _place(other) else other


def _place(value: Any) -> tuple[bool, Any]:
    is_nan = isinstance(value, float) and math.isnan(value)
    return is_nan, 0 if is_nan else value


FOLDS = {
    "sum": lambda one, other: one + other,
    "min": _smallest,
    "max": _largest,
    "any": lambda one, other: one or other,
    "all": lambda one, other: one and other,
}


def _hashable(key: Any) -> Any:
    return tuple(map(_hashable, key.values())) if isinstance(key, dict) else key
