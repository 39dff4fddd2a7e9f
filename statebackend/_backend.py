"""The composition root: `open_backend` puts the rooms together and owns everything that lives as long as a backend.

The only place that names concrete stores and uploaders, makes names and stamps, and holds the task group in which
uploads run.
"""

import functools
import itertools
import logging
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
import msgspec
from anyio.abc import TaskGroup

from statebackend._changelog.reader import verify
from statebackend._changelog.scheduler import UploadScheduler
from statebackend._changelog.writer import ChangelogWriter
from statebackend._checkpoint.backend import StateBackend
from statebackend._checkpoint.commits import CommitLog, LogEnd, commit_key
from statebackend._checkpoint.coordinator import CheckpointCoordinator
from statebackend._checkpoint.inline import InlineEncoder
from statebackend._checkpoint.materializer import Materializer
from statebackend._checkpoint.restore import LocalCopies, Restore
from statebackend._checkpoint.savepoints import Savepoints
from statebackend._checkpoint.spending import Spending
from statebackend._checkpoint.sweep import MIN_AGE_S, Sweep, sweep_every
from statebackend._clock import SystemClock
from statebackend._codec.commit import Claim, Commit
from statebackend._local.cache import DownloadCache, open_cache
from statebackend._local.directories import open_local_directories
from statebackend._local.layout import segments_directory
from statebackend._local.retention import LocalRetention
from statebackend._local.scratch import open_scratch, scratch_parent
from statebackend._local.segments import LocalSegments
from statebackend._observers import Observers
from statebackend._retry import RetryPolicy
from statebackend._state.key_groups import OwnedKeys
from statebackend._state.keyed import KeyedStates, heap_table
from statebackend._state.tables import OpenTable
from statebackend._tasks import in_thread, open_tasks
from statebackend._version import __version__
from statebackend.abc import Clock, ObjectStore, Observer, RestoreReport, StateChangeUploader
from statebackend.errors import (
    CheckpointNotFoundError,
    FencedError,
    InputError,
    SettingsError,
)
from statebackend.ids import CheckpointId, Epoch, KeyGroupRange, all_key_groups
from statebackend.objectstore import LocalStore, open_memory_store
from statebackend.objectstore.scoped import CountingStore, ScopedStore
from statebackend.settings import Settings, check_primary
from statebackend.uploaders import DuplicatingUploader, PrimaryUploader
from statebackend.uploaders.local_copies import CopyWriter

_log = logging.getLogger(__name__)

CLAIM_ATTEMPTS_MAX: Final = 16
"""Each failure is another writer who opened the job, or committed, in that very moment."""

OpenUploader = Callable[[ObjectStore, ObjectStore | None], StateChangeUploader]


