"""The rows of a state that are asked for: how they are laid out, and what reads them, by the state's kind."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

from statebackend._codec.commit import Commit
from statebackend._columns.arrow import column_of, pa
from statebackend._columns.fitting import array_of_values
from statebackend._columns.table_schema import read_schema
from statebackend._reading.rows.layouts import (
    ElementsLayout,
    KeyedLayout,
    Layout,
    columns_layout,
    layout_of,
)
from statebackend._reading.rows.merged_rows import Merge, NewestCells, NewestRows, WholeEntries, form_of
from statebackend._reading.what_to_read import AskedOfState
from statebackend._state.declared import COLUMNAR
from statebackend._state.kinds import list_state, map_state
from statebackend._tables.key_groups import OwnedKeys
from statebackend.errors import InputError, KeyTypeError, ValueEncodeError
from statebackend.ids import Key, StateDescriptor, all_key_groups

WITH_VALUES_HELD: Final = (list_state.KIND, map_state.KIND)
"""The kinds of which the changelog's values are held while they are read."""


def layout_and_merge(commit: Commit, state: StateDescriptor, asked: AskedOfState) -> tuple[Layout, Callable[[], Merge]]:
    """How the state's rows are laid out, and what opens the reading of them. Raises `InputError`, `KeyTypeError`."""
    if state.kind.startswith("operator") and (asked.keys is not None or asked.key_groups is not None):
        raise InputError("operator state belongs to no key and no key group: ask for all of it", state=state.name)
    if state.kind == COLUMNAR:
        described = read_schema(state.schema, state.key_schema)
        wanted = None if asked.keys is None else _key_parts(asked.keys, described.key_type)
        owned = OwnedKeys(all_key_groups(commit.max_parallelism), commit.max_parallelism)
        return columns_layout(state, asked.columns, asked.expiry(commit, state)), partial(
            NewestRows, described, owned, wanted
        )
    layout: KeyedLayout | ElementsLayout = layout_of(
        state,
        first=_one_of(asked.keys or ()),
        key_as_json=asked.key_as_json,
        columns=asked.columns,
        expiry=asked.expiry(commit, state),
        migrate=asked.migrate,
    )
    if state.kind in WITH_VALUES_HELD:
        return layout, partial(WholeEntries, state.kind, asked.keys, may_be_mixed=asked.key_as_json)
    return layout, partial(NewestCells, asked.keys, may_be_mixed=asked.key_as_json)


def _one_of(keys: Collection[Key]) -> Key | None:
    """Any of the keys, if all have one form, which is then that of the column; else those that are found tell it."""
    forms = {form_of(key): key for key in keys}
    return next(iter(forms.values())) if len(forms) == 1 else None


def _key_parts(keys: frozenset[Key], type_: Any) -> Any:
    """The keys in columns. Raises `KeyTypeError` for one of another type than the state's."""
    names = [field.name for field in type_] if pa.types.is_struct(type_) else None
    try:
        if names is None:
            arrays = [array_of_values(list(keys), type_, "key")]
        else:
            tuples = [key if isinstance(key, tuple) else () for key in keys]  # a text would be cut into its letters
            arrays = array_of_values([dict(zip(names, key, strict=True)) for key in tuples], type_, "key").flatten()
    except (ValueEncodeError, TypeError, ValueError) as error:
        raise KeyTypeError("the state has keys of another type: convert these", type_declared=str(type_)) from error
    return [column_of(each) for each in arrays]
