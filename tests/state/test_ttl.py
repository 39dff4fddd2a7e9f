"""Entries written longer ago than a state's time-to-live are gone, on the clock that the user provides."""

import datetime as dt
import math
import operator
from typing import Any

import pytest

from statebackend import TimeToLive
from statebackend._codec.cells import stamp_of
from statebackend._codec.change_sets import keyed_changes
from statebackend._codec.change_sets.state_change import Operation, StateChange
from statebackend._state.declared import KeyedStates
from statebackend._state.kinds import every_kind
from statebackend._state.time import ttl as ttl_module
from statebackend._state.time.ttl import SWEEP_KEYS
from statebackend.errors import InputError
from tests.aggregates import Mean
from tests.changes import drained, rows_of
from tests.examples import name_of
from tests.state.states import MAX_PARALLELISM, all_states, restored

ALL = frozenset(range(MAX_PARALLELISM))


class Clock:
    """As a batch tells the time."""

    def __init__(self) -> None:
        self.now: Any = 100.0

    def __call__(self) -> Any:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def keys_in(changes: list[StateChange]) -> list[Any]:
    return [change.key for change in changes]


def test_value_is_there_until_its_time_is_over(clock: Clock) -> None:
    """To the second: hidden from `written + seconds` on, by everything that reads."""
    legs = all_states().value_state("legs", str, ttl=TimeToLive(10, clock))
    legs["a"] = "EWR"
    clock.now = 109.9
    assert (legs["a"], legs.get("a"), "a" in legs, list(legs), len(legs)) == ("EWR", "EWR", True, ["a"], 1)
    clock.now = 110
    assert (legs.get("a"), legs.get_many(["a"]), "a" in legs, list(legs), len(legs)) == (None, [None], False, [], 0)
    for operation in (lambda: legs["a"], lambda: legs.__delitem__("a"), lambda: legs.pop("a")):
        with pytest.raises(KeyError):
            operation()
    assert legs.pop("a", "default") == "default"
    assert legs.setdefault("a", "new") == "new"
    assert legs["a"] == "new"


def test_write_begins_anew_and_read_does_not(clock: Clock) -> None:
    """By default."""
    states = all_states()
    legs = states.value_state("legs", str, ttl=TimeToLive(10, clock))
    legs["a"] = "EWR"
    clock.now = 108
    legs["a"] = "IAH"
    clock.now = 117
    assert legs["a"] == "IAH"
    drained(states)
    assert legs.get_many(["a"]) == ["IAH"]
    assert drained(states) == []
    clock.now = 118
    assert "a" not in legs


def test_read_begins_anew_where_it_is_asked_for(clock: Clock) -> None:
    """Of every kind. It is a change, so a restore knows of it. Asking whether a key is there reads nothing."""
    ttl = TimeToLive(10, clock, on_read=True)
    states = all_states()

    def declare(states: KeyedStates) -> list[Any]:
        return [
            states.value_state("legs", int, ttl=ttl),
            states.list_state("hops", int, ttl=ttl),
            states.map_state("seen", str, int, ttl=ttl),
            states.reducing_state("total", int, operator.add, ttl=ttl),
            states.aggregating_state("mean", Mean(), ttl=ttl),
        ]

    legs, hops, seen, total, mean = declare(states)
    for key in ("read", "asked"):
        legs[key] = 1
        hops[key].append(1)
        seen[key]["x"] = 1
        total.add(key, 1)
        mean.add(key, 1)
    log = drained(states)
    clock.now = 109
    assert [legs["read"], *hops["read"], seen["read"]["x"], total["read"], mean["read"]] == [1] * 5
    assert all("asked" in state and len(state) == 2 for state in (legs, hops, seen, total, mean))
    log += drained(states)
    clock.now = 118
    for each in (legs, hops, seen, total, mean, *declare(restored(states, log))):
        assert list(each) == ["read"]
    assert hops["asked"] == []


