"""Runs one coroutine for each item, some at a time, until all have ended or one has failed."""

import asyncio
import logging
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextvars import Context, copy_context
from typing import Any, Final, Generic, TypeVar

import anyio.lowlevel

from statebackend._portal import as_exception
from statebackend._tasks import StrayCancellationError

T = TypeVar("T")

STEP_S: Final = 0.005
"""Seconds after which coroutines that never wait let others use the loop."""

_logger = logging.getLogger(__name__)


async def for_each(items: Iterator[T], work: Callable[[T], Coroutine[Any, Any, None]], *, concurrency: int) -> None:
    """Await `work(item)` for each item, begun in their order, at most `concurrency` at a time.

    The first error cancels the others, and is raised when they have ended. A cancelled call cancels all of them and
    waits for them, too. Each gets one `CancelledError`, so that its `finally` may await, and another one only if the
    call is cancelled again. Each has a copy of the caller's context: none sees a context variable that another has set.
    """
    await _Workers(items, work).run(concurrency)


class _Workers(Generic[T]):
    """Tasks that take items until there are none. A task for each item would cost more than many an item.

    They are in no task group. What anyio's cancels can await nothing more, and these coroutines are a user's; what
    asyncio's cancels cannot be cancelled again.
    """

    def __init__(self, items: Iterator[T], work: Callable[[T], Coroutine[Any, Any, None]]) -> None:
        self._items = items
        self._work = work
        self._context = copy_context()
        self._failures: list[Exception] = []
        self._is_ending = False
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, count: int) -> None:
        cancelled: asyncio.CancelledError | None = None
        self._tasks = [asyncio.create_task(self._take()) for _ in range(count)]  # noqa: TID251 - they end with this call
        while running := [task for task in self._tasks if not task.done()]:
            try:
                await asyncio.wait(running)
            except asyncio.CancelledError as error:
                cancelled = error
                self._end()
        if cancelled is not None:
            raise cancelled
        if self._failures:
            raise self._failures[0]

    async def _take(self) -> None:
        try:
            await self._work_until_ended()
        except asyncio.CancelledError as error:
            if not self._is_ending:
                self._fail(StrayCancellationError(f"a call was cancelled, and not by the batch: {error!r}"))
        except BaseException as error:  # noqa: BLE001 - `run` raises it; beyond this task it could end the loop
            self._fail(as_exception(error))

    async def _work_until_ended(self) -> None:
        loop = asyncio.get_running_loop()
        rest_at = loop.time() + STEP_S
        for item in self._items:
            await _in_context(self._context.copy(), self._work(item))
            if self._is_ending:
                return
            if loop.time() >= rest_at:
                await anyio.lowlevel.checkpoint()
                rest_at = loop.time() + STEP_S

    def _fail(self, error: Exception) -> None:
        self._failures.append(error)
        if self._is_ending:
            _logger.warning("a call that was cancelled has failed", exc_info=error)
        else:
            self._end()

    def _end(self) -> None:
        self._is_ending = True
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()


@types.coroutine
def _in_context(context: Context, running: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
    """Await `running` in the current task, with each of its steps in `context`."""
    step: Callable[[Any], Any] = running.send
    value: Any = None
    while True:
        try:
            awaited = context.run(step, value)
        except StopIteration:
            return
        try:
            step, value = running.send, (yield awaited)
        except BaseException as error:  # noqa: BLE001 - it is for `running`, also what closes this generator
            step, value = running.throw, error
