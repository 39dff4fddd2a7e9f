"""The schema of a type: a text that tells how its values are stored, so that no state is opened as another type.

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

Names of classes, documentation and the order of a record's fields are not part of it, so they may change freely. A
field is optional if a stored value may lack it. A default is part of the schema only then, because only then does it
change what is read. These texts are in every commit: to word a type differently would lock out the states written
before.

Values written with one schema may be read as another type if `misread` finds no reason against it.
"""

import json
from typing import Any, Final, cast

import msgspec
from msgspec import inspect

_Record = inspect.StructType | inspect.DataclassType | inspect.TypedDictType | inspect.NamedTupleType
_Types = tuple[inspect.Type, ...]


TYPE_DEPTH_MAX: Final = 1000
"""Types within types. Python's own recursion ends a bit before that."""


def check_depth(type_: Any) -> None:
    """Raise `RecursionError` for a type that is nested too deeply to be hashed, shown or given to msgspec.

    All of these recurse in C, and a type of 100,000 levels ends the process. So each level is looked at in turn here.
    """
    level, seen = [type_], dict[int, Any]()
    for _ in range(TYPE_DEPTH_MAX):
        seen.update((id(each), each) for each in level)
        inner = [part for each in level for part in _parts_of(each)]
        level = [*{id(part): part for part in inner if id(part) not in seen}.values()]
        if not level:
            return
    raise RecursionError("a type is nested too deeply")


def schema_of(type_: Any) -> str:
    """Return the schema of a type. Raises `TypeError` or `NameError` if msgspec does not know all of it.

    Raises `RecursionError` for a type that is nested too deeply.
    """
    return _text(_plain(inspect.type_info(type_), ()))


def misread(schema: str, type_: Any) -> str | None:
    """Say why values written with `schema` would be lost, refused or changed if read as `type_`; else `None`.

    A record may have gained fields with defaults, lost fields, or have fields that changed in one of these ways; a row
    likewise, but only at its end. A union, an enum or a literal may have gained choices, and a type may have become one
    choice of a union. Nothing else is allowed: an int cannot be read as a float, since not every int is one.
    """
    try:
        return _misread(json.loads(schema), _plain(inspect.type_info(type_), (), reading=True), "value")
    except (ValueError, RecursionError):
        return "what was stored as its schema is none, or is nested too deeply"


def _parts_of(type_: Any) -> list[Any]:
    """The types within a type: what it is of, and those of its fields as far as they are no texts."""
    arguments = getattr(type_, "__args__", ())
    fields: dict[str, Any] = vars(type_).get("__annotations__", {}) if isinstance(type_, type) else {}
    return [*arguments, *fields.values()] if isinstance(arguments, tuple) else [*fields.values()]


def _text(plain: Any) -> str:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"))


def _plain(node: inspect.Type, around: _Types, *, reading: bool = False) -> Any:
    """`reading`: describe what a reader of the type accepts. Then each field with a default may be absent."""
    match node:
        case inspect.Metadata():
            return _plain(node.type, around, reading=reading)
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() | inspect.NamedTupleType():
            return _record(node, around, reading=reading)
        case inspect.UnionType():
            return {"one_of": sorted((_plain(type_, around, reading=reading) for type_ in node.types), key=_text)}
        case inspect.EnumType():
            return {"values": sorted((member.value for member in node.cls), key=_text)}
        case inspect.LiteralType():
            return {"values": sorted(node.values, key=_text)}
        case inspect.CustomType():
            raise TypeError(f"type {node.cls!r} is not supported")
        case _:
            return _kind(node, around, reading=reading)


def _kind(node: inspect.Type, around: _Types, *, reading: bool) -> Any:
    """Any other type is a kind with particulars, each of which is a type, several types, or a plain value."""
    kind = type(node).__name__.removesuffix("Type").lower()
    particulars: dict[str, Any] = {}
    for name in node.__struct_fields__:
        value = getattr(node, name)
        if isinstance(value, inspect.Type):
            particulars[name] = _plain(value, around, reading=reading)
        elif isinstance(value, tuple):
            particulars[name] = [_plain(type_, around, reading=reading) for type_ in cast("_Types", value)]
        elif value is not None:
            particulars[name] = value
    return {kind: particulars} if particulars else kind


def _record(node: _Record, around: _Types, *, reading: bool) -> Any:
    for up, outer in enumerate(reversed(around), start=1):
        if outer is node:
            return {"up": up}
    fields = [[field.encode_name, _field(node, field, (*around, node), reading=reading)] for field in node.fields]
    by_position = isinstance(node, inspect.NamedTupleType) or getattr(node, "array_like", False)
    plain: dict[str, Any] = {"row": fields} if by_position else {"record": dict(fields)}
    if isinstance(node, inspect.StructType) and node.tag is not None:
        plain["tag"] = [node.tag_field, node.tag]
    if reading and (isinstance(node, inspect.NamedTupleType) or getattr(node, "forbid_unknown_fields", False)):
        plain["closed"] = True
    return plain


