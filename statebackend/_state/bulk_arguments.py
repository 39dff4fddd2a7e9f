"""Many keys and values at once: from any iterable, or from what has its own way into a list, such as an Arrow array."""

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar, cast

from statebackend.errors import InputError

T = TypeVar("T")


class Arrow(Protocol):
    """An array or a chunked array of pyarrow, which is not needed here; or whatever else can become a list."""

    def to_pylist(self) -> list[Any]:
        """Its elements as Python's own objects."""
        ...


def as_list(many: Iterable[T] | Arrow) -> list[T]:
    """The elements, as a list. Raises `InputError` for one str or bytes, whose characters nobody means."""
    if isinstance(many, list):
        return many
    if isinstance(many, str | bytes):
        raise InputError("many are asked for: this is one", given=type(many).__name__)
    to_list = getattr(many, "to_pylist", None) or getattr(
        many, "tolist", None
    )  # numpy's, whose elements are no str, int
    return cast("list[T]", to_list()) if to_list is not None else list(cast("Iterable[T]", many))


def check_as_many(keys: list[Any], values: list[Any]) -> None:
    """Raises `InputError` where keys and values are not as many."""
    if len(keys) != len(values):
        raise InputError("as many values as keys", keys=len(keys), values=len(values))
