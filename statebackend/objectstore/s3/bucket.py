"""Sends requests to one bucket: counted, rate-limited, bounded in time, repeated if safe, with a store's errors."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import anyio

from statebackend.objectstore.cloud.retrying import Retries
from statebackend.objectstore.cloud.settled import settled
from statebackend.objectstore.s3.errors import store_errors

T = TypeVar("T")
Read = Callable[[Mapping[str, Any]], Awaitable[Any]]

_CHANGING: Final = frozenset(
    {
        "put_object",
        "delete_object",
        "delete_objects",
        "create_multipart_upload",
        "complete_multipart_upload",
        "abort_multipart_upload",
    }
)


class Bucket:
    """The bucket `name`, reached through `client`. `requests` counts what was sent by operation, repeats included."""

    def __init__(self, client: Any, name: str, *, retries: Retries, timeout_s: float) -> None:
        self.name: Final = name
        self.requests: Final[Counter[str]] = Counter()
        self.retries: Final = retries
        self._client = client
        self._timeout_s = timeout_s

    async def request(
        self, operation: str, *, repeatable: bool = True, read: Read | None = None, **arguments: Any
    ) -> Any:
        """As `ask`, but rate-limited, and repeated as `Retries` decides. A cancelled call sends nothing more."""

        async def once() -> Any:
            return await self.ask(operation, read=read, **arguments)

        return await self.retries.run(once, repeatable=repeatable)

    async def ask(self, operation: str, *, read: Read | None = None, **arguments: Any) -> Any:
        """Send one request, and return the answer, or what `read` makes of it while the connection is held.

        Ends within `timeout_s`, and raises `StoreError`s. A cancelled request that changes something goes on for up to
        `CANCEL_GRACE_S`. If it has no answer by then, it may still take effect, if the server received all of it.
        """

        async def send() -> Any:
            self.requests[operation] += 1
            with store_errors(self.name, arguments.get("Key")), anyio.fail_after(self._timeout_s):
                answer = await getattr(self._client, operation)(Bucket=self.name, **arguments)
                return answer if read is None else await read(answer)

        return await (settled(send) if operation in _CHANGING else send())
