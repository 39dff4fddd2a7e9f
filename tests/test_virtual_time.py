"""The virtual loop: waiting costs nothing, threads are waited for, and what cannot go on is an error."""

import asyncio
import contextlib
import math
import threading
import time

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend._tasks import in_thread
from statebackend.abc import Clock
from statebackend.testing import virtual_time
from statebackend.testing.virtual_time import (
    RESOLUTION_S,
    DeadlockError,
    LeftoverTasksError,
    VirtualClock,
    VirtualTimeLoop,
    run_virtual,
    settle,
)

YEAR_S = 365 * 86_400.0


def test_a_year_passes_in_no_time() -> None:
    """A sleep of any length ends at the virtual time it should, and takes no real time: this test comes to its end."""

    @run_virtual
    async def sleep_a_year() -> float:
        await anyio.sleep(YEAR_S)
        return asyncio.get_running_loop().time()

    assert sleep_a_year() == pytest.approx(YEAR_S)


@given(st.lists(st.floats(0, 1000), max_size=20))
@run_virtual
async def test_sleepers_wake_in_the_order_of_their_times(delays: list[float]) -> None:
    """Every sleeper wakes at its time, to the clock's resolution, and none overtakes another."""
    woken: list[tuple[float, float]] = []
    clock = VirtualClock()

    async def sleep(delay_s: float) -> None:
        await anyio.sleep(delay_s)
        woken.append((delay_s, clock.monotonic()))

    async with anyio.create_task_group() as tasks:
        for delay_s in delays:
            tasks.start_soon(sleep, delay_s)
    assert [delay_s for delay_s, _ in woken] == sorted(delays)
    assert all(at == pytest.approx(delay_s, abs=RESOLUTION_S) for delay_s, at in woken)


@run_virtual
async def test_timeouts_are_virtual_too() -> None:
    """A deadline strikes at its virtual time, also for one who sleeps for ever."""
    with anyio.move_on_after(3600) as scope:
        await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert asyncio.get_running_loop().time() == 3600


@run_virtual
async def test_the_clock_tells_both_times_from_any_thread() -> None:
    """A `VirtualClock` is a `Clock`: monotonic time from 0, time of day from its epoch."""
    clock: Clock = VirtualClock(epoch_s=1000.0)
    await anyio.sleep(2.5)
    assert clock.monotonic() == 2.5
    assert await in_thread(clock.time, limiter=anyio.CapacityLimiter(1)) == 1002.5


@pytest.mark.parametrize("hop", ["in_thread", "executor"])
def test_the_clock_stands_still_while_a_thread_works(hop: str) -> None:
    """A timer that is due much later in virtual time does not overtake a thread that takes a little real time."""

    @run_virtual
    async def race() -> list[str]:
        order: list[str] = []
        released = threading.Event()

        async def thread() -> None:
            if hop == "in_thread":
                await in_thread(released.wait, limiter=anyio.CapacityLimiter(1))
            else:
                await asyncio.get_running_loop().run_in_executor(None, released.wait)
            order.append("thread")

        async def timer() -> None:
            await anyio.sleep(0.001)
            order.append("timer")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(thread)
            tasks.start_soon(timer)
            threading.Timer(0.05, released.set).start()  # the one place where a thread has to take real time
        return order

    assert race() == ["thread", "timer"]


@run_virtual
async def test_settling_lets_everything_happen_but_time() -> None:
    """All that is ready runs, threads end, chains of events go to their end; timers do not fire. Twice at once too."""
    happened: list[str] = []

    async def chain() -> None:
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
        happened.append("chain")
        await in_thread(time.sleep, 0.01, limiter=anyio.CapacityLimiter(1))
        happened.append("thread")
        await settle()
        happened.append("settled too")
        await anyio.sleep(1e-9)
        happened.append("timer")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(chain)
        await settle()
        assert happened[:2] == ["chain", "thread"]
        await settle()
        assert happened[:3] == ["chain", "thread", "settled too"]
        assert VirtualClock().monotonic() == 0
    assert happened[-1] == "timer"


def test_a_deadlock_is_an_error_that_says_who_waits() -> None:
    """Where a real loop would hang, the run ends with an error that names the waiting functions."""

    async def wait_for_godot() -> None:
        await anyio.Event().wait()

    @run_virtual
    async def play() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_for_godot)

    with pytest.raises(DeadlockError, match="wait_for_godot"):
        play()


def test_sleeping_for_ever_without_anyone_else_is_a_deadlock() -> None:
    """A timer at infinity is not a timer."""
    with pytest.raises(DeadlockError):
        run_virtual(anyio.sleep_forever)()


def test_a_thread_that_never_comes_back_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop waits for threads in real time, and not for ever."""
    released = threading.Event()
    loop = VirtualTimeLoop()
    with contextlib.closing(loop):
        hop = loop.create_task(_hop(released))
        with monkeypatch.context() as patch:
            patch.setattr(virtual_time, "THREAD_TIMEOUT_S", 0.01)
            with pytest.raises(TimeoutError, match="_hop"):
                loop.run_until_complete(hop)
        released.set()
        assert loop.run_until_complete(hop)


async def _hop(released: threading.Event) -> bool:
    return await in_thread(released.wait, limiter=anyio.CapacityLimiter(1))


def test_tasks_that_outlive_the_run_are_an_error() -> None:
    """A test cannot pass while something it started is still at work."""

    @run_virtual
    async def leak() -> asyncio.Task[None]:
        return asyncio.create_task(anyio.sleep(1))

    with pytest.raises(LeftoverTasksError):
        leak()


def test_an_error_of_the_coroutine_comes_out_as_it_is() -> None:
    """`run_virtual` adds nothing to what the coroutine returns or raises."""

    @run_virtual
    async def divide(by: int) -> float:
        return 1 / by

    assert divide(by=2) == 0.5
    with pytest.raises(ZeroDivisionError):
        divide(by=0)


def test_an_infinite_timer_can_be_cancelled() -> None:
    """The handle of a timer at infinity behaves as any other."""
    with contextlib.closing(VirtualTimeLoop()) as loop:
        handle = loop.call_later(math.inf, print)
        handle.cancel()
        assert handle.cancelled()


@pytest.mark.parametrize("threads", [True, False])
def test_the_library_does_without_threads_if_it_is_told(threads: bool) -> None:
    """Its own work in threads is done on the loop, in the order of the loop."""

    @run_virtual(threads=threads)
    async def thread_of_work() -> int:
        return await in_thread(threading.get_ident, limiter=anyio.CapacityLimiter(1))

    assert (thread_of_work() == threading.get_ident()) == (not threads)
