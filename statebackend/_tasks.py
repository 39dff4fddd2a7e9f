"""Ways to run things beside each other: in worker threads, in tasks, and in code that others wrote.

Every hop to a thread goes through `in_thread`: a thread that has begun is always waited for, so no write goes on behind
the back of a caller who was told that the call is over. The limiters bound how many threads a kind of work may use.
"""

import asyncio
import math
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar, TypeVarTuple, cast
from weakref import WeakKeyDictionary

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.abc import TaskGroup

Args = TypeVarTuple("Args")
Item = TypeVar("Item")
T = TypeVar("T")

_hops: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, int]] = WeakKeyDictionary()
_pauses: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Callable[[], Awaitable[None]]]] = WeakKeyDictionary()


class StrayCancellationError(RuntimeError):
    """Foreign code raised `CancelledError`, and nobody had cancelled it. A defect there; final, not to be retried."""


async def in_thread(
    function: Callable[[*Args], T],
    *args: *Args,
    limiter: anyio.CapacityLimiter,
    abandon_after_s: float | None = None,
) -> T:
    """Run blocking `function(*args)` in a worker thread, at most `limiter.total_tokens` at a time.

    A cancelled call that still waits for a thread has not run at all; one that has begun runs to its end first, and
    only then is the cancellation delivered. That holds within anyio's scopes and task groups; asyncio's own
    `task.cancel()` of the very task that waits here breaks through, and is what `finish` is for.

    `abandon_after_s`: so long after the cancellation a thread that has not ended is left behind, for a disk that may
    hang for ever. It holds none of the limiter then, and dies with the process. Only where it harms nobody.
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
            async with limiter:
                await _daemon(lambda: results.append(function(*args)), failures)
        ended.set()

    async with anyio.create_task_group() as tasks:
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
    """Run `function` in a thread of its own, which keeps no process from ending. Cancelled, it goes on alone."""
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
    """The result of `function(*args)`, which runs to its end however its caller is cancelled.

    By a scope or by asyncio's `task.cancel()`, once or again: the cancellation is delivered when the function has
    ended, and its result is then lost. So what must not be lost, the function itself puts where it belongs. Raises what
    the function raises; a stray `CancelledError` of its own as `StrayCancellationError`.
    """
    results: list[T] = []
    failures: list[Exception] = []

    async def run() -> None:
        with anyio.CancelScope(shield=True):
            try:
                results.append(await foreign(function(*args)))
            except Exception as error:  # noqa: BLE001  # raised below: a task group would wrap it
                failures.append(error)

    # A task of its own: a shield keeps out the scopes around it, not a cancellation of its very task.
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
    if failures:
        raise failures[0]
    return results[0]


def simulate_threads(loop: asyncio.AbstractEventLoop, pause: Callable[[], Awaitable[None]]) -> None:
    """From now on `in_thread` on `loop` uses none: the function runs on the loop, after a `pause` for its hop.

    For a simulation, in which the order in which threads end would be chance. What is promised of threads holds.
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
            function(*args)  # what has begun runs to its end, also when `task.cancel()` has broken through to us
            raise
        return function(*args)


def hops_under_way(loop: asyncio.AbstractEventLoop) -> int:
    """Calls of `in_thread` on `loop` that have not returned. While there are any, a clock of ours must not jump."""
    return _hops.get(loop, 0)


async def foreign(call: Awaitable[T]) -> T:
    """Await code that others wrote: the result of `call`, or its error.

    A `CancelledError` that nobody here asked for becomes a `StrayCancellationError`. Let through, it would end the
    nearest task group without a word, and what follows the group would run as if all had gone well.
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
    """A task group for work behind a user's block: what still runs when the block ends is cancelled and awaited.

    An exception of the block comes out as it is; anyio's own group would wrap it. Raises `StrayCancellationError` where
    a task's stray `CancelledError` cut the block short; anyio's own group would go on as if the block had ended.
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


async def in_order(
    items: Sequence[Item],
    fetch: Callable[[Item], Awaitable[T]],
    consume: Callable[[Item, T], Awaitable[None]],
    *,
    concurrency_max: int,
) -> None:
    """Fetch items concurrently and consume the results one by one, in the order of `items`.

    At most `concurrency_max` items are being fetched or wait to be consumed. The first error in the order of `items`,
    of either function, cancels the rest and is raised as it is.
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