@asynccontextmanager
async def open_backend(
    settings: Settings,
    *,
    key_groups: KeyGroupRange | None = None,
    owners: Sequence[KeyGroupRange] | None = None,
    checkpoint_id: int | None = None,
    savepoint: str | None = None,
    store: ObjectStore | None = None,
    local_stores: Sequence[ObjectStore] | None = None,
    uploader: StateChangeUploader | OpenUploader | None = None,
    cache: DownloadCache | None = None,
    clock: Clock | None = None,
    observer: Observer | None = None,
    read_only: bool = False,
) -> AsyncGenerator[StateBackend, None]:
    """Open the job's state as of its newest checkpoint, of `checkpoint_id` or of `savepoint`; empty for a new job.

    `key_groups`: the part this process owns, all by default. `owners`: all parts there are, this one included, by
    which operator state is dealt out; only who has such state, and owns a part, has to say. `store`: used instead of
    the one `settings.primary` names. `local_stores`: used instead of directories in `settings.local`, one for each;
    nobody else may write there. `uploader`: your own, or a callable that is given the primary and the local store and
    returns one. `cache`: shared with other backends of this job that restore from the same files.

    Opening claims the job, by an entry in its log: whoever opened it before is fenced, and finds out by `FencedError`
    at his next checkpoint. With `read_only` nothing is written, neither to the primary nor to the local copy, and
    nobody is fenced; `checkpoint` raises `InputError` then, and in the backend of a part of the key groups, whose
    snapshots a `CheckpointCoordinator` commits.

    Raises `WrongJobError`, `CheckpointNotFoundError`, `SavepointNotFoundError`, `CorruptCommitError`, `LocalRootError`,
    or `SettingsError` where the settings contradict what was committed, and has claimed nothing; `CorruptSegmentError`,
    `MissingObjectError`, and `StoreError`s with or without a claim. Leaving the context forgets uncommitted changes,
    and ends within `close_timeout_s` and the second that an upload under way is given to remove what it wrote.
    """
    if store is None:
        async with (
            open_store(settings, commits=not read_only and key_groups is None) as opened,
            open_backend(
                settings,
                key_groups=key_groups,
                owners=owners,
                checkpoint_id=checkpoint_id,
                savepoint=savepoint,
                store=opened,
                local_stores=local_stores,
                uploader=uploader,
                cache=cache,
                clock=clock,
                observer=observer,
                read_only=read_only,
            ) as backend,
        ):
            yield backend
        return
    clock, observer = clock or SystemClock(), Observers(observer or Observer())
    if cache is not None and cache.job != settings.job:
        raise SettingsError("the download cache is that of another job", job=settings.job, cache_job=cache.job)
    owned = key_groups or all_key_groups(settings.max_parallelism)
    commits = not read_only and owned == all_key_groups(settings.max_parallelism)
    counting = CountingStore(store)
    primary = ScopedStore(counting, f"{settings.job}/")
    spending = Spending(counting, settings, clock=clock, observer=observer)
    log = CommitLog(primary, settings.job, policy=_policy(settings), timeout_s=_patience_s(settings), clock=clock)
    savepoints = Savepoints(primary, settings.job, timeout_s=settings.commit_timeout_s)
    look = functools.partial(_look, log, savepoints, settings, checkpoint_id, savepoint)
    position = await look()
    async with (
        _telling_requests(spending),
        _open_local(settings, local_stores, read_only=read_only) as local,
        _open_tables(settings, owned) as open_table,
        open_tasks() as tasks,
    ):
        claim = None
        if commits:
            claim, position = await _claim(log, look, position)
        newest, base = position.newest, position.base
        states = KeyedStates(
            owned,
            settings.max_parallelism,
            base.states if base is not None else (),
            reported=base.ranges if base is not None else (),
            owners=owners,
            open_table=open_table,
        )
        uploads = _open_uploader(uploader, primary, local, settings=settings, tasks=tasks, observer=observer)
        coordinator = CheckpointCoordinator(
            log,
            settings,
            newest=newest,
            base=base,
            claim=claim,
            savepoints=savepoints,
            clock=clock,
            new_stamp=_new_stamp,
            release=__version__,
            copies=_open_copies(uploader, uploads, local, settings=settings, tasks=tasks, observer=observer),
        )
        restored, changed = None, frozenset[int]()
        if base is not None:
            restored, changed = await _restore(
                base,
                states,
                primary,
                local,
                cache=cache,
                at_hand=log.take_body(base),
                settings=settings,
                clock=clock,
            )
            spending.tell()
            observer.restored(restored)
        if local is not None and local.writable:
            await local.store.prune(_needed(newest, base))
        scheduler = UploadScheduler(
            uploads,
            settings,
            tasks=tasks,
            clock=clock,
            observer=observer,
            new_name=_new_names(position.epoch if claim is None else claim.epoch),
            persist_delay_s=spending.persist_delay_s,
        )
        writer = ChangelogWriter(
            f"{states.key_groups.first}-{states.key_groups.last}",
            scheduler,
            tasks=tasks,
            preemptive_persist_threshold_bytes=settings.preemptive_persist_threshold_bytes,
        )
        backend = StateBackend(
            states,
            writer,
            coordinator,
            log,
            spending,
            materializer=Materializer(
                states, scheduler, settings, changed=changed, tasks=tasks, clock=clock, observer=observer
            ),
            epoch=position.epoch if claim is None else claim.epoch,
            inline=InlineEncoder(settings, bytes_max=settings.inline_bytes_max if uploader is None else 0),
            retention=_retain(local, tasks, newest, base),
            restored=restored,
            clock=clock,
            observer=observer,
        )
        if claim is not None and settings.sweep_interval_s:
            tasks.start_soon(sweep_every, settings.sweep_interval_s, open_sweep(primary, settings, clock=clock))
        try:
            yield backend
        finally:
            with anyio.move_on_after(settings.close_timeout_s, shield=True):
                await backend.close()


