"""The changes that each operation logs: every row of the original's wrappers of list, map and queue state.

Within a batch only the outcome is logged, so a test that wants to see an operation drains before it.
"""

import operator
from collections.abc import Callable
from typing import Any

import pytest

from statebackend._codec.change_sets import keyed_changes
from statebackend._codec.change_sets.state_change import Operation, StateChange
from statebackend._state.declared import KeyedStates
from statebackend._state.kinds import every_kind
from statebackend._state.kinds.aggregating_state import AggregatingState
from statebackend._state.kinds.list_state import ListState
from statebackend._state.kinds.map_state import MapState
from statebackend._state.kinds.reducing_state import ReducingState
from statebackend._state.kinds.value_state import ValueState
from statebackend._state.time.timers import Timers
from tests.aggregates import Mean
from tests.changes import drained, rows_of
from tests.state.states import all_states, restored


@pytest.fixture
def states() -> KeyedStates:
    return all_states()


@pytest.fixture
def hops(states: KeyedStates) -> ListState[str]:
    """With one element, which is logged already."""
    state = states.list_state("hops", str)
    state["key"].append("EWR")
    drained(states)
    return state


@pytest.fixture
def seen(states: KeyedStates) -> MapState[str, int]:
    """With two entries, which are logged already."""
    state = states.map_state("seen", str, int)
    state["key"].update(a=1, b=2)
    drained(states)
    return state


@pytest.fixture
def timers(states: KeyedStates) -> Timers:
    """With one timer, which is logged already."""
    state = states.timers("timers")
    state.register("key", 5)
    drained(states)
    return state


def logged(states: KeyedStates) -> list[tuple[Operation, bytes]]:
    """Operations and data since the last time, all of one key."""
    changes = drained(states)
    assert {change.key for change in changes} <= {"key"}
    return [(Operation(change.operation), change.data) for change in changes]


# --------------------------------------------------------------------------------------------------------------- list


def test_list_has_no_removal_by_iterating(states: KeyedStates, hops: ListState[str]) -> None:
    """Row: ChangelogListStateTest.testValuesIterator. Nothing can be removed and not logged: iterating gives a copy."""
    iterator = iter(hops["key"])
    assert next(iterator) == "EWR"
    assert not hasattr(iterator, "remove")
    assert not hasattr(hops["key"], "remove")
    assert hops["key"] == ["EWR"]
    assert logged(states) == []


def test_list_append_logs_the_element(states: KeyedStates, hops: ListState[str]) -> None:
    """Row: ChangelogListStateTest.testPutRecorded. Only the new one, not the list."""
    hops["key"].append("IAH")
    assert logged(states) == [(Operation.ADD, b"\x04\xa3IAH")]


def test_list_extend_logs_the_elements(states: KeyedStates, hops: ListState[str]) -> None:
    """Row: ChangelogListStateTest.testAddAllRecorded. In one change, and a replay has them."""
    log = rows_of(states.snapshot().changes(frozenset(range(128))))
    hops["key"].extend(["a", "b", "c"])
    changes = drained(states)
    assert [change.operation for change in changes] == [Operation.ADD]
    assert restored(states, log + changes).list_state("hops", str)["key"] == ["EWR", "a", "b", "c"]


def test_list_read_logs_nothing(states: KeyedStates, hops: ListState[str]) -> None:
    """Row: ChangelogListStateTest.testGetNotRecorded."""
    assert list(hops["key"]) == ["EWR"]
    assert (len(hops["key"]), hops["key"][0], hops["key"].index("EWR"), list(hops["none"])) == (1, "EWR", 0, [])
    assert "none" not in hops
    assert logged(states) == []


def test_list_clear_is_logged(states: KeyedStates, hops: ListState[str]) -> None:
    """Row: ChangelogListStateTest.testClearRecorded. So is `del`."""
    hops["key"].clear()
    assert logged(states) == [(Operation.CLEAR, b"")]
    hops["key"].append("IAH")
    drained(states)
    del hops["key"]
    assert logged(states) == [(Operation.CLEAR, b"")]


