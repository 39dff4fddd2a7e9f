"""Time-to-live: entries expire some seconds after they were written, on a clock that the user provides.

The clock is a time of the batch, so a batch that is delivered again sees the same state as the first time.
"""

import datetime as dt
import math
from collections.abc import Callable
from typing import Final, cast

import msgspec

from statebackend._codec.cells import stamp_of
from statebackend.errors import InputError

SWEEP_KEYS: Final = 1000
"""Keys that each drain checks for expired entries, beside one for each key that was written."""


class TimeToLive(msgspec.Struct, frozen=True):
    """Hides values `seconds` after they were written, and drops them some time later.

        legs = backend.value_state("legs", Leg, ttl=TimeToLive(86400, now=lambda: batch.event_time_s))

    `now` returns the time in seconds, such as the largest event time of the batch; it must not go back. Each operation
    calls it, a bulk operation once. A value, each element of a list and each entry of a map expire on their own,
    counted from their last write; with `on_read` also from their last read, which makes a read a change.

    The time of writing is stored, so new `seconds` also apply to values that were written before. Values written before
    the state had a time-to-live have no such time. They stay until they are written again, as by
    `state.put_many(list(state), list(state.values()))`. Declared without a time-to-live again, a state shows everything
    that was not dropped yet.
    """

    seconds: float
    now: Callable[[], float]
    on_read: bool = False

    def __post_init__(self) -> None:
        seconds = cast("object", self.seconds)
        if isinstance(seconds, dt.timedelta):
            raise InputError("a time-to-live is a number of seconds: give it delta.total_seconds()", seconds=seconds)
        if not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise InputError("a time-to-live must be a positive number of seconds", seconds=seconds)
        if not callable(self.now):
            raise InputError("a time-to-live needs a function that returns the time in seconds", now=repr(self.now))

    def read_clock(self) -> float:
        """The time now, in seconds. Raises `InputError` where `now` returns no finite number."""
        now = cast("object", self.now())
        if not isinstance(now, int | float) or not math.isfinite(now):
            raise InputError("the clock of a time-to-live must return seconds", now=repr(now))
        return float(now)

    def is_live(self, cell: bytes, now: float) -> bool:
        """True if the cell has not expired at `now`."""
        stamp = stamp_of(cell)
        return stamp is None or now < stamp + self.seconds