@asynccontextmanager
async def open_coordinator(
    settings: Settings, *, store: ObjectStore | None = None, clock: Clock | None = None
) -> AsyncGenerator[CheckpointCoordinator, None]:
    """Claim the job, to commit what the owners of its key groups contribute, each in a process of its own.

    They are opened after this, with `open_backend(key_groups=...)`: what they upload is of this reign then. Raises as
    `open_backend`.
    """
    if store is None:
        async with (
            open_store(settings, commits=True) as opened,
            open_coordinator(settings, store=opened, clock=clock) as coordinator,
        ):
            yield coordinator
        return
    clock = clock or SystemClock()
    primary = ScopedStore(store, f"{settings.job}/")
    log = CommitLog(primary, settings.job, policy=_policy(settings), timeout_s=_patience_s(settings), clock=clock)
    savepoints = Savepoints(primary, settings.job, timeout_s=settings.commit_timeout_s)
    look = functools.partial(_look, log, savepoints, settings, None, None)
    claim, position = await _claim(log, look, await look())
    try:
        yield CheckpointCoordinator(
            log,
            settings,
            newest=position.newest,
            base=position.base,
            claim=claim,
            savepoints=savepoints,
            clock=clock,
            new_stamp=_new_stamp,
            release=__version__,
        )
    finally:
        with anyio.move_on_after(settings.close_timeout_s, shield=True):
            await log.write_hint()


class _Position(msgspec.Struct, frozen=True):
    """Where a job is: the end of its log, its newest commit, and the one that the state is to be restored from."""

    end: LogEnd | None
    newest: Commit | None
    base: Commit | None

    @property
    def epoch(self) -> Epoch:
        """Of the newest claim; 0 where there is none, or where it cannot be read."""
        return Epoch(0) if self.end is None or self.end.entry is None else self.end.entry.epoch


async def _look(
    log: CommitLog, savepoints: Savepoints, settings: Settings, checkpoint_id: int | None, savepoint: str | None
) -> _Position:
    end = await log.end()
    if checkpoint_id is not None and savepoint is not None:
        raise InputError("a checkpoint id or a savepoint, not both", checkpoint_id=checkpoint_id, savepoint=savepoint)
    if checkpoint_id is None and savepoint is None:
        newest = base = await log.newest(end)
    else:  # perhaps to go back behind damaged commits: the newest that can be read is the newest
        readable = None if end is None else await log.readable(end.sequence)
        if savepoint is not None:
            base = await savepoints.find(savepoint)
        else:
            base = await _find(log, savepoints, end, CheckpointId(checkpoint_id or 0))
        newest = readable or base
    _check_parallelism(settings, newest)
    return _Position(end, newest, base)


async def _find(log: CommitLog, savepoints: Savepoints, end: LogEnd | None, checkpoint_id: CheckpointId) -> Commit:
    """Any retained commit by its id: of the log as far as it was not swept, or a savepoint."""
    try:
        found = await log.find(end, checkpoint_id)
        if found.sequence >= await savepoints.floor():
            return found
        raise CheckpointNotFoundError("that checkpoint is not retained any more", checkpoint_id=checkpoint_id)
    except CheckpointNotFoundError:
        if (kept := await savepoints.with_id(checkpoint_id)) is not None:
            return kept
        raise


async def _claim(
    log: CommitLog, look: Callable[[], Awaitable[_Position]], position: _Position
) -> tuple[Claim, _Position]:
    """Claim the job, and say where it was then: nothing is committed between that position and the claim."""
    for _ in range(CLAIM_ATTEMPTS_MAX):
        base = None if position.base is None else position.base.sequence
        claim = await log.claim(position.end, stamp=_new_stamp(), release=__version__, base=base)
        if claim is not None:
            if claim.base is not None:
                await look()  # a sweep that had begun before the claim may have deleted it; from now on none does
            return claim, position
        position = await look()
    raise FencedError("others claim this job again and again: stop all but one", attempts=CLAIM_ATTEMPTS_MAX)


def open_sweep(primary: ObjectStore, settings: Settings, *, clock: Clock, min_age_s: float = MIN_AGE_S) -> Sweep:
    """A sweep of the job in `primary`, which is confined to it."""
    return Sweep(
        primary,
        settings.job,
        checkpoints_retained=settings.checkpoints_retained,
        clock=clock,
        min_age_s=min_age_s,
        concurrency_max=settings.restore_concurrency_max,
    )


@asynccontextmanager
async def _open_tables(settings: Settings, key_groups: KeyGroupRange) -> AsyncGenerator[OpenTable]:
    """How the states get their tables. Raises `SettingsError` where rocksdict is missing."""
    if settings.table == "heap":
        yield heap_table
        return
    try:
        from statebackend._state.rocks_tables import open_table  # noqa: PLC0415  # an extra
        from statebackend._state.rocksdb import RocksStore  # noqa: PLC0415  # as above
    except ImportError as error:
        raise SettingsError("this table needs the extra 'rocksdb'", table=settings.table) from error
    keys, limiter = OwnedKeys(key_groups, settings.max_parallelism), anyio.CapacityLimiter(1)
    opened: list[RocksStore] = []
    async with open_scratch(scratch_parent(settings.table_dir, settings)) as directory:

        def open_files() -> None:  # appended in the thread, so that a cancelled call cannot lose it
            opened.append(RocksStore(directory / "rocksdb", memory_bytes=settings.table_memory_bytes))

        try:
            await in_thread(open_files, limiter=limiter)
            yield partial(open_table, opened[0], keys)
        finally:
            with anyio.CancelScope(shield=True):
                for store in opened:
                    await in_thread(store.close, limiter=limiter)


