"""The pace of PUTs: within the budget where that is possible, never slower than the limit, and fast again when idle."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend._checkpoint.put_budget import CREDIT_S, DEBT_S, MONTH_S, PutPace

BUDGETS = st.floats(0.5, 500.0)
LIMITS_S = st.floats(0.5, 30.0)
PAUSES_S = st.one_of(st.just(0.0), st.floats(0.0, 5.0), st.floats(0.0, 2 * 24 * 3600.0))
"""How long a job has nothing to send: usually hardly, sometimes for two days."""


@dataclass
class Job:
    """Sends whenever it has something and the pace lets it. Its clock is a number."""

    pace: PutPace
    now_s: float = 0.0
    spent_usd: float = 0.0
    sent: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def send(self, usd: float, *, pause_s: float = 0.0) -> float:
        """Idle, wait as told, spend; returns the wait."""
        self.now_s += pause_s
        wait_s = self.pace.wait_s(self.spent_usd, self.now_s)
        self.now_s += wait_s
        self.spent_usd += usd
        self.sent.append((self.now_s, usd))
        self.pace.wait_s(self.spent_usd, self.now_s)
        return wait_s

    def most_over(self, budget_usd_month: float) -> float:
        """The most by which what was spent in some stretch of time exceeds the budget of that time."""
        worst = excess = 0.0
        before_s = 0.0
        for now_s, usd in self.sent:  # the largest sum of a run of steps, each less the budget of the gap before it
            excess = max(excess - (now_s - before_s) * budget_usd_month / MONTH_S, 0.0) + usd
            worst, before_s = max(worst, excess), now_s
        return worst


def job_of(budget: float, limit_s: float) -> Job:
    return Job(PutPace(budget, delay_max_s=limit_s, now_s=0.0))


@given(
    BUDGETS,
    LIMITS_S,
    st.lists(st.tuples(PAUSES_S, st.floats(0.0, 1.0)), min_size=1, max_size=200),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_no_stretch_of_time_costs_more_than_its_budget_a_burst_and_a_step(
    budget: float, limit_s: float, steps: list[tuple[float, float]]
) -> None:
    """Whatever the stretch, and so any month, while a step costs at most what comes in within the longest wait."""
    job, affordable_usd = job_of(budget, limit_s), budget / MONTH_S * limit_s
    for pause_s, share in steps:
        job.send(share * affordable_usd, pause_s=pause_s)
    allowed_usd = (CREDIT_S * budget / MONTH_S + max(usd for _, usd in job.sent)) * (1 + 1e-6)
    assert job.most_over(budget) <= allowed_usd


@given(
    BUDGETS,
    LIMITS_S,
    st.lists(st.tuples(PAUSES_S, st.floats(0.0, 10.0)), min_size=1, max_size=100),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_no_wait_is_longer_than_the_limit(budget: float, limit_s: float, steps: list[tuple[float, float]]) -> None:
    """Also where the budget cannot be kept: steps that cost more than a month of it."""
    job = job_of(budget, limit_s)
    waits_s = [job.send(usd, pause_s=pause_s) for pause_s, usd in steps]
    assert all(0 <= wait_s <= limit_s for wait_s in waits_s)


@given(BUDGETS, LIMITS_S, st.lists(st.floats(0.0, 1000.0), max_size=50))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_an_idle_job_is_fast_again(budget: float, limit_s: float, spent: list[float]) -> None:
    """After a day of nothing nobody waits, whatever was overspent before: debts are bounded."""
    job = job_of(budget, limit_s)
    for usd in spent:
        job.send(usd)
    assert job.send(0.0, pause_s=max(DEBT_S, limit_s) * 1.001) == 0


def test_a_busy_month_costs_its_budget() -> None:
    """A segment and a commit, again and again, for 30 days: within a percent, and not half as much either."""
    job = job_of(2.0, 15.0)
    while job.now_s < MONTH_S:
        job.send(1e-5)
    assert job.spent_usd == pytest.approx(2.0, rel=0.01)
    assert job.send(1e-5) == pytest.approx(1e-5 / 2.0 * MONTH_S)


def test_the_budget_fixes_the_shortest_cycle() -> None:
    """12.96 USD is one PUT a second for a month: 10 USD make it 1.3 s, 50 USD 260 ms, 130 USD 100 ms."""
    for budget, cycle_s in ((10.0, 1.296), (50.0, 0.2592), (129.6, 0.1)):
        job = job_of(budget, 10.0)
        job.send(5e-6)
        assert job.send(5e-6) == pytest.approx(cycle_s)


def test_an_idle_hour_is_a_burst_and_an_idle_week_is_no_larger_one() -> None:
    """Otherwise a quiet week would be spent in a second."""
    burst_usd = CREDIT_S * 10.0 / MONTH_S
    for idle_s in (CREDIT_S, 7 * 24 * CREDIT_S):
        job = job_of(10.0, 10.0)
        assert job.send(burst_usd, pause_s=idle_s) == 0
        assert job.send(1e-5) == pytest.approx(0, abs=1e-6)
        assert job.send(1e-5) == pytest.approx(1e-5 / 10.0 * MONTH_S)


def test_where_the_budget_cannot_be_kept_the_job_goes_on_at_the_slowest_pace() -> None:
    """2 USD for two PUTs every 10 s, which are 2.59 USD: that is what is spent, and no more."""
    job = job_of(2.0, 10.0)
    job.send(1e-5)
    while job.now_s < MONTH_S:
        assert job.send(1e-5) == 10.0
    assert job.spent_usd == pytest.approx(2.592, rel=0.001)


def test_without_a_budget_nobody_waits() -> None:
    """0 is no budget, and not a budget of nothing."""
    job = job_of(0.0, 10.0)
    assert [job.send(1000.0) for _ in range(5)] == [0.0] * 5
