"""The budget of PUTs: what a month of requests costs, and the pauses between PUTs by which a budget lasts. Pure.

Costs come in as sums since the start (`settings.Prices` makes them of requests), time as an argument. A month has 30
days. Storage and transfer are not in it.
"""

from collections import deque
from typing import Final

MONTH_S: Final = 30 * 24 * 3600.0

RATE_WINDOW_S: Final = 600.0
"""The current rate is that of at least this long."""

RATE_STEP_S: Final = 60.0
"""Seconds between two marks in the window. A shorter time counts as this long: one request is not a rate."""

CREDIT_S: Final = 3600.0
"""How much budget can be saved up while nothing is sent, and spent at once: the burst."""

DEBT_S: Final = 24 * 3600.0
"""How much budget can be owed. Spending beyond that is forgiven, so that a job is not slow for ever."""


class SpendingRate:
    """The cost of a month at the rate of the last ten minutes, or of the time since the last call if that is longer.

    In the first minute, what was spent counts as the spending of a whole minute: a lower bound.
    """

    def __init__(self, now_s: float) -> None:
        self._marks = deque([(now_s, 0.0)])  # times, and what had been spent by then: a bounded number

    def usd_month(self, spent_usd: float, now_s: float) -> float:
        """The rate, given the sum of all spending. Neither argument ever decreases."""
        while len(self._marks) > 1 and self._marks[1][0] <= now_s - RATE_WINDOW_S:
            self._marks.popleft()
        begun_s, begun_usd = self._marks[0]
        if now_s - self._marks[-1][0] >= RATE_STEP_S:
            self._marks.append((now_s, spent_usd))
        return (spent_usd - begun_usd) / max(now_s - begun_s, RATE_STEP_S) * MONTH_S


class PutPace:
    """Computes how long to wait before the next PUT, so that a month of PUTs costs no more than the budget.

    Budget is earned second by second. Each PUT spends its price and may leave a debt, and the wait lasts until the debt
    is paid. As long as no step costs more than is earned within `delay_max_s`, the spending of any period is at most
    the budget of that period, `CREDIT_S` of budget, and one step. If steps cost more, the wait is `delay_max_s`, and
    the budget is exceeded: work goes on. Credit and debt begin at 0.
    """

    def __init__(self, budget_usd_month: float, *, delay_max_s: float, now_s: float) -> None:
        self._usd_per_s = budget_usd_month / MONTH_S
        self._delay_max_s = delay_max_s
        self._debt_s_max = max(DEBT_S, delay_max_s)
        self._balance_usd = 0.0
        self._spent_usd = 0.0
        self._now_s = now_s

    def wait_s(self, spent_usd: float, now_s: float) -> float:
        """Seconds to wait, given the cost of all PUTs so far; 0 without a budget. Neither argument ever decreases.

        Spending since the last call counts as spent now, so call this before and after each step.
        """
        if self._usd_per_s == 0:
            return 0.0
        earned_usd = (now_s - self._now_s) * self._usd_per_s
        balance_usd = min(self._balance_usd + earned_usd, CREDIT_S * self._usd_per_s) - (spent_usd - self._spent_usd)
        self._balance_usd = max(balance_usd, -self._debt_s_max * self._usd_per_s)
        self._spent_usd, self._now_s = spent_usd, now_s
        return min(max(-self._balance_usd / self._usd_per_s, 0.0), self._delay_max_s)
