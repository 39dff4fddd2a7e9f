"""The requests to one bucket, by the client's names of them."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from statebackend.objectstore.cloud.cloud_requests import CloudRequests
from statebackend.objectstore.cloud.renewal import Renewal
from statebackend.objectstore.cloud.retrying import Retries
from statebackend.objectstore.s3.s3_errors import has_ended, store_errors
from statebackend.settings import S3Credentials

Read = Callable[[Mapping[str, Any]], Awaitable[Any]]

_PRICED_AS: Final[Mapping[str, str]] = {
    "put_object": "put",
    "copy_object": "put",
    "create_multipart_upload": "put",
    "upload_part": "put",
    "upload_part_copy": "put",
    "complete_multipart_upload": "put",
    "abort_multipart_upload": "delete",
    "get_object": "get",
    "head_object": "head",
    "list_objects_v2": "list",
    "list_parts": "list",
    "list_multipart_uploads": "list",
    "delete_object": "delete",
    "delete_objects": "delete_many",
}
_SETTLED: Final = frozenset(
    {
        "put_object",
        "copy_object",
        "delete_object",
        "delete_objects",
        "create_multipart_upload",
        "complete_multipart_upload",
        "abort_multipart_upload",
    }
)
"""No part of an upload: an upload that is given up is aborted, until no part is left."""


class Bucket(CloudRequests):
    """The bucket `name`, reached through `client`."""

    def __init__(
        self,
        client: Any,
        name: str,
        *,
        retries: Retries,
        timeout_s: float,
        renewal: Renewal[S3Credentials] | None = None,
    ) -> None:
        super().__init__(
            {"bucket": name},
            priced_as=_PRICED_AS,
            settled=_SETTLED,
            errors=partial(store_errors, name),
            retries=retries,
            timeout_s=timeout_s,
        )
        self._client = client
        self._renewal = renewal

    async def request(
        self, operation: str, *, repeatable: bool = True, read: Read | None = None, **arguments: Any
    ) -> Any:
        """Return the answer, or what `read` makes of it while the connection is held. As `repeated`."""
        send = partial(self._send, operation, read, arguments)
        return await self.repeated(operation, send, name=arguments.get("Key"), repeatable=repeatable)

    async def ask(self, operation: str, **arguments: Any) -> Any:
        """Return the answer. As `once`."""
        send = partial(self._send, operation, None, arguments)
        return await self.once(operation, send, name=arguments.get("Key"))

    async def _send(self, operation: str, read: Read | None, arguments: Mapping[str, Any]) -> Any:
        send = partial(getattr(self._client, operation), Bucket=self.place["bucket"], **arguments)
        answer = await (send() if self._renewal is None else self._signed(self._renewal, operation, send))
        return answer if read is None else await read(answer)

    async def _signed(self, renewal: Renewal[S3Credentials], operation: str, send: Callable[[], Awaitable[Any]]) -> Any:
        """Send the request; once more if S3 refuses it because of credentials that ended: it had no effect then."""
        used = await renewal.current()
        try:
            return await send()
        except Exception as error:
            if not has_ended(error):
                raise
        renewal.refuse(used)
        self.sent[operation] += 1
        return await send()
