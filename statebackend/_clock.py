"""The one real clock. All other code takes a `Clock` as an argument, so that a test can pass another one."""

import time


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()
