"""Stands in for a state's insides once they are of no use: for its entries, and for the changes to be logged.

NoChanges    of a closed backend: the state is read as before, and refuses to be changed
Forgotten    of entries that were dropped, so that nobody takes an empty state for the state
"""

from collections.abc import Iterator
from typing import Any, NoReturn

from statebackend.errors import BackendClosedError


class NoChanges(dict[Any, object]):
    """No touched keys, and none may be added: that raises `BackendClosedError`. A write touches its keys first."""

    __slots__ = ("_state",)

    def __init__(self, state: str) -> None:
        super().__init__()
        self._state = state

    def __bool__(self) -> bool:
        return True  # else a bulk write would put its keys in the place of this

    def __setitem__(self, key: object, value: object) -> NoReturn:
        refuse_change(self._state)

    def update(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse."""
        refuse_change(self._state)


def refuse_change(state: str) -> NoReturn:
    """Raise `BackendClosedError`: the state of this name can only be read."""
    raise BackendClosedError("the backend is closed, and would lose this change: open a new one", state=state)


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