def test_list_replaced_is_one_change(states: KeyedStates, hops: ListState[str]) -> None:
    """Cleared, or assigned, and appended to: what the list holds then, and nothing of before."""
    hops["key"].clear()
    hops["key"].extend(["a", "b"])
    assert logged(states) == [(Operation.SET, b"\x02\xa1a\x02\xa1b")]
    hops["key"].append("c")
    hops["key"] = ["d"]
    hops["key"].append("e")
    assert logged(states) == [(Operation.SET, b"\x02\xa1d\x02\xa1e")]


def test_list_that_is_long_is_logged_in_chunks(states: KeyedStates, hops: ListState[str]) -> None:
    """A change has to fit into a frame. A replay puts them together again."""
    hops["key"] = ["x" * 700_000] * 5
    changes = drained(states)
    assert [change.operation for change in changes] == [Operation.SET, *[Operation.ADD] * 3]
    assert restored(states, changes).list_state("hops", str)["key"] == ["x" * 700_000] * 5


# ---------------------------------------------------------------------------------------------------------------- map


@pytest.mark.parametrize(
    "remove",
    [
        pytest.param(lambda view: [view.popitem() for _ in list(view.values())], id="testValuesIterator"),
        pytest.param(lambda view: [view.pop(entry_key) for entry_key in view], id="testKeysIterator"),
        pytest.param(
            lambda view: [view.__delitem__(entry_key) for entry_key, _ in view.items()], id="testEntriesIterator"
        ),
    ],
)
def test_map_removal_while_iterating_is_logged(states: KeyedStates, seen: MapState[str, int], remove: Any) -> None:
    """Rows: ChangelogMapStateTest.testValuesIterator, testKeysIterator, testEntriesIterator."""
    remove(seen["key"])
    assert "key" not in seen
    assert sorted(logged(states)) == [(Operation.REMOVE, b"\xa1a"), (Operation.REMOVE, b"\xa1b")]


def test_map_entry_set_while_iterating_is_logged(states: KeyedStates, seen: MapState[str, int]) -> None:
    """Row: ChangelogMapStateTest.testEntryUpdateRecorded."""
    for entry_key, value in seen["key"].items():
        seen["key"][entry_key] = value + 10
    assert sorted(logged(states)) == [(Operation.PUT, b"\x02\xa1a\x01\x0b"), (Operation.PUT, b"\x02\xa1b\x01\x0c")]


def test_map_put_logs_the_entry(states: KeyedStates, seen: MapState[str, int]) -> None:
    """Row: ChangelogMapStateTest.testPutRecorded. Not the map; of several writes to it the last."""
    seen["key"]["c"] = 3
    seen["key"]["c"] = 4
    assert logged(states) == [(Operation.PUT, b"\x02\xa1c\x01\x04")]


def test_map_update_logs_its_entries(states: KeyedStates, seen: MapState[str, int]) -> None:
    """Row: ChangelogMapStateTest.testPutAllRecorded. And a replay has them all."""
    log = rows_of(states.snapshot().changes(frozenset(range(128))))
    seen["key"].update(b=5, c=6)
    changes = drained(states)
    assert len(changes) == 2
    assert restored(states, log + changes).map_state("seen", str, int)["key"] == {"a": 1, "b": 5, "c": 6}


def test_map_remove_logs_the_entry_key(states: KeyedStates, seen: MapState[str, int]) -> None:
    """Row: ChangelogMapStateTest.testRemoveRecorded."""
    del seen["key"]["a"]
    assert logged(states) == [(Operation.REMOVE, b"\xa1a")]


def test_map_read_logs_nothing(states: KeyedStates, seen: MapState[str, int]) -> None:
    """Row: ChangelogMapStateTest.testGetNotRecorded."""
    assert (seen["key"]["a"], seen["key"].get("none"), "b" in seen["key"], dict(seen["none"])) == (1, None, True, {})
    with pytest.raises(KeyError):
        seen["key"]["none"]
    with pytest.raises(KeyError):
        del seen["none"]["a"]
    assert logged(states) == []


