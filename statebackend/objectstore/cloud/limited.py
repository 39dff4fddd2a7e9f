"""Limits the rate of requests: to a fixed bound, and for a while below it when the store throttles.

A store throttles because it gets too many requests; going on at the same rate makes it worse for everybody. So the rate
falls below what was really sent, and doubles again every few seconds without throttling.
"""

from collections import deque
from typing import Final

import anyio
import anyio.lowlevel

RATE_MIN_PER_S: Final = 10.0
"""The lowest rate. S3 takes thousands, and one refused request must not bring a small job to a standstill."""
DOUBLING_S: Final = 5.0
"""How long the rate takes to double after a store has throttled."""
_FALL: Final = 0.7
"""Share of the last second's requests to go on with. Halving would leave a third of the store's capacity unused."""
_WINDOW_S: Final = 1.0
_BURST_S: Final = 0.1  # a tenth of a second's requests may go at once


class RateLimit:
    """Gives requests their turns, first come, first served, by the running loop's time."""

    def __init__(self, max_per_s: float) -> None:
        self._max_per_s = max_per_s
        self._slowed_per_s = max_per_s
        self._slowed_at = float("-inf")
        self._next_at = float("-inf")
        self._sent: deque[float] = deque()  # times of the last second's requests

    def per_s(self) -> float:
        """The current rate."""
        doublings = (anyio.current_time() - self._slowed_at) / DOUBLING_S
        if doublings > 60:  # above any bound; the power would overflow
            return self._max_per_s
        return min(self._max_per_s, self._slowed_per_s * 2**doublings)

    async def turn(self) -> float:
        """Wait until a request may be sent, and return the loop's time then. A cancelled call has used up its turn."""
        now = anyio.current_time()
        rate = self.per_s()
        at = max(now, self._next_at)
        self._next_at = max(self._next_at, now - _BURST_S) + 1 / rate
        if at > now:
            await anyio.sleep(at - now)
        else:
            await anyio.lowlevel.checkpoint()
        self._count(at)
        return at

    def throttled(self, sent_at: float) -> None:
        """Lower the rate: the store refused a request sent at `sent_at`. Each rate is lowered only once."""
        if sent_at <= self._slowed_at:
            return
        now = anyio.current_time()
        recent = sum(1 for at in self._sent if now - at < _WINDOW_S) / _WINDOW_S
        self._slowed_per_s = max(RATE_MIN_PER_S, min(self.per_s(), recent) * _FALL)
        self._slowed_at = now

    def _count(self, at: float) -> None:
        self._sent.append(at)
        while at - self._sent[0] >= _WINDOW_S:
            self._sent.popleft()
