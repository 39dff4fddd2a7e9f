"""The clock of the library."""

from typing import Protocol


class Clock(Protocol):
    """Tells the time. Tests pass their own."""

    def monotonic(self) -> float:
        """Seconds that never go back, from an arbitrary start."""
        ...

    def time(self) -> float:
        """Seconds since the epoch."""
        ...