def test_map_clear_is_logged(states: KeyedStates, seen: MapState[str, int]) -> None:
    """Row: ChangelogMapStateTest.testClearRecorded. What is put behind it comes behind it."""
    seen["key"]["c"] = 3
    seen["key"].clear()
    assert logged(states) == [(Operation.CLEAR, b"")]
    seen["key"] = {"x": 1}
    assert logged(states) == [(Operation.CLEAR, b""), (Operation.PUT, b"\x02\xa1x\x01\x01")]


# ------------------------------------------------------------------------------------------------------------- timers


def test_timer_removed_by_iterating_is_logged(states: KeyedStates, timers: Timers) -> None:
    """Row: ChangelogPqStateTest.testValuesIterator. Also where only some of a key's timers are removed."""
    timers.register("key", 6)
    drained(states)
    for at in timers.registered("key")[:1]:
        timers.delete("key", at)
    assert logged(states) == [(Operation.SET, b"\0\0\0\0\0\0\x18@")]


def test_timer_registered_is_logged(states: KeyedStates) -> None:
    """Row: ChangelogPqStateTest.testPutRecorded."""
    states.timers("timers").register("key", 5)
    assert logged(states) == [(Operation.SET, b"\0\0\0\0\0\0\x14@")]


def test_timer_that_fires_is_logged_as_removed(states: KeyedStates, timers: Timers) -> None:
    """Row: ChangelogPqStateTest.testPollRecorded. FLINK-26062: otherwise a restore fires it again."""
    assert list(timers.due(5)) == [(5.0, "key")]
    assert logged(states) == [(Operation.CLEAR, b"")]


def test_timer_deleted_is_logged(states: KeyedStates, timers: Timers) -> None:
    """Row: ChangelogPqStateTest.testRemoveRecorded."""
    timers.delete("key", 5)
    assert logged(states) == [(Operation.CLEAR, b"")]


def test_timers_registered_at_once_are_logged(states: KeyedStates) -> None:
    """Row: ChangelogPqStateTest.testAddAllRecorded."""
    states.timers("timers").register_many(["a", "b"], [5, 6])
    assert [(change.key, change.operation) for change in drained(states)] == [
        ("a", Operation.SET),
        ("b", Operation.SET),
    ]


def test_timer_looked_at_logs_nothing(states: KeyedStates, timers: Timers) -> None:
    """Row: ChangelogPqStateTest.testGetNotRecorded. Nor does one that is not due, is there already, or is not there."""
    assert (timers.next_at(), timers.registered("key"), list(timers.due(4))) == (5.0, (5.0,), [])
    timers.register("key", 5.0)
    timers.delete("key", 4)
    assert logged(states) == []


# ---------------------------------------------------------------------------------------------------- all of them


def test_every_operation_comes_in_order_with_its_group() -> None:
    """Rows: KvStateChangeLoggerImplTest and PriorityQueueStateChangeLoggerImplTest.testMetadataOperationLogged.

    What describes a state is not in the log but in the commit, so there is nothing to put first or to repeat.
    """
    states = all_states()
    hops, seen, timers = states.list_state("hops", int), states.map_state("seen", int, int), states.timers("timers")
    keys = [f"key {number}" for number in range(7)]
    changes: list[StateChange] = []
    for key in keys:
        hops[key].append(1)
        seen[key][1] = 1
        timers.register(key, 1)
        changes += drained(states)
        hops[key] = [2]
        del seen[key][1]
        timers.delete(key, 1)
        changes += drained(states)
    alone = all_states().value_state("groups", int)
    alone.put_many(keys, range(7))
    groups = {change.key: change.key_group for change in rows_of(alone.drain(0))}
    expected = [
        (0, Operation.ADD),
        (1, Operation.PUT),
        (2, Operation.SET),
        (0, Operation.SET),
        (1, Operation.REMOVE),
        (2, Operation.CLEAR),
    ]
    assert [(change.key, change.key_group, change.state_id, change.operation) for change in changes] == [
        (key, groups[key], *each) for key in keys for each in expected
    ]


