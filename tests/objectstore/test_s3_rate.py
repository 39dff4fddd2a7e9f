"""The rate of requests and the budget of repeats, on a virtual clock: exact, and without a server."""

import random
from itertools import pairwise

import anyio
import pytest

from statebackend.errors import StoreAccessError, StoreFullError, StoreThrottledError, StoreUnavailableError
from statebackend.objectstore.cloud.retrying import (
    DOUBLING_S,
    PAUSE_MAX_S,
    PAUSE_MIN_S,
    RATE_MIN_PER_S,
    RateLimit,
    Retries,
)
from statebackend.testing import run_virtual


class Place:
    """Does what it is told, and notes when it was asked."""

    def __init__(self, *errors: Exception | None) -> None:
        self.asked_at: list[float] = []
        self._errors = [*errors]

    async def ask(self) -> str:
        self.asked_at.append(anyio.current_time())
        error = self._errors.pop(0) if self._errors else None
        if error is not None:
            raise error
        return "done"


def retries(*, rate: float = 1e6, retries_per_s_max: float = 1e6, outage_s: float = 60.0) -> Retries:
    return Retries(RateLimit(rate), retries_per_s_max=retries_per_s_max, outage_s=outage_s, chance=random.Random(7))


@run_virtual
async def test_no_second_has_more_requests_than_the_bound() -> None:
    """However many ask at once: the first tenth of a second's worth at once, the others as the rate allows."""
    rate = RateLimit(20.0)
    sent: list[float] = []

    async def one() -> None:
        sent.append(await rate.turn())

    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(one)
    for at in sent:
        assert sum(1 for other in sent if at <= other < at + 1.0) <= 20 * 1.1 + 1
    assert max(sent) - min(sent) == pytest.approx(97 / 20, abs=0.1)


@run_virtual
async def test_a_throttled_rate_falls_below_what_was_sent_and_comes_back() -> None:
    """Not below half of a bound that was never reached, but below what the store just refused."""
    rate = RateLimit(3000.0)
    at = 0.0
    for _ in range(100):
        at = await rate.turn()
        await anyio.sleep(0.01)
    assert rate.per_s() == 3000.0
    rate.throttled(at)
    assert rate.per_s() == pytest.approx(70, rel=0.05)
    rate.throttled(at)  # another answer to the same burst says nothing new
    assert rate.per_s() == pytest.approx(70, rel=0.05)
    await anyio.sleep(DOUBLING_S)
    assert rate.per_s() == pytest.approx(140, rel=0.05)
    await anyio.sleep(3600)
    assert rate.per_s() == 3000.0


@run_virtual
async def test_a_rate_is_lowered_once_by_all_that_was_sent_at_it() -> None:
    """Also by what was sent at the very moment at which it is lowered."""
    rate = RateLimit(3000.0)
    for _ in range(100):
        at = await rate.turn()
        await anyio.sleep(0.005)
    at = await rate.turn()
    rate.throttled(at)
    lowered = rate.per_s()
    rate.throttled(at)
    assert rate.per_s() == lowered < 3000.0
    await anyio.sleep(0.01)
    rate.throttled(await rate.turn())
    assert rate.per_s() < lowered


@run_virtual
async def test_a_rate_never_falls_to_nothing() -> None:
    """A small job is not brought to a standstill by a busy neighbour."""
    rate = RateLimit(3000.0)
    for _ in range(50):
        rate.throttled(await rate.turn())
        await anyio.sleep(0.5)
    assert rate.per_s() >= RATE_MIN_PER_S


@pytest.mark.parametrize("repeatable", [True, False])
@run_virtual
async def test_a_throttled_request_is_repeated_whatever_it_is(repeatable: bool) -> None:
    """It has not been executed."""
    place = Place(*[StoreThrottledError("slow down")] * 5)
    assert await retries().run(place.ask, repeatable=repeatable) == "done"
    assert len(place.asked_at) == 6


@run_virtual
async def test_a_request_without_an_answer_is_repeated_only_if_it_may_happen_twice() -> None:
    """The caller of one that may not is told at once."""
    place = Place(StoreUnavailableError("no answer"))
    with pytest.raises(StoreUnavailableError):
        await retries().run(place.ask, repeatable=False)
    assert len(place.asked_at) == 1
    place = Place(StoreUnavailableError("no answer"))
    assert await retries().run(place.ask) == "done"


@pytest.mark.parametrize("error", [StoreAccessError("refused"), StoreFullError("full"), ValueError("a defect")])
@run_virtual
async def test_what_asking_again_does_not_cure_is_raised_at_once(error: Exception) -> None:
    """Nor is there a pause before it."""
    place = Place(error)
    begun = anyio.current_time()
    with pytest.raises(type(error)):
        await retries().run(place.ask)
    assert place.asked_at == [begun]
    assert anyio.current_time() == begun


@pytest.mark.parametrize("error", [StoreUnavailableError("down"), StoreThrottledError("busy")])
@run_virtual
async def test_an_outage_is_waited_for_as_long_as_was_said(error: Exception) -> None:
    """A place that is down for less costs time; one that is down for longer is an error, and not much later."""
    place = Place(*[error] * 10_000)
    begun = anyio.current_time()
    with pytest.raises(type(error)):
        await retries(outage_s=60.0).run(place.ask)
    assert 60.0 - PAUSE_MAX_S <= anyio.current_time() - begun <= 60.0
    pauses = [later - earlier for earlier, later in pairwise(place.asked_at)]
    assert pauses[0] <= PAUSE_MIN_S + 0.01
    assert max(pauses) <= PAUSE_MAX_S + 0.01
    assert len(place.asked_at) < 40


@run_virtual
async def test_all_who_wait_for_the_end_of_an_outage_share_one_budget() -> None:
    """A hundred requests that fail together do not become many times as many: so many repeats a second, in all."""
    place = Place(*[StoreUnavailableError("down")] * 1000)
    shared = retries(retries_per_s_max=5.0, outage_s=20.0)

    async def one() -> None:
        with pytest.raises(StoreUnavailableError):
            await shared.run(place.ask)

    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(one)
    assert 0 < len(place.asked_at) - 100 <= 20 * 5 + 2


@run_virtual
async def test_a_cancelled_request_is_not_sent_any_more() -> None:
    """Neither while it waits for its turn nor in the pause before it would be repeated."""
    failing = Place(*[StoreUnavailableError("down")] * 100)
    with anyio.move_on_after(1.0):
        await retries().run(failing.ask)
    asked = len(failing.asked_at)
    waiting = Place()
    slow = retries(rate=0.1)
    await slow.run(waiting.ask)
    with anyio.move_on_after(1.0):
        await slow.run(waiting.ask)
    await anyio.sleep(100)
    assert len(failing.asked_at) == asked
    assert len(waiting.asked_at) == 1
