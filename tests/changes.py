"""Changes one by one, as tests write and compare them; the library has them in columns."""

from collections.abc import Iterable

from statebackend._codec.change_sets.changes import Changes, ChangeSet, change_set
from statebackend._codec.change_sets.keyed_changes import KeyedChanges, keyed_changes
from statebackend._codec.change_sets.state_change import StateChange
from statebackend._state.declared import KeyedStates
from statebackend.ids import SequenceNumber


def rows_of(changes: Iterable[Changes]) -> list[StateChange]:
    """Every change, in order."""
    rows: list[StateChange] = []
    for each in changes:
        assert isinstance(each, KeyedChanges)
        rows += each.rows()
    return rows


def drained(states: KeyedStates) -> list[StateChange]:
    """Every change since the last drain."""
    return rows_of(states.drain())


def set_of_rows(log_id: str, number: int, rows: Iterable[StateChange]) -> ChangeSet:
    """A change set of these changes."""
    return change_set(log_id, SequenceNumber(number), keyed_changes(rows))
