"""Requests that change something are not given up unseen: a cancelled call waits a moment for their answer."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import anyio
import anyio.lowlevel

T = TypeVar("T")

CANCEL_GRACE_S: Final = 1.0
"""How long a cancelled request that changes something waits for its answer, so as not to take effect unseen."""


async def settled(call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `call`. If cancelled, wait up to `CANCEL_GRACE_S` for the call to end, then cancel it."""
    await anyio.lowlevel.checkpoint_if_cancelled()
    results: list[T] = []
    failures: list[Exception] = []
    shielded = anyio.CancelScope(shield=True)

    async def watch() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            shielded.deadline = anyio.current_time() + CANCEL_GRACE_S

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        with shielded:
            try:
                results.append(await call())
            except Exception as error:  # noqa: BLE001  # raised below: a task group would wrap it
                failures.append(error)
        tasks.cancel_scope.cancel()
    if failures:
        raise failures[0]
    if not results:  # the grace is over
        await anyio.lowlevel.checkpoint()
    return results[0]
