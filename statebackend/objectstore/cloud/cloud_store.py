"""An `ObjectStore` in a cloud, but for the requests that it sends: keys, sizes, pages, counts, and the first question.

Each request to a cloud is atomic and, once answered, visible to all readers. What is left is the same in every cloud:
lost answers, callers that give up, throttling. Reads, overwrites and deletes may happen twice, so they are repeated
(`Retries`). `put_if_absent` is repeated only if the server said that it did nothing.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import anyio.lowlevel

from statebackend._threads import WorkerThreads
from statebackend.abc import Body, Capability, ObjectInfo
from statebackend.errors import InputError, ObjectExistsError, ObjectNotFoundError, UnfitStoreError
from statebackend.objectstore.cloud.cloud_requests import BeyondTheEndError, CloudRequests
from statebackend.objectstore.memory import check_key, check_range
from statebackend.settings import KiB

T = TypeVar("T")

INLINE_BYTES_MAX: Final = 64 * KiB
"""Up to this size a body is joined on the loop, which is faster than a hop to a thread."""
_NOTE: Final = b"statebackend asks here whether this server keeps `If-None-Match: *`. May be deleted, and comes back.\n"


class CloudStore(ABC):
    """An `ObjectStore` below `prefix`, without slashes around it, empty for none. Belongs to the loop of `requests`.

    Objects of more than `whole_bytes_max` are sent in parts. `threads`: shared with other components, instead of two
    threads of the store's own.
    """

    def __init__(
        self, requests: CloudRequests, prefix: str, *, whole_bytes_max: int, threads: WorkerThreads | None = None
    ) -> None:
        self._requests = requests
        self._prefix = f"{prefix}/" if prefix else ""
        self._whole_bytes_max = whole_bytes_max
        self._threads = threads or WorkerThreads(cpu_threads_max=2, io_threads_max=1)

    # ------------------------------------------------------------------- what each cloud does, by an object's full name

    @abstractmethod
    async def _put_whole(self, name: str, body: Body, *, overwrite: bool, repeatable: bool = True) -> None:
        """Store an object in one request. Raises `ObjectExistsError` unless it may `overwrite`."""

    @abstractmethod
    async def _put_parts(self, name: str, body: Body) -> None:
        """Store a large object in many requests: whole, or not at all."""

    @abstractmethod
    async def _get(self, name: str, part: tuple[int, int] | None = None) -> bytes:
        """The object, or a part of it: offset and length. Raises `ObjectNotFoundError`, `BeyondTheEndError`."""

    @abstractmethod
    async def _head(self, name: str) -> ObjectInfo:
        """Size and time of the object. Raises `ObjectNotFoundError`."""

    @abstractmethod
    async def _delete(self, name: str) -> None:
        """Remove the object. May raise `ObjectNotFoundError`."""

    @abstractmethod
    async def _page(self, prefix: str, token: str | None) -> tuple[Sequence[ObjectInfo], str | None]:
        """The next objects whose name begins with `prefix`, in order, and the token for those after them."""

    # ------------------------------------------------------------------------------------------------- the contract

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.LIST, Capability.PUT_IF_ABSENT, Capability.DURABLE})

    @property
    def requests(self) -> Counter[str]:
        """Requests sent so far, repeats included, by the cloud's name of the operation."""
        return self._requests.sent

    @property
    def priced_requests(self) -> Counter[str]:
        """`requests` by the method of `ObjectStore` that costs the same. Each request of a large object is a `put`."""
        return self._requests.priced

    async def put(self, key: str, body: Body) -> None:
        """Store `body` at `key`, in parts if it is large.

        A cancelled call waits up to a second for the answer to what it has sent. If the server stays silent longer, the
        object may still appear.
        """
        name = self._name(key)
        await anyio.lowlevel.checkpoint()
        if _size(body) > self._whole_bytes_max:
            await self._put_parts(name, body)
        else:
            await self._put_whole(name, body, overwrite=True)

    async def put_if_absent(self, key: str, body: Body) -> None:
        """Store `body` in one request, or raise `ObjectExistsError` if `key` is taken.

        After a `StoreUnavailableError` the object may exist: the request is repeated only if the server said that it
        did nothing. A cancelled call leaves behind what a cancelled `put` does.
        """
        name = self._name(key)
        await anyio.lowlevel.checkpoint()
        await self._put_whole(name, body, overwrite=False, repeatable=False)

    async def get(self, key: str) -> bytes:
        """The whole object. Raises `ObjectNotFoundError`."""
        return await self._get(self._name(key))

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, fewer at the end of the object. Raises `ObjectNotFoundError`."""
        check_range(offset, length)
        if length == 0:  # no header can say that
            if await self.head(key) is None:
                raise ObjectNotFoundError("no object at that key", key=key)
            return b""
        try:
            return await self._get(self._name(key), (offset, length))
        except BeyondTheEndError:
            return b""

    async def head(self, key: str) -> ObjectInfo | None:
        """Size and time of the object, or `None` if there is none."""
        try:
            return self._inside(await self._head(self._name(key)))
        except ObjectNotFoundError:
            return None

    async def delete(self, key: str) -> None:
        """Remove the object, if there is one. A cancelled call may have removed it."""
        name = self._name(key)
        await anyio.lowlevel.checkpoint()
        with suppress(ObjectNotFoundError):
            await self._delete(name)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """The objects under `prefix`, a thousand per request. Objects whose key is not legal are left out."""
        token: str | None = None
        while True:
            page, token = await self._page(self._prefix + prefix, token)
            for each in page:
                info = self._inside(each)
                if _is_key(info.key):
                    yield info
            if not token:
                return

    async def check_put_if_absent(self, key: str) -> None:
        """Raise `UnfitStoreError` unless the server refuses to create `key` a second time. The object stays.

        Takes one request if the object exists, two the first time. A server that does not know the condition ignores
        it, and two writers would then both believe that they have committed.
        """
        with suppress(ObjectExistsError):
            for _ in range(2):
                await self._put_whole(self._name(key), (_NOTE,), overwrite=False)
            raise UnfitStoreError(
                "the server ignores `If-None-Match: *`, so one writer would overwrite another's commits: use another",
                **self._requests.place,
            )

    async def _off_the_loop(self, call: Callable[[Body], T], body: Body) -> T:
        """Return what `call` makes of the body, in a thread if that is large."""
        return call(body) if _size(body) <= INLINE_BYTES_MAX else await self._threads.cpu(call, body)

    def _name(self, key: str) -> str:
        check_key(key)
        return check_key(self._prefix + key)

    def _inside(self, info: ObjectInfo) -> ObjectInfo:
        return ObjectInfo(info.key.removeprefix(self._prefix), info.size_bytes, info.modified_s)


def _size(body: Body) -> int:
    return sum(memoryview(chunk).nbytes for chunk in body)


def _is_key(text: str) -> bool:
    with suppress(InputError):
        return bool(check_key(text))
    return False
