"""One state's table, made as a backend makes it, and moved to another one as a restore does."""

from collections.abc import Iterable
from typing import Any

from statebackend._codec.records import StateChange, decode_changes, encode_changes
from statebackend._state.keyed import KeyedStates
from statebackend._state.value_state import ValueState
from statebackend.ids import KeyGroupRange, all_key_groups

MAX_PARALLELISM = 128


def all_states() -> KeyedStates:
    """The states of a backend that owns every key group."""
    return KeyedStates(all_key_groups(MAX_PARALLELISM), MAX_PARALLELISM)


def value_state(type_: Any = int) -> ValueState[Any]:
    """An empty value state of a new backend."""
    return all_states().value_state("sample", type_)


def stored(changes: Iterable[StateChange]) -> list[StateChange]:
    """Changes as they come back from a segment."""
    return [change for block in decode_changes(encode_changes(changes)) for change in block]


def restored(
    states: KeyedStates, changes: Iterable[StateChange], key_groups: KeyGroupRange | None = None
) -> KeyedStates:
    """A new backend's states, after a replay of changes that were stored."""
    other = KeyedStates(key_groups or all_key_groups(MAX_PARALLELISM), MAX_PARALLELISM, states.descriptors)
    other.replay(stored(changes))
    return other
