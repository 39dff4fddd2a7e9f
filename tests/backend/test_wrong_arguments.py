"""A call from outside that is given what it does not take says what to pass, by an error of ours, and does nothing."""

import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import statebackend as sb
from statebackend.errors import InputError, SettingsError, StateBackendError
from statebackend.objectstore import MemoryStore
from statebackend.testing import run_virtual
from tests.rewrite.jobs import objects_of, settings_of, work

OLD = settings_of(16)
NEW = settings_of(16, job="new")
Call = Callable[[MemoryStore, Any], Awaitable[object]]


def declared(backend: Any) -> None:
    backend.value_state("v", int)


def seeded(store: MemoryStore, **changed: Any) -> Awaitable[object]:
    given = {"settings": NEW, "states": declared, "sources": {"v": [("k", 1)]}, "store": store} | changed
    return sb.seed(**given)


def cloned(store: MemoryStore, **changed: Any) -> Awaitable[object]:
    return sb.clone(**{"settings": NEW, "from_": OLD, "store": store, "from_store": store} | changed)


NO_NUMBERS = (None, "a", [], True, math.nan)
NO_NAMES = ("value", None, 1, [], [1], {"value": 1})
NO_LISTS = ("a", b"a", None, 1)
NO_SETTINGS = (None, "file:///state", {"job": "fleet"})
NO_FUNCTIONS = (None, 1)
CALLS: dict[str, tuple[Call, tuple[Any, ...], type[StateBackendError], str]] = {
    "clone, settings": (lambda s, w: cloned(s, settings=w), NO_SETTINGS, SettingsError, "must be Settings"),
    "clone, from_": (lambda s, w: cloned(s, from_=w), NO_SETTINGS, SettingsError, "from_ must be Settings"),
    "clone, keys": (lambda s, w: cloned(s, keys=w), NO_NUMBERS, InputError, "the share of the keys"),
    "clone, states": (lambda s, w: cloned(s, states=w), NO_NAMES, InputError, "names of states in a list"),
    "seed, settings": (lambda s, w: seeded(s, settings=w), NO_SETTINGS, SettingsError, "must be Settings"),
    "seed, sources": (lambda s, w: seeded(s, sources=w), NO_LISTS, InputError, "a mapping from the names"),
    "seed, clock_s": (lambda s, w: seeded(s, clock_s=w), NO_NUMBERS[1:], InputError, "seconds since 1970"),
    "seed, tell": (lambda s, w: seeded(s, tell=w), NO_FUNCTIONS, InputError, "tell must be a function"),
    "transform, settings": (
        lambda s, w: sb.transform(w, "value", lambda k, v: (k, v), store=s),
        NO_SETTINGS,
        SettingsError,
        "must be Settings",
    ),
    "transform, state": (
        lambda s, w: sb.transform(OLD, w, lambda k, v: (k, v), store=s),
        ([], None, {}),
        InputError,
        "no state of that name",
    ),
    "transform, new_states": (
        lambda s, w: sb.transform(OLD, "value", lambda k, v: (k, v), new_states=w, store=s),
        (None, 1, b"a"),
        InputError,
        "list of names of new states",
    ),
    "erase, settings": (lambda s, w: sb.erase(w, ["k"], store=s), NO_SETTINGS, SettingsError, "must be Settings"),
    "erase, keys": (lambda s, w: sb.erase(OLD, w, store=s), NO_LISTS, InputError, "a list of keys"),
    "erase, states": (
        lambda s, w: sb.erase(OLD, ["a"], states=w, store=s),
        NO_NAMES,
        InputError,
        "names of states in a list",
    ),
    "verify_erased, keys": (lambda s, w: sb.verify_erased(OLD, w, store=s), NO_LISTS, InputError, "a list of keys"),
    "sweep, settings": (lambda s, w: sb.sweep(w, store=s), NO_SETTINGS, SettingsError, "must be Settings"),
    "sweep, min_age_s": (
        lambda s, w: sb.sweep(OLD, min_age_s=w, store=s),
        NO_NUMBERS,
        InputError,
        "number of seconds, 0 or more",
    ),
    "savepoint, keep_s": (
        lambda s, w: sb.savepoint(OLD, "one", keep_s=w, store=s),
        (*NO_NUMBERS[1:], 0, -1),
        InputError,
        "number of seconds above 0",
    ),
    "repair, settings": (lambda s, w: sb.repair(w, store=s), NO_SETTINGS, SettingsError, "must be Settings"),
    "verify, tell": (lambda s, w: sb.verify(OLD, tell=w, store=s), NO_FUNCTIONS, InputError, "tell must be a function"),
    "rewrite, settings": (lambda s, w: sb.rewrite(w, store=s), NO_SETTINGS, SettingsError, "must be Settings"),
}


@pytest.mark.parametrize("name", CALLS)
@run_virtual
async def test_what_to_pass_is_said(name: str) -> None:
    """Of each argument, for what people pass in its place."""
    call, wrong, error, said = CALLS[name]
    store = MemoryStore()
    await work(OLD, store, [("value", "a", 1)])
    before = await objects_of(store)
    for given in wrong:
        with pytest.raises(error, match=said):
            await call(store, given)
    assert await objects_of(store) == before
    assert await objects_of(store, "new") == {}
