"""Concurrency: worker threads, task groups, and awaiting code that is not ours.

Every hop to a thread goes through `in_thread`. A thread that has started is always waited for, so no write continues
after its caller was told that the call is over. The limiters bound how many threads a kind of work may use.
"""

import asyncio
import logging
import math
import os
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, TypeVar, TypeVarTuple, cast
from weakref import WeakKeyDictionary

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.abc import TaskGroup

from statebackend.errors import ForkedProcessError, InputError

Args = TypeVarTuple("Args")
Item = TypeVar("Item")
T = TypeVar("T")

_logger = logging.getLogger(__name__)

BREATH_S: Final = 0.0001
"""Seconds to sleep: long enough for another thread to wake up."""


class HomeProcess:
    """The process in which something was opened, for it to refuse work in one that is forked from that."""

    def __init__(self) -> None:
        self._pid: Final = os.getpid()

    def check(self) -> None:
        """Raise `ForkedProcessError` in any other process. There threads would be waited for that do not exist."""
        if os.getpid() != self._pid:
            raise ForkedProcessError(
                'opened in the process that this one was forked from: start processes with "spawn", and open in them',
                opened_in=self._pid,
                pid=os.getpid(),
            )


class HomeLoop(HomeProcess):
    """As `HomeProcess`, and the event loop in it, for it to refuse to be awaited on another one."""

    def __init__(self) -> None:
        super().__init__()
        self._loop: Final = asyncio.get_running_loop()

    def check_loop(self) -> None:
        """As `check`; raise `InputError` on any other loop: what is awaited there would wake up on the first one."""
        self.check()
        if asyncio.get_running_loop() is not self._loop:
            raise InputError(
                "awaited on another event loop than the one that opened it: hand the call over there, by"
                " asyncio.run_coroutine_threadsafe"
            )


_hops: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, int]] = WeakKeyDictionary()
_pauses: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Callable[[], Awaitable[None]]]] = WeakKeyDictionary()


class StrayCancellationError(RuntimeError):
    """Foreign code raised `CancelledError` without having been cancelled: a defect there. Do not retry."""


async def in_thread(
    function: Callable[[*Args], T],
    *args: *Args,
    limiter: anyio.CapacityLimiter,
    abandon_after_s: float | None = None,
) -> T:
    """Run blocking `function(*args)` in a worker thread, at most `limiter.total_tokens` at a time.

    A call cancelled while it waits for a thread has not run at all. Once started, it runs to its end, and only then is
    the cancellation delivered. This holds for anyio's scopes and task groups; asyncio's own `task.cancel()` of the
    waiting task breaks through, which is what `finish` is for.

    `abandon_after_s`: for a disk that may hang for ever. This many seconds after the cancellation the thread is left
    behind: it no longer counts against the limiter and dies with the process. Use it only where a late write is
    harmless.
    """
    loop = asyncio.get_running_loop()
    if (pause := _pauses.get(loop)) is not None:
        return await _on_loop(pause, function, *args, limiter=limiter)
    _hops[loop] = _hops.get(loop, 0) + 1
    try:
        if abandon_after_s is None:
            return await anyio.to_thread.run_sync(function, *args, abandon_on_cancel=False, limiter=limiter)
        return await _abandonable(function, *args, limiter=limiter, after_s=abandon_after_s)
    finally:
        _hops[loop] -= 1


async def _abandonable(
    function: Callable[[*Args], T], *args: *Args, limiter: anyio.CapacityLimiter, after_s: float
) -> T:
    results: list[T] = []
    failures: list[Exception] = []
    ended = anyio.Event()
    patience = anyio.CancelScope(shield=True)

    async def run() -> None:
        with patience:
            await _daemon(lambda: results.append(function(*args)), failures)
        ended.set()

    # The limiter outside the shield: a call that is cancelled in the queue must not run after all.
    async with limiter, anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        try:
            await ended.wait()
        except BaseException:
            patience.deadline = anyio.current_time() + after_s
            raise
    if failures:
        raise failures[0]
    return results[0]


