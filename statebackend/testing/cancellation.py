"""Calls that are cancelled on purpose, at a moment and in a way that the test chooses."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, TypeVar

import anyio
import anyio.lowlevel

T = TypeVar("T")

How = Literal["scope", "task"]
"""By an anyio scope round the call, or by asyncio's `task.cancel()` of the task that is in it, which is done once."""

TURNS: Final = (0, 1, 2, 3, 4, 7, 12, 50)
"""Turns of the loop after which a call is cancelled, where there is nothing better to wait for."""


async def cancelled(
    call: Callable[[], Awaitable[T]],
    *,
    how: How,
    after: Callable[[], Awaitable[Any]],
    patience_s: float,
    rescue: Callable[[], Any] = lambda: None,
) -> list[T]:
    """Start `call`, await `after`, cancel the call. Its result if there is one in spite of that, else an empty list.

    Raises what the call raised, and `TimeoutError` where it has not ended `patience_s` after the cancellation: then
    `rescue` lets go what it waits for, lest it hangs for ever.
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
        await turns(1)  # a task that has not begun has nothing to be cancelled in
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
        raise TimeoutError(f"a cancelled call has not ended in {patience_s} s")
    if failures:
        raise failures[0]
    return results


async def turns(count: int) -> None:
    """Let every other task take `count` steps."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()
