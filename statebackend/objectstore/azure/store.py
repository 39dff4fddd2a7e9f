"""Stores objects in a container as block blobs: small ones in one request, large ones in blocks.

Each request to Azure is atomic and, once answered, visible to all readers. This module handles the rest: lost answers,
callers that give up, throttling. Reads, overwrites and deletes may happen twice, so they are repeated (`Retries`).
`put_if_absent` is repeated only if Azure said that it did nothing. Blocks that no list of blocks names are no object,
and Azure drops them after a week.
"""

import base64
import itertools
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import anyio
import anyio.lowlevel
from azure.storage.blob import BlobBlock

from statebackend._threads import WorkerThreads
from statebackend.abc import Body, Capability, ObjectInfo
from statebackend.errors import InputError, ObjectExistsError, ObjectNotFoundError, StoreAccessError, UnfitStoreError
from statebackend.objectstore.azure.container import Container
from statebackend.objectstore.azure.errors import code_of
from statebackend.objectstore.cloud.cutting import parts
from statebackend.objectstore.memory import check_key, check_range
from statebackend.settings import AzureSettings, KiB

LIST_PAGE_OBJECTS: Final = 1000
_INLINE_BYTES_MAX: Final = 64 * KiB
"""Up to this size a body is joined on the loop, which is faster than a hop to a thread."""
_PRICED_AS: Final[Mapping[str, str]] = {
    "put_blob": "put",
    "put_block": "put",
    "put_block_list": "put",
    "get_blob": "get",
    "get_blob_properties": "head",
    "list_blobs": "list",
    "delete_blob": "delete",
}
_BEYOND_THE_END: Final = ("InvalidRange",)
_NOTE: Final = b"statebackend asks here whether this server keeps `If-None-Match: *`. May be deleted, and comes back.\n"