async def _daemon(function: Callable[[], None], failures: list[Exception]) -> None:
    """Run `function` in a daemon thread of its own. If this call is cancelled the thread continues alone."""
    loop, ended = asyncio.get_running_loop(), anyio.Event()

    def run() -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001  # handed to the caller
            failures.append(error)
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=run, name="statebackend-disk", daemon=True).start()
    await ended.wait()


async def finish(function: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
    """Return the result of `function(*args)`, which runs to its end however its caller is cancelled.

    A cancellation, by a scope or by asyncio's `task.cancel()`, once or repeatedly, is delivered after the function has
    ended, and the result is then lost. So the function itself must store whatever must not be lost. Raises what the
    function raises; a stray `CancelledError` becomes a `StrayCancellationError`.
    """
    results: list[T] = []
    failures: list[Exception] = []
    # In a task of its own: a shield stops the scopes around it, but not `task.cancel()` of the task it runs in.
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_shielded, partial(function, *args), results, failures)
    if failures:
        raise failures[0]
    return results[0]


async def _shielded(function: Callable[[], Awaitable[T]], results: list[T], failures: list[Exception]) -> None:
    """A part of `finish`, and no closure there: what a closure refers to stays with the traceback of an error."""
    with anyio.CancelScope(shield=True):
        try:
            results.append(await foreign(function()))
        except Exception as error:  # noqa: BLE001  # raised by `finish`: a task group would wrap it
            failures.append(error)


def breathe() -> None:
    """Give other threads the interpreter; a worker thread that computes for long calls this about 1,000 times a second.

    CPython switches threads every 5 ms only, so without this the loop would lose up to 5 ms each time it wakes up.
    """
    time.sleep(BREATH_S)  # noqa: TID251  # never on the loop; after a sleep of 0 this thread would get the lock back first


def simulate_threads(loop: asyncio.AbstractEventLoop, pause: Callable[[], Awaitable[None]]) -> None:
    """Make `in_thread` on `loop` run its function on the loop itself, after a `pause` that stands for the hop.

    For simulations, where the order in which threads end would be chance. The guarantees of `in_thread` still hold.
    """
    _pauses[loop] = pause


async def _on_loop(
    pause: Callable[[], Awaitable[None]],
    function: Callable[[*Args], T],
    *args: *Args,
    limiter: anyio.CapacityLimiter,
) -> T:
    await anyio.lowlevel.checkpoint()
    async with limiter:
        try:
            with anyio.CancelScope(shield=True):
                await pause()
        except asyncio.CancelledError:
            function(*args)  # once started it runs to its end, even when `task.cancel()` has broken through
            raise
        return function(*args)


def hops_under_way(loop: asyncio.AbstractEventLoop) -> int:
    """Calls of `in_thread` on `loop` that have not returned. While there are any, a virtual clock must not jump."""
    return _hops.get(loop, 0)


async def foreign(call: Awaitable[T]) -> T:
    """Await code that is not ours: return the result of `call`, or raise its error.

    A `CancelledError` without a cancellation becomes a `StrayCancellationError`. Let through, it would silently end the
    nearest task group, and the code after the group would run as if all had gone well.
    """
    try:
        return await call
    except asyncio.CancelledError as error:
        if _is_cancelled():
            raise
        raise StrayCancellationError("foreign code raised CancelledError, and nobody had cancelled it") from error


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return anyio.current_effective_deadline() == -math.inf or (task is not None and task.cancelling() > 0)


@asynccontextmanager
async def open_tasks() -> AsyncGenerator[TaskGroup]:
    """Open a task group for work behind a user's block; tasks still running when the block ends are cancelled, awaited.

    An exception of the block is raised as it is; anyio's own group would wrap it. Raises `StrayCancellationError` if a
    task's stray `CancelledError` cut the block short; anyio's own group would continue as if the block had ended.
    """
    failure: Exception | None = None
    ended = False
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except Exception as error:  # noqa: BLE001  # raised below, out of the group
            failure = error
        ended = True
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not ended:
        raise StrayCancellationError(
            "a task raised CancelledError, and nobody had cancelled it: the block was cut short"
        )


