"""Repeats failed requests: which ones, how soon, and at what rate over all of them.

A throttled request was not executed, so any is repeated, as soon as the lowered rate allows. A request without an
answer may have been executed, so it is repeated only if it may happen twice. Repeats take their turns from one budget
for all requests of a store, so that waiting for the end of an outage does not prolong it.
"""

import random
from collections.abc import Awaitable, Callable
from typing import Final, Self, TypeVar

import anyio

from statebackend.errors import StoreFullError, StoreThrottledError, StoreUnavailableError
from statebackend.objectstore.cloud.limited import RateLimit
from statebackend.settings.records import CloudSettings

T = TypeVar("T")

PAUSE_MIN_S: Final = 0.05
PAUSE_MAX_S: Final = 5.0


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
