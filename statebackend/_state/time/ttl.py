"""Time-to-live: entries expire some seconds after they were written, on the job's clock or on one of the user's.

The clock is a time of the batch, so a batch that is delivered again sees the same state as the first time.
"""

import datetime as dt
import math
from collections.abc import Callable
from typing import Final, cast

import msgspec

from statebackend._codec.cells import stamp_of
from statebackend._state.time.job_clock import NOT_BEGUN, JobClock
from statebackend.errors import InputError
from statebackend.ids import Lifetime

SWEEP_KEYS: Final = 1000
"""Keys that each drain checks for expired entries, beside one for each key that was written."""


class TimeToLive(msgspec.Struct, frozen=True):
    """Hides values `seconds` after they were written, and drops them some time later.

        legs = backend.value_state("legs", Leg, ttl=TimeToLive(86400))

    The time is that of the job's clock: `event_time` or `clock` of the sink, `advance_clock` of the backend. Or `now`
    returns it in seconds; it must not go back. Each operation calls it, a bulk operation once. A value, each element of
    a list and each entry of a map expire on their own, counted from their last write; with `on_read` also from their
    last read, which makes a read a change.

    The time of writing is stored, so new `seconds` also apply to values that were written before; but what had expired
    stays expired, where the clock is the job's. Values written before the state had a time-to-live have no such time.
    They count as written at the first checkpoint with it, once and for all. Declared without a time-to-live again, a
    state shows everything that was not dropped yet. A later one goes by the time of writing where there is one again.
    """

    seconds: float
    now: Callable[[], float] | None = None
    on_read: bool = False

    def __post_init__(self) -> None:
        seconds = cast("object", self.seconds)
        if isinstance(seconds, dt.timedelta):
            raise InputError("a time-to-live is a number of seconds: give it delta.total_seconds()", seconds=seconds)
        if not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise InputError("a time-to-live must be a positive number of seconds", seconds=seconds)
        if self.now is not None and not callable(cast("object", self.now)):
            raise InputError("`now` of a time-to-live must be a function of the time in seconds", now=repr(self.now))

    def going_by(self, clock: JobClock) -> "TimeToLive":
        """The same, for one state; on the job's clock if it has no function of its own."""
        if self.now is not None:
            return _OfState(self.seconds, self.now, self.on_read)
        return _ByJobClock(self.seconds, clock.read, self.on_read)

    @property
    def goes_by_job_clock(self) -> bool:
        """True if it has no function of its own, once it is a state's."""
        return False

    @property
    def lifetime(self) -> Lifetime | None:
        """As the state's descriptor has it, where this is one of a state."""
        return None

    def read_clock(self) -> float:
        """The time now, in seconds; `NOT_BEGUN` before the job's clock has one.

        Raises `InputError` where the job has no clock, or `now` returns no finite number.
        """
        now = None if self.now is None else cast("object", self.now())
        if not isinstance(now, int | float) or not math.isfinite(now):
            raise InputError("the clock of a time-to-live must return seconds", now=repr(now))
        return float(now)

    def stamp(self) -> float | None:
        """The time of a write that is made now, `None` before the job's clock has one: then it never expires."""
        now = self.read_clock()
        return None if now == NOT_BEGUN else now

    def is_live(self, cell: bytes, now: float) -> bool:
        """True if the cell has not expired at `now`."""
        stamp = stamp_of(cell)
        lifetime = self.lifetime
        if lifetime is not None:
            return lifetime.is_live(stamp, self.seconds, now)
        return stamp is None or now < stamp + self.seconds


class _Noted(msgspec.Struct):
    lifetime: Lifetime | None = None


class _OfState(TimeToLive, frozen=True):
    """The time-to-live of one declared state, which learns since when it applies."""

    noted: _Noted = msgspec.field(default_factory=_Noted)

    @property
    def lifetime(self) -> Lifetime | None:
        return self.noted.lifetime


class _ByJobClock(_OfState, frozen=True):
    """`now` is that of a `JobClock`, which checks itself."""

    @property
    def goes_by_job_clock(self) -> bool:
        return True

    def read_clock(self) -> float:
        assert self.now is not None, "going by a clock"
        return self.now()


def apply(ttl: TimeToLive, lifetime: Lifetime) -> None:
    """Have the time-to-live of a declared state apply as this says."""
    assert isinstance(ttl, _OfState), "it was declared for a state"
    ttl.noted.lifetime = lifetime
