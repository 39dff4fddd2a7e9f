"""Bytes at keys: what a store has to do, and what it may do besides."""

import enum
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

Buffer = bytes | bytearray | memoryview
Body = Sequence[Buffer]
"""The content of an object, in chunks that follow each other. A single piece is a sequence of one."""


class Capability(enum.Enum):
    """An ability of a store beyond put, get and delete."""

    LIST = "list"
    PUT_IF_ABSENT = "put_if_absent"
    """Creating an object is atomic: of any number of concurrent creators exactly one succeeds."""
    DURABLE = "durable"
    """An acknowledged `put` survives the end of this process."""


class ObjectInfo(msgspec.Struct, frozen=True):
    """An object's key and size. `modified_s` is seconds since the epoch by the store's clock."""

    key: str
    size_bytes: int
    modified_s: float


class ObjectStore(Protocol):
    """Immutable bytes at keys. Give your own to `open_backend(store=...)`; close it yourself afterwards.

    Keys are '/'-separated names of printable ASCII, case counts, at most 1024 characters in all and 255 in a name. No
    name is empty, '.' or '..', none begins with '.' and ends with '.tmp', and where 'a' is a key 'a/b' is none. So a
    key can be a file's path.

    Calls come concurrently, from one event loop, and an implementation must not block that loop. What a call did is
    seen by every call that begins after it has returned, in whatever process. Calls are cancelled by anyio scopes, at
    any moment: when a cancelled call returns, it has released what it held, and what it has not done by then it never
    does. The library bounds how long it waits for an upload or a commit; other calls take as long as they take.

    Foreign exceptions are translated into `StoreError`s: `StoreUnavailableError` for what may succeed later,
    `StoreAccessError` for what will not. Proven by `statebackend.testing.ObjectStoreConformance`.
    """

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Constant over the life of the store. A primary needs `Capability.PUT_IF_ABSENT`, to commit."""
        ...

    async def put(self, key: str, body: Body) -> None:
        """Store `body` at `key`, replacing what is there. Called once per upload attempt.

        Returns when the object is durable, and keeps no reference to `body`, whose chunks are not to be changed. At
        every moment, and after a cancelled or failed call, `key` holds either the former object, or none if there was
        none, or the whole new one; never a part.
        """
        ...

    async def put_if_absent(self, key: str, body: Body) -> None:
        """Store `body` at `key` if there is no object yet, atomically. Called once per commit.

        Raises `ObjectExistsError` if there is one, whoever made it, even if an earlier lost response of this very call
        did: the caller tells by content. Of any number of concurrent calls, in whatever processes, exactly one
        succeeds. After a cancelled or failed call the object may or may not be there, whole.
        """
        ...

    async def get(self, key: str) -> bytes:
        """The whole object. Raises `ObjectNotFoundError`. Called once per segment and commit that a restore needs."""
        ...

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, fewer or none where the object ends. Raises `ObjectNotFoundError`.

        Called where a small part of a large segment is wanted. Neither number is negative.
        """
        ...

    async def head(self, key: str) -> ObjectInfo | None:
        """Size and time of the object, `None` if there is none."""
        ...

    async def delete(self, key: str) -> None:
        """Remove the object. Not an error if there is none, so that a delete can be repeated."""
        ...

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """The objects whose key starts with `prefix`, in the order of their keys. Needs `Capability.LIST`.

        An async generator. `prefix` may be empty, end within a name, or be one that no key has. What is put or deleted
        during the iteration is listed or not; all else is, however many requests that takes. The caller may stop early.
        """
        ...


@runtime_checkable
class DeletesMany(Protocol):
    """An optional part of an `ObjectStore` that can remove many objects at less than a request each."""

    async def delete_many(self, keys: Sequence[str]) -> None:
        """Remove the objects; what is not there is no error. Called by a sweep, with any number of keys.

        Raises for the first that stays, when all have been tried. After a failed or cancelled call some are gone.
        """
        ...


@runtime_checkable
class CountsRequests(Protocol):
    """An optional part of an `ObjectStore` whose calls are not one request each: parts, pages, repeated requests.

    What such a store counts is what requests cost; calls of other stores count as one request each. A store that wraps
    another passes it on.
    """

    @property
    def priced_requests(self) -> Mapping[str, int]:
        """Requests sent so far, by the method of `ObjectStore` that has their price. Only grows; read often.

        So a part of a multipart upload, its begin and its end are each a `put`, and a page of a listing is a `list`.
        """
        ...
