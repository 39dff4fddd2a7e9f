"""Checks a declaration against the state as it was written, and says how the state is described from now on."""

from collections.abc import Callable
from typing import Any

import msgspec

from statebackend._state.time.ttl import TimeToLive
from statebackend._state.values import Values
from statebackend.errors import InputError, StateTypeError
from statebackend.ids import StateDescriptor


def _never(schema: str) -> str:
    return f"it was written as {schema}"


class Declaration(msgspec.Struct, frozen=True):
    """The stored form of a declared state. `misread` says why a schema cannot be read as this one, `None` if it can."""

    kind: str
    schema: str
    key_schema: str = ""
    version: int = 0
    misread: Callable[[str], str | None] = _never
    ttl: TimeToLive | None = None


def declaration_of(kind: str, values: Values[Any], key_schema: str = "") -> Declaration:
    """The declaration of a state with these values."""
    return Declaration(
        kind, values.serializer.schema, key_schema, values.version, values.serializer.misread, values.ttl
    )


def described(found: StateDescriptor | None, next_id: int, name: str, declared: Declaration) -> StateDescriptor:
    """The state's descriptor from now on: a new one, or `found` with the declared schema and version.

    Values stay as they were written, so all schemas of the state's version must be readable, also where the newest one
    is declared again: its text does not say what a value of an earlier one lacks. A declaration with more upcasts
    starts a new version. Raises `StateTypeError` with both schemas where the declaration does not fit.
    """
    if type(name) is not str or not name or not name.isprintable():
        raise InputError("a state's name must be a str of printable characters", name=ascii(name))
    if found is None:
        return StateDescriptor(next_id, name, declared.kind, declared.schema, declared.key_schema, declared.version)
    if (found.kind, found.key_schema) != (declared.kind, declared.key_schema):
        raise _other(found, declared, "the kind or the type of the keys differs")
    if declared.version < found.version:
        raise _other(found, declared, "it is declared with fewer upcasts than it was written with")
    if declared.version > found.version:
        return msgspec.structs.replace(found, schema=declared.schema, version=declared.version, earlier=())
    for schema in (found.schema, *found.earlier):
        reason = None if schema == declared.schema else declared.misread(schema)
        if reason is not None:
            raise _other(found, declared, reason, schema_written=schema)
    earlier = dict.fromkeys((found.schema, *found.earlier))
    earlier.pop(declared.schema, None)
    return msgspec.structs.replace(found, schema=declared.schema, earlier=tuple(earlier))


def _other(
    found: StateDescriptor, declared: Declaration, reason: str, *, schema_written: str | None = None
) -> StateTypeError:
    facts: dict[str, Any] = {
        "state": found.name,
        "reason": reason,
        "kind_written": found.kind,
        "kind_declared": declared.kind,
        "schema_written": schema_written or found.schema,
        "schema_declared": declared.schema,
    }
    if found.key_schema or declared.key_schema:
        facts |= {"key_schema_written": found.key_schema, "key_schema_declared": declared.key_schema}
    if found.version or declared.version:
        facts |= {"version_written": found.version, "version_declared": declared.version}
    return StateTypeError(
        "the state was written with another type: declare it as it was written, migrate it, or use another name",
        **facts,
    )