@asynccontextmanager
async def open_tasks_apart() -> AsyncGenerator[TaskGroup]:
    """As `open_tasks`, but the group lies in a task of its own: it adds no scope around the caller's block.

    For what one caller may open by the hundred, one within the other: anyio asks every scope around a call whether that
    is cancelled. An unexpected error of a task ends the group at once, so that nothing can be started in it any more,
    and is raised when the block has ended, or logged if that has raised; it does not cut the block short.
    """
    begun, ended = asyncio.Event(), asyncio.Event()
    groups: list[TaskGroup] = []

    async def host() -> None:
        async with anyio.create_task_group() as tasks:
            groups.append(tasks)
            begun.set()  # and no result of a future, which is cancelled with the only one who waits for it
            await ended.wait()
            tasks.cancel_scope.cancel()

    hosting = asyncio.create_task(host())  # noqa: TID251  # owned by this block, which waits for it
    try:
        await begun.wait()
        yield groups[0]
    except BaseException:
        if (error := await _error_at_end(hosting, ended)) is not None:
            _logger.warning("a task beside the block has failed, too", exc_info=error)
        raise
    if (error := await _error_at_end(hosting, ended)) is not None:
        raise error


async def _error_at_end(hosting: asyncio.Task[None], ended: asyncio.Event) -> BaseException | None:
    ended.set()
    try:
        await _outlast(hosting)
    finally:  # also if the wait is cancelled, or the loop would tell of an error that nobody has asked for
        error = None if hosting.cancelled() else hosting.exception()
    return error


async def _outlast(task: asyncio.Task[None]) -> None:
    """Wait until the task has ended, however the caller is cancelled; only then is the cancellation delivered."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            with anyio.CancelScope(shield=True):
                await asyncio.wait((task,))
        except asyncio.CancelledError as error:  # by `task.cancel()`, which breaks through a shield
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def in_order(
    items: Sequence[Item],
    fetch: Callable[[Item], Awaitable[T]],
    consume: Callable[[Item, T], Awaitable[None]],
    *,
    concurrency_max: int,
) -> None:
    """Fetch items concurrently, and consume the results one by one in the order of `items`.

    At most `concurrency_max` items are being fetched or waiting to be consumed. The first error of either function, in
    the order of `items`, cancels the rest and is raised as it is.
    """
    results: list[T | Exception | None] = [None] * len(items)
    ready = [anyio.Event() for _ in items]
    room = anyio.Semaphore(concurrency_max)
    failure: Exception | None = None

    async def fetch_one(index: int) -> None:
        try:
            results[index] = await foreign(fetch(items[index]))
        except Exception as error:  # noqa: BLE001  # raised by the consumer, in its turn
            results[index] = error
        ready[index].set()

    async def fetch_all(tasks: TaskGroup) -> None:
        for index in range(len(items)):
            await room.acquire()
            tasks.start_soon(fetch_one, index)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fetch_all, tasks)
        try:
            for index, item in enumerate(items):
                await ready[index].wait()
                result, results[index] = results[index], None
                if isinstance(result, Exception):
                    raise result
                await foreign(consume(item, cast("T", result)))
                room.release()
        except Exception as error:  # noqa: BLE001  # raised below: a task group would wrap it
            failure = error
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def one_ahead(fetch: Callable[[], Awaitable[T | None]], consume: Callable[[T], Awaitable[None]]) -> None:
    """Consume what is fetched, one after the other until that is `None`; the next one is fetched meanwhile.

    An error of either function is raised as it is, once the other one has ended.
    """
    item = await fetch()
    while item is not None:
        found: list[T | None] = []
        failures: list[Exception] = []

        async def fetch_next(found: list[T | None] = found, failures: list[Exception] = failures) -> None:
            try:
                found.append(await foreign(fetch()))
            except Exception as error:  # noqa: BLE001  # raised below: a task group would wrap it
                failures.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fetch_next)
            try:
                await foreign(consume(item))
            except Exception as error:  # noqa: BLE001  # as above
                failures.insert(0, error)
        if failures:
            raise failures[0]
        item = found[0]
