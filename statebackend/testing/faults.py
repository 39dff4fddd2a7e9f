"""Faults on command, and the wrappers that apply them to a store or an uploader.

    hold = Hold(operation="put")
    store = FaultyStore(MemoryStore(), [hold, Fail(key="commits/*", nth=2, moment="after")])

A plan is a list of faults. The same calls in the same order meet the same faults: nothing here is random. Time is the
running loop's, so that a slow store costs nothing on a virtual loop.
"""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

import anyio

from statebackend.abc import Body, Capability, ObjectInfo, ObjectStore, Segment, StateChangeUploader, UploadedSegment
from statebackend.errors import StoreUnavailableError

Operation = Literal["put", "put_if_absent", "get", "get_range", "head", "delete", "list", "upload", "discard"]
"""Calls that a fault can strike: of a store by key, `upload` by the segment's name, `discard` by the primary's key."""

Moment = Literal["before", "after"]
"""A fault strikes before the call has taken effect, or after it."""


@dataclass(kw_only=True, eq=False)
class Fault:
    """Strikes calls of `operation`, or any if `None`, whose key matches the pattern `key`, where '*' is any text.

    Of the matching calls it strikes the `nth`, counted from 1, and with `onwards` every later one too; without `nth` it
    strikes all. "after" means that the operation has taken effect and only its answer is lost. An operation that fails
    by itself has no "after".
    """

    operation: Operation | None = None
    key: str = "*"
    nth: int | None = None
    onwards: bool = False
    moment: Moment = "before"
    matched: int = field(default=0, init=False)
    """Matching calls so far."""

    def strikes(self, operation: Operation, key: str) -> bool:
        """Count this call if it matches, and return true if it is struck."""
        if self.operation not in (None, operation) or not fnmatchcase(key, self.key):
            return False
        self.matched += 1
        if self.nth is None:
            return True
        return self.matched == self.nth or (self.onwards and self.matched > self.nth)

    async def strike(self) -> None:
        """Apply this fault to a call."""
        raise NotImplementedError

    def spoil(self, body: Body) -> Body:
        """Return the body that a struck put stores in place of `body`."""
        return body


def _no_answer() -> BaseException:
    return StoreUnavailableError("made to fail by a test")


@dataclass(kw_only=True, eq=False)
class Fail(Fault):
    """Raises `error`, as a full disk, a refused permission or, with `moment="after"`, a lost response would."""

    error: BaseException = field(default_factory=_no_answer)

    async def strike(self) -> None:
        raise self.error


@dataclass(kw_only=True, eq=False)
class Hold(Fault):
    """Holds calls until `release()`. `reached` is set at the first one, `held` counts those held now.

    A `stubborn` call cannot be cancelled while it is held, like a thread that is stuck in fsync.
    """

    stubborn: bool = False
    reached: anyio.Event = field(default_factory=anyio.Event, init=False)
    held: int = field(default=0, init=False)
    _released: anyio.Event = field(default_factory=anyio.Event, init=False)

    def release(self) -> None:
        """Let the held calls continue, and hold no more."""
        self._released.set()

    async def strike(self) -> None:
        self.reached.set()
        self.held += 1
        try:
            with anyio.CancelScope(shield=self.stubborn):
                await self._released.wait()
        finally:
            self.held -= 1


@dataclass(kw_only=True, eq=False)
class Slow(Fault):
    """Delays calls by `seconds` of the loop's time."""

    seconds: float

    async def strike(self) -> None:
        await anyio.sleep(self.seconds)


@dataclass(kw_only=True, eq=False)
class Throttle(Fault):
    """Admits `calls_max` calls in any `interval_s` and refuses the others with `StoreUnavailableError`.

    A refused call does not count, so a caller that waits long enough succeeds.
    """

    calls_max: int
    interval_s: float
    _passed: deque[float] = field(default_factory=deque[float], init=False)

    async def strike(self) -> None:
        now = anyio.current_time()
        while self._passed and now - self._passed[0] >= self.interval_s:
            self._passed.popleft()
        if len(self._passed) >= self.calls_max:
            raise StoreUnavailableError("too many requests", calls_max=self.calls_max, interval_s=self.interval_s)
        self._passed.append(now)


