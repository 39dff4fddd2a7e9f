"""One state's table, made as a backend makes it, and moved to another one as a restore does."""

from collections.abc import Iterable
from typing import Any

from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.change_sets.keyed_changes import keyed_changes
from statebackend._codec.change_sets.parts import decode_parts, encode_parts
from statebackend._codec.change_sets.state_change import StateChange
from statebackend._codec.commit import StateDescriptor
from statebackend._state.declared import KeyedStates
from statebackend._state.kinds.value_state import ValueState
from statebackend._tables.heap import heap_table
from statebackend._tables.table import OpenTable
from statebackend.ids import KeyGroupRange, all_key_groups

MAX_PARALLELISM = 128

open_table: OpenTable = heap_table
"""Replaced by what `conftest.py` lets the tests run on."""


def all_states() -> KeyedStates:
    """The states of a backend that owns every key group."""
    return states_of(all_key_groups(MAX_PARALLELISM))


def states_of(key_groups: KeyGroupRange, known: Iterable[StateDescriptor] = ()) -> KeyedStates:
    """The states of a backend, in the tables that the tests run on just now."""
    return KeyedStates(key_groups, MAX_PARALLELISM, known, open_table=open_table)


def value_state(type_: Any = int) -> ValueState[Any]:
    """An empty value state of a new backend."""
    return all_states().value_state("sample", type_)


def stored(changes: Iterable[StateChange]) -> list[Changes]:
    """Changes as they come back from a segment."""
    return list(decode_parts(encode_parts(keyed_changes(changes))))


def restored(
    states: KeyedStates, changes: Iterable[StateChange], key_groups: KeyGroupRange | None = None
) -> KeyedStates:
    """A new backend's states, after a replay of changes that were stored."""
    other = states_of(key_groups or all_key_groups(MAX_PARALLELISM), states.descriptors)
    other.replay(stored(changes))
    return other
