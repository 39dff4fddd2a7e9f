"""What a state was written as, against what it is declared as: whether they go together, and what becomes of it."""

from collections.abc import Callable
from typing import Any

import msgspec

from statebackend._state.values import Values
from statebackend.errors import InputError, StateTypeError
from statebackend.ids import StateDescriptor


def _never(schema: str) -> str:
    return f"it was written as {schema}"


class Shape(msgspec.Struct, frozen=True):
    """What a declaration asks for. `misread` says why values of another schema cannot be read, `None` if they can."""

    kind: str
    schema: str
    key_schema: str = ""
    version: int = 0
    misread: Callable[[str], str | None] = _never


def shape_of(kind: str, values: Values[Any], key_schema: str = "") -> Shape:
    """The shape of a state with these values."""
    return Shape(kind, values.serializer.schema, key_schema, values.version, values.serializer.misread)


def described(found: StateDescriptor | None, next_id: int, name: str, shape: Shape) -> StateDescriptor:
    """The state's descriptor from now on: a new one, the one there is, or that with the schema or version it has now.

    Values of the state's version stay as they were written, so all of that version's schemas must be readable. A
    declaration with more upcasts begins a new version. Raises `StateTypeError` with both schemas where they do not go
    together.
    """
    if type(name) is not str or not name or not name.isprintable():
        raise InputError("a state's name is a str of printable characters", name=ascii(name))
    if found is None:
        return StateDescriptor(next_id, name, shape.kind, shape.schema, shape.key_schema, shape.version)
    if (found.kind, found.key_schema) != (shape.kind, shape.key_schema):
        raise _other(found, shape, "the kind, or the type of its keys, is another one")
    if shape.version < found.version:
        raise _other(found, shape, "it is declared with fewer upcasts than it was written with")
    if shape.version > found.version:
        return msgspec.structs.replace(found, schema=shape.schema, version=shape.version, earlier=())
    if shape.schema == found.schema:
        return found
    for schema in (found.schema, *found.earlier):
        reason = None if schema == shape.schema else shape.misread(schema)
        if reason is not None:
            raise _other(found, shape, reason, schema_written=schema)
    earlier = dict.fromkeys((found.schema, *found.earlier))
    earlier.pop(shape.schema, None)
    return msgspec.structs.replace(found, schema=shape.schema, earlier=tuple(earlier))


def _other(found: StateDescriptor, shape: Shape, reason: str, *, schema_written: str | None = None) -> StateTypeError:
    facts: dict[str, Any] = {
        "state": found.name,
        "reason": reason,
        "kind_written": found.kind,
        "kind_declared": shape.kind,
        "schema_written": schema_written or found.schema,
        "schema_declared": shape.schema,
    }
    if found.key_schema or shape.key_schema:
        facts |= {"key_schema_written": found.key_schema, "key_schema_declared": shape.key_schema}
    if found.version or shape.version:
        facts |= {"version_written": found.version, "version_declared": shape.version}
    return StateTypeError(
        "the state was written with another type: declare it as it was written, migrate it, or use another name",
        **facts,
    )
