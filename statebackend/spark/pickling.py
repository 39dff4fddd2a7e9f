"""What is sent to the workers: objects as bytes, classes and functions of a main script or a notebook included.

cloudpickle sends those by value. It takes a `msgspec.Struct` class for a plain one, and what arrives has lost its
fields. So here such a class is sent as its fields, options and methods, and made again where it arrives.
"""

import io
import types
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec
from pyspark import cloudpickle

from statebackend.errors import SettingsError

_Pickler: Any = cloudpickle.Pickler  # it has no types
_loads: Any = cloudpickle.loads

_OPTIONS: Final = (
    "frozen",
    "eq",
    "order",
    "array_like",
    "gc",
    "weakref",
    "dict",
    "cache_hash",
    "tag",
    "tag_field",
    "omit_defaults",
    "forbid_unknown_fields",
)
_MADE_ANEW: Final = frozenset(
    {"__annotations__", "__dict__", "__match_args__", "__module__", "__slots__", "__weakref__"}
)


def pickled(what: Any) -> bytes:
    """`what` as bytes, for `unpickled`. Raises `SettingsError` where it cannot be sent."""
    sent = io.BytesIO()
    try:
        _StructPickler(sent).dump(what)
    except Exception as error:
        raise SettingsError(
            f"the processor cannot be sent to the workers: {error}; make in open() what does not pickle, and put "
            "classes that refer to themselves into a module that the workers have"
        ) from error
    return sent.getvalue()


def unpickled(data: bytes) -> Any:
    """What `pickled` was given."""
    return _loads(data)


class _StructPickler(_Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type(msgspec.Struct)) and _is_sent_by_value(obj):
            return _make, _parts_of(obj)
        return _Pickler.reducer_override(self, obj)


def _is_sent_by_value(class_: type) -> bool:
    return class_.__module__ == "__main__" or "<locals>" in class_.__qualname__


def _parts_of(class_: type[msgspec.Struct]) -> tuple[Any, ...]:
    """What `_make` needs. Fields that are given by name only stay so."""
    fields = msgspec.structs.fields(class_)
    positional = class_.__match_args__
    kw_only = {field.name for field in fields if field.name not in positional}
    if kw_only and positional:
        raise TypeError(f"{class_.__name__} has fields that are kw_only and fields that are not")
    described = [(field.name, field.type, field.encode_name, field.default, field.default_factory) for field in fields]
    kept = {
        name: value
        for name, value in vars(class_).items()
        if not isinstance(value, types.MemberDescriptorType)
        and name not in _MADE_ANEW
        and not name.startswith("__struct")
    }
    options = {name: getattr(class_.__struct_config__, name) for name in _OPTIONS}
    return class_.__name__, class_.__module__, described, kept, {**options, "kw_only": bool(kw_only)}


def _make(
    name: str, module: str, described: list[tuple[Any, ...]], kept: dict[str, Any], options: dict[str, Any]
) -> type[msgspec.Struct]:
    make_field = cast("Callable[..., Any]", msgspec.field)  # whose types want one of the two defaults
    fields = [
        (field, type_, make_field(default=default, default_factory=factory, name=encoded))
        for field, type_, encoded, default, factory in described
    ]
    return msgspec.defstruct(name, fields, namespace=kept, module=module, **options)
