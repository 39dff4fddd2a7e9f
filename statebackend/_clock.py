"""The one real clock. Everything else is handed a `Clock`, so that a test can hand it another one."""

import time


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()
