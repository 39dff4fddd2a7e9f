"""The clock of a job: the time that its states go by unless they are told another one."""

import math
from typing import Final

from statebackend.errors import InputError
from statebackend.ids import ClockKind, ClockMark

NOT_BEGUN: Final = -math.inf
"""The time of a clock that no event time has moved yet: nothing is due, and nothing has expired."""


class JobClock:
    """The time of the batch under way, in seconds, in the backend of one owner. It begins where the commit's stands.

    It never goes back. `before_s` is the time before it was last moved: what lies before that is late. Without a `kind`
    the job has no clock. `has_moved`: since it stood at a commit. `is_only_read`: nobody writes by it, so where there
    is no clock yet, nothing has expired.
    """

    __slots__ = ("before_s", "has_moved", "is_only_read", "kind", "now_s")

    def __init__(self, committed: ClockMark | None = None) -> None:
        self.is_only_read = False
        self.stand_at(committed)

    @property
    def mark(self) -> ClockMark | None:
        """The clock for a commit, `None` if it has not begun."""
        return None if self.kind is None or self.now_s == NOT_BEGUN else ClockMark(self.now_s, self.kind)

    def stand_at(self, committed: ClockMark | None) -> None:
        """Forget the batch that was under way: the time is that of a commit again."""
        self.kind: ClockKind | None = None if committed is None else committed.kind
        self.now_s: float = NOT_BEGUN if committed is None else committed.now_s
        self.before_s: float = self.now_s
        self.has_moved = False

    def move(self, to_s: float, kind: ClockKind) -> None:
        """Move it to `to_s`, or leave it where it is if that is earlier. `NOT_BEGUN` is earlier than every time.

        Raises `InputError` for what is no time, and if the job went by a clock of another kind before.
        """
        if type(to_s) not in (float, int) or not (math.isfinite(to_s) or to_s == NOT_BEGUN):
            raise InputError("the clock is moved to a number of seconds", to_s=repr(to_s))
        if self.kind not in (None, kind):
            raise InputError(
                "the job goes by a clock of another kind: keep to that, or begin another job", was=self.kind, now=kind
            )
        self.kind, self.before_s, self.now_s = kind, self.now_s, max(self.now_s, float(to_s))
        self.has_moved = True

    def check_there_is_one(self, use: str) -> None:
        """Raise `InputError` if the job has no clock. `use`: an advice for what is about to use it."""
        if self.kind is None:
            raise InputError(
                "the job has no clock: give the sink event_time or clock='batch', the tester event_time or clock_s, "
                "a seed clock_s, "
                f"call advance_clock of the backend, or {use}"
            )

    def read(self) -> float:
        """The time now; `NOT_BEGUN` before the first. Raises `InputError` for a job without a clock that is written."""
        if self.kind is None and not self.is_only_read:
            self.check_there_is_one("give the time-to-live a function `now`")
        return self.now_s
