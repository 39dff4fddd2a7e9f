"""The clock that the library goes by."""

from typing import Protocol


class Clock(Protocol):
    """Tells the time. A test gives its own."""

    def monotonic(self) -> float:
        """Seconds that never go back, from an arbitrary start."""
        ...

    def time(self) -> float:
        """Seconds since the epoch."""
        ...