def test_bulk_read_begins_anew_too(clock: Clock) -> None:
    """Of every kind, as reading key by key does; what had expired before stays expired."""
    ttl = TimeToLive(10, clock, on_read=True)
    states = all_states()
    legs, hops = states.value_state("legs", int, ttl=ttl), states.list_state("hops", int, ttl=ttl)
    seen, total = (
        states.map_state("seen", str, int, ttl=ttl),
        states.reducing_state("total", int, operator.add, ttl=ttl),
    )
    hops["a"], seen["a"] = [0], {"x": 0}
    clock.now = 105
    legs["a"] = 1
    hops["a"].append(1)
    seen["a"]["y"] = 1
    total.add("a", 1)
    log = drained(states)
    for now in (114, 123, 132):
        clock.now = now
        assert [state.get_many(["a"]) for state in (legs, hops, seen, total)] == [[1], [[1]], [{"y": 1}], [1]]
        log += drained(states)
    later = restored(states, log)
    clock.now = 141
    assert later.map_state("seen", str, int, ttl=ttl)["a"] == {"y": 1}


def test_elements_and_entries_live_for_themselves(clock: Clock) -> None:
    """A list loses its first elements while it keeps the last, a map the entries not written since."""
    states = all_states()
    hops = states.list_state("hops", int, ttl=TimeToLive(10, clock))
    seen = states.map_state("seen", str, int, ttl=TimeToLive(10, clock))
    for number in range(4):
        clock.now = 100 + 4 * number
        hops["a"].append(number)
        seen["a"][str(number % 3)] = number
    assert (hops["a"], len(hops["a"]), hops["a"][0]) == ([1, 2, 3], 3, 1)
    assert hops.get_many(["a"]) == [[1, 2, 3]]
    assert seen["a"] == {"0": 3, "1": 1, "2": 2}
    clock.now = 118
    assert (hops["a"], seen["a"], seen.get_many(["a"])) == ([3], {"0": 3}, [{"0": 3}])
    assert "1" not in seen["a"]
    with pytest.raises(KeyError):
        del seen["a"]["1"]
    clock.now = 122
    assert ("a" in hops, "a" in seen, len(hops), len(seen), list(seen)) == (False, False, 0, 0, [])


def test_what_has_expired_is_not_popped(clock: Clock) -> None:
    """Of values and of maps, though it lies at the end."""
    ttl = TimeToLive(10, clock)
    states = all_states()
    legs, seen = states.value_state("legs", int, ttl=ttl), states.map_state("seen", str, int, ttl=ttl)["k"]
    for state in (legs, seen):
        state.update(a=1, b=2)
    clock.now = 105
    for state in (legs, seen):
        state["a"] = 3
    clock.now = 110
    for state in (legs, seen):
        assert state.popitem() == ("a", 3)
        with pytest.raises(KeyError):
            state.popitem()


def test_popping_removes_what_has_expired_on_its_way(clock: Clock) -> None:
    """Or each call would pass it again, where keys are popped from the end: in memory."""
    legs = all_states().value_state("legs", int, ttl=TimeToLive(10, clock))
    legs.update(a=1, b=2)
    clock.now = 105
    legs["a"] = 3
    clock.now = 110
    assert legs.popitem() == ("a", 3)
    assert list(legs._entries) == ([] if isinstance(legs._entries, dict) else ["b"])


