"""An event loop on which waiting costs nothing: when nothing is ready, its clock jumps to the next timer.

    @run_virtual
    async def test_a_minute_passes() -> None:
        clock = VirtualClock()
        await anyio.sleep(60)
        assert clock.monotonic() == 60

The order of events is that of a real loop, without the chance in it. Work in threads takes real time and no virtual
time: while a call of `statebackend._tasks.in_thread` or of `loop.run_in_executor` is under way, the clock stands
still. Threads that came about in another way are not seen, and what happens on sockets takes no time at all: neither
belongs on this loop.
"""

import asyncio
import functools
import math
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final, ParamSpec, TypeVar, TypeVarTuple

from statebackend._tasks import hops_under_way

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

RESOLUTION_S: Final = 1e-6
"""Timers this close are due together. With the machine's 1 ns, floats stop telling a timer from its time in a year."""

THREAD_TIMEOUT_S: Final = 30.0
"""Real seconds after which a thread that does not come back is taken for one that never will."""


class DeadlockError(RuntimeError):
    """Nothing is ready, no timer is set, no thread is at work: what still waits will wait for ever. It is listed."""


class LeftoverTasksError(RuntimeError):
    """Tasks have outlived the coroutine that was run. They are listed."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio loop with a clock of its own, which starts at 0 and moves only when nothing else can.

    `run_forever` and what is built on it raise `DeadlockError` where a real loop would wait for ever, and
    `TimeoutError` when a thread has not come back within `THREAD_TIMEOUT_S` real seconds.
    """

    def __init__(self) -> None:
        self._now_s = 0.0
        self._executor_calls = 0
        self._settling: list[asyncio.Future[None]] = []
        super().__init__(_JumpingSelector(self))
        self._clock_resolution = RESOLUTION_S  # read by asyncio's own loop

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_s

    @property
    def threads_at_work(self) -> int:
        """Calls that run in a thread, or wait for one."""
        return self._executor_calls + hops_under_way(self)

    async def settle(self) -> None:
        """Wait until nothing more can happen at this time: every task waits, and no thread is at work."""
        settled = self.create_future()
        self._settling.append(settled)
        await settled

    def idle(self, seconds: float | None) -> bool:
        """Nothing is ready: let go who waits for that, or else move the clock. False where neither is possible."""
        if self._settling:
            settling, self._settling = self._settling, []
            for settled in settling:
                if not settled.done():
                    settled.set_result(None)
        elif seconds is not None:
            self._now_s += seconds
        else:
            return False
        return True

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """A timer; one at infinity, as `anyio.sleep_forever` sets it, will never fire and does not count as one."""
        if when == math.inf:
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """As ever; the clock stands still until the call returns."""
        future = super().run_in_executor(executor, func, *args)
        self._executor_calls += 1
        future.add_done_callback(self._executor_call_ended)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # as inherited
        """Wait for the executor's threads, for as long as it takes."""
        self._executor_calls += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self._executor_calls -= 1

    def _executor_call_ended(self, _: object) -> None:
        self._executor_calls -= 1


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for a timer, moves the loop's clock to it. Waits for threads only."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if self._loop.threads_at_work:
            return self._wait_for_thread()
        if not self._loop.idle(timeout):
            raise DeadlockError(f"nothing can happen any more, and these wait:{_list_tasks(self._loop)}")
        return []

    def _wait_for_thread(self) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(THREAD_TIMEOUT_S)
        if not ready:
            raise TimeoutError(f"a thread did not come back in {THREAD_TIMEOUT_S} s:{_list_tasks(self._loop)}")
        return ready


class VirtualClock:
    """A `Clock` that reads the loop it was made on, from any thread. `epoch_s` is the time of day when that began."""

    __slots__ = ("_epoch_s", "_loop")

    def __init__(self, *, epoch_s: float = 1_700_000_000.0) -> None:
        self._loop = asyncio.get_running_loop()
        self._epoch_s = epoch_s

    def monotonic(self) -> float:
        return self._loop.time()

    def time(self) -> float:
        return self._epoch_s + self._loop.time()


def run_virtual(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Make a synchronous function of a coroutine function: each call runs on a `VirtualTimeLoop` of its own.

    For tests, with or without a plugin, and below `hypothesis.given`. Fixtures have to be synchronous: an asynchronous
    one would live on another loop. Raises `LeftoverTasksError` where tasks outlive the coroutine.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            return runner.run(_leave_nothing(function(*args, **kwargs)))

    return run


async def settle() -> None:
    """Let everything happen that can happen now, on the `VirtualTimeLoop` that runs. The clock does not move."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop), "not on a virtual loop"
    await loop.settle()


async def _leave_nothing(main: Coroutine[Any, Any, T]) -> T:
    result = await main
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    if any(task is not this for task in asyncio.all_tasks(loop)):
        raise LeftoverTasksError(f"tasks have outlived what was run:{_list_tasks(loop)}")
    return result


def _list_tasks(loop: asyncio.AbstractEventLoop) -> str:
    return "".join(f"\n  {task.get_name()}: {_place(task)}" for task in asyncio.all_tasks(loop))


def _place(task: asyncio.Task[Any]) -> str:
    """Where a task waits: the functions from its outermost coroutine to the innermost, each with its line."""
    places: list[str] = []
    waiting: Any = task.get_coro()
    while (frame := getattr(waiting, "cr_frame", None)) is not None:
        places.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        waiting = waiting.cr_await
    return " > ".join(places)
