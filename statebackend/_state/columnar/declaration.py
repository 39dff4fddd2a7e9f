"""Decides what columns a columnar state has from now on, and if it may have them after it was written with others."""

from collections.abc import Mapping
from typing import Any, Final, cast

from statebackend._columns.arrow import pa
from statebackend._columns.table_schema import (
    TableSchema,
    misread_columns,
    read_schema,
    returned_column,
    table_schema,
)
from statebackend._state.columnar.expiring_rows import WRITTEN
from statebackend._state.descriptors import Declaration
from statebackend._state.time.ttl import TimeToLive
from statebackend.errors import InputError
from statebackend.ids import StateDescriptor

KIND: Final = "columnar"


def columns_of(
    found: StateDescriptor | None, schema: Any, key: Any, ttl: TimeToLive | None, defaults: Mapping[str, Any]
) -> TableSchema:
    """The columns of the state, the hidden one included: once a state has had a time-to-live, it keeps that column.

    Raises `InputError` for a schema that no state can have.
    """
    if not isinstance(cast("object", ttl), TimeToLive | None):
        raise InputError("`ttl` must be a `TimeToLive`: it needs a clock", ttl=repr(ttl))
    declared = table_schema(schema, key, defaults)
    if WRITTEN in schema.names:
        raise InputError("a column needs another name: this one is in use", column=WRITTEN)
    had = found is not None and found.kind == KIND and any(each.name == WRITTEN for each in _written(found).columns)
    if ttl is None and not had:
        return declared
    return table_schema(schema.append(pa.field(WRITTEN, pa.float64())), key, defaults)


def declaration_of(columns: TableSchema, found: StateDescriptor | None, ttl: TimeToLive | None) -> Declaration:
    """The declaration of a state with these columns, after it was `found`."""

    def misread(words: str) -> str | None:
        reason = misread_columns(words, columns)
        if reason is None and found is not None:
            reason = returned_column(found.schema, found.earlier, columns)
        return reason

    return Declaration(KIND, columns.words, columns.key_words, misread=misread, ttl=ttl)


def _written(found: StateDescriptor) -> TableSchema:
    return read_schema(found.schema, found.key_schema)