@pytest.mark.parametrize(
    ("declare", "class_", "write", "expected"),
    [
        pytest.param(
            lambda states: states.value_state("state", int),
            ValueState,
            lambda state: state.update(key=1),
            [(Operation.SET, b"\x01")],
            id="testDelegatingValueState",
        ),
        pytest.param(
            lambda states: states.list_state("state", int),
            ListState,
            lambda state: state["key"].append(1),
            [(Operation.ADD, b"\x01\x01")],
            id="testDelegatingListState",
        ),
        pytest.param(
            lambda states: states.map_state("state", int, int),
            MapState,
            lambda state: state["key"].update({1: 2}),
            [(Operation.PUT, b"\x01\x01\x01\x02")],
            id="testDelegatingMapState",
        ),
        pytest.param(
            lambda states: states.reducing_state("state", int, operator.add),
            ReducingState,
            lambda state: state.add("key", 1),
            [(Operation.SET, b"\x01")],
            id="testDelegatingReducingState",
        ),
        pytest.param(
            lambda states: states.aggregating_state("state", Mean()),
            AggregatingState,
            lambda state: state.add("key", 1),
            [(Operation.SET, b"\x92\x01\x01")],
            id="testDelegatingAggregatingState",
        ),
    ],
)
def test_every_kind_is_one_object_that_logs(
    declare: Any, class_: type, write: Callable[[Any], object], expected: list[tuple[Operation, bytes]]
) -> None:
    """Rows: ChangelogDelegateStateTest, each of its five by the id of the parameter, [hash map, RocksDB] by the table.

    There is no wrapper around a state: the state itself logs, whatever its table, and a replay has what was written.
    """
    states = all_states()
    state = declare(states)
    assert type(state) is class_
    assert declare(states) is state
    assert drained(states) == []
    write(state)
    log = drained(states)
    assert [(Operation(change.operation), change.data) for change in log] == expected
    assert plain(declare(restored(states, log))) == plain(state) != {}
    del state["key"]
    assert [Operation(change.operation) for change in drained(states)] == [Operation.CLEAR]


def plain(state: Any) -> dict[Any, Any]:
    """Every value, with lists and maps as such."""
    kinds = {ListState: list, MapState: dict}
    return {key: kinds.get(type(state), lambda value: value)(value) for key, value in state.items()}


def test_drain_that_was_cut_in_two_logs_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a checkpoint that is cancelled while it drains, and continued by the next one, with writes in between."""
    monkeypatch.setattr(every_kind, "DRAINED_AT_ONCE", 1)
    monkeypatch.setattr(keyed_changes, "PART_RECORDS_MAX", 1)
    states = all_states()
    hops, seen = states.list_state("hops", int), states.map_state("seen", str, int)
    total, timers = states.reducing_state("total", int, operator.add), states.timers("timers")

    def write(number: int) -> None:
        for key in ("a", "b"):
            hops[key].append(number)
            seen[key][str(number)] = number
            total.add(key, number)
            timers.register(key, number)

    def read(states: KeyedStates) -> list[Any]:
        return [
            {key: list(found) for key, found in states.list_state("hops", int).items()},
            {key: dict(found) for key, found in states.map_state("seen", str, int).items()},
            dict(states.reducing_state("total", int, operator.add)),
            {key: states.timers("timers").registered(key) for key in states.timers("timers")},
        ]

    for cut in range(1, 9):
        write(1)
        begun = states.drain()
        log = rows_of(next(begun) for _ in range(cut))
        write(2)
        hops["a"] = [3]
        log += [*rows_of(begun), *drained(states)]
        assert read(restored(states, log)) == read(states)
        for state in (hops, seen, total, timers):
            state.clear()
        drained(states)
