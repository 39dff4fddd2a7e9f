"""Decides which ranges of key groups have timers that are due, by the commit alone. Pure."""

from collections.abc import Sequence

from msgspec import UNSET

from statebackend._checkpoint.rescale import range_of
from statebackend._codec.commit import Commit
from statebackend._state.time.timers import KIND
from statebackend.ids import ClockMark, KeyGroupRange


def ranges_with_due_timers(
    base: Commit | None, ranges: Sequence[KeyGroupRange], clock: ClockMark | None
) -> Sequence[KeyGroupRange]:
    """Those of `ranges` in which a timer may be due by `clock`. `base`: the commit that the batch continues.

    A range whose next timer the commit does not know is one of them, if the job has timers that go by this clock.
    """
    if base is None or clock is None:
        return ()
    has_timers = any(state.kind == KIND and state.schema == clock.kind for state in base.states)
    found: list[KeyGroupRange] = []
    for key_groups in ranges:
        next_s = range_of(base, key_groups).next_timer_s
        if has_timers if next_s is UNSET else next_s is not None and next_s <= clock.now_s:
            found.append(key_groups)
    return found
