"""Delivers events to observers, so that no observer can break what it watches."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, Final

from statebackend.abc import Observer
from statebackend.errors import FencedError, InputError

_logger = logging.getLogger(__name__)

EVENTS: Final = tuple(name for name in vars(Observer) if not name.startswith("_"))
"""The methods of `Observer`."""


class Observers(Observer):
    """Combines several observers: each event goes to all of them, in the order given. No method raises.

    If an observer raises, the others still get the event. The first error per observer and event is logged, and the
    observer keeps getting events. An event that no observer overrides costs one call. Raises `InputError` for what is
    no observer: a list of some, or a class.
    """

    def __init__(self, *observers: Observer) -> None:
        self.members: Final = tuple(one for observer in observers for one in _members(observer))
        for event in EVENTS:
            watching = [watch for one in self.members if (watch := _override(one, event)) is not None]
            if watching:
                setattr(self, event, _Telling(event, watching))


class _Telling:
    """One event and the observers that override it. Called like the method it stands for."""

    def __init__(self, event: str, watching: list[Callable[..., None]]) -> None:
        self._event = event
        self._watching = watching
        self._logged: set[int] = set()

    def __call__(self, *args: Any, **facts: Any) -> None:
        for index, watch in enumerate(self._watching):
            try:
                watch(*args, **facts)
            except (Exception, asyncio.CancelledError):  # a stray one: nothing here awaits
                if index not in self._logged:
                    self._logged.add(index)
                    _logger.warning("an observer raised in %s; it is not logged again", self._event, exc_info=True)


@contextmanager
def telling_fenced(observer: Observer) -> Generator[None]:
    """Tell the observer if a commit in here finds a newer writer. The error goes on."""
    try:
        yield
    except FencedError as error:
        observer.fenced(error)
        raise


def _members(observer: Observer) -> tuple[Observer, ...]:
    if isinstance(observer, Observers):
        return observer.members
    if isinstance(observer, type) or not any(hasattr(observer, event) for event in EVENTS):
        raise InputError(
            "an observer is an instance of a class with methods of Observer; several are given as Observers(a, b)",
            observer=repr(observer),
        )
    return (observer,)


def _override(observer: Observer, event: str) -> Callable[..., None] | None:
    """The observer's method for `event`, or `None` if it inherits the empty one."""
    method = getattr(observer, event, None)
    if method is None or getattr(method, "__func__", None) is getattr(Observer, event):
        return None
    later_facts: Mapping[str, object] | None = getattr(Observer, event).__kwdefaults__
    return _taking_all(method, later_facts) if later_facts else method


def _taking_all(method: Callable[..., None], later_facts: Iterable[str]) -> Callable[..., None]:
    """The method, called without those of the later facts that it has no keyword for: it may be older than they are."""
    parameters = inspect.signature(method).parameters
    untaken = set(later_facts) - set(parameters)
    if not untaken or any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return method

    def tell(*args: Any, **facts: Any) -> None:
        method(*args, **{name: fact for name, fact in facts.items() if name not in untaken})

    return tell
