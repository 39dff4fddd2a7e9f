"""The states of a simulated job: two value states of text, and a columnar state of one column of text."""

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from random import Random
from typing import Any, Final

from statebackend._checkpoint.backend import KeyedBackend
from statebackend._columns.arrow import pa
from statebackend._tables.key_groups import key_group
from statebackend.ids import Key, KeyGroupRange
from tests.invariants import Contents, assert_same_contents

COLUMNS: Final = "columns"
STATES: Final = ("first", "second", COLUMNS)
KEYS: Final[Sequence[Key]] = ("a", "", 7, -1, b"k", ("a", 7))
VALUE_CHARACTERS_MAX: Final = 400

Change = tuple[str, Key, object]
"""A state, a key, and its new value; `None` to remove it."""


def states_of(backend: KeyedBackend, names: Sequence[str] = STATES) -> Mapping[str, MutableMapping[Key, Any]]:
    """The states of these names."""
    return {name: _columns(backend) if name == COLUMNS else backend.value_state(name, str) for name in names}


def key_in(name: str, key: Key) -> Key:
    """The key as the state of this name has it: in columns, all keys are of one type."""
    return key if name != COLUMNS or isinstance(key, str) else repr(key)


def value_in(name: str, text: str) -> object:
    """The text as a value of the state of this name."""
    return text if name != COLUMNS else {"text": text}


def owned_by(part: KeyGroupRange, contents: Contents, max_parallelism: int) -> Contents:
    """The contents of `STATES` in the key groups of `part`."""
    return {
        place: value
        for place, value in contents.items()
        if place[0] in STATES and key_group(place[1], max_parallelism) in part
    }


def draw_changes(chance: Random, names: Sequence[str], number: str) -> Sequence[Change]:
    """Draw the changes of one batch: nothing, or some; `number` is a text that no other batch has."""
    changes: list[Change] = []
    for place in range(chance.choice((0, 1, 3, 8))):
        name, key = chance.choice(names), chance.choice(KEYS)
        padding = "x" * chance.choice((0, 0, 20, VALUE_CHARACTERS_MAX))
        value = None if chance.random() < 0.25 else value_in(name, f"{number}.{place}{padding}")
        changes.append((name, key_in(name, key), value))
    return changes


def expect(contents: dict[tuple[str, Key], object], changes: Iterable[Change]) -> None:
    """Apply changes to what is expected of the states."""
    for name, key, value in changes:
        if value is None:
            contents.pop((name, key), None)
        else:
            contents[name, key] = value


def change(
    states: Mapping[str, MutableMapping[Key, Any]], contents: dict[tuple[str, Key], object], changes: Iterable[Change]
) -> None:
    """Apply changes to the states, and to what is expected of them. Raises `AssertionError` where these differ."""
    for each in changes:
        name, key, value = each
        if value is None:
            found, expected = states[name].pop(key, None), contents.get((name, key))
            assert found == expected, f"{name}[{key!r}] was {found!r} instead of {expected!r}"
        else:
            states[name][key] = value
        expect(contents, [each])


def assert_part(backend: KeyedBackend, contents: Contents, part: KeyGroupRange, max_parallelism: int) -> None:
    """The backend has just what lies in its part."""
    found = {(name, key): value for name, state in states_of(backend).items() for key, value in state.items()}
    assert_same_contents(found, owned_by(part, contents, max_parallelism), f"the last state of {part}")


def _columns(backend: KeyedBackend) -> MutableMapping[Key, Any]:
    return backend.columnar_state(COLUMNS, pa.schema({"text": pa.string()}), key=pa.string())
