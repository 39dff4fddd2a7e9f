"""Sends requests to one bucket or container: counted, rate-limited, bounded in time, repeated if safe.

Those that change something are not given up unseen: a cancelled call waits a moment for their answer.

Operations have the names that the cloud's reference gives them, in snake case.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Final, TypeVar

import anyio
import anyio.lowlevel

from statebackend.errors import StoreAccessError
from statebackend.objectstore.cloud.retrying import Retries

T = TypeVar("T")

CANCEL_GRACE_S: Final = 1.0
"""How long a cancelled request that changes something waits for its answer, so as not to take effect unseen."""


class BeyondTheEndError(StoreAccessError):
    """A range begins beyond the end of its object. Never leaves the store."""


class CloudRequests:
    """The requests to the bucket or container that `place` names, in the words of its errors.

    `priced_as`: each operation, and the method of `ObjectStore` that costs the same. `settled`: those that a cancelled
    call waits for, up to `CANCEL_GRACE_S`, because they change something. `errors`: makes `StoreError`s of what the
    client raises about the object of that name, or about none.
    """

    def __init__(
        self,
        place: Mapping[str, str],
        *,
        priced_as: Mapping[str, str],
        settled: Collection[str],
        errors: Callable[[str | None], AbstractContextManager[None]],
        retries: Retries,
        timeout_s: float,
    ) -> None:
        self.place: Final = place
        self.sent: Final[Counter[str]] = Counter()
        """By operation, repeats included."""
        self.retries: Final = retries
        self._priced_as = priced_as
        self._settled = settled
        self._errors = errors
        self._timeout_s = timeout_s

    @property
    def priced(self) -> Counter[str]:
        """The requests that were sent, by the method of `ObjectStore` that costs the same."""
        priced = Counter[str]()
        for operation, count in self.sent.items():
            priced[self._priced_as[operation]] += count
        return priced

    async def repeated(
        self, operation: str, send: Callable[[], Awaitable[T]], *, name: str | None = None, repeatable: bool = True
    ) -> T:
        """As `once`, but rate-limited, and repeated as `Retries` decides. A cancelled call sends nothing more."""

        async def once() -> T:
            return await self.once(operation, send, name=name)

        return await self.retries.run(once, repeatable=repeatable)

    async def once(self, operation: str, send: Callable[[], Awaitable[T]], *, name: str | None = None) -> T:
        """Return what `send` returns, which sends one request, for the object `name`.

        Ends within `timeout_s`, and raises `StoreError`s. A cancelled request that changes something goes on for up to
        `CANCEL_GRACE_S`. If it has no answer by then, it may still take effect, if the server received all of it.
        """

        async def bounded() -> T:
            self.sent[operation] += 1
            with self._errors(name), anyio.fail_after(self._timeout_s):
                return await send()

        return await (settled(bounded) if operation in self._settled else bounded())


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
