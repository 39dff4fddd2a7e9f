"""The changes of a columnar state as Python values, for those who look at a state from outside."""

from collections.abc import Iterator, Sequence
from typing import Any

from statebackend._codec.change_sets.changes import Changes, of_kind
from statebackend._codec.change_sets.column_changes import ColumnChanges, Typed
from statebackend._columns.arrow import array_of, plain_of
from statebackend._columns.table_schema import type_in
from statebackend._state.columnar.expiring_rows import WRITTEN
from statebackend.ids import Key


def keys_in(changes: Changes) -> Sequence[Key]:
    """The keys of the changes, dropped ones too. Raises `DataError` for changes of another kind."""
    parts = [_values(part) for part in of_kind(changes, ColumnChanges).keys]
    return parts[0] if len(parts) == 1 else list(zip(*parts, strict=True))


def rows_in(changes: Changes) -> Iterator[tuple[int, Key, dict[str, Any]]]:
    """The key group, key and columns of each row set. Raises as `keys_in`."""
    found = of_kind(changes, ColumnChanges)
    columns = {name: _values(column) for name, column in found.columns.items() if name != WRITTEN}
    keys, groups = keys_in(found), found.groups.tolist()
    for place in range(found.sets):
        yield groups[place], keys[place], {name: values[place] for name, values in columns.items()}


def _values(typed: Typed) -> list[Any]:
    return plain_of(array_of(typed.column, type_in(typed.type)))
