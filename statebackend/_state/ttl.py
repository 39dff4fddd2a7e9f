"""How long what was written is there: a number of seconds on a clock that the user gives.

The clock is whatever the batch says, so a batch that is delivered again sees the same state as the first time.
"""

import math
from collections.abc import Callable
from typing import Final, cast

import msgspec

from statebackend._codec.cells import stamp_of
from statebackend.errors import InputError

SWEEP_KEYS: Final = 1000
"""Keys looked at by each drain for what has expired, beside one for each key that was written."""


class TimeToLive(msgspec.Struct, frozen=True):
    """What was written more than `seconds` ago is hidden from then on, and dropped some time later.

    `now` gives the time in seconds, such as the largest event time of the batch; it must not go back. It is called by
    every operation, and once by a bulk one. A value, each element of a list and each entry of a map live for
    themselves: from their last write on, with `on_read` from their last read on too, which makes a read a change.

    The time of writing is stored, so other `seconds` count for what is there already. What was written before the state
    had a time-to-live has no such time and stays until it is written again: `state.put_many(list(state),
    list(state.values()))`. Declared without one again, a state shows everything that was not dropped yet.
    """

    seconds: float
    now: Callable[[], float]
    on_read: bool = False

    def __post_init__(self) -> None:
        if not self.seconds > 0 or math.isinf(self.seconds):
            raise InputError("a time-to-live is a positive number of seconds", seconds=self.seconds)

    def read_clock(self) -> float:
        """The time now. Raises `InputError` where the clock gives none."""
        now = cast("object", self.now())
        if not isinstance(now, int | float) or not math.isfinite(now):
            raise InputError("the clock of a time-to-live gives seconds", now=repr(now))
        return float(now)

    def is_live(self, cell: bytes, now: float) -> bool:
        """Whether the cell is there to be read."""
        stamp = stamp_of(cell)
        return stamp is None or now < stamp + self.seconds
