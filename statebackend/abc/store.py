"""The object store: bytes at keys. A small required part, and optional capabilities."""

import enum
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

import msgspec

Buffer = bytes | bytearray | memoryview
"""Bytes as a store takes them."""
Body = Sequence[Buffer]
"""The content of an object, in consecutive chunks. A single piece is a sequence of one."""


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
    """Immutable bytes at keys. Pass your own to `open_backend(store=...)`, and close it yourself afterwards.

    A key is '/'-separated names of printable ASCII, case-sensitive, at most 1024 characters in all and 255 per name. No
    name is empty, '.' or '..', and none begins with '.' and ends with '.tmp'. If 'a' is a key, 'a/b' is not. So a key
    can be a file's path.

    Calls come concurrently, from one event loop, which an implementation must not block. The effect of a call is seen
    by every call that begins after it has returned, in any process. Calls are cancelled by anyio scopes, at any moment:
    a cancelled call releases its resources before it returns, and has no effect after that. The library limits its wait
    for uploads and commits; other calls may take any time.

    Raise `StoreUnavailableError` for errors that a later call may not meet, `StoreAccessError` for lasting ones, and
    let no foreign exception out. Proven by `statebackend.testing.ObjectStoreConformance`.
    """

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The store's abilities, constant over its life. A primary needs `Capability.PUT_IF_ABSENT`, to commit."""
        ...

    async def put(self, key: str, body: Body) -> None:
        """Store `body` at `key`, replacing any former object. Called once per upload attempt.

        Returns when the object is durable. Do not change the chunks of `body`, and keep no reference to it. At every
        moment, and after a cancelled or failed call, `key` holds the former object (none, if there was none) or the
        whole new one, never a part.
        """
        ...

    async def put_if_absent(self, key: str, body: Body) -> None:
        """Store `body` at `key` if there is no object yet, atomically. Called once per commit.

        Raises `ObjectExistsError` if there is an object, even one made by an earlier request of this same call whose
        response was lost: the caller compares the content. Of any number of concurrent calls, in any processes, exactly
        one succeeds. After a cancelled or failed call the object is there, whole, or not at all.
        """
        ...

    async def get(self, key: str) -> bytes:
        """Return the whole object. Raises `ObjectNotFoundError`. Called once per segment and commit of a restore."""
        ...

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset`, fewer or none beyond the object's end. Raises `ObjectNotFoundError`.

        Called for a small part of a large segment. Neither number is negative.
        """
        ...

    async def head(self, key: str) -> ObjectInfo | None:
        """Return size and time of the object, `None` if there is none."""
        ...

    async def delete(self, key: str) -> None:
        """Remove the object. No error if there is none, so that a delete can be repeated."""
        ...

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield the objects whose key starts with `prefix`, in the order of their keys. Needs `Capability.LIST`.

        An async generator. `prefix` may be empty, end within a name, or match no key. Objects put or deleted during the
        iteration may be listed or not; all others are, however many requests it takes. The caller may stop early.
        """
        ...


@runtime_checkable
class DeletesMany(Protocol):
    """An optional part of an `ObjectStore` that can remove many objects at less than a request each."""

    async def delete_many(self, keys: Sequence[str]) -> None:
        """Remove the objects; a missing one is no error. Called by a sweep, with any number of keys.

        Tries all of them, then raises the error of the first that could not be removed. After a failed or cancelled
        call some are gone.
        """
        ...


@runtime_checkable
class CountsRequests(Protocol):
    """An optional part of an `ObjectStore` whose calls are not one request each: parts, pages, repeated requests.

    Costs are computed from its counts; the calls of other stores count as one request each. A store that wraps another
    passes the counts on.
    """

    @property
    def priced_requests(self) -> Mapping[str, int]:
        """Requests sent so far, by the method of `ObjectStore` with the same price. Only grows; read often.

        For example, the begin, each part and the end of a multipart upload are a `put` each; a page of a listing is a
        `list`.
        """
        ...


@runtime_checkable
class CopiesObjects(Protocol):
    """An optional part of an `ObjectStore` that can take a copy of an object without its bytes passing through here.

    On a server's side, by a link, or by the operating system.
    """

    async def copy_from(self, source: ObjectStore, source_key: str, key: str, size_bytes: int) -> bool:
        """Store the object at `source_key` of `source`, of that size, at `key` too; say whether that was possible.

        False where this store cannot take it from that one: then nothing was done, and the caller copies the bytes.
        As for `put`, `key` holds the former object or the whole new one at every moment, and it is durable when the
        call returns. Called by `clone`, for immutable objects. Raises `ObjectNotFoundError`.
        """
        ...


@runtime_checkable
class OpensApart(Protocol):
    """An optional part of an `ObjectStore` that is passed as `store=`: the same objects, for another event loop.

    With `table="runs"` state that has no local copy is read from it by `get_range`, while a batch is at work, on a loop
    of its own. A store without this part has such state fetched whole when the job is opened; so leave it out where
    `get_range` reads more than it is asked for.
    """

    def apart(self) -> AbstractAsyncContextManager[ObjectStore]:
        """Open the same objects for the running loop, by a client that the context closes.

        Called once for each opening of a job, and again only after it has raised.
        """
        ...