@dataclass(kw_only=True, eq=False)
class Torn(Fault):
    """A put stores only the first `bytes_kept` bytes and raises `error`, or is acknowledged if that is `None`.

    A store that keeps its contract never does this. A disk that loses power does: a local copy may look like this, and
    a restore has to notice it.
    """

    bytes_kept: int = 0
    moment: Moment = field(default="after", init=False)
    error: BaseException | None = field(default_factory=_no_answer)

    async def strike(self) -> None:
        if self.error is not None:
            raise self.error

    def spoil(self, body: Body) -> Body:
        return [b"".join(body)[: self.bytes_kept]]


class _Struck:
    """The base of the wrappers: a plan that the test may change at any time, and the calls so far."""

    def __init__(self, plan: Iterable[Fault]) -> None:
        self.plan: list[Fault] = [*plan]
        self.calls: list[tuple[Operation, str]] = []
        self.under_way = 0

    @asynccontextmanager
    async def _faults(self, operation: Operation, key: str) -> AsyncGenerator[Sequence[Fault]]:
        self.calls.append((operation, key))
        self.under_way += 1
        try:
            struck = [fault for fault in self.plan if fault.strikes(operation, key)]
            await _strike(struck, "before")
            yield struck
            await _strike(struck, "after")
        finally:
            self.under_way -= 1


class FaultyStore(_Struck):
    """An `ObjectStore` that passes every call to `store`, with the faults of its `plan` applied.

    The test may change the plan at any time. All faults that strike a call apply, in order. `calls` lists every call so
    far with its key; `under_way` counts the calls that have not returned.
    """

    def __init__(self, store: ObjectStore, plan: Iterable[Fault] = ()) -> None:
        super().__init__(plan)
        self._store = store

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._store.capabilities

    async def put(self, key: str, body: Body) -> None:
        async with self._faults("put", key) as struck:
            await self._store.put(key, _spoiled(body, struck))

    async def put_if_absent(self, key: str, body: Body) -> None:
        async with self._faults("put_if_absent", key) as struck:
            await self._store.put_if_absent(key, _spoiled(body, struck))

    async def get(self, key: str) -> bytes:
        async with self._faults("get", key):
            return await self._store.get(key)

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        async with self._faults("get_range", key):
            return await self._store.get_range(key, offset, length)

    async def head(self, key: str) -> ObjectInfo | None:
        async with self._faults("head", key):
            return await self._store.head(key)

    async def delete(self, key: str) -> None:
        async with self._faults("delete", key):
            await self._store.delete(key)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async with self._faults("list", prefix):
            found = [info async for info in self._store.list(prefix)]
        for info in found:
            yield info


class FaultyUploader(_Struck):
    """A `StateChangeUploader` that passes every call to `uploader`, with the faults of its `plan` applied.

    An upload that fails with `moment="after"` has stored a segment that is never discarded, as after a process is
    killed between the two.
    """

    def __init__(self, uploader: StateChangeUploader, plan: Iterable[Fault] = ()) -> None:
        super().__init__(plan)
        self._uploader = uploader

    async def upload(self, segment: Segment) -> UploadedSegment:
        async with self._faults("upload", segment.name):
            return await self._uploader.upload(segment)

    async def discard(self, uploaded: UploadedSegment) -> None:
        async with self._faults("discard", uploaded.primary.key):
            await self._uploader.discard(uploaded)


async def _strike(faults: Iterable[Fault], moment: Moment) -> None:
    for fault in faults:
        if fault.moment == moment:
            await fault.strike()


def _spoiled(body: Body, faults: Iterable[Fault]) -> Body:
    for fault in faults:
        body = fault.spoil(body)
    return body
