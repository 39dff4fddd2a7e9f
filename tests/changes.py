"""Changes one by one, as tests write and compare them; the library has them in columns."""

from collections.abc import Iterable

import numpy as np

from statebackend._codec.change_sets.changes import Changes, ChangeSet, change_set
from statebackend._codec.change_sets.column_changes import Typed
from statebackend._codec.change_sets.keyed_changes import KeyedChanges, keyed_changes
from statebackend._codec.change_sets.paged_changes import PagedChanges
from statebackend._codec.change_sets.state_change import StateChange
from statebackend._codec.columns import Fixed, Strings
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


def paged(count: int, group: int, *, state_id: int = 1, first: int = 0, text: int = 0) -> PagedChanges:
    """Rows of a key group in order, on from number `first`; each with a text of so many bytes, if any."""
    hashes = np.uint64(first) + np.arange(count, dtype=np.uint64)
    hashes <<= np.uint64(40)
    columns = {"total": Typed("int64", Fixed(np.arange(count)))}
    if text:
        data, starts = np.full(text * count, 97, np.uint8), np.arange(0, text * count, text)
        columns["text"] = Typed("string", Strings(data, starts, np.full(count, text)))
    keys = [Typed("int64", Fixed(hashes.view(np.int64)))]
    return PagedChanges(state_id, np.full(count, group, np.int16), keys, columns, hashes=hashes)
