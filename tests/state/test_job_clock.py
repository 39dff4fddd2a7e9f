"""The job's clock: it never goes back, and time-to-live and timers go by it without being told."""

import math
import operator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from statebackend import TimeToLive
from statebackend._state.declared import KeyedStates
from statebackend._state.time.job_clock import NOT_BEGUN, JobClock
from statebackend.errors import InputError, StateTypeError
from statebackend.ids import ClockMark, Key, all_key_groups
from tests.aggregates import Mean
from tests.changes import drained
from tests.state.states import MAX_PARALLELISM, all_states, restored


def test_it_never_goes_back_and_knows_where_it_was_before() -> None:
    """An earlier time leaves it where it is: what it was before is then what it is."""
    clock = JobClock()
    for to_s, expected in ((10, (10.0, NOT_BEGUN)), (30.5, (30.5, 10.0)), (20, (30.5, 30.5)), (31, (31.0, 30.5))):
        clock.move(to_s, "event")
        assert (clock.now_s, clock.before_s) == expected
    assert clock.mark == ClockMark(31.0, "event")
    clock.stand_at(ClockMark(10.0, "event"))
    assert (clock.now_s, clock.before_s) == (10.0, 10.0)


def test_without_a_time_it_has_not_begun() -> None:
    """So no commit has it; but the job has one."""
    clock = JobClock()
    clock.move(NOT_BEGUN, "event")
    assert (clock.kind, clock.mark, clock.read()) == ("event", None, NOT_BEGUN)


@pytest.mark.parametrize("to_s", [math.nan, math.inf, "noon", None, True])
def test_what_is_no_time_is_refused(to_s: Any) -> None:
    """And nothing has moved."""
    clock = JobClock(ClockMark(5.0, "event"))
    with pytest.raises(InputError, match="number of seconds"):
        clock.move(to_s, "event")
    assert (clock.now_s, clock.before_s) == (5.0, 5.0)


def test_a_job_keeps_to_its_kind_of_clock() -> None:
    """2013 would be late by the clock on the wall."""
    with pytest.raises(InputError, match="another kind"):
        JobClock(ClockMark(5.0, "processing")).move(6.0, "event")


def every_kind(states: KeyedStates, ttl: TimeToLive) -> list[Any]:
    """A state of each kind that can have a time-to-live."""
    return [
        states.value_state("value", int, ttl=ttl),
        states.list_state("list", int, ttl=ttl),
        states.map_state("map", str, int, ttl=ttl),
        states.reducing_state("reducing", int, operator.add, ttl=ttl),
        states.aggregating_state("aggregating", Mean(), ttl=ttl),
        states.columnar_state("columns", pa.schema({"n": pa.int64()}), key=pa.string(), ttl=ttl),
    ]


def write(states: list[Any], key: str) -> None:
    value, elements, entries, total, mean, columns = states
    value[key] = 1
    elements[key].append(1)
    entries[key]["x"] = 1
    total.add(key, 1)
    mean.add(key, 1)
    columns[key] = {"n": 1}


def test_every_kind_expires_by_it() -> None:
    """Without a function: hidden from `written + seconds` on."""
    states = all_states()
    states.clock.move(100, "event")
    kinds = every_kind(states, TimeToLive(10))
    write(kinds, "a")
    states.clock.move(109, "event")
    write(kinds, "b")
    assert [sorted(each) for each in kinds] == [["a", "b"]] * len(kinds)
    states.clock.move(110, "event")
    assert [sorted(each) for each in kinds] == [["b"]] * len(kinds)
    list(states.drain())
    list(states.drain())  # the first one passes over the keys that it logs
    assert set(states.sizes.values()) == {1}, "what has expired is dropped by a drain"


@pytest.mark.parametrize("on_read", [False, True])
def test_before_it_has_begun_nothing_expires_and_writes_have_no_time(*, on_read: bool) -> None:
    """A first batch without rows must not fail, nor spoil what it writes; nor a read that counts as a use."""
    states = all_states()
    states.clock.move(NOT_BEGUN, "event")
    kinds = every_kind(states, TimeToLive(10, on_read=on_read))
    write(kinds, "a")
    list(states.drain())
    assert [each["a"] is not None for each in kinds] == [True] * len(kinds)
    list(states.drain())
    states.clock.move(1000, "event")
    assert [sorted(each) for each in kinds] == [["a"]] * len(kinds)


def test_without_a_clock_a_time_to_live_needs_a_function() -> None:
    """Told when it is first used."""
    legs = all_states().value_state("legs", int, ttl=TimeToLive(10))
    with pytest.raises(InputError, match="event_time"):
        legs["a"] = 1


def test_a_function_takes_precedence() -> None:
    """As before there were clocks."""
    states = all_states()
    states.clock.move(1_000_000, "event")
    legs = states.value_state("legs", int, ttl=TimeToLive(10, lambda: 5.0))
    legs["a"] = 1
    assert "a" in legs


