"""Turns what is sent to the workers into bytes, including classes and functions of a main script or a notebook.

cloudpickle sends those by value. It takes a `msgspec.Struct` class for a plain one, so that it arrives without its
fields. So here such a class is sent as its fields, options and methods, and defined again where it arrives. Nor does it
know what msgspec leaves in a class once it has decoded one: that stays here.
"""

import functools
import inspect
import io
import types
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec
from pyspark import cloudpickle
from pyspark.cloudpickle.cloudpickle import list_registry_pickle_by_value

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
    {"__annotations__", "__dict__", "__match_args__", "__module__", "__slots__", "__struct_fields__", "__weakref__"}
)
_WANTED_AT_ONCE: Final = ("__doc__", "__orig_bases__", "__post_init__")
_CACHE: Final = "__msgspec_cache__"


def pickled(what: Any) -> bytes:
    """Return `what` as bytes for `unpickled`. Raises `SettingsError` if it does not pickle."""
    sent = io.BytesIO()
    try:
        _StructPickler(sent).dump(what)
    except Exception as error:
        raise SettingsError(
            f"the processor cannot be sent to the workers: {error}; create what does not pickle in open(), or move its "
            "class to a module that the workers have, as one that refers to itself"
        ) from error
    return sent.getvalue()


def unpickled(data: bytes) -> Any:
    """Return a copy of what `pickled` was given."""
    return _loads(data)


class _StructPickler(_Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type(msgspec.Struct)) and _is_sent_by_value(obj):
            fields, rest = _parts_of(obj)
            return _make, fields, rest, None, None, _complete  # in two steps: a method may name its own class
        if isinstance(obj, msgspec.Meta):
            return functools.partial(msgspec.Meta, **_given(obj)), ()
        reduced: Any = _Pickler.reducer_override(self, obj)
        if isinstance(obj, type) and _CACHE in vars(obj) and reduced is not NotImplemented:
            attributes, _ = reduced[2]
            del attributes[_CACHE]
        return reduced


def _is_sent_by_value(class_: type) -> bool:
    """True if the workers have no module to import `class_` from, by cloudpickle's own rules."""
    module = class_.__module__
    registered = cast("Callable[[], set[str]]", list_registry_pickle_by_value)()
    return (
        module == "__main__"
        or "<locals>" in class_.__qualname__
        or any(module == name or module.startswith(f"{name}.") for name in registered)
    )


def _given(meta: msgspec.Meta) -> dict[str, Any]:
    """The arguments that it was made with."""
    names = (name for name in dir(meta) if not name.startswith("_"))
    return {name: value for name in names if (value := getattr(meta, name)) is not None}


def _parts_of(class_: type[msgspec.Struct]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of `_make`, and the rest for `_complete`. Keyword-only fields stay keyword-only."""
    own = inspect.get_annotations(class_)
    fields = [field for field in msgspec.structs.fields(class_) if field.name in own]
    kw_only = bool({field.name for field in fields}.difference(class_.__match_args__))
    described = [(field.name, field.type, field.encode_name, field.default, field.default_factory) for field in fields]
    rest = {
        name: value
        for name, value in vars(class_).items()
        if name not in _MADE_ANEW and not isinstance(value, types.MemberDescriptorType)
    }
    at_once = {name: rest.pop(name) for name in _WANTED_AT_ONCE if name in rest}
    options = {name: getattr(class_.__struct_config__, name) for name in _OPTIONS}
    options |= {"bases": class_.__bases__, "module": class_.__module__, "kw_only": kw_only}
    return (class_.__name__, described, at_once, options), rest


def _make(
    name: str, described: list[tuple[Any, ...]], at_once: dict[str, Any], options: dict[str, Any]
) -> type[msgspec.Struct]:
    make_field = cast("Callable[..., Any]", msgspec.field)  # its types allow only one of the two defaults
    fields = [
        (field, type_, make_field(default=default, default_factory=factory, name=encoded))
        for field, type_, encoded, default, factory in described
    ]
    return msgspec.defstruct(name, fields, namespace=at_once, **options)


def _complete(class_: type[msgspec.Struct], rest: dict[str, Any]) -> None:
    for name, value in rest.items():
        setattr(class_, name, value)
