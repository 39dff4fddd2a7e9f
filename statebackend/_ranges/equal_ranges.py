"""Cuts the key groups of a job into ranges of equal size, and says which of them have timers that are due. Pure."""

import itertools
from collections.abc import Sequence
from numbers import Integral
from typing import cast

from msgspec import UNSET

from statebackend._checkpoint.rescale import range_of
from statebackend._codec.commit import Commit
from statebackend._state.time.timers import KIND
from statebackend.errors import SettingsError
from statebackend.ids import ClockMark, KeyGroupRange


def ranges_of(parallelism: int, max_parallelism: int) -> tuple[KeyGroupRange, ...]:
    """The key groups of each slot. Raises `SettingsError` unless every slot has at least one."""
    is_number = isinstance(cast("object", parallelism), Integral) and not isinstance(parallelism, bool)
    if not is_number or not 1 <= parallelism <= max_parallelism:
        raise SettingsError(
            "parallelism must be a whole number between 1 and max_parallelism, which is fixed once a job has committed",
            parallelism=parallelism,
            max_parallelism=max_parallelism,
        )
    firsts = [-(-slot * max_parallelism // parallelism) for slot in range(parallelism + 1)]
    return tuple(KeyGroupRange(first, end - 1) for first, end in itertools.pairwise(firsts))


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
