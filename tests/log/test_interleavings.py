"""Two and three drivers on one job, through the real protocol, in every order in which their requests can happen.

Orders that come to the same state go on alike, so each state is visited once: `tests/log/turns.py`.

The last writer to open commits; each earlier one is fenced at its next commit, and has deleted nothing.
"""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend._codec.commit import Claim
from statebackend.testing.virtual_time import run_virtual
from tests.log.turns import Orders, Race, run_chosen, run_race


def judge(race: Race) -> None:
    """One chain of commits, nothing acknowledged is lost, and of those who live the last one was not stopped."""
    assert race.store.wrong == []
    assert race.store.deleted == []
    sequences = [commit.sequence for commit in race.commits]
    assert [commit.parent for commit in race.commits] == [None, *sequences][: len(sequences)]
    last = max(entry.epoch for entry in race.store.log if isinstance(entry, Claim)) if race.store.log else 0
    for driver in race.drivers:
        own = [commit.sequence for commit in race.commits if driver.epoch and commit.epoch == driver.epoch]
        if driver.dead:
            assert driver.acknowledged == own[: len(driver.acknowledged)]
            assert len(own) - len(driver.acknowledged) <= 1  # the commit it did not live to hear of
        else:
            assert driver.acknowledged == own
            assert driver.fenced == (len(own) < driver.commits)
            assert not (driver.fenced and driver.epoch == last)


@pytest.mark.parametrize(
    ("commits", "deaths"), [([1, 1], 0), ([2, 2], 0), ([1, 3], 0), ([1, 1], 1), ([2, 1], 1), ([1, 1], 2)]
)
@run_virtual
async def test_two_drivers_in_every_order(commits: Sequence[int], deaths: int) -> None:
    """With nobody killed, and with one or both of them killed at each request, before and after it."""
    orders, fenced, more = Orders(), 0, True
    while more:
        race = await run_race(commits, orders.choose, deaths=deaths, keys="*/commits/*", is_known=orders.is_known)
        judge(race)
        fenced += any(driver.fenced for driver in race.drivers)
        more = orders.next()
    assert orders.count() > 40
    assert fenced > 0


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    commits=st.lists(st.integers(1, 3), min_size=2, max_size=3),
    choices=st.lists(st.integers(0, 100), max_size=60),
    deaths=st.integers(0, 2),
)
def test_three_drivers_in_some_orders(commits: list[int], choices: list[int], deaths: int) -> None:
    """Their reads and writes of the hint among it."""
    left = iter(choices)
    judge(run_chosen(commits, lambda width: next(left, 0) % width, deaths=deaths))
