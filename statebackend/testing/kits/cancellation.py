"""Cancels calls at a moment and in a way that the test chooses."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, TypeVar

import anyio
import anyio.lowlevel

T = TypeVar("T")

How = Literal["scope", "task"]
"""Either by an anyio scope around the call, or once, by asyncio's `task.cancel()` of the task that runs it."""

TURNS: Final = (0, 1, 2, 3, 4, 7, 12, 50)
"""Turns of the loop after which to cancel a call, for tests without a better moment."""


async def cancelled(
    call: Callable[[], Awaitable[T]],
    *,
    how: How,
    after: Callable[[], Awaitable[Any]],
    patience_s: float,
    rescue: Callable[[], Any] = lambda: None,
) -> list[T]:
    """Start `call`, await `after`, cancel the call. Return its result if it has one all the same, else an empty list.

    Raises what the call raises, and `TimeoutError` if it has not ended `patience_s` after the cancellation; then
    `rescue` releases what the call waits for first, so that it does not hang for ever.
    """
    results: list[T] = []
    failures: list[Exception] = []
    running: list[asyncio.Task[Any] | None] = []
    late = False
    scope, ended = anyio.CancelScope(), anyio.Event()

    async def run() -> None:
        running.append(asyncio.current_task())
        try:
            with scope:
                results.append(await call())
        except Exception as error:  # noqa: BLE001  # raised below: a task group would wrap it
            failures.append(error)
        finally:
            ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await after()
        await turns(1)  # a task that has not started has nothing to cancel
        if how == "scope":
            scope.cancel()
        elif running[0] is not None:
            running[0].cancel()
        with anyio.move_on_after(patience_s):
            await ended.wait()
        if late := not ended.is_set():
            rescue()
            tasks.cancel_scope.cancel()
    if late:
        raise TimeoutError(f"a cancelled call has not ended after {patience_s} s")
    if failures:
        raise failures[0]
    return results


async def turns(count: int) -> None:
    """Give every other task `count` turns of the loop."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()
