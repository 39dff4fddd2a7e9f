"""Stores objects in a bucket: small ones in one request, large ones in parts, all with a checksum that S3 verifies.

Each request to S3 is atomic and, once answered, visible to all readers. This module handles the rest: lost answers,
callers that give up, throttling. Reads, overwrites and deletes may happen twice, so they are repeated (`Retries`).
`put_if_absent` is repeated only if the server said that it did nothing.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import anyio.lowlevel

from statebackend._threads import WorkerThreads
from statebackend.abc import Body, Capability, ObjectInfo
from statebackend.errors import (
    InputError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreAccessError,
    StoreUnavailableError,
    UnfitStoreError,
)
from statebackend.objectstore.memory import check_key, check_range
from statebackend.objectstore.s3.bucket import Bucket
from statebackend.objectstore.s3.errors import code_of
from statebackend.objectstore.s3.multipart import MultipartUpload, joined
from statebackend.settings import KiB, S3Settings

DELETES_PER_REQUEST: Final = 1000
_INLINE_BYTES_MAX: Final = 64 * KiB
"""Up to this size a body is joined and checksummed on the loop, which is faster than a hop to a thread."""
_PRICED_AS: Final[Mapping[str, str]] = {
    "put_object": "put",
    "create_multipart_upload": "put",
    "upload_part": "put",
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
_BEYOND_THE_END: Final = ("InvalidRange", "416")
_NOTE: Final = b"statebackend asks here whether this server keeps `If-None-Match: *`. May be deleted, and comes back.\n"


class S3Store:
    """An `ObjectStore` in `bucket`, below `prefix`, which is empty or ends in '/'. Belongs to the bucket's loop.

    Made by `open_s3_store`.
    """

    def __init__(self, bucket: Bucket, prefix: str, *, settings: S3Settings, threads: WorkerThreads) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._settings = settings
        self._threads = threads

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.LIST, Capability.PUT_IF_ABSENT, Capability.DURABLE})

    @property
    def requests(self) -> Counter[str]:
        """Requests sent so far, repeats included, by the client's name of the operation, such as `put_object`."""
        return self._bucket.requests

    @property
    def priced_requests(self) -> Counter[str]:
        """`requests` by the method of `ObjectStore` that costs the same. Requests of an upload in parts are `put`s."""
        priced = Counter[str]()
        for operation, count in self.requests.items():
            priced[_PRICED_AS.get(operation, operation)] += count
        return priced

    async def put(self, key: str, body: Body) -> None:
        """Store `body` at `key`, in parts if it is large.

        A cancelled call waits up to a second for the answer to what it has sent. If the server stays silent longer, the
        object may still appear. An upload in parts is aborted, so that no part stays.
        """
        name = self._name(key)
        await anyio.lowlevel.checkpoint()
        if _size(body) > self._settings.multipart_threshold_bytes:
            await MultipartUpload(self._bucket, name, body, settings=self._settings, threads=self._threads).run()
        else:
            await self._bucket.request("put_object", Key=name, **await self._whole(body))

    async def put_if_absent(self, key: str, body: Body) -> None:
        """Store `body`, or raise `ObjectExistsError` if `key` is taken. In one request, of at most 5 GiB.

        After a `StoreUnavailableError` the object may exist: the request is repeated only if S3 said that it did
        nothing. A cancelled call leaves behind what a cancelled `put` does.
        """
        name = self._name(key)
        await anyio.lowlevel.checkpoint()
        await self._create(name, body, repeatable=False)

    async def get(self, key: str) -> bytes:
        """The whole object, verified by the checksum that S3 stores. Raises `ObjectNotFoundError`.

        S3 stores none for an object uploaded in parts: each part was verified when it arrived.
        """
        return await self._read(key, ChecksumMode="ENABLED")

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, fewer at the end of the object. S3 has no checksum of a range."""
        check_range(offset, length)
        if length == 0:  # no header can say that
            if await self.head(key) is None:
                raise ObjectNotFoundError("no object at that key", key=key)
            return b""
        try:
            return await self._read(key, Range=f"bytes={offset}-{offset + length - 1}")
        except StoreAccessError as error:
            if code_of(error.__cause__) in _BEYOND_THE_END:
                return b""
            raise

    async def head(self, key: str) -> ObjectInfo | None:
        """Size and time of the object, or `None` if there is none."""
        try:
            found = await self._bucket.request("head_object", Key=self._name(key))
        except ObjectNotFoundError:
            return None
        return ObjectInfo(key, int(found["ContentLength"]), found["LastModified"].timestamp())

    async def delete(self, key: str) -> None:
        """Remove the object, if there is one. A cancelled call may have removed it."""
        name = self._name(key)
        await anyio.lowlevel.checkpoint()
        await self._bucket.request("delete_object", Key=name)

    async def delete_many(self, keys: Sequence[str]) -> None:
        """Remove the objects, a thousand per request. Tries all, then raises the error of the first that stayed.

        A cancelled call has removed some of them.
        """
        names = [self._name(key) for key in keys]
        refused: list[Mapping[str, str]] = []
        for first in range(0, len(names), DELETES_PER_REQUEST):
            some = [{"Key": name} for name in names[first : first + DELETES_PER_REQUEST]]
            answer = await self._bucket.request("delete_objects", Delete={"Objects": some, "Quiet": True})
            refused += answer.get("Errors", [])
        if refused:
            raise self._refusal(refused)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """The objects under `prefix`, a thousand per request. Objects whose key is not legal are left out."""
        token: dict[str, Any] = {}
        while True:
            page = await self._bucket.request("list_objects_v2", Prefix=self._prefix + prefix, **token)
            for entry in page.get("Contents", ()):
                key = entry["Key"].removeprefix(self._prefix)
                if _is_key(key):
                    yield ObjectInfo(key, int(entry["Size"]), entry["LastModified"].timestamp())
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    async def check_put_if_absent(self, key: str) -> None:
        """Raise `UnfitStoreError` unless S3 refuses to create `key` a second time. The object stays, with a note in it.

        Takes one request if the object exists, two the first time. A server that does not know the condition ignores
        it, and two writers would then both believe that they have committed.
        """
        with suppress(ObjectExistsError):
            for _ in range(2):
                await self._create(self._name(key), (_NOTE,), repeatable=True)
            raise UnfitStoreError(
                "this bucket's server ignores `If-None-Match: *`, so one writer would overwrite another's commits",
                bucket=self._bucket.name,
            )

    async def _create(self, name: str, body: Body, *, repeatable: bool) -> None:
        arguments = await self._whole(body)
        try:
            await self._bucket.request("put_object", repeatable=repeatable, Key=name, IfNoneMatch="*", **arguments)
        except UnfitStoreError as error:
            raise UnfitStoreError("this bucket's server does not support `If-None-Match: *`", **error.facts) from error

    async def _read(self, key: str, **arguments: Any) -> bytes:
        content: bytes = await self._bucket.request("get_object", read=_content, Key=self._name(key), **arguments)
        return content

    async def _whole(self, body: Body) -> dict[str, Any]:
        """The arguments of a request that carries all of `body`."""
        small = _size(body) <= _INLINE_BYTES_MAX
        data, checksum = joined(body) if small else await self._threads.cpu(joined, body)
        return {"Body": data, "ChecksumCRC32": checksum}

    def _name(self, key: str) -> str:
        check_key(key)
        return check_key(self._prefix + key)

    def _refusal(self, refused: Sequence[Mapping[str, str]]) -> StoreAccessError | StoreUnavailableError:
        code, text = refused[0].get("Code"), refused[0].get("Message")
        facts = {"bucket": self._bucket.name, "key": refused[0].get("Key"), "objects": len(refused)}
        if code == "AccessDenied":
            return StoreAccessError("S3 refuses to delete objects", **facts, reason=text)
        return StoreUnavailableError("S3 did not delete all objects", **facts, reason=f"{code}: {text}")


async def _content(answer: Mapping[str, Any]) -> bytes:
    async with answer["Body"] as stream:
        return bytes(await stream.read())


def _size(body: Body) -> int:
    return sum(memoryview(chunk).nbytes for chunk in body)


def _is_key(text: str) -> bool:
    with suppress(InputError):
        return bool(check_key(text))
    return False
