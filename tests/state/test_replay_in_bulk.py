"""A replay of many changes at once leaves what one after the other leaves, whatever they are."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend._codec.cells import framed, split
from statebackend._codec.change_sets.keyed_changes import keyed_changes
from statebackend._codec.change_sets.state_change import Operation, StateChange
from statebackend._state.declared import KeyedStates
from statebackend._tables.key_groups import key_group
from statebackend.errors import DataError, ValueDecodeError
from statebackend.ids import KeyGroupRange
from tests.codec.samples import KEYS
from tests.state.states import MAX_PARALLELISM, states_of, stored

OWNED = KeyGroupRange(0, 63)
CELLS = st.integers(0, 3).map(lambda number: bytes((number,)))
VALUES, LISTS, MAPS = 0, 1, 2  # the ids of the states, in the order in which they are declared


def changes_to(state_id: int, operation: Operation, data: Any) -> st.SearchStrategy[StateChange]:
    def change(key: Any, data: bytes) -> StateChange:
        return StateChange(key_group(key, MAX_PARALLELISM), operation, state_id, key, data)

    return st.builds(change, SOME_KEYS, data)


SOME_KEYS = KEYS | st.sampled_from(("a", "b", 1, b"a", ("a", 1)))  # so that keys come again
ROWS = st.lists(CELLS, min_size=1, max_size=3).map(lambda cells: b"".join(map(framed, cells)))
ENTRIES = st.tuples(CELLS, CELLS).map(lambda entry: b"".join(map(framed, entry)))
CHANGES = st.lists(
    changes_to(VALUES, Operation.SET, CELLS)
    | changes_to(VALUES, Operation.CLEAR, st.just(b""))
    | changes_to(LISTS, Operation.SET, ROWS)
    | changes_to(LISTS, Operation.ADD, ROWS)
    | changes_to(LISTS, Operation.CLEAR, st.just(b""))
    | changes_to(MAPS, Operation.PUT, ENTRIES)
    | changes_to(MAPS, Operation.REMOVE, CELLS)
    | changes_to(MAPS, Operation.CLEAR, st.just(b""))
)


def opened() -> KeyedStates:
    states = states_of(OWNED)
    states.value_state("values", int)
    states.list_state("lists", int)
    states.map_state("maps", int, int)
    return states


def contents(states: KeyedStates) -> list[dict[Any, Any]]:
    values, lists, maps = (
        states.value_state("values", int),
        states.list_state("lists", int),
        states.map_state("maps", int, int),
    )
    return [
        dict(values),
        {key: list(lists[key]) for key in lists},
        {key: dict(maps[key]) for key in maps},
    ]


def expected(changes: list[StateChange]) -> list[dict[Any, Any]]:
    """Changes applied one after the other."""
    held: list[dict[Any, Any]] = [{}, {}, {}]
    for change in changes:
        found, key = held[change.state_id], change.key
        if change.key_group not in OWNED:
            continue
        if change.operation == Operation.CLEAR:
            found.pop(key, None)
        elif change.state_id == VALUES:
            found[key] = change.data[0]
        elif change.operation == Operation.SET:
            found[key] = list(b"".join(split(change.data)))
        elif change.operation == Operation.ADD:
            found[key] = [*found.get(key, ()), *b"".join(split(change.data))]
        elif change.operation == Operation.PUT:
            entry_key, value = b"".join(split(change.data))
            found.setdefault(key, {})[entry_key] = value
        else:
            found.get(key, {}).pop(change.data[0], None)
    held[MAPS] = {key: entries for key, entries in held[MAPS].items() if entries}
    return held


@settings(max_examples=50, deadline=None)
@given(CHANGES)
def test_many_at_once_leave_what_one_after_the_other_leaves(changes: list[StateChange]) -> None:
    """Of several states, owned and foreign key groups and keys that come again, mixed."""
    states = opened()
    groups = states.replay(stored(changes))
    assert contents(states) == expected(changes)
    assert groups == {change.key_group for change in changes if change.key_group in OWNED}


@pytest.mark.parametrize("wrong", [True, 1.0, None, [True], []])
def test_what_is_no_key_is_refused_among_keys_too(wrong: object) -> None:
    """`True` equals 1, and would be taken for it: the value of one would be the other's."""
    sets = [StateChange(0, Operation.SET, VALUES, key, b"\x01") for key in (1, wrong, 1)]
    with pytest.raises(ValueDecodeError):
        opened().replay(keyed_changes(sets))


def test_a_change_of_no_known_state_is_refused_before_any_is_applied() -> None:
    """The commit and its files do not belong together: nothing of them can be believed."""
    states = opened()
    with pytest.raises(DataError):
        states.replay(keyed_changes(StateChange(0, Operation.SET, state_id, "a", b"\x01") for state_id in (VALUES, 7)))
    assert contents(states) == [{}, {}, {}]
