"""A type in words: what its values look like in storage, so that a state is not opened as another one.

    schema := JSON without spaces, keys sorted
    type   := "int" | "str" | "any" | ...             a kind without particulars
            | {kind: {particular: value, ...}}        one with: constraints, item types, ...
            | {"record": {name: field, ...}}          struct, dataclass, TypedDict: stored as a map by name
            | {"row": [[name, field], ...]}           NamedTuple, array_like struct: stored as an array by position
            | {..., "tag": [name, tag]}               a record or row that says in a union which one it is
            | {"one_of": [type, ...]}                 a union, in no order of its own
            | {"values": [value, ...]}                an enum or a literal
            | {"up": n}                               the n-th record or row around this one
    field  := type | {"optional": type, "default": value}

Names of classes, documentation and the order of a record's fields are no part of it: they may change freely. A field
is optional where a stored value may lack it; a default counts only then, since only then it changes what is read.
These texts lie in every commit: to word one differently is to lock out the states written before.
"""

import json
from typing import Any, cast

import msgspec
from msgspec import inspect

_Record = inspect.StructType | inspect.DataclassType | inspect.TypedDictType | inspect.NamedTupleType
_Types = tuple[inspect.Type, ...]


def schema_of(type_: Any) -> str:
    """The schema of a type. Raises `TypeError` or `NameError` for one that msgspec does not know all of."""
    return _text(_plain(inspect.type_info(type_), ()))


def _text(plain: Any) -> str:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"))


def _plain(node: inspect.Type, around: _Types) -> Any:
    match node:
        case inspect.Metadata():
            return _plain(node.type, around)
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() | inspect.NamedTupleType():
            return _record(node, around)
        case inspect.UnionType():
            return {"one_of": sorted((_plain(type_, around) for type_ in node.types), key=_text)}
        case inspect.EnumType():
            return {"values": sorted((member.value for member in node.cls), key=_text)}
        case inspect.LiteralType():
            return {"values": sorted(node.values, key=_text)}
        case inspect.CustomType():
            raise TypeError(f"type {node.cls!r} is not supported")
        case _:
            return _kind(node, around)


def _kind(node: inspect.Type, around: _Types) -> Any:
    """Everything else is a kind with some particulars, each a type, some types, or a plain value."""
    kind = type(node).__name__.removesuffix("Type").lower()
    particulars: dict[str, Any] = {}
    for name in node.__struct_fields__:
        value = getattr(node, name)
        if isinstance(value, inspect.Type):
            particulars[name] = _plain(value, around)
        elif isinstance(value, tuple):
            particulars[name] = [_plain(type_, around) for type_ in cast("_Types", value)]
        elif value is not None:
            particulars[name] = value
    return {kind: particulars} if particulars else kind


def _record(node: _Record, around: _Types) -> Any:
    for up, outer in enumerate(reversed(around), start=1):
        if outer is node:
            return {"up": up}
    fields = [[field.encode_name, _field(node, field, (*around, node))] for field in node.fields]
    by_position = isinstance(node, inspect.NamedTupleType) or getattr(node, "array_like", False)
    plain: dict[str, Any] = {"row": fields} if by_position else {"record": dict(fields)}
    if isinstance(node, inspect.StructType) and node.tag is not None:
        plain["tag"] = [node.tag_field, node.tag]
    return plain


def _field(node: _Record, field: inspect.Field, around: _Types) -> Any:
    plain = _plain(field.type, around)
    if not _may_be_absent(node, field):
        return plain
    optional = {"optional": plain}
    if field.default is not msgspec.NODEFAULT:
        optional["default"] = msgspec.to_builtins(field.default, str_keys=True)
    return optional


def _may_be_absent(node: _Record, field: inspect.Field) -> bool:
    """Whether a stored value can lack the field: not required, and left out while it has a certain value."""
    if field.required or isinstance(node, inspect.NamedTupleType):
        return False
    unset = field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
    return unset or (isinstance(node, inspect.StructType) and node.cls.__struct_config__.omit_defaults)
