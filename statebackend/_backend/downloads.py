"""Opens the download cache that several backends of a job share."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from statebackend._backend.stores import open_primary, open_threads, telling_requests
from statebackend._cache.cached_files import CachedFiles
from statebackend._cache.download_cache import DownloadCache, open_cache
from statebackend._cache.download_ends import VerifiedSource
from statebackend._changelog.changelog_reader import verify
from statebackend._clock import SystemClock
from statebackend._local.scratch import scratch_parents
from statebackend._observers import Observers
from statebackend.abc import Clock, ObjectStore, Observer
from statebackend.settings import Settings


@asynccontextmanager
async def open_download_cache(
    settings: Settings,
    *,
    store: ObjectStore | None = None,
    clock: Clock | None = None,
    observer: Observer | None = None,
) -> AsyncGenerator[DownloadCache]:
    """A cache for `open_backend(cache=...)`: files that several backends restore from are downloaded once.

    For backends of one job, on one event loop of one process. It pays where they want the same files: with a cache each
    file is downloaded whole, without one a backend fetches only its own part of a file that it shares with many. Raises
    `PrimaryUrlError`, or `LocalRootError` where its directory is not ours; leaving the context removes all files.
    """
    clock, observer = clock or SystemClock(), Observers(observer or Observer())
    async with (
        open_threads(settings) as threads,
        open_primary(settings, threads, commits=False, instead=store, clock=clock, observer=observer) as primary,
        telling_requests(primary.spending),
        open_cache(
            VerifiedSource(primary.store, verify, threads),
            scratch_parents(settings.cache_dir, settings.local),
            CachedFiles(bytes_max=settings.cache_bytes_max, idle_s=settings.cache_idle_s),
            job=settings.job,
            downloads_max=settings.restore_concurrency_max,
            threads=threads,
            clock=clock,
            observer=observer,
        ) as cache,
    ):
        yield cache