@asynccontextmanager
async def open_download_cache(
    settings: Settings,
    *,
    store: ObjectStore | None = None,
    clock: Clock | None = None,
    observer: Observer | None = None,
) -> AsyncGenerator[DownloadCache]:
    """A cache for `open_backend(cache=...)`: what several backends of the job restore from is downloaded once.

    For backends on one event loop, of one process. Worth it where they want the same files: with a cache each file is
    downloaded as a whole, without one a backend fetches only its own part of a file that it shares with many. Raises
    `PrimaryUrlError`, or `LocalRootError` where its directory cannot be made; leaving the context removes all files.
    """
    if store is None:
        async with (
            open_store(settings, commits=False) as opened,
            open_download_cache(settings, store=opened, clock=clock, observer=observer) as cache,
        ):
            yield cache
        return
    clock, observer = clock or SystemClock(), Observers(observer or Observer())
    counting = CountingStore(store)
    primary = ScopedStore(counting, f"{settings.job}/")
    async with (
        _telling_requests(Spending(counting, settings, clock=clock, observer=observer)),
        open_cache(
            primary,
            scratch_parent(settings.cache_dir, settings),
            settings,
            verify=verify,
            clock=clock,
            observer=observer,
        ) as cache,
    ):
        yield cache


@asynccontextmanager
async def open_store(settings: Settings, *, commits: bool) -> AsyncGenerator[ObjectStore]:
    """The store that `settings.primary` names, closed at the end.

    S3 is first asked whether it keeps put-if-absent, if the caller `commits`. Raises `PrimaryUrlError`, and what
    `open_s3_store` raises.
    """
    check_primary(settings.primary)
    url = urlsplit(settings.primary)
    if url.scheme == "memory":
        yield open_memory_store(url.netloc)
    elif url.scheme == "file":
        yield LocalStore(Path(url.path), io_threads_max=settings.io_threads_max)
    else:
        from statebackend.objectstore.s3 import open_s3_store  # noqa: PLC0415  # 0.25 s and 44 MiB, for who wants it

        async with open_s3_store(settings, commits=commits) as store:
            yield store


@asynccontextmanager
async def _telling_requests(spending: Spending) -> AsyncGenerator[None]:
    """Tells of the last requests when the backend has ended."""
    try:
        yield
    finally:
        spending.tell()


@asynccontextmanager
async def _open_local(
    settings: Settings, instead: Sequence[ObjectStore] | None, *, read_only: bool
) -> AsyncGenerator[LocalCopies | None]:
    """The local copies, writable unless another live backend of this job owns one of the roots."""
    if read_only:
        places = [segments_directory(Path(root), settings.job) for root in settings.local]
        readable = instead or [_open_root(place, settings) for place in places]
        if not readable:
            yield None
            return
        segments = LocalSegments(readable, owned=[False] * len(readable), read_timeout_s=settings.local_read_timeout_s)
        yield LocalCopies(segments, writable=False)
        return
    if instead:
        segments = LocalSegments(
            instead, bytes_max=settings.local_bytes_max, read_timeout_s=settings.local_read_timeout_s
        )
        await segments.take_stock()
        yield LocalCopies(segments, writable=True)
        return
    opening = open_local_directories(settings.local, settings.job, timeout_s=settings.local_read_timeout_s)
    async with opening as directories:
        if not directories:
            yield None
            return
        owned = [directory is None or directory.owned for directory in directories]
        if not all(owned):
            _log.warning("job %s: another backend owns the local copy; this one only reads it", settings.job)
        stores = [_open_root(segments_directory(Path(root), settings.job), settings) for root in settings.local]
        hanging = {place for place, directory in enumerate(directories) if directory is None}
        for place, store in enumerate(stores):
            if owned[place] and place not in hanging:  # elsewhere somebody may be writing them
                with anyio.move_on_after(settings.local_read_timeout_s) as bounded:
                    await store.remove_leftovers()
                if bounded.cancelled_caught:
                    _log.warning("a local root hangs, and is left alone: root=%s", settings.local[place])
                    hanging.add(place)
        segments = LocalSegments(
            stores,
            owned=owned,
            bytes_max=settings.local_bytes_max,
            read_timeout_s=settings.local_read_timeout_s,
            hanging=hanging,
        )
        await segments.take_stock()
        yield LocalCopies(segments, writable=all(owned))


