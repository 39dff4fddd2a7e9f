"""What requests cost in a month, and how fast PUTs may follow each other for a budget to last. Pure.

Costs come in as sums since the start (`settings.Prices` makes them of requests), time as an argument. A month has 30
days. Storage and transfer are not in it.
"""

from collections import deque
from typing import Final

MONTH_S: Final = 30 * 24 * 3600.0

RATE_WINDOW_S: Final = 600.0
"""The spending of this long, at least, makes the current rate."""

RATE_STEP_S: Final = 60.0
"""Seconds between two marks within the window. A shorter time counts as this long: one request is no rate."""

CREDIT_S: Final = 3600.0
"""Budget of this long that can be saved up while nothing is sent, and spent at once: the burst."""

DEBT_S: Final = 24 * 3600.0
"""Budget of this long that can be owed. What is spent beyond it is forgiven, so that a job is not slow for ever."""


class SpendingRate:
    """What a month would cost if it all went on as in the last ten minutes.

    Or as since the last call, where that is longer ago. In the first minute the rate is that of a whole minute: a lower
    bound.
    """

    def __init__(self, now_s: float) -> None:
        self._marks = deque([(now_s, 0.0)])  # when, and what had been spent by then; a bounded number of them

    def usd_month(self, spent_usd: float, now_s: float) -> float:
        """The rate, given what has been spent in all. Neither argument ever goes down."""
        while len(self._marks) > 1 and self._marks[1][0] <= now_s - RATE_WINDOW_S:
            self._marks.popleft()
        begun_s, begun_usd = self._marks[0]
        if now_s - self._marks[-1][0] >= RATE_STEP_S:
            self._marks.append((now_s, spent_usd))
        return (spent_usd - begun_usd) / max(now_s - begun_s, RATE_STEP_S) * MONTH_S


class PutPace:
    """Says how long to wait before the next PUT, so that a month of them costs no more than the budget.

    Budget comes in second by second; each PUT takes its price out, and may leave a debt; the wait is until that is
    paid. While no step costs more than comes in within `delay_max_s`, what is spent in any time is at most the budget
    of that time, `CREDIT_S` of budget, and one step. Where steps cost more, the wait is `delay_max_s` and the budget is
    exceeded: work goes on. Credit and debt begin at 0.
    """

    def __init__(self, budget_usd_month: float, *, delay_max_s: float, now_s: float) -> None:
        self._usd_per_s = budget_usd_month / MONTH_S
        self._delay_max_s = delay_max_s
        self._debt_s_max = max(DEBT_S, delay_max_s)
        self._balance_usd = 0.0
        self._spent_usd = 0.0
        self._now_s = now_s

    def wait_s(self, spent_usd: float, now_s: float) -> float:
        """Seconds to wait, given what PUTs have cost in all; 0 without a budget. Neither argument ever goes down.

        What was spent since the last call counts as spent now: to be called before and after each step.
        """
        if self._usd_per_s == 0:
            return 0.0
        earned_usd = (now_s - self._now_s) * self._usd_per_s
        balance_usd = min(self._balance_usd + earned_usd, CREDIT_S * self._usd_per_s) - (spent_usd - self._spent_usd)
        self._balance_usd = max(balance_usd, -self._debt_s_max * self._usd_per_s)
        self._spent_usd, self._now_s = spent_usd, now_s
        return min(max(-self._balance_usd / self._usd_per_s, 0.0), self._delay_max_s)
