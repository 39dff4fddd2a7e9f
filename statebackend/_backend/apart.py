"""The primary by a loop and a client of their own, for look-ups, which cannot wait for the loop that may call them.

The thread starts with the first request, and ends with the backend. Its requests count as the backend's.
"""

import logging
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Final, TypeVar

import anyio

from statebackend._backend.stores import open_store, open_threads
from statebackend._checkpoint.spending import Spending
from statebackend._portal import OpenContext, Portal
from statebackend._runs.far_pages import FarRange
from statebackend._tasks import HomeProcess, finish, in_order
from statebackend._threads import WorkerThreads
from statebackend.abc import ObjectStore, OpensApart
from statebackend.errors import BackendClosedError, MissingObjectError, ObjectNotFoundError, StoreUnavailableError
from statebackend.ids import Handle
from statebackend.objectstore.scoped import CountingStore, ScopedStore
from statebackend.settings import Settings

T = TypeVar("T")

REQUEST_S: Final = 60.0
"""Longest wait for a request without which a look-up cannot go on."""
REQUESTS_AT_ONCE: Final = 64
"""Ranges fetched at a time: together they are what a look-up has in memory beside its pages, some 16 MiB."""

_logger = logging.getLogger(__name__)


class Apart:
    """Reads objects of a job, in any thread but that of its own loop. Blocks the caller.

    `open_job`: opens the job's part of the primary for the loop that runs it.
    """

    def __init__(self, open_job: Callable[[], AbstractAsyncContextManager[ObjectStore]]) -> None:
        self._open_job = open_job
        self._home = HomeProcess()
        self._lock = threading.Lock()
        self._portal = Portal(name="statebackend-apart")
        self._held: OpenContext[ObjectStore] | None = None

    def get(self, file: Handle) -> bytes:
        """The whole object. Raises `MissingObjectError`, `StoreError`s, and `BackendClosedError`."""

        async def get(store: ObjectStore) -> bytes:
            return await _in_time(file.key, store.get(file.key))

        return self._call(get)

    def get_ranges(self, ranges: Sequence[FarRange], take: Callable[[int, bytes], None]) -> None:
        """As `ReadsApart.get_ranges`. Raises as `get`."""

        async def get(store: ObjectStore) -> None:
            async def get_one(number: int) -> bytes:
                key, offset, length = ranges[number]
                return await _in_time(key, store.get_range(key, offset, length))

            async def take_one(number: int, data: bytes) -> None:
                take(number, data)

            await in_order(range(len(ranges)), get_one, take_one, concurrency_max=REQUESTS_AT_ONCE)

        self._call(get)

    def begin(self) -> None:
        """Start to open the store, and return at once."""
        with self._lock:
            if self._held is None or self._held.call.has_ended:
                self._held = self._portal.hold(self._open_job())

    @property
    def has_begun(self) -> bool:
        """True once the store was asked for."""
        return self._held is not None

    def close(self) -> None:
        """End the thread. A call under way, in another thread, raises `BackendClosedError`."""
        self._portal.close()

    def _call(self, function: Callable[[ObjectStore], Awaitable[T]]) -> T:
        self._home.check()
        with _as_closed():
            self.begin()
            assert self._held is not None
            self._held.wait()
            return self._portal.call(function, self._held.result())


async def _in_time(key: str, request: Awaitable[T]) -> T:
    try:
        with anyio.fail_after(REQUEST_S):
            return await request
    except ObjectNotFoundError as error:
        raise MissingObjectError(
            "a file of the state is gone from the primary: open the job again", object=key
        ) from error
    except TimeoutError as error:
        raise StoreUnavailableError(
            "the primary has not answered a look-up in time: process the batch again", key=key, seconds=REQUEST_S
        ) from error


@contextmanager
def _as_closed() -> Generator[None]:
    """Say what a closed portal means here."""
    try:
        yield
    except CancelledError as error:
        raise BackendClosedError("the backend was left during a look-up in the primary") from error
    except BackendClosedError as error:
        raise BackendClosedError(
            "the backend was left, and its state lies in the primary: open the job again"
        ) from error


def apart_of(
    settings: Settings, given: ObjectStore | None, count: Callable[[CountingStore], None] = lambda _: None
) -> Apart | None:
    """The primary for look-ups, to be closed; `None` where that is a `given` store that cannot be opened apart.

    `count`: called with each client that is opened.
    """
    if given is not None and not isinstance(given, OpensApart):
        return None

    @asynccontextmanager
    async def open_job() -> AsyncGenerator[ObjectStore]:
        opening = _opened(settings) if given is None else given.apart()
        async with opening as store:
            counting = CountingStore(store)
            count(counting)
            yield ScopedStore(counting, f"{settings.job}/")

    return Apart(open_job)


@asynccontextmanager
async def open_apart(
    settings: Settings, given: ObjectStore | None, spending: Spending, threads: WorkerThreads
) -> AsyncGenerator[Apart | None]:
    """As `apart_of`, counted in `spending`, and closed when the context is left."""
    apart = apart_of(settings, given, spending.count_too)
    if apart is None:
        _logger.info(
            "the store that was passed has no `apart`, see `OpensApart`: state without a local copy is fetched whole"
        )
        yield None
        return
    try:
        yield apart
    finally:
        await finish(threads.io, apart.close)


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncGenerator[ObjectStore]:
    async with open_threads(settings) as threads, open_store(settings, threads, commits=False) as store:
        yield store
