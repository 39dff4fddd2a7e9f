"""The stores of a job: its primary, and its local copies on this host."""

import logging
import math
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
import msgspec

from statebackend._checkpoint.restore import LocalCopies
from statebackend._checkpoint.spending import Spending
from statebackend._local.job_directories import LocalDirectory, has_copies, open_local_directories
from statebackend._local.layout import segments_directory
from statebackend._local.rocksdb_copies import RocksDBCopies
from statebackend._local.segments import LocalSegments
from statebackend._log.names import PROBE_KEY
from statebackend._threads import WorkerThreads
from statebackend.abc import Clock, ObjectStore, Observer
from statebackend.errors import PrimaryUrlError, needs_extra
from statebackend.objectstore import LocalStore, open_memory_store
from statebackend.objectstore.scoped import CountingStore, ScopedStore
from statebackend.settings import Settings, check_primary

LEFTOVERS_AGE_S: Final = 3600.0
"""A temporary file that was not touched for this long has no writer any more."""

_logger = logging.getLogger(__name__)


def threads_of(settings: Settings) -> WorkerThreads:
    """The worker threads of what is being opened with these settings: made once for it, and passed down."""
    return WorkerThreads(
        cpu_threads_max=settings.cpu_threads_max, io_threads_max=settings.io_threads_max, roots=settings.local
    )


@asynccontextmanager
async def open_threads(settings: Settings) -> AsyncGenerator[WorkerThreads]:
    """As `threads_of`, for what ends with the context: no thread of its own outlives it."""
    threads = threads_of(settings)
    try:
        yield threads
    finally:
        threads.close()


@asynccontextmanager
async def open_store(
    settings: Settings, threads: WorkerThreads, *, commits: bool, instead: ObjectStore | None = None
) -> AsyncGenerator[ObjectStore]:
    """The store that `settings.primary` names, closed at the end; or `instead`, which stays open.

    S3 and Azure are first asked whether they keep put-if-absent, if the caller `commits`. Raises `PrimaryUrlError`, and
    what `open_s3_store` raises.
    """
    if instead is not None:
        yield instead
        return
    check_primary(settings.primary)
    url = urlsplit(settings.primary)
    if url.scheme == "memory":
        yield open_memory_store(url.netloc)
    elif url.scheme == "file":
        yield LocalStore(Path(url.path), threads=threads)
    elif url.scheme == "azure":
        async with _open_azure_store(settings, threads, commits=commits) as store:
            yield store
    else:
        from statebackend.objectstore.s3 import open_s3_store  # noqa: PLC0415  # costs 0.25 s and 44 MiB

        async with open_s3_store(
            settings.primary, settings.s3, probe_key=_probe_key(settings, commits=commits), threads=threads
        ) as store:
            yield store


def _open_azure_store(
    settings: Settings, threads: WorkerThreads, *, commits: bool
) -> AbstractAsyncContextManager[ObjectStore]:
    try:
        from statebackend.objectstore.azure import open_azure_store  # noqa: PLC0415  # an extra
    except ModuleNotFoundError as error:
        raise PrimaryUrlError(needs_extra("an azure:// primary", "azure"), missing=error.name) from error
    return open_azure_store(
        settings.primary, settings.azure, probe_key=_probe_key(settings, commits=commits), threads=threads
    )


def _probe_key(settings: Settings, *, commits: bool) -> str | None:
    return f"{settings.job}/{PROBE_KEY}" if commits else None


class Primary(msgspec.Struct, frozen=True):
    """The job's part of a store, and what the requests to it cost."""

    store: ScopedStore
    spending: Spending


@asynccontextmanager
async def open_primary(
    settings: Settings,
    threads: WorkerThreads,
    *,
    commits: bool,
    instead: ObjectStore | None,
    clock: Clock,
    observer: Observer,
) -> AsyncGenerator[Primary]:
    """Open the job's part of its primary, as `open_store` does, and count the requests to it from now on.

    The observer hears of them by `Spending.tell` alone: see `telling_requests`.
    """
    async with open_store(settings, threads, commits=commits, instead=instead) as store:
        counting = CountingStore(store)
        spending = Spending(
            counting,
            settings.prices,
            put_budget_usd_month=settings.put_budget_usd_month,
            persist_delay_s=settings.persist_delay_s,
            persist_delay_max_s=settings.persist_delay_max_s,
            clock=clock,
            observer=observer,
        )
        yield Primary(ScopedStore(counting, f"{settings.job}/"), spending)


@asynccontextmanager
async def telling_requests(spending: Spending) -> AsyncGenerator[None]:
    """Tell of the last requests when everything inside that makes any has ended.

    A context of its own, because a backend and an attempt enter it only once they have found their commit: an opening
    that fails before that is not told of.
    """
    try:
        yield
    finally:
        spending.tell()


