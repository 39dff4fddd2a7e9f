"""Repeats failed requests: which ones, how soon, and at what rate over all of them.

A throttled request was not executed, so any is repeated, as soon as the lowered rate allows. A request without an
answer may have been executed, so it is repeated only if it may happen twice. Repeats take their turns from one budget
for all requests of a store, so that waiting for the end of an outage does not prolong it.
"""

import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Self, TypeVar

import anyio
import anyio.lowlevel

from statebackend.errors import StoreFullError, StoreThrottledError, StoreUnavailableError
from statebackend.settings.records import CloudSettings

T = TypeVar("T")

PAUSE_MIN_S: Final = 0.05
PAUSE_MAX_S: Final = 5.0


RATE_MIN_PER_S: Final = 10.0
"""The lowest rate. S3 takes thousands, and one refused request must not bring a small job to a standstill."""


DOUBLING_S: Final = 5.0
"""How long the rate takes to double after a store has throttled."""


_FALL: Final = 0.7
"""Share of the last second's requests to go on with. Halving would leave a third of the store's capacity unused."""


_WINDOW_S: Final = 1.0


_BURST_S: Final = 0.1  # a tenth of a second's requests may go at once


class RateLimit:
    """Gives requests their turns, first come, first served, by the running loop's time.

    A store throttles because it gets too many requests; going on at the same rate makes it worse for everybody. So the
    rate falls below what was really sent, and doubles again every few seconds without throttling.
    """

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


class Retries:
    """Runs the requests of one store.

    `outage_s`: how long a request is repeated after its first failure. That includes throttling: a store that is down
    often says that it is busy. `chance` spreads the pauses: requests that failed together must not return together.
    """

    def __init__(self, rate: RateLimit, *, retries_per_s_max: float, outage_s: float, chance: random.Random) -> None:
        self._rate = rate
        self._budget = RateLimit(retries_per_s_max)
        self._outage_s = outage_s
        self._chance = chance

    @classmethod
    def of(cls, settings: CloudSettings) -> Self:
        """As the settings of a store say, with pauses drawn at random."""
        return cls(
            RateLimit(settings.requests_per_s_max),
            retries_per_s_max=settings.retries_per_s_max,
            outage_s=settings.outage_s,
            chance=random.Random(),  # noqa: S311  # spreads pauses
        )

    async def run(self, request: Callable[[], Awaitable[T]], *, repeatable: bool = True) -> T:
        """Return the result of `request`, or raise the error of its last attempt.

        `repeatable`: it may be executed twice. A cancelled call leaves behind what a cancelled `request` does.
        """
        failures, give_up_at = 0, float("inf")
        while True:
            sent_at = await self._rate.turn()
            try:
                return await request()
            except StoreFullError:
                raise
            except StoreUnavailableError as error:
                throttled = isinstance(error, StoreThrottledError)
                if not (throttled or repeatable):
                    raise
                if throttled:
                    self._rate.throttled(sent_at)
                give_up_at = min(give_up_at, anyio.current_time() + self._outage_s)
                if not await self._wait(failures, give_up_at, budgeted=not throttled):
                    raise
            failures += 1

    async def _wait(self, failures: int, give_up_at: float, *, budgeted: bool) -> bool:
        """Wait until the request may be repeated. False if that is later than `give_up_at`."""
        longest = min(PAUSE_MAX_S, PAUSE_MIN_S * 2 ** min(failures, 16))
        with anyio.move_on_after(give_up_at - anyio.current_time()) as bounded:
            await anyio.sleep(self._chance.uniform(longest / 2, longest))
            if budgeted:
                await self._budget.turn()
        return not bounded.cancelled_caught
