"""The cost of a backend's requests: told to its observer, added up for each checkpoint, kept within a budget.

The budget delays what is about to be sent: a segment by `wait_s`, however long its persist delay is, and a
commit without a segment before it (nothing has changed, or the commit holds it all) by `hold`. So a checkpoint waits
once, and the wait of the next one pays for both of its PUTs.
"""

import logging
from collections import Counter
from typing import Final

import anyio
import msgspec

from statebackend._checkpoint.put_budget import PutPace, SpendingRate
from statebackend.abc import Clock, Observer
from statebackend.objectstore.scoped import CountingStore
from statebackend.settings import Prices
from statebackend.settings.records import PUTS

_logger = logging.getLogger(__name__)


class Spent(msgspec.Struct, frozen=True):
    """Requests by kind and their price; the price of a month and the persist delay, both as of now."""

    requests: Counter[str]
    usd: float
    usd_month: float
    persist_delay_s: float


class Spending:
    """The requests of one backend to its primary, from the moment this is made."""

    def __init__(
        self,
        primary: CountingStore,
        prices: Prices,
        *,
        put_budget_usd_month: float,
        persist_delay_s: float,
        persist_delay_max_s: float,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._primaries = [primary]
        self._clock = clock
        self._observer = observer
        self._prices: Final = prices
        self._delay_s = persist_delay_s
        self._delay_max_s = persist_delay_max_s
        now_s = clock.monotonic()
        self._rate = SpendingRate(now_s)
        self._pace = PutPace(put_budget_usd_month, delay_max_s=persist_delay_max_s, now_s=now_s)
        self._told = Counter[str]()
        self._warned = False

    @property
    def requests(self) -> Counter[str]:
        """All requests so far, by kind."""
        return sum((each.requests for each in self._primaries), Counter[str]())

    def count_too(self, primary: CountingStore) -> None:
        """Count the requests of another client, too, in whatever thread."""
        self._primaries.append(primary)

    @property
    def bytes_read(self) -> int:
        """All bytes read so far."""
        return sum(each.bytes_read for each in self._primaries)

    def persist_delay_s(self) -> float:
        """The persist delay as of now: longer than the setting if the budget requires it."""
        return max(self._delay_s, self.wait_s())

    def wait_s(self) -> float:
        """Seconds that what is sent now has to wait for the budget."""
        wait_s = self._pace.wait_s(self._prices.put_usd(self.requests), self._clock.monotonic())
        if wait_s == self._delay_max_s and not self._warned:
            self._warned = True
            _logger.warning("put_budget_usd_month is exceeded even at persist_delay_max_s; this is logged once")
        return wait_s

    async def hold(self, before: Counter[str]) -> None:
        """Wait for the budget before a commit, unless a PUT since `before` has waited already.

        A cancelled call leaves nothing behind.
        """
        since = self.requests - before
        if not any(since[kind] for kind in PUTS) and (wait_s := self.wait_s()) > 0:
            await anyio.sleep(wait_s)

    def since(self, before: Counter[str]) -> Spent:
        """The requests since `before`; the price of a month and the persist delay after them."""
        requests = self.requests
        since = requests - before
        return Spent(
            requests=since,
            usd=self._prices.usd(since),
            usd_month=self._rate.usd_month(self._prices.usd(requests), self._clock.monotonic()),
            persist_delay_s=self.persist_delay_s(),
        )

    def tell(self) -> None:
        """Tell the observer of the requests since the last call, if there are any."""
        requests = self.requests
        since = requests - self._told
        self._told = requests
        if since:
            self._observer.primary_requested(since, usd=self._prices.usd(since))
