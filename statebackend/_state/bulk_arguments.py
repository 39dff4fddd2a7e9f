"""Arguments of bulk calls, as lists: any iterable, an Arrow array or a numpy array."""

import copy
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar, cast

import msgspec

from statebackend._codec.plain import python_values
from statebackend.errors import InputError

T = TypeVar("T")


class Arrow(Protocol):
    """A pyarrow array or chunked array, or anything else with this method. pyarrow itself is not imported."""

    def to_pylist(self) -> list[Any]:
        """The elements as Python objects."""
        ...


def as_list(many: Iterable[T] | Arrow) -> list[T]:
    """The elements as a list. Raises `InputError` for a str or bytes: its characters are not meant as elements."""
    if isinstance(many, list):
        return many
    if isinstance(many, str | bytes):
        raise InputError("expected an iterable of many values, not one value", given=type(many).__name__)
    # numpy's `tolist` too: the elements of its arrays are numpy's own types, and not str or int
    if hasattr(many, "to_pylist"):
        return python_values(many)
    to_list = getattr(many, "tolist", None)
    return cast("list[T]", to_list()) if to_list is not None else list(cast("Iterable[T]", many))


def keys_as_list(keys: Iterable[T] | Arrow) -> list[T]:
    """As `as_list`. A struct of Arrow is a tuple: so a columnar state has such keys."""
    found = as_list(keys)
    if hasattr(keys, "to_pylist") and isinstance(next((each for each in found if each is not None), None), dict):
        return cast("list[T]", list(map(_of_struct, found)))
    return found


def _of_struct(part: object) -> object:
    return tuple(map(_of_struct, cast("dict[str, object]", part).values())) if isinstance(part, dict) else part


def check_as_many(keys: list[Any], values: list[Any]) -> None:
    """Raise `InputError` unless there are as many values as keys."""
    if len(keys) != len(values):
        raise InputError("there must be as many values as keys", keys=len(keys), values=len(values))


def own(default: T) -> T:
    """The default of one missing key. One that can be changed in place is copied: it is not that of another key."""
    kind = cast("Any", type(default))
    if issubclass(kind, list | dict | set | bytearray):
        return copy.deepcopy(default)
    if issubclass(kind, msgspec.Struct):
        is_frozen = kind.__struct_config__.frozen
    else:
        of_dataclass = getattr(kind, "__dataclass_params__", None)
        is_frozen = of_dataclass is None or of_dataclass.frozen
    return default if is_frozen else copy.deepcopy(default)
