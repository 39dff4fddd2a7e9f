"""Whatever registers and deletes timers while others fire, they are those of a plain dictionary."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from statebackend._state.declared import KeyedStates
from statebackend._state.time.timers import Timers
from tests.changes import drained
from tests.state.states import all_states, restored
from tests.state.timer_programs import AGAIN_AND_DELETED, BATCHES, NAMES, PROGRAMS, Batch, do, expected


def stopping(drawn: tuple[Batch, int]) -> Batch:
    """The batch with so many timers taken at most."""
    return drawn[0]._replace(most=drawn[1])


def declared(states: KeyedStates) -> dict[str, Timers]:
    return {name: states.timers(name) for name in NAMES}


def all_of(timers: Mapping[str, Timers]) -> dict[str, dict[Any, tuple[float, ...]]]:
    return {name: {key: of.registered(key) for key in of} for name, of in timers.items()}


STOPPING = st.lists(st.tuples(BATCHES, st.sampled_from([0, 1, 2, 1000])).map(stopping), min_size=1, max_size=5)


@given(st.one_of(PROGRAMS, STOPPING))
@example(AGAIN_AND_DELETED)
def test_timers_are_those_of_a_dictionary(program: Sequence[Batch]) -> None:
    """What fires, in which order, what `registered`, `in` and `next_at` say meanwhile, and what is logged.

    Also where a caller stops early, and holds on to the rest of what was due.
    """
    states = all_states()
    timers, log, now, passes = declared(states), list[Any](), 0.0, list[Any]()
    for batch, (told, left) in zip(program, expected(program), strict=True):
        found: list[object] = []
        before, now = now, now + batch.step
        states.clock.move(now, "event")
        do(batch.deeds, timers, before, found)
        passes.append(states.job_timers.take_due())
        for at, key, name in itertools.islice(passes[-1], batch.most):
            found.append((at, key, name))
            do(batch.on_timer.get(key, ()), timers, before, found)
        assert found == told
        assert all_of(timers) == left
        assert states.job_timers.next_s() == min((at for of in left.values() for at, *_ in of.values()), default=None)
        log += drained(states)
        assert all_of(declared(restored(states, log))) == left
