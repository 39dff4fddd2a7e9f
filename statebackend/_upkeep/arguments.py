"""Checks the arguments of calls from outside, whose callers may be untyped: an error says what to pass instead."""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import cast

from statebackend.errors import InputError, SettingsError
from statebackend.settings import Settings


def check_settings(given: object, name: str = "settings") -> None:
    """Raise `SettingsError` for what are no `Settings`."""
    if not isinstance(given, Settings):
        raise SettingsError(
            f"{name} must be Settings: make them of a mapping by Settings.from_mapping", given=repr(given)[:80]
        )


def check_names(states: object) -> None:
    """Raise `InputError` unless these are names of states, or "all". Text would be a name for each of its letters."""
    is_list = isinstance(states, Collection) and not isinstance(states, str | bytes | Mapping)
    names = list(cast("Collection[object]", states)) if is_list else []
    if not (names and all(isinstance(name, str) for name in names)) and states != "all":
        raise InputError("give the names of states in a list, or 'all'", states=states)


def check_list(given: object, what: str) -> None:
    """Raise `InputError` for text or bytes, and for what cannot be iterated over."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InputError(f"give a list of {what}, not one of them", given=given)


def check_number(given: object, said: str, *, above: float = -math.inf) -> None:
    """Raise `InputError` with what is `said`, unless it is a finite number `above` that one."""
    is_number = isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
    if not (is_number and cast("float", given) > above):
        raise InputError(said, given=given)
