"""Takes the place of a state's entries once they are dropped, so that nobody takes an empty state for the state."""

from collections.abc import Iterator
from typing import Any, NoReturn

from statebackend.errors import BackendClosedError


class Forgotten:
    """Raises `BackendClosedError`, whatever is done with it: as a mapping, a function, a number, or a table."""

    __slots__ = ()

    def __getattr__(self, name: str) -> NoReturn:
        raise BackendClosedError("the backend is closed, and its state was dropped: open a new one")

    def __call__(self, *args: object, **options: object) -> NoReturn:
        self.__getattr__("__call__")

    def __getitem__(self, key: object) -> NoReturn:
        self.__getattr__("__getitem__")

    def __setitem__(self, key: object, value: object) -> None:
        self.__getattr__("__setitem__")

    def __delitem__(self, key: object) -> None:
        self.__getattr__("__delitem__")

    def __contains__(self, key: object) -> bool:
        self.__getattr__("__contains__")

    def __iter__(self) -> Iterator[Any]:
        self.__getattr__("__iter__")

    def __len__(self) -> int:  # noqa: PLE0303  # it raises
        self.__getattr__("__len__")

    def __le__(self, other: object) -> bool:
        self.__getattr__("__le__")


def forget(state: object) -> None:
    """Replace all that an object with slots refers to, but for its name, by something that raises when it is used."""
    for class_ in type(state).__mro__:
        for slot in vars(class_).get("__slots__", ()):
            if slot != "name":
                setattr(state, slot, Forgotten())
