"""Opens what the owners of a job's key groups share: the coordinator that commits what they contribute, and a cache."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import anyio

from statebackend._backend.asked_to_open import BeforeClaim
from statebackend._backend.job import Job, tell_opened, tell_passed_over
from statebackend._backend.stores import open_primary, open_threads, readable_copies, telling_requests
from statebackend._backend.sweeping import SweepBeside
from statebackend._cache.cached_files import CachedFiles
from statebackend._cache.download_cache import DownloadCache, open_cache
from statebackend._cache.download_ends import VerifiedSource
from statebackend._changelog.changelog_reader import verify
from statebackend._checkpoint.spending import Spending
from statebackend._local.scratch import scratch_parents
from statebackend._log.coordinator import CheckpointCoordinator
from statebackend._observers import Observers
from statebackend._tasks import open_tasks
from statebackend.abc import Clock, ObjectStore, Observer
from statebackend.abc.clock import SystemClock
from statebackend.settings import Settings


@asynccontextmanager
async def open_coordinator(
    settings: Settings,
    *,
    checkpoint_id: int | None = None,
    savepoint: str | None = None,
    store: ObjectStore | None = None,
    clock: Clock | None = None,
) -> AsyncGenerator[CheckpointCoordinator, None]:
    """Claim the job in order to commit what the owners of its key groups contribute, each in a process of its own.

    Open the owners after this, with `open_backend(key_groups=...)`, so that what they upload belongs to this epoch.
    The coordinator continues from the newest checkpoint, from `checkpoint_id` or from `savepoint`; the owners must
    continue from the same one. Raises as `open_backend`. After the context is left, the coordinator raises
    `BackendClosedError`.
    """
    async with open_counted_coordinator(
        settings, checkpoint_id=checkpoint_id, savepoint=savepoint, store=store, clock=clock
    ) as (coordinator, _):
        yield coordinator


@asynccontextmanager
async def open_counted_coordinator(
    settings: Settings,
    *,
    checkpoint_id: int | None = None,
    savepoint: str | None = None,
    store: ObjectStore | None = None,
    clock: Clock | None = None,
    observer: Observer | None = None,
    before_claim: BeforeClaim = lambda _: None,
) -> AsyncGenerator[tuple[CheckpointCoordinator, Spending], None]:
    """As `open_coordinator`, with the count of the coordinator's requests, of which `observer` is told."""
    clock, observer = clock or SystemClock(), Observers(observer or Observer())
    begun_s = clock.monotonic()
    async with (
        open_threads(settings) as threads,
        open_primary(settings, threads, commits=True, instead=store, clock=clock, observer=observer) as primary,
        telling_requests(primary.spending),
        open_tasks() as tasks,
    ):
        job = Job(
            primary.store,
            settings,
            threads,
            clock=clock,
            checkpoint_id=checkpoint_id,
            savepoint=savepoint,
            copies=partial(readable_copies, settings, None, threads),
        )
        position = await job.look()
        before_claim(position.summary)
        position = await job.claim(position)
        tell_passed_over(position, observer)
        tell_opened(settings, position, None, clock.monotonic() - begun_s)
        sweep = SweepBeside(
            primary.store, settings, threads, epoch=position.epoch, tasks=tasks, clock=clock, observer=observer
        )
        at_hand: Mapping[str, bytes] = job.log.take_body(position.base) if position.base is not None else {}
        coordinator = job.coordinator(position, base_body=next(iter(at_hand.values()), b""))
        is_left = False
        try:
            yield coordinator, primary.spending
            is_left = True
        finally:
            coordinator.close()
            with anyio.move_on_after(settings.close_timeout_s, shield=True):
                await coordinator.write_hint()
                if is_left:
                    await sweep.first()


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
