"""How many requests a second: an upper bound, and below it whatever the store puts up with at the moment.

A store that throttles says that it gets too much; to go on at the same rate makes it worse for everybody. So the rate
falls below what was really sent, and doubles again every few seconds of peace.
"""

from collections import deque
from typing import Final

import anyio
import anyio.lowlevel

RATE_MIN_PER_S: Final = 10.0
"""The rate falls no further: S3 takes thousands, and a small job is not to stand still for one refused request."""
DOUBLING_S: Final = 5.0
"""How long the rate takes to double after a store has throttled."""
_FALL: Final = (
    0.7  # of what was sent in the last second: halving it would leave a third of what the store can do unused
)
_WINDOW_S: Final = 1.0
_BURST_S: Final = 0.1  # a tenth of a second's requests may come at once


class RequestRate:
    """Turns for requests, first come first served, on the running loop's time."""

    def __init__(self, max_per_s: float) -> None:
        self._max_per_s = max_per_s
        self._slowed_per_s = max_per_s
        self._slowed_at = float("-inf")
        self._next_at = float("-inf")
        self._sent: deque[float] = deque()  # of the last second, as far as it matters: see `_count`

    def per_s(self) -> float:
        """The rate at this moment."""
        doublings = (anyio.current_time() - self._slowed_at) / DOUBLING_S
        if doublings > 60:  # beyond any bound, and the power would overflow
            return self._max_per_s
        return min(self._max_per_s, self._slowed_per_s * 2**doublings)

    async def turn(self) -> float:
        """Wait until a request may be sent; the loop's time at which it is. A cancelled call has used up its turn."""
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
        """The store refused a request that was sent at `sent_at`. Of requests sent at one rate only the first counts."""
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