def _open_root(segments: Path, settings: Settings) -> LocalStore:
    return LocalStore(segments, io_threads_max=settings.io_threads_max, abandon_after_s=settings.close_timeout_s)


def _retain(local: LocalCopies | None, tasks: TaskGroup, *commits: Commit | None) -> LocalRetention | None:
    """Keeps the local copies of these commits until a newer one does not use them. `None` where we may not write."""
    if local is None or not local.writable:
        return None
    retention = LocalRetention(local.store, tasks=tasks)
    for commit in commits:
        if commit is not None:
            retention.register(_needed(commit), commit.checkpoint_id)
    return retention


async def _restore(
    base: Commit,
    states: KeyedStates,
    primary: ObjectStore,
    local: LocalCopies | None,
    *,
    cache: DownloadCache | None,
    at_hand: Mapping[str, bytes],
    settings: Settings,
    clock: Clock,
) -> tuple[RestoreReport, frozenset[int]]:
    restore = Restore(
        primary,
        local,
        cache=cache,
        at_hand=at_hand,
        clock=clock,
        concurrency_max=settings.restore_concurrency_max,
        cpu_threads_max=settings.cpu_threads_max,
    )
    return await restore.run(base, states.key_groups, states.replay), restore.changed


def _open_copies(
    uploader: StateChangeUploader | OpenUploader | None,
    opened: StateChangeUploader,
    local: LocalCopies | None,
    *,
    settings: Settings,
    tasks: TaskGroup,
    observer: Observer,
) -> CopyWriter | None:
    """Copies of the commits themselves, in the same roots as those of the segments. `None` where we may not write.

    By the same writer, where it is ours: a disk that hangs costs a checkpoint one `secondary_grace_s`, and not two.
    """
    if local is None or not local.writable:
        return None
    if uploader is None and isinstance(opened, DuplicatingUploader):
        return opened.copies
    return CopyWriter(
        local.store,
        grace_s=settings.secondary_grace_s,
        dropped=observer.local_copy_dropped,
        root_of=local.store.root_of,
        tasks=tasks,
    )


def _open_uploader(
    uploader: StateChangeUploader | OpenUploader | None,
    primary: ObjectStore,
    local: LocalCopies | None,
    *,
    settings: Settings,
    tasks: TaskGroup,
    observer: Observer,
) -> StateChangeUploader:
    secondary = local.store if local is not None and local.writable else None
    if uploader is None:
        if secondary is None:
            return PrimaryUploader(primary)
        return DuplicatingUploader(
            primary,
            secondary,
            secondary_grace_s=settings.secondary_grace_s,
            dropped=observer.local_copy_dropped,
            root_of=secondary.root_of,
            tasks=tasks,
        )
    if isinstance(uploader, StateChangeUploader) and not isinstance(uploader, type):  # a class has the methods too
        return uploader
    return uploader(primary, secondary)


def _check_parallelism(settings: Settings, newest: Commit | None) -> None:
    if newest is not None and newest.max_parallelism != settings.max_parallelism:
        raise SettingsError(
            "max_parallelism is fixed once a job has committed: use the committed value",
            max_parallelism=settings.max_parallelism,
            committed=newest.max_parallelism,
        )


def _needed(*commits: Commit | None) -> frozenset[str]:
    """What has a local copy: the commits themselves, and what they point into."""
    present = [commit for commit in commits if commit is not None]
    own = frozenset(commit_key(commit.sequence) for commit in present)
    return own.union(*(commit.segments() for commit in present))


def _policy(settings: Settings) -> RetryPolicy:
    return RetryPolicy(
        attempts_max=settings.upload_attempts_max,
        timeout_s=settings.upload_timeout_s,
        delay_s=settings.retry_delay_s,
        outage_s=settings.primary_outage_s,
    )


def _patience_s(settings: Settings) -> float:
    """How long a commit may take: to be answered, or to outlast an outage and be answered then."""
    return settings.commit_timeout_s + settings.primary_outage_s


def _new_stamp() -> str:
    return uuid.uuid4().hex


def _new_names(epoch: Epoch) -> Callable[[], str]:
    """Names that nobody else makes. They sort in the order in which they were made, and tell the reign they are of.

    A sweep goes by that: what no commit reaches, and is of an older reign than the newest, never will be reached.
    """
    numbers = itertools.count()
    return lambda: f"{epoch:08d}-{next(numbers):08d}-{uuid.uuid4().hex}"
