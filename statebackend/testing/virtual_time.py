"""An event loop with virtual time: when nothing is ready, its clock jumps to the next timer, so waiting is free.

    @run_virtual
    async def test_a_minute_passes() -> None:
        clock = VirtualClock()
        await anyio.sleep(60)
        assert clock.monotonic() == 60

Events come in the order of a real loop, without its randomness. Work in threads takes real time and no virtual time:
the clock stands still while a call of `statebackend._tasks.in_thread` or of `loop.run_in_executor` runs. Threads
started in other ways are not seen, and socket traffic takes no virtual time: neither belongs on this loop.
"""

import asyncio
import functools
import math
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final, ParamSpec, TypeVar, TypeVarTuple, overload

import anyio.lowlevel

from statebackend._tasks import hops_under_way, simulate_threads

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

RESOLUTION_S: Final = 1e-6
"""Timers this close fire together. At the machine's 1 ns, floats cannot tell a timer from its time after a year."""

THREAD_TIMEOUT_S: Final = 30.0
"""Real seconds after which a thread is considered hung."""


class DeadlockError(RuntimeError):
    """Nothing is ready, no timer is set, no thread runs: the listed tasks would wait for ever."""


class LeftoverTasksError(RuntimeError):
    """The listed tasks have outlived the coroutine that was run."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose clock starts at 0 and moves only when nothing else can happen.

    `run_forever` and the methods built on it raise `DeadlockError` if a real loop would wait for ever, and
    `TimeoutError` if a thread has not returned within `THREAD_TIMEOUT_S` real seconds.
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
        """Wait until nothing more can happen at this time: all tasks wait, and no thread runs."""
        settled = self.create_future()
        self._settling.append(settled)
        await settled

    def idle(self, seconds: float | None) -> bool:
        """Wake the callers of `settle`, or else move the clock. Return false if neither is possible."""
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
        """Set a timer. One at infinity, as set by `anyio.sleep_forever`, never fires and does not count as one."""
        if when == math.inf:
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """As in asyncio. The clock stands still until the call returns."""
        future = super().run_in_executor(executor, func, *args)
        self._executor_calls += 1
        future.add_done_callback(self._executor_call_ended)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # as inherited
        """Wait for the executor's threads, without a bound."""
        self._executor_calls += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self._executor_calls -= 1

    def _executor_call_ended(self, _: object) -> None:
        self._executor_calls -= 1


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that moves the loop's clock to the next timer in place of waiting for it. Waits for threads only."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout == 0 and not self._loop.threads_at_work:
            return []  # no socket to ask for, and what is ready is ready
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if self._loop.threads_at_work:
            return self._wait_for_thread()
        if not self._loop.idle(timeout):
            raise DeadlockError(f"nothing more can happen, and these tasks wait:{_list_tasks(self._loop)}")
        return []

    def _wait_for_thread(self) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(THREAD_TIMEOUT_S)
        if not ready:
            raise TimeoutError(f"a thread did not return within {THREAD_TIMEOUT_S} s:{_list_tasks(self._loop)}")
        return ready


class VirtualClock:
    """A `Clock` that reads the loop it was made on, from any thread. `epoch_s`: the time of day at its start."""

    __slots__ = ("_epoch_s", "_loop")

    def __init__(self, *, epoch_s: float = 1_700_000_000.0) -> None:
        self._loop = asyncio.get_running_loop()
        self._epoch_s = epoch_s

    def monotonic(self) -> float:
        return self._loop.time()

    def time(self) -> float:
        return self._epoch_s + self._loop.time()


@overload
def run_virtual(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]: ...


@overload
def run_virtual(*, threads: bool) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, T]]: ...


def run_virtual(function: Any = None, *, threads: bool = True) -> Any:
    """Turn a coroutine function into a synchronous one: each call runs on a `VirtualTimeLoop` of its own.

    `@run_virtual(threads=False)`: what the library would do in threads is done on the loop, so that a run is the same
    each time, and a file or RocksDB is no matter of real time; `loop.run_in_executor` of your own has its threads.

    For tests, with or without a plugin, and below `hypothesis.given`. Fixtures must be synchronous: an asynchronous one
    would run on another loop. Raises `LeftoverTasksError` if tasks outlive the coroutine.
    """
    if function is None:
        return functools.partial(run_virtual, threads=threads)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            if not threads:
                simulate_threads(runner.get_loop(), anyio.lowlevel.checkpoint)
            return runner.run(_leave_nothing(function(*args, **kwargs)))

    return run


async def settle() -> None:
    """Let everything happen that can happen now, on the running `VirtualTimeLoop`. The clock does not move."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop), "not on a virtual loop"
    await loop.settle()


async def _leave_nothing(main: Coroutine[Any, Any, T]) -> T:
    result = await main
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    if any(task is not this for task in asyncio.all_tasks(loop)):
        raise LeftoverTasksError(f"tasks have outlived the coroutine:{_list_tasks(loop)}")
    return result


def _list_tasks(loop: asyncio.AbstractEventLoop) -> str:
    return "".join(f"\n  {task.get_name()}: {_place(task)}" for task in asyncio.all_tasks(loop))


def _place(task: asyncio.Task[Any]) -> str:
    """The place at which a task waits: its functions from the outermost coroutine to the innermost, with lines."""
    places: list[str] = []
    waiting: Any = task.get_coro()
    while (frame := getattr(waiting, "cr_frame", None)) is not None:
        places.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        waiting = waiting.cr_await
    return " > ".join(places)
