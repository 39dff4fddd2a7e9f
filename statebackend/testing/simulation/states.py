"""The states of a simulated job: two value states of text, and a columnar state of one column of text."""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Final

from statebackend._checkpoint.backend import KeyedBackend
from statebackend._columns.arrow import pa
from statebackend._tables.key_groups import key_group
from statebackend.ids import Key, KeyGroupRange
from statebackend.testing.invariants import Contents, assert_same_contents

COLUMNS: Final = "columns"
STATES: Final = ("first", "second", COLUMNS)


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
    """The contents in the key groups of `part`."""
    return {place: value for place, value in contents.items() if key_group(place[1], max_parallelism) in part}


def assert_part(backend: KeyedBackend, contents: Contents, part: KeyGroupRange, max_parallelism: int) -> None:
    """The backend has just what lies in its part."""
    found = {(name, key): value for name, state in states_of(backend).items() for key, value in state.items()}
    assert_same_contents(found, owned_by(part, contents, max_parallelism), f"the last state of {part}")


def _columns(backend: KeyedBackend) -> MutableMapping[Key, Any]:
    return backend.columnar_state(COLUMNS, pa.schema({"text": pa.string()}), key=pa.string())
