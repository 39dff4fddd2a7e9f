"""Sends requests to one container: counted, rate-limited, bounded in time, repeated if safe, with a store's errors."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import anyio

from statebackend.objectstore.azure.errors import store_errors
from statebackend.objectstore.cloud.retrying import Retries
from statebackend.objectstore.cloud.settled import settled

T = TypeVar("T")

_CHANGING: Final = frozenset({"put_blob", "put_block", "put_block_list", "delete_blob"})


class Container:
    """The container `name`, reached through `client`. `requests` counts what was sent, by operation, repeats included.

    Operations have the names of Azure's REST reference, in snake case.
    """

    def __init__(self, client: Any, name: str, *, retries: Retries, timeout_s: float) -> None:
        self.name: Final = name
        self.requests: Final[Counter[str]] = Counter()
        self.client: Final = client
        self._retries = retries
        self._timeout_s = timeout_s

    async def request(
        self, operation: str, send: Callable[[], Awaitable[T]], *, key: str | None = None, repeatable: bool = True
    ) -> T:
        """Return what `send` does, which sends one request for the object `key`. Repeated as `Retries` decides.

        Each attempt ends within `timeout_s`, and raises `StoreError`s. A cancelled call sends nothing more; what it has
        sent that changes something goes on for up to a second, and may take effect after that, if Azure received it.
        """

        async def once() -> T:
            self.requests[operation] += 1
            with store_errors(self.name, key), anyio.fail_after(self._timeout_s):
                return await send()

        async def to_its_end() -> T:
            return await settled(once)

        return await self._retries.run(to_its_end if operation in _CHANGING else once, repeatable=repeatable)