class AzureStore:
    """An `ObjectStore` in `container`, below `prefix`, which is empty or ends in '/'. Belongs to the container's loop.

    Made by `open_azure_store`.
    """

    def __init__(self, container: Container, prefix: str, *, settings: AzureSettings, threads: WorkerThreads) -> None:
        self._container = container
        self._prefix = prefix
        self._settings = settings
        self._threads = threads

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.LIST, Capability.PUT_IF_ABSENT, Capability.DURABLE})

    @property
    def requests(self) -> Counter[str]:
        """Requests sent so far, repeats included, by operation, such as `put_blob`."""
        return self._container.requests

    @property
    def priced_requests(self) -> Counter[str]:
        """`requests` by the method of `ObjectStore` that costs the same. Each block of an object is a `put`."""
        priced = Counter[str]()
        for operation, count in self.requests.items():
            priced[_PRICED_AS[operation]] += count
        return priced

    async def put(self, key: str, body: Body) -> None:
        """Store `body` at `key`, in blocks if it is large.

        A cancelled call waits up to a second for the answer to what it has sent. If the server stays silent longer, the
        object may still appear.
        """
        name = self._name(key)
        await anyio.lowlevel.checkpoint()
        if _size(body) > self._settings.block_threshold_bytes:
            await self._put_blocks(name, body)
        else:
            await self._put_blob(name, body, overwrite=True)

    async def put_if_absent(self, key: str, body: Body) -> None:
        """Store `body`, or raise `ObjectExistsError` if `key` is taken. In one request, of at most 4 GiB.

        After a `StoreUnavailableError` the object may exist: the request is repeated only if Azure said that it did
        nothing. A cancelled call leaves behind what a cancelled `put` does.
        """
        name = self._name(key)
        await anyio.lowlevel.checkpoint()
        await self._put_blob(name, body, overwrite=False, repeatable=False)

    async def get(self, key: str) -> bytes:
        """The whole object. Raises `ObjectNotFoundError`."""
        return await self._read(key)

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, fewer at the end of the object."""
        check_range(offset, length)
        if length == 0:  # no header can say that
            if await self.head(key) is None:
                raise ObjectNotFoundError("no object at that key", key=key)
            return b""
        try:
            return await self._read(key, offset=offset, length=length)
        except StoreAccessError as error:
            if code_of(error.__cause__) in _BEYOND_THE_END:
                return b""
            raise

    async def head(self, key: str) -> ObjectInfo | None:
        """Size and time of the object, or `None` if there is none."""
        name = self._name(key)
        blob = self._container.client.get_blob_client(name)
        try:
            found: Any = await self._container.request("get_blob_properties", blob.get_blob_properties, key=name)
        except ObjectNotFoundError:
            return None
        return ObjectInfo(key, int(found.size), found.last_modified.timestamp())

    async def delete(self, key: str) -> None:
        """Remove the object, if there is one. A cancelled call may have removed it."""
        name = self._name(key)
        await anyio.lowlevel.checkpoint()
        blob = self._container.client.get_blob_client(name)
        with suppress(ObjectNotFoundError):
            await self._container.request("delete_blob", blob.delete_blob, key=name)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """The objects under `prefix`, a thousand per request. Objects whose key is not legal are left out."""
        token: str | None = None
        while True:
            found, token = await self._page(_as_name(self._prefix + prefix), token)
            for each in found:
                key = _as_key(each.name).removeprefix(self._prefix)
                if _is_key(key):
                    yield ObjectInfo(key, int(each.size), each.last_modified.timestamp())
            if not token:
                return

    async def check_put_if_absent(self, key: str) -> None:
        """Raise `UnfitStoreError` unless the server refuses to create `key` a second time. The object stays.

        Takes one request if the object exists, two the first time. A server that does not know the condition ignores
        it, and two writers would then both believe that they have committed.
        """
        with suppress(ObjectExistsError):
            for _ in range(2):
                await self._put_blob(self._name(key), (_NOTE,), overwrite=False)
            raise UnfitStoreError(
                "this container's server ignores `If-None-Match: *`, so one writer would overwrite another's commits",
                container=self._container.name,
            )

    async def _put_blob(self, name: str, body: Body, *, overwrite: bool, repeatable: bool = True) -> None:
        data = await self._joined(body)
        blob = self._container.client.get_blob_client(name)

        async def send() -> None:
            await blob.upload_blob(data, length=len(data), overwrite=overwrite)

        await self._container.request("put_blob", send, key=name, repeatable=repeatable)

    async def _put_blocks(self, name: str, body: Body) -> None:
        """Send blocks, some at a time, then the list of them. Their ids are ours alone, also if others write `name`."""
        blob, ids = self._container.client.get_blob_client(name), list[str]()
        room, drawn = anyio.Semaphore(self._settings.block_concurrency_max), secrets.token_bytes(16)
        failures: list[Exception] = []

        async def send(block_id: str, chunks: Body, others: anyio.CancelScope) -> None:
            try:
                data = await self._joined(chunks)
                await self._container.request("put_block", lambda: blob.stage_block(block_id, data), key=name)
            except Exception as error:  # noqa: BLE001  # raised below: a task group would wrap it
                failures.append(error)
                others.cancel()
            room.release()

        async with anyio.create_task_group() as tasks:
            for number, chunks in zip(
                itertools.count(), parts([memoryview(chunk) for chunk in body], self._settings.block_bytes)
            ):
                await room.acquire()
                ids.append(base64.b64encode(drawn + number.to_bytes(4, "big")).decode())
                tasks.start_soon(send, ids[-1], chunks, tasks.cancel_scope)
        if failures:
            raise failures[0]
        listed = [BlobBlock(block_id) for block_id in ids]
        await self._container.request("put_block_list", lambda: blob.commit_block_list(listed), key=name)

    async def _read(self, key: str, **part: int) -> bytes:
        name = self._name(key)
        blob = self._container.client.get_blob_client(name)

        async def read() -> bytes:
            content: bytes = await (await blob.download_blob(**part)).readall()
            return content

        return await self._container.request("get_blob", read, key=name)

    async def _page(self, prefix: str, token: str | None) -> tuple[Sequence[Any], str | None]:
        """The blobs of one page, and the token of the next one, if there is one."""

        async def read() -> tuple[Sequence[Any], str | None]:
            listing = self._container.client.list_blobs(name_starts_with=prefix, results_per_page=LIST_PAGE_OBJECTS)
            pages = listing.by_page(token)
            page = await anext(pages)
            return [each async for each in page], pages.continuation_token

        return await self._container.request("list_blobs", read)

    async def _joined(self, body: Body) -> bytes:
        return b"".join(body) if _size(body) <= _INLINE_BYTES_MAX else await self._threads.cpu(b"".join, body)

    def _name(self, key: str) -> str:
        check_key(key)
        return _as_name(check_key(self._prefix + key))


def _as_name(key: str) -> str:
    r"""The name of a blob for a key, or for the beginning of one. Azure takes `\` for `/`: it is `[1`, so `[` is `[0`.

    Names have the order of their keys, in which they are listed.
    """
    return key.replace("[", "[0").replace("\\", "[1")


def _as_key(name: str) -> str:
    return name.replace("[1", "\\").replace("[0", "[")


def _size(body: Body) -> int:
    return sum(memoryview(chunk).nbytes for chunk in body)


def _is_key(text: str) -> bool:
    with suppress(InputError):
        return bool(check_key(text))
    return False
