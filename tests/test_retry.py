"""Hedged attempts, rule by rule: numbers such as 8.4 are sections of the reference the rules come from."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend._retry import AttemptTimeoutError, Race, RetryPolicy
from statebackend.errors import StoreFullError, StoreUnavailableError
from statebackend.testing.virtual_time import VirtualClock, run_virtual

IO_ERROR = StoreUnavailableError("no answer")
FATAL = ValueError("a bug")
TIMED_OUT = AttemptTimeoutError()


@dataclass
class Script:
    """An action whose attempt number n takes `steps[n - 1]` seconds and then returns n, or raises what goes with it."""

    steps: list[tuple[float, BaseException | None]]
    begun: list[tuple[int, float]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    discarded: list[int] = field(default_factory=list)

    async def act(self, number: int) -> int:
        self.begun.append((number, VirtualClock().monotonic()))
        seconds, error = self.steps[number - 1]
        try:
            await anyio.sleep(seconds)
        except anyio.get_cancelled_exc_class():
            self.cancelled.append(number)
            raise
        self.ended.append(number)
        if error is not None:
            raise error
        return number

    async def discard(self, result: int) -> None:
        self.discarded.append(result)


@asynccontextmanager
async def open_race(script: Script, **policy: Any) -> AsyncGenerator[Race[int]]:
    """A race, all of whose attempts have ended when the block ends."""
    async with anyio.create_task_group() as tasks:
        race = Race(script.act, policy=RetryPolicy(**policy), discard=script.discard, tasks=tasks)
        yield race
        await race.ended.wait()


# ------------------------------------------------------------------------------------------------------- 8.1 the policy


@pytest.mark.parametrize(
    ("attempt", "error", "pause_s"),
    [
        (1, IO_ERROR, 0.5),
        (2, IO_ERROR, 0.5),
        (3, IO_ERROR, None),
        (1, TIMED_OUT, 0.0),
        (2, TIMED_OUT, 0.0),
        (3, TIMED_OUT, None),
        (1, TimeoutError(), 0.5),  # of the store's own: an I/O error like others
        (1, FATAL, None),
        (3, FATAL, None),
    ],
)
def test_the_policy_says_when_the_next_attempt_begins(attempt: int, error: Exception, pause_s: float | None) -> None:
    """8.1: n >= max stops; a timeout is followed at once; an I/O error after the delay; anything else stops."""
    assert RetryPolicy(attempts_max=3, timeout_s=1, delay_s=0.5).pause_s(attempt, error) == pause_s


@run_virtual
async def test_no_timeout_means_waiting_as_long_as_it_takes() -> None:
    """8.1: a timeout of 0 is none."""
    script = Script([(1e6, None)])
    async with open_race(script, timeout_s=0) as race:
        assert await race.run() == (1, 1)


@run_virtual
async def test_one_attempt_means_no_retry() -> None:
    """8.1, policy `none`: a single attempt is final."""
    script = Script([(0, IO_ERROR)])
    async with open_race(script, attempts_max=1) as race:
        with pytest.raises(StoreUnavailableError):
            await race.run()
    assert len(script.begun) == 1


@run_virtual
async def test_an_io_error_waits_and_retries() -> None:
    """Row: BatchingStateChangeUploadSchedulerTest.testRetry. Four I/O errors, success in attempt 5, no failure seen."""
    script = Script([(1, IO_ERROR)] * 4 + [(1, None)])
    async with open_race(script, attempts_max=5, timeout_s=0, delay_s=0.5) as race:
        assert await race.run() == (5, 5)
    assert script.begun == [(number, (number - 1) * 1.5) for number in range(1, 6)]
    assert script.discarded == []


@run_virtual
async def test_other_errors_are_final() -> None:
    """8.1: an error that is not an I/O error is not retried, and comes out as it is."""
    script = Script([(0, FATAL), (0, None)])
    async with open_race(script) as race:
        with pytest.raises(ValueError, match="a bug") as caught:
            await race.run()
    assert caught.value is FATAL
    assert len(script.begun) == 1


@run_virtual
async def test_the_last_timeout_fails_the_action() -> None:
    """8.1, FLINK-26396: the last attempt has the same timeout, and running into it fails the action."""
    script = Script([(1e9, None)] * 3)
    clock = VirtualClock()
    async with open_race(script, attempts_max=3, timeout_s=1) as race:
        with pytest.raises(AttemptTimeoutError):
            await race.run()
        assert clock.monotonic() == 3


# ---------------------------------------------------------------------------------------------------------- outages


@run_virtual
async def test_in_an_outage_the_last_attempt_is_not_late() -> None:
    """A store that repeats requests itself is silent while it is away: the first attempt to come through wins."""
    script = Script([(50, None), (55, None), (55, None)])
    async with open_race(script, attempts_max=3, timeout_s=1, outage_s=60) as race:
        assert await race.run() == (1, 1)
    assert [number for number, _ in script.begun] == [1, 2, 3]


@run_virtual
async def test_when_the_outage_has_lasted_too_long_the_last_attempt_is_late() -> None:
    """Counted from the first attempt, whenever the last one began."""
    script = Script([(1e9, None)] * 3)
    clock = VirtualClock()
    async with open_race(script, attempts_max=3, timeout_s=1, outage_s=60) as race:
        with pytest.raises(AttemptTimeoutError):
            await race.run()
        assert clock.monotonic() == 60


@pytest.mark.parametrize(
    ("error", "elapsed_s", "pause_s"),
    [
        (IO_ERROR, 0.0, 0.5),
        (IO_ERROR, 59.9, 0.1),
        (IO_ERROR, 60.0, None),
        (StoreFullError("no room"), 0.0, None),
        (OSError("broken"), 0.0, None),
    ],
)
def test_an_outage_is_what_may_end_by_itself(error: Exception, elapsed_s: float, pause_s: float | None) -> None:
    """A store that is away comes back; one that is full needs somebody to make room, who has to be told."""
    found = RetryPolicy(attempts_max=3, delay_s=0.5, outage_s=60).pause_s(3, error, elapsed_s)
    assert found == (None if pause_s is None else pytest.approx(pause_s))


# ------------------------------------------------------------------------------------------------ 8.3, 8.4 the attempts


@run_virtual
async def test_a_timeout_starts_another_attempt_beside_the_first() -> None:
    """8.3: a timeout cancels nothing; the clock of each attempt starts when the attempt does."""
    script = Script([(2.5, None), (9, None), (9, None)])
    async with open_race(script, attempts_max=3, timeout_s=1) as race:
        assert await race.run() == (1, 1)
        assert script.begun == [(1, 0), (2, 1), (3, 2)]
        assert script.cancelled == []


@run_virtual
async def test_the_first_to_finish_wins_even_if_it_is_the_late_one() -> None:
    """8.4: attempt 1 times out, attempt 2 starts, attempt 1 finishes first: 1 wins, the result of 2 is discarded.

    Row: section 30, retry: attempt 1 times out, attempt 2 starts, attempt 1 finishes first.
    """
    script = Script([(1.5, None), (1, None)])
    async with open_race(script, attempts_max=2, timeout_s=1) as race:
        assert await race.run() == (1, 1)
        assert script.discarded == []  # not yet: it is still at work
    assert script.discarded == [2]


@run_virtual
async def test_an_attempt_that_has_what_counts_is_not_late_at_first() -> None:
    """Spared, it has twice the time; then it is as late as any other: nothing may hang for ever."""
    script = Script([(1.9, None)])
    async with open_race(script, attempts_max=2, timeout_s=1) as race:
        race.spare(1)
        assert await race.run() == (1, 1)
    script = Script([(100, None), (0.5, None)])
    async with open_race(script, attempts_max=2, timeout_s=1) as race:
        race.spare(1)
        assert await race.run() == (2, 2)
    assert [begun for _, begun in script.begun] == [1.9, 3.9]


@run_virtual
async def test_a_late_loser_is_discarded() -> None:
    """8.4, FLINK-26485: attempt 1 times out and finishes after attempt 2 won: its result is discarded."""
    script = Script([(2, None), (0.5, None)])
    async with open_race(script, attempts_max=3, timeout_s=1) as race:
        assert await race.run() == (2, 2)
    assert script.discarded == [1]


@run_virtual
async def test_a_failure_stands_when_an_attempt_succeeds_after_all() -> None:
    """8.4: everything timed out, the action failed, then one succeeds: the failure stands, the result is discarded.

    Row: section 30, retry: all attempts time out, then attempt 1 succeeds.
    """
    script = Script([(2.5, None), (9, None)])
    async with open_race(script, attempts_max=2, timeout_s=1) as race:
        with pytest.raises(AttemptTimeoutError):
            await race.run()
        assert script.ended == []  # 8.4: it fails while old attempts still run
    assert script.discarded == [1]


@run_virtual
async def test_the_late_error_of_a_timed_out_attempt_is_ignored() -> None:
    """8.4: attempt 1 timed out and later throws: it is judged already, and starts no further attempt.

    Row: section 30, retry: attempt 1 times out and later throws.
    """
    script = Script([(1.2, FATAL), (0.9, None), (0, None)])
    async with open_race(script, attempts_max=3, timeout_s=1) as race:
        assert await race.run() == (2, 2)
    assert [number for number, _ in script.begun] == [1, 2]


@pytest.mark.parametrize(("first_s", "outcome", "decided_s"), [(1.5, 1, 1.5), (9.0, None, 3.0)])
@run_virtual
async def test_attempts_that_wait_for_a_thread_are_late_all_the_same(
    first_s: float, outcome: int | None, decided_s: float
) -> None:
    """8.4: with fewer threads than attempts they queue, and timeouts are noticed on time: no thread is needed for that.

    Row: section 30, retry: pool smaller than the number of hedged attempts.
    """
    pool = anyio.CapacityLimiter(1)

    class Pooled(Script):
        async def act(self, number: int) -> int:
            async with pool:
                return await super().act(number)

    script = Pooled([(first_s, None), (9.0, None), (9.0, None)])
    async with open_race(script, attempts_max=3, timeout_s=1) as race:
        if outcome is None:
            with pytest.raises(AttemptTimeoutError):
                await race.run()
        else:
            assert (await race.run())[0] == outcome
        assert VirtualClock().monotonic() == decided_s
    assert pool.borrowed_tokens == 0


@run_virtual
async def test_the_newest_attempt_decides_about_failure() -> None:
    """8.4: an attempt that timed out may still win, but nobody waits for it once the newest one has failed for good."""
    script = Script([(1.8, None), (0.5, FATAL)])
    async with open_race(script, attempts_max=3, timeout_s=1) as race:
        with pytest.raises(ValueError, match="a bug"):
            await race.run()
    assert script.discarded == [1]


@run_virtual
async def test_an_attempt_that_is_due_after_the_decision_does_not_begin() -> None:
    """8.3: `if completed: return`. And the pause before it does not hold up the end."""
    script = Script([(1.2, None), (0.1, IO_ERROR), (0, None)])
    async with open_race(script, attempts_max=3, timeout_s=1, delay_s=100) as race:
        assert await race.run() == (1, 1)
        await race.ended.wait()
        assert VirtualClock().monotonic() < 2
    assert [number for number, _ in script.begun] == [1, 2]


@run_virtual
async def test_a_loser_that_does_not_end_is_cancelled() -> None:
    """Bounded: a hung attempt holds the bytes of its segment, so it is cancelled some time after it has lost."""
    script = Script([(1e9, None), (0.5, None)])
    clock = VirtualClock()
    async with open_race(script, attempts_max=2, timeout_s=1) as race:
        assert await race.run() == (2, 2)
        assert clock.monotonic() == 1.5
    assert script.cancelled == [1]
    assert clock.monotonic() == 2.5


@run_virtual
async def test_a_discard_may_take_its_time() -> None:
    """A loser that has finished is discarded to the end: the bound is on the attempt, not on cleaning up after it."""
    done: list[int] = []

    async def discard(result: int) -> None:
        await anyio.sleep(100)
        done.append(result)

    script = Script([(1.5, None), (0.1, None)])
    async with anyio.create_task_group() as tasks:
        race = Race(script.act, policy=RetryPolicy(attempts_max=2), discard=discard, tasks=tasks)
        assert await race.run() == (2, 2)
    assert done == [1]


# --------------------------------------------------------------------------------------------------------- cancellation


@run_virtual
async def test_a_cancelled_race_starts_nothing_and_keeps_nothing() -> None:
    """The caller is gone: the attempt at work has lost, its result is discarded, no other begins."""
    script = Script([(2.5, None), (9, None), (9, None)])
    async with open_race(script, attempts_max=3, timeout_s=2) as race:
        with anyio.move_on_after(1):
            await race.run()
    assert script.discarded == [1]
    assert [number for number, _ in script.begun] == [1]


@pytest.mark.parametrize("first", ["cancelled", "won"])
@run_virtual
async def test_a_race_cancelled_as_it_is_won_discards_the_winner(first: str) -> None:
    """No moment exists in which a result belongs to nobody, in whichever order the two come."""
    discarded: list[str] = []

    async def win() -> str:
        await anyio.sleep(1)
        if first == "cancelled":
            caller.cancel()
        else:  # after the decision, and before the caller has come to know of it
            asyncio.get_running_loop().call_soon(caller.cancel)
        return "result"

    async def discard(result: str) -> None:
        discarded.append(result)

    async with anyio.create_task_group() as tasks:
        race = Race(lambda _: win(), policy=RetryPolicy(), discard=discard, tasks=tasks)
        caller = asyncio.ensure_future(race.run())
        await asyncio.wait([caller])
    assert caller.cancelled()
    assert discarded == ["result"]


@run_virtual
async def test_the_end_of_the_tasks_ends_the_attempts() -> None:
    """Attempts belong to `tasks`: when it is cancelled they are, and `run` too."""
    script = Script([(1e9, None)])
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            race = Race(script.act, policy=RetryPolicy(timeout_s=0), discard=script.discard, tasks=tasks)
            tasks.start_soon(race.run)
            await anyio.sleep(5)
            scope.cancel()
    assert script.cancelled == [1]
    assert race.ended.is_set()


# --------------------------------------------------------------------------------------------------------------- in all

STEPS = st.lists(
    st.tuples(st.integers(0, 40).map(lambda tenths: tenths / 10 + 0.01), st.sampled_from([None, IO_ERROR, FATAL])),
    min_size=4,
    max_size=4,
)


@given(STEPS, st.integers(1, 4), st.sampled_from([0.0, 1.0, 2.0]), st.sampled_from([0.0, 0.5, 3.0]))
@run_virtual
async def test_at_most_one_result_counts_and_the_others_are_discarded(
    steps: list[tuple[float, BaseException | None]], attempts_max: int, timeout_s: float, delay_s: float
) -> None:
    """Whatever attempts do: every result is the winner's or discarded; the winner is the first of all to finish.

    And the race is decided no later than its policy says: every attempt has `timeout_s`, every pause is `delay_s`.
    """
    script = Script(steps)
    clock = VirtualClock()
    won: int | None = None
    async with open_race(script, attempts_max=attempts_max, timeout_s=timeout_s, delay_s=delay_s) as race:
        try:
            won, number = await race.run()
        except (OSError, ValueError):
            pass
        else:
            assert won == number
        decided_s = clock.monotonic()
    results = [number for number in script.ended if steps[number - 1][1] is None]
    assert sorted(script.discarded + ([won] if won is not None else [])) == sorted(results)
    assert won is None or won == results[0]
    assert len(script.begun) <= attempts_max
    if timeout_s > 0:
        assert decided_s <= attempts_max * (timeout_s + delay_s) + 1e-6
        assert clock.monotonic() <= decided_s + 2 * timeout_s + 1e-6
