"""The clock of the library: all other code takes one as an argument, so that a test can pass its own."""

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time. Tests pass their own."""

    def monotonic(self) -> float:
        """Seconds that never go back, from an arbitrary start."""
        ...

    def time(self) -> float:
        """Seconds since the epoch."""
        ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()