def test_timers_are_of_the_jobs_kind_by_default() -> None:
    """Of event time where there is no clock."""
    states = all_states()
    states.timers("before")
    states.clock.move(1, "processing")
    states.timers("idle")
    assert {each.name: each.schema for each in states.descriptors} == {"before": "event", "idle": "processing"}
    with pytest.raises(StateTypeError):
        states.timers("before")


def test_a_timer_before_the_clock_is_refused() -> None:
    """Before that of the batch before, which is committed; many of them all or none; of the other kind it may be."""
    states = all_states()
    states.clock.move(100, "event")
    idle, other = states.timers("idle"), states.timers("other", "processing")
    idle.register("a", 50)  # the first batch: nothing is late
    states.clock.move(200, "event")
    idle.register("a", 100)
    for refused in (lambda: idle.register("a", 99.9), lambda: idle.register_many(["b", "c"], [150, 99])):
        with pytest.raises(InputError, match="a timer before the clock") as caught:
            refused()
        assert (caught.value.facts["timers"], caught.value.facts["clock_before_s"]) == ("idle", 100.0)
    other.register("a", 1)
    assert (idle.registered("a"), list(idle)) == ((50.0, 100.0), ["a"])


def test_due_timers_are_those_of_the_clocks_kind() -> None:
    """Of all states, by time, then in the order of their declaration, then by key."""
    states = all_states()
    states.clock.move(0, "event")
    second, first, other = states.timers("y"), states.timers("x"), states.timers("other", "processing")
    first.register_many(["b", "a", "late"], [1, 2, 11])
    second.register_many(["c", "b"], [2, 2])
    other.register("a", 1)
    states.clock.move(10, "event")
    assert list(states.job_timers.take_due()) == [(1, "b", "x"), (2, "b", "y"), (2, "c", "y"), (2, "a", "x")]
    assert states.job_timers.next_s() == 11


def test_a_timer_that_is_registered_again_waits_for_the_next_batch() -> None:
    """For the time that it came at. For a later time that is due, it comes in this one."""
    states = all_states()
    states.clock.move(0, "event")
    idle = states.timers("idle")
    idle.register("a", 1)
    states.clock.move(3, "event")
    found: list[float] = []
    for at, key, _ in states.job_timers.take_due():
        found.append(at)
        idle.register_many([key, key, key], [at, at + 1, at + 5])
    assert found == [1, 2, 3]
    assert idle.registered("a") == (1, 2, 3, 4, 6, 7, 8)


def test_who_stops_early_leaves_the_rest() -> None:
    """Also what was registered again."""
    states = all_states()
    states.clock.move(0, "event")
    idle = states.timers("idle")
    idle.register_many(["a", "b", "c"], [1, 2, 3])
    states.clock.move(9, "event")
    for _, key, _ in states.job_timers.take_due():
        idle.register(key, 1) if key == "a" else None
        if key == "b":
            break
    assert {key: idle.registered(key) for key in idle} == {"a": (1.0,), "c": (3.0,)}


def test_the_next_timer_counts_those_that_nobody_declares() -> None:
    """They may be declared again. Without a clock nothing is known; a clock without timers has none."""
    states = all_states()
    assert states.job_timers.next_s() is UNSET
    states.clock.move(0, "event")
    assert states.job_timers.next_s() is None
    states.timers("idle").register("a", 7)
    states.timers("other", "processing").register("a", 1)
    later = restored(states, drained(states))
    later.clock.move(5, "event")
    assert (later.job_timers.next_s(), list(later.job_timers.take_due())) == (7, [])
    later.timers("idle").delete("a", 7)
    assert later.job_timers.next_s() is None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["register", "move", "fire", "again"]),
        st.sampled_from(["x", "y"]),
        st.sampled_from(["a", 1, b"k", ("JFK", 7)]),
        st.integers(0, 12),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=80)
@given(STEPS)
def test_timers_by_the_clock_are_those_of_a_model(steps: list[tuple[str, str, Key, int]]) -> None:
    """A set of what is registered: each comes once, when the clock has passed it; too late ones are refused."""
    states, model = KeyedStates(all_key_groups(MAX_PARALLELISM), MAX_PARALLELISM), set[tuple[float, Key, str]]()
    states.clock.move(0, "event")
    both = {name: states.timers(name) for name in ("x", "y")}
    for step, name, key, at in steps:
        if step == "move":
            states.clock.move(at, "event")
        elif step == "register":
            if at < states.clock.before_s:
                with pytest.raises(InputError):
                    both[name].register(key, at)
            else:
                both[name].register(key, at)
                model.add((float(at), key, name))
        else:
            due = {timer for timer in model if timer[0] <= states.clock.now_s}
            model -= due
            found: list[tuple[float, Key, str]] = []
            for timer in states.job_timers.take_due():
                found.append(timer)
                if step == "again" and timer.at >= states.clock.before_s:
                    both[timer.name].register(timer.key, timer.at)
                    model.add((timer.at, timer.key, timer.name))
            assert set(found) == due
            assert (len(found), [timer[0] for timer in found]) == (len(due), sorted(timer[0] for timer in due))
        assert states.job_timers.next_s() == min((timer[0] for timer in model), default=None)
