"""Timers fire in order, once, on the caller's clock; and are state like any other."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend._state.time.timers import Timers
from statebackend.errors import InputError, StateTypeError
from statebackend.ids import Key
from tests.changes import drained, rows_of
from tests.codec.samples import KEYS
from tests.state.states import MAX_PARALLELISM, all_states, restored


@pytest.fixture
def timers() -> Timers:
    return all_states().timers("timers")


def test_due_timers_fire_in_order_of_time_and_key(timers: Timers) -> None:
    """Keys of several types too: int, str, bytes, tuple. The bound is included."""
    due: list[tuple[float, Key]] = [
        (1, "z"),
        (2, -5),
        (2, 7),
        (2, "a"),
        (2, "b"),
        (2, b"a"),
        (2, (1, "a")),
        (2, (1, "b")),
    ]
    for at, key in reversed(due):
        timers.register(key, at)
    timers.register("a", 2.5)
    assert list(timers.due(2)) == due
    assert list(timers.due(2)) == []
    assert timers.next_at() == 2.5


def test_registered_twice_fires_once(timers: Timers) -> None:
    """Also as an int and as a float."""
    timers.register("a", 1)
    timers.register("a", 1.0)
    assert timers.registered("a") == (1.0,)
    assert list(timers.due(9)) == [(1.0, "a")]


def test_key_may_have_several(timers: Timers) -> None:
    """Each fires for itself; deleting one leaves the others, `del` none."""
    for at in (3, 1, 2):
        timers.register("a", at)
        timers.register("b", at)
    timers.delete("a", 2)
    del timers["b"]
    assert (timers.registered("a"), timers.registered("b"), list(timers)) == ((1.0, 3.0), (), ["a"])
    assert list(timers.due(9)) == [(1.0, "a"), (3.0, "a")]
    with pytest.raises(KeyError):
        del timers["a"]


def test_handler_may_register_and_delete(timers: Timers) -> None:
    """A timer that is due at once fires in the same turn; a deleted one does not fire."""
    for key in ("a", "b", "c"):
        timers.register(key, 1)
    fired: list[tuple[float, Key]] = []
    for at, key in timers.due(5):
        fired.append((at, key))
        assert at not in timers.registered(key)
        if (at, key) == (1, "a"):
            timers.delete("c", 1)
            timers.register("a", 4)
            timers.register("a", 6)
    assert fired == [(1.0, "a"), (1.0, "b"), (4.0, "a")]
    assert timers.registered("a") == (6.0,)


def test_who_stops_early_leaves_the_rest(timers: Timers) -> None:
    """Such as a handler that fails: its own timer is gone, as it was handed out."""
    for key in ("a", "b", "c"):
        timers.register(key, 1)
    assert next(timers.due(1)) == (1.0, "a")
    assert list(timers.due(1)) == [(1.0, "b"), (1.0, "c")]


def test_timers_come_back_and_fired_ones_do_not() -> None:
    """FLINK-26062, FLINK-26063."""
    states = all_states()
    timers = states.timers("timers")
    for key in ("a", "b"):
        timers.register_many([key, key], [1, 2])
    log = drained(states)
    assert next(timers.due(1)) == (1.0, "a")
    timers.delete("b", 2)
    log += drained(states)
    for changes in (log, rows_of(states.snapshot().changes(frozenset(range(MAX_PARALLELISM))))):
        assert list(restored(states, changes).timers("timers").due(9)) == [(1.0, "b"), (2.0, "a")]


def test_the_two_clocks_are_not_mixed() -> None:
    """Neither in one process nor from one run to the next."""
    states = all_states()
    states.timers("timers", "processing").register("a", 1)
    later = restored(states, drained(states))
    for mixed in (states, later):
        with pytest.raises(StateTypeError) as caught:
            mixed.timers("timers", "event")
        assert (caught.value.facts["schema_written"], caught.value.facts["schema_declared"]) == ("processing", "event")
    with pytest.raises(InputError):
        states.timers("others", "sidereal")  # type: ignore[arg-type]


@pytest.mark.parametrize("at", [None, "1", True, math.nan, math.inf, 2**53 + 1, 10**400], ids=lambda at: repr(at)[:20])
def test_time_that_is_none_is_refused(timers: Timers, at: Any) -> None:
    """By everything that takes one; an int that a float would round is none."""
    for operation in (
        lambda: timers.register("a", at),
        lambda: timers.delete("a", at),
        lambda: timers.register_many(["a", "b"], [1, at]),
        lambda: list(timers.due(at)),
    ):
        with pytest.raises(InputError):
            operation()
    assert list(timers) == []


@pytest.mark.parametrize("at", [2**53, -(2**53), 2**53 - 1, -0.0, 5e-324, 1.7e308])
def test_time_that_a_float_holds_is_taken(timers: Timers, at: float) -> None:
    """By everything that takes one, up to the greatest int of which each one below is a float, too."""
    timers.register("a", at)
    timers.register_many(["a", "b"], [at, at])
    assert (timers.registered("a"), timers.next_at()) == ((float(at),), float(at))
    timers.delete("a", at)
    assert [*timers.due(at)] == [(float(at), "b")]
    assert list(timers) == []


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["register", "delete", "due"]), KEYS, st.integers(-3, 3)), max_size=200))
def test_every_timer_that_is_there_fires_once(operations: list[tuple[str, Any, int]]) -> None:
    """Though the queue still holds some that were deleted, or registered anew."""
    timers, model = all_states().timers("timers"), set[tuple[float, Any]]()
    timers.next_at()
    for name, key, at in operations * 3:
        if name == "register":
            timers.register(key, at)
            model.add((float(at), key))
        elif name == "delete":
            timers.delete(key, at)
            model.discard((float(at), key))
        else:
            due = {timer for timer in model if timer[0] <= at}
            fired = list(timers.due(at))
            assert set(fired) == due
            assert len(fired) == len(due)
            model -= due
        assert timers.next_at() == min((timer[0] for timer in model), default=None)