def test_reading_an_entry_looks_at_no_other(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else reading a map entry by entry, as `dict` does, would take time by the square of its length."""
    looked_at: list[bytes] = []

    def counted(cell: bytes) -> float | None:
        looked_at.append(cell)
        return stamp_of(cell)

    monkeypatch.setattr(ttl_module, "stamp_of", counted)
    seen = all_states().map_state("seen", int, int, ttl=TimeToLive(10, clock))["a"]
    seen.update({number: number for number in range(100)})
    looked_at.clear()
    assert (5 in seen, seen[6], seen.pop(7)) == (True, 6, 7)
    assert len(looked_at) <= 4
    looked_at.clear()
    assert len(dict(seen)) == 99
    assert len(looked_at) == 2 * 99  # for the keys, and for their values


@pytest.mark.parametrize("elements", [[1, 2, 3], [1, 200, 70_000]], ids=["equally long", "not"])
def test_a_list_whose_state_lost_its_time_to_live_is_read(clock: Clock, elements: list[int]) -> None:
    """Elements that say when they were written, alone and among such that do not."""
    states = all_states()
    states.list_state("hops", int, ttl=TimeToLive(10, clock))["a"] = elements
    hops = restored(states, drained(states)).list_state("hops", int)
    assert list(hops["a"]) == elements
    hops["a"].extend(elements)
    assert (list(hops["a"]), len(hops["a"])) == (elements * 2, 6)


def test_reducing_begins_anew_after_its_time(clock: Clock) -> None:
    """With the value that is added, one by one and in bulk."""
    states = all_states()
    total = states.reducing_state("total", int, operator.add, ttl=TimeToLive(10, clock))
    mean = states.aggregating_state("mean", Mean(), ttl=TimeToLive(10, clock))
    for state in (total, mean):
        state.add_many(["a", "b"], [1, 3])
    clock.now = 110
    for state in (total, mean):
        state.add("a", 5)
        state.add_many(["b"], [7])
        assert dict(state) == {"a": 5, "b": 7}


def test_restore_at_the_same_time_sees_the_same(clock: Clock) -> None:
    """Whatever the wall clock says: a batch that is delivered again gives the same result."""
    states = all_states()
    legs = states.value_state("legs", int, ttl=TimeToLive(10, clock))
    for number in range(5):
        clock.now = 100 + 3 * number
        legs[number] = number
    log = drained(states)
    again = Clock()
    again.now = clock.now
    later = restored(states, log).value_state("legs", int, ttl=TimeToLive(10, again))
    assert later == legs == {1: 1, 2: 2, 3: 3, 4: 4}


def test_expired_is_not_in_a_base(clock: Clock) -> None:
    """As of the moment of the snapshot: what expires while it is read is in it."""
    states = all_states()
    ttl = TimeToLive(10, clock)
    legs, hops = states.value_state("legs", int, ttl=ttl), states.list_state("hops", int, ttl=ttl)
    seen = states.map_state("seen", str, int, ttl=ttl)
    legs["old"] = 1
    hops["old"].append(1)
    hops["both"].append(1)
    seen["old"]["x"] = seen["both"]["x"] = 1
    clock.now = 110
    legs["new"] = 1
    hops["both"].append(2)
    seen["both"]["y"] = 2
    snapshot = states.snapshot()
    clock.now = 1000
    assert {(change.state_id, change.key) for change in rows_of(snapshot.changes(ALL))} == {
        (0, "new"),
        (1, "both"),
        (2, "both"),
    }
    clock.now = 110
    later = restored(states, rows_of(snapshot.changes(ALL)))
    assert later.list_state("hops", int, ttl=ttl)["both"] == [2]
    assert later.map_state("seen", str, int, ttl=ttl)["both"] == {"y": 2}
    assert later.sizes == {"legs": 1, "hops": 1, "seen": 1}


@pytest.mark.parametrize(
    ("seconds", "hint"),
    [
        (dt.timedelta(days=1), "total_seconds"),
        *((wrong, "positive") for wrong in ("10", None, 0, -1, math.inf, math.nan)),
    ],
)
def test_a_time_to_live_is_a_positive_number_of_seconds(seconds: Any, hint: str, clock: Clock) -> None:
    """Anything else is refused where it is said, and not by a drain."""
    with pytest.raises(InputError, match=hint):
        TimeToLive(seconds, clock)


def test_the_clock_of_a_time_to_live_is_a_function() -> None:
    """A time would never pass."""
    with pytest.raises(InputError, match="function"):
        TimeToLive(10, 1_700_000_000.0)  # type: ignore[arg-type]


def test_expired_is_dropped_in_the_course_of_the_drains(clock: Clock) -> None:
    """So memory holds about as many expired keys as living ones, and the log says so. Each drain does a part."""
    states = all_states()
    legs = states.value_state("legs", int, ttl=TimeToLive(10, clock))
    hops = states.list_state("hops", int, ttl=TimeToLive(10, clock))
    seen = states.map_state("seen", str, int, ttl=TimeToLive(10, clock))
    keys = range(3 * SWEEP_KEYS)
    legs.put_many(keys, keys)
    hops.append_many(keys, keys)
    seen.put_many(keys, [{"x": 1}] * len(keys))
    log = drained(states)
    clock.now = 109
    hops[0].append(1)
    seen[0]["y"] = 1
    log += drained(states)
    clock.now = 110
    dropped: list[StateChange] = []
    for _ in range(4):
        dropped += drained(states)
        assert len(dropped) <= 3 * 4 * SWEEP_KEYS
    assert states.sizes == {"legs": 0, "hops": 1, "seen": 1}
    assert {change.operation for change in dropped if change.key != 0} == {Operation.CLEAR, Operation.REMOVE}
    later = restored(states, log + dropped)
    assert later.sizes == states.sizes
    assert later.list_state("hops", int)[0] == [1]
    assert later.map_state("seen", str, int)[0] == {"y": 1}


def test_dropping_keeps_up_with_writing(clock: Clock, monkeypatch) -> None:
    """However many are written per batch, and for however long."""
    monkeypatch.setattr(every_kind, "DRAINED_AT_ONCE", 512)  # many keys take several steps anyway
    monkeypatch.setattr(keyed_changes, "PART_RECORDS_MAX", 512)
    states = all_states()
    legs = states.value_state("legs", int, ttl=TimeToLive(10, clock))
    batch = 2 * SWEEP_KEYS
    for number in range(30):
        clock.now = 100 + 5 * number
        legs.put_many([f"{number} {key}" for key in range(batch)], range(batch))
        drained(states)
        assert states.sizes["legs"] <= 3 * 2 * batch


def test_state_that_gets_a_time_to_live_keeps_what_has_none(clock: Clock) -> None:
    """It was not written down when it was written. Written again, it has one."""
    states = all_states()
    states.value_state("legs", int).update(a=1, b=2)
    later = restored(states, drained(states))
    legs = later.value_state("legs", int, ttl=TimeToLive(10, clock))
    legs["c"] = 3
    clock.now = 1000
    assert legs == {"a": 1, "b": 2}
    legs.put_many(list(legs), list(legs.values()))
    clock.now = 1010
    assert dict(legs) == {}


def test_state_that_loses_its_time_to_live_shows_what_is_left(clock: Clock) -> None:
    """Everything that was not dropped, and what is written from then on, for good. So for every kind."""
    ttl = TimeToLive(10, clock)
    states = all_states()
    states.value_state("legs", int, ttl=ttl).update(a=1, b=2)
    states.list_state("hops", int, ttl=ttl)["a"].extend([1, 2])
    states.map_state("seen", str, int, ttl=ttl)["a"]["x"] = 1
    clock.now = 1000
    later = restored(states, drained(states))
    legs, hops, seen = (
        later.value_state("legs", int),
        later.list_state("hops", int),
        later.map_state("seen", str, int),
    )
    legs["c"] = 3
    hops["a"].append(3)
    assert legs == {"a": 1, "b": 2, "c": 3}
    assert (legs.get_many(["a"]), hops["a"], seen["a"]) == ([1], [1, 2, 3], {"x": 1})


def test_other_seconds_count_for_what_is_there(clock: Clock) -> None:
    """The time of writing is stored, and not that of expiry."""
    states = all_states()
    states.value_state("legs", int, ttl=TimeToLive(10, clock))["a"] = 1
    later = restored(states, drained(states))
    clock.now = 150
    assert "a" in later.value_state("legs", int, ttl=TimeToLive(100, clock))
    assert "a" not in later.value_state("legs", int, ttl=TimeToLive(20, clock))


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf])
def test_time_to_live_that_is_none_is_refused(seconds: float) -> None:
    """When it is made."""
    with pytest.raises(InputError):
        TimeToLive(seconds, float)


@pytest.mark.parametrize("now", [None, "noon", math.nan, math.inf], ids=name_of)
def test_clock_that_gives_no_time_is_refused(clock: Clock, now: Any) -> None:
    """Nothing is written, and what was written before is not lost for the log."""
    states = all_states()
    legs = states.value_state("legs", int, ttl=TimeToLive(10, clock))
    legs["a"] = 1
    clock.now = now
    for operation in (lambda: legs.__setitem__("a", 2), lambda: legs["a"], lambda: drained(states)):
        with pytest.raises(InputError):
            operation()
    clock.now = 101
    assert keys_in(drained(states)) == ["a"]
    assert legs == {"a": 1}


def test_seconds_alone_are_refused() -> None:
    """They need a clock."""
    with pytest.raises(InputError):
        all_states().value_state("legs", int, ttl=10)  # type: ignore[arg-type]