def _field(node: _Record, field: inspect.Field, around: _Types, *, reading: bool) -> Any:
    plain = _plain(field.type, around, reading=reading)
    if not (_may_be_absent(node, field) or (reading and not field.required)):
        return plain
    optional = {"optional": plain}
    if field.default is not msgspec.NODEFAULT:
        optional["default"] = msgspec.to_builtins(field.default, str_keys=True)
    return optional


def _may_be_absent(node: _Record, field: inspect.Field) -> bool:
    """True if a stored value can lack the field: it is not required, and is left out while it has a certain value."""
    if field.required or isinstance(node, inspect.NamedTupleType):
        return False
    unset = field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
    return unset or (isinstance(node, inspect.StructType) and node.cls.__struct_config__.omit_defaults)


def _misread(old: Any, new: Any, where: str) -> str | None:
    """`new` describes what a reader accepts, in the same words."""
    if old == new:
        return None
    if isinstance(new, dict) and "one_of" in new:
        return _misread_union(old, cast("Any", new), where)
    if not isinstance(old, dict) or not isinstance(new, dict):
        return f"{where}: {_text(old)} is no {_text(new)}"
    compare = next((found for word, found in _COMPARED.items() if word in old and word in new), _misread_particulars)
    return compare(old, new, where)


def _misread_union(old: Any, new: Any, where: str) -> str | None:
    choices = _choices(new)
    for each in _choices(old):
        reasons = [_misread(each, choice, where) for choice in choices]
        if None not in reasons:
            return f"{where}: {_text(each)} is none of {_text(choices)}"
    return None


def _misread_record(old: Any, new: Any, where: str) -> str | None:
    if old.get("tag") != new.get("tag"):
        return f"{where}: its tag is another one"
    gone = old["record"].keys() - new["record"].keys()
    if gone and "closed" in new:
        return f"{where}: it forbids the unknown {_text(sorted(gone))}"
    for name, field in new["record"].items():
        reason = _misread_field(old["record"].get(name), field, f"{where}.{name}")
        if reason is not None:
            return reason
    return None


def _misread_row(old: Any, new: Any, where: str) -> str | None:
    if old.get("tag") != new.get("tag"):
        return f"{where}: its tag is another one"
    if "closed" in new and len(old["row"]) > len(new["row"]):
        return f"{where}: it is shorter than what was written"
    for position, (name, field) in enumerate(new["row"]):
        old_name, old_field = old["row"][position] if position < len(old["row"]) else (name, None)
        if old_name != name:
            return f"{where}: {old_name} is at the place of {name}"
        reason = _misread_field(old_field, field, f"{where}.{name}")
        if reason is not None:
            return reason
    return None


def _misread_values(old: Any, new: Any, where: str) -> str | None:
    gone = [value for value in old["values"] if value not in new["values"]]
    return f"{where}: {_text(gone)} is no value any more" if gone else None


def _misread_field(old: Any, new: Any, where: str) -> str | None:
    new_type = new["optional"] if _is_optional(new) else new
    if old is None:
        return None if _is_optional(new) else f"{where}: it has no default, and was not written"
    if not _is_optional(old):
        return _misread(old, new_type, where)
    if not _is_optional(new):
        return f"{where}: it has no default, and may not have been written"
    if not _have_same_default(old, new):
        return f"{where}: it was left out where it had its default, which is another one now"
    return _misread(old["optional"], new_type, where)


def _have_same_default(old: Any, new: Any) -> bool:
    if ("default" in old) != ("default" in new):
        return False
    one, other = old.get("default"), new.get("default")
    return bool(one == other or _text(one) == _text(other))  # NaN has the same text only


def _misread_particulars(old: Any, new: Any, where: str) -> str | None:
    """For lists, dicts and the like: the types inside may evolve, constraints may not."""
    (kind, old_parts), (new_kind, new_parts) = (*old.items(),)[0], (*new.items(),)[0]
    if kind != new_kind or old_parts.keys() != new_parts.keys():
        return f"{where}: {_text(old)} is no {_text(new)}"
    for name, old_part in old_parts.items():
        new_part = new_parts[name]
        if name in ("item_type", "key_type", "value_type"):
            reason = _misread(old_part, new_part, f"{where}'s {name}")
        elif name == "item_types" and len(old_part) == len(new_part):
            found = (_misread(*pair, f"{where}'s {name}") for pair in zip(old_part, new_part, strict=True))
            reason = next((each for each in found if each is not None), None)
        else:
            reason = None if old_part == new_part else f"{where}: its {name} is another one"
        if reason is not None:
            return reason
    return None


_COMPARED: Final = {"record": _misread_record, "row": _misread_row, "values": _misread_values}


def _choices(plain: Any) -> list[Any]:
    """The choices of a union; any other type is its own only choice."""
    return cast("dict[str, list[Any]]", plain).get("one_of", [plain]) if isinstance(plain, dict) else [plain]


def _is_optional(field: Any) -> bool:
    return isinstance(field, dict) and "optional" in field