@asynccontextmanager
async def open_local(
    settings: Settings,
    instead: Sequence[ObjectStore] | None,
    threads: WorkerThreads,
    *,
    read_only: bool,
    shared: bool = False,
    now_s: float = 0.0,
) -> AsyncGenerator[LocalCopies | None]:
    """The local copies, writable unless another live backend of this job owns one of the roots.

    `shared`: for one owner of several, which share the roots; `now_s` is the time, by this host's clock. A root whose
    disk takes nothing gets no copies, and is read; the others are as they were. `instead`: stores in their place,
    without locks.
    """
    if read_only:
        yield local_to_read(settings, threads, instead)
    elif instead:
        yield LocalCopies(await _taken_stock(settings, instead), writable=True, shared=shared)
    else:
        opening = open_local_directories(
            settings.local, settings.job, threads, timeout_s=settings.local_read_timeout_s, shared=shared
        )
        async with opening as directories:
            before_s = now_s - LEFTOVERS_AGE_S if shared else math.inf
            yield await _local_in(directories, settings, threads, shared=shared, before_s=before_s)


def local_to_read(
    settings: Settings, threads: WorkerThreads, instead: Sequence[ObjectStore] | None = None
) -> LocalCopies | None:
    """The local copies, for reading only and without their locks; `None` where there are no roots. Touches no disk."""
    if (segments := readable_copies(settings, instead, threads)) is None:
        return None
    rocksdb = None if instead else rocksdb_copies(settings, threads, segments)
    return LocalCopies(segments, writable=False, rocksdb=rocksdb)


async def _local_in(
    directories: Sequence[LocalDirectory | None],
    settings: Settings,
    threads: WorkerThreads,
    *,
    shared: bool,
    before_s: float,
) -> LocalCopies | None:
    """The local copies in these directories, `None` for one that hangs. What killed writers left there is removed.

    `before_s`: as for `clear_leftovers`.
    """
    if not directories:
        return None
    hanging = {place for place, directory in enumerate(directories) if directory is None}
    answering = [each for each in directories if each is not None]
    writable = all(each.owned or each.failing for each in answering)
    if not writable:
        _logger.warning("job %s: another backend owns the local copy; this one only reads it", settings.job)
    stores = local_stores_of(settings, threads)
    for place, directory in enumerate(directories):
        if directory is None or not directory.owned:
            continue
        if not await clear_leftovers(settings, place, stores[place], before_s=before_s):
            hanging.add(place)
    owned = [directory is None or directory.owned for directory in directories]
    segments = await _taken_stock(settings, stores, owned, hanging)
    rocksdb = rocksdb_copies(settings, threads, segments, writable=writable, hanging=hanging)
    return LocalCopies(segments, writable=writable, rocksdb=rocksdb, shared=shared)


async def roots_with_copies(settings: Settings, threads: WorkerThreads | None = None) -> Sequence[str]:
    """The local roots in which copies of the job lie, as far as they answer in time. Raises nothing."""
    threads, found = threads or threads_of(settings), list[str]()
    for root in settings.local:
        with anyio.move_on_after(settings.local_read_timeout_s), suppress(OSError):
            if await threads.of_root(root).io(has_copies, root, settings.job, abandon_after_s=0.0):
                found.append(root)
    return found


def local_stores_of(settings: Settings, threads: WorkerThreads) -> Sequence[LocalStore]:
    """One for each local root, hanging or not: which of them a key lies in depends on their number."""
    return [
        LocalStore(
            segments_directory(Path(root), settings.job),
            abandon_after_s=settings.close_timeout_s,
            threads=threads.of_root(root),
        )
        for root in settings.local
    ]


async def clear_leftovers(settings: Settings, place: int, store: LocalStore, *, before_s: float = math.inf) -> bool:
    """Remove what killed writers left in the local root at `place`; say whether it has answered in time.

    Call it only as owner of the root, or with a `before_s` so old that nobody writes any more: see `remove_leftovers`.
    """
    with anyio.move_on_after(settings.local_read_timeout_s):
        await store.remove_leftovers(before_s=before_s)
        return True
    _logger.warning("a local root hangs, and is not used: root=%s", settings.local[place])
    return False


def readable_copies(
    settings: Settings, instead: Sequence[ObjectStore] | None, threads: WorkerThreads
) -> LocalSegments | None:
    """The local copies, for reading only and without their locks; `None` where there are no roots. Touches no disk."""
    readable = instead or local_stores_of(settings, threads)
    if not readable:
        return None
    return LocalSegments(readable, owned=[False] * len(readable), read_timeout_s=settings.local_read_timeout_s)


def rocksdb_copies(
    settings: Settings,
    threads: WorkerThreads,
    segments: LocalSegments | None = None,
    *,
    writable: bool = False,
    hanging: Collection[int] = (),
) -> RocksDBCopies | None:
    """The local copies of RocksDB bases, in the roots of `segments`; `None` where there are no roots."""
    if not settings.local:
        return None
    return RocksDBCopies(
        [Path(root) for root in settings.local],
        settings.job,
        threads,
        writable=writable,
        timeout_s=settings.local_read_timeout_s,
        bytes_max=settings.local_bytes_max,
        segments=segments,
        hanging=hanging,
    )


async def _taken_stock(
    settings: Settings,
    stores: Sequence[ObjectStore],
    owned: Sequence[bool] | None = None,
    hanging: Collection[int] = (),
) -> LocalSegments:
    segments = LocalSegments(
        stores,
        owned=owned,
        bytes_max=settings.local_bytes_max,
        read_timeout_s=settings.local_read_timeout_s,
        hanging=hanging,
    )
    await segments.take_stock()
    return segments
