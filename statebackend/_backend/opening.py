"""Opens a job: `open_backend`, or `open_coordinator` where several own its key groups."""

import logging
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, Final, overload

import anyio

from statebackend._backend.assembly import Opened, empty_states, inline_encoder, machinery_of, restore
from statebackend._backend.copy_writers import OpenUploader, choose_copies, retain
from statebackend._backend.job import Job, Position, SweepBeside
from statebackend._backend.stores import open_local, open_primary, readable_copies, telling_requests, threads_of
from statebackend._backend.tables import open_tables
from statebackend._cache.download_cache import DownloadCache
from statebackend._checkpoint.backend import Machinery, StateBackend
from statebackend._checkpoint.owner_backend import OwnerBackend
from statebackend._checkpoint.spending import Spending
from statebackend._clock import SystemClock
from statebackend._codec.commit import Commit
from statebackend._local.range_directories import remove_ranges
from statebackend._local.scratch import scratch_parent
from statebackend._log.coordinator import CheckpointCoordinator
from statebackend._log.fresh_names import new_names
from statebackend._log.names import changelog_id
from statebackend._observers import Observers
from statebackend._tasks import open_tasks, open_tasks_apart
from statebackend.abc import Clock, ObjectStore, Observer, RestoreReport, StateChangeUploader
from statebackend.errors import CorruptObjectError, DataError, MissingObjectError, SettingsError
from statebackend.ids import KeyGroupRange, all_key_groups
from statebackend.settings import Settings

_log = logging.getLogger(__name__)


@overload
def open_backend(
    settings: Settings,
    *,
    key_groups: None = None,
    checkpoint_id: int | None = None,
    savepoint: str | None = None,
    store: ObjectStore | None = None,
    local_stores: Sequence[ObjectStore] | None = None,
    uploader: StateChangeUploader | OpenUploader | None = None,
    cache: DownloadCache | None = None,
    clock: Clock | None = None,
    observer: Observer | None = None,
    read_only: bool = False,
) -> AbstractAsyncContextManager[StateBackend]: ...


@overload
def open_backend(
    settings: Settings,
    *,
    key_groups: KeyGroupRange,
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
) -> AbstractAsyncContextManager[OwnerBackend]: ...


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
) -> AsyncGenerator[Any]:
    """Open the job's state as of its newest checkpoint, of `checkpoint_id` or of `savepoint`; empty for a new job.

    Opening claims the job, by an entry in its log. A backend that had it open before is fenced: its next checkpoint
    raises `FencedError`. With `read_only` nothing is written, neither to the primary nor to the local copy, nobody is
    fenced, and `checkpoint` raises `InputError`.

    `store` replaces the store that `settings.primary` names. `local_stores` replace the directories of
    `settings.local`, one for each; nobody else may write to them. `uploader`: your own, or a callable that takes the
    primary and the local store and returns one. `cache`: shared with other backends of this job that restore from the
    same files.

    With `key_groups` this process owns that part only: the backend is an `OwnerBackend`, which claims nothing and
    whose snapshots a `CheckpointCoordinator` commits; see `statebackend.owners`. `owners`: all parts, this one
    included. Only operator state needs them, which is divided among the owners.

    Raises `WrongJobError`, `CheckpointNotFoundError`, `SavepointNotFoundError`, `CorruptCommitError`, `LocalRootError`,
    or `SettingsError` where the settings contradict what was committed, and has claimed nothing; `CorruptSegmentError`,
    `MissingObjectError`, and `StoreError`s with or without a claim. Leaving the context forgets uncommitted changes.
    It takes at most twice `close_timeout_s`, for closing and then for deleting what no commit needs, and one second
    more for an upload or a deletion under way.
    """
    open_once = partial(
        _open_once,
        settings,
        key_groups=key_groups,
        owners=owners,
        checkpoint_id=checkpoint_id,
        savepoint=savepoint,
        store=store,
        local_stores=local_stores,
        uploader=uploader,
        cache=cache,
        clock=clock or SystemClock(),
        observer=Observers(observer or Observer()),
        read_only=read_only,
    )
    unrestorable: dict[int, DataError] = {}
    async with AsyncExitStack() as stack:
        backend: StateBackend | OwnerBackend | None = None
        while backend is None:
            try:
                backend = await stack.enter_async_context(open_once(unrestorable=unrestorable))
            except _UnrestorableError as error:
                unrestorable[error.sequence] = error.reason
        yield backend


class _UnrestorableError(Exception):
    """The commit at `sequence` cannot be restored, and an older one will do. Never leaves this module."""

    def __init__(self, sequence: int, reason: DataError) -> None:
        super().__init__(str(reason))
        self.sequence: Final = sequence
        self.reason: Final = reason


@asynccontextmanager
async def _open_once(
    settings: Settings,
    *,
    key_groups: KeyGroupRange | None,
    owners: Sequence[KeyGroupRange] | None,
    checkpoint_id: int | None,
    savepoint: str | None,
    store: ObjectStore | None,
    local_stores: Sequence[ObjectStore] | None,
    uploader: StateChangeUploader | OpenUploader | None,
    cache: DownloadCache | None,
    clock: Clock,
    observer: Observer,
    read_only: bool,
    unrestorable: Mapping[int, DataError],
) -> AsyncGenerator[StateBackend | OwnerBackend]:
    """Open the newest commit that is not `unrestorable`, or the one that was asked for. As `open_backend`."""
    threads, begun_s = threads_of(settings), clock.monotonic()
    if owners is not None and key_groups is None:
        raise SettingsError(
            "owners share a job: say which key groups are this one's, all of them if it is the only one"
        )
    _check_owners(owners or ())
    if cache is not None and cache.job != settings.job:
        raise SettingsError("the download cache is that of another job", job=settings.job, cache_job=cache.job)
    owned = key_groups or all_key_groups(settings.max_parallelism)
    commits = key_groups is None and not read_only  # an owner must not claim: that would fence its coordinator
    opening = open_primary(settings, threads, commits=commits, instead=store, clock=clock, observer=observer)
    async with opening as primary:
        job = Job(
            primary.store,
            settings,
            threads,
            clock=clock,
            checkpoint_id=checkpoint_id,
            savepoint=savepoint,
            copies=readable_copies(settings, local_stores, threads),
            unrestorable=unrestorable,
        )
        position = await job.look()
        async with (
            telling_requests(primary.spending),
            open_local(
                settings, local_stores, threads, read_only=read_only, shared=key_groups is not None, now_s=clock.time()
            ) as local,
            open_tables(settings, owned, threads) as tables,
            open_tasks() if key_groups is None else open_tasks_apart() as tasks,  # owners: many in one process
        ):
            if commits:
                position = await job.claim(position)
                kept = scratch_parent(settings.table_dir, settings.local)
                await remove_ranges(
                    kept, settings.job, position.epoch, threads, timeout_s=settings.local_read_timeout_s
                )
            opened = Opened(
                settings=settings,
                primary=primary,
                local=local,
                job=job,
                position=position,
                epoch=position.epoch,
                new_name=new_names(position.epoch),
                log_id=changelog_id(owned),
                states=empty_states(
                    settings,
                    owned,
                    position.base,
                    reported=position.base.ranges if position.base is not None else (),
                    owners=owners,
                    open_table=tables.open_table,
                ),
                tables=tables,
                copies=choose_copies(uploader, primary.store, local, settings=settings, tasks=tasks, observer=observer),
                threads=threads,
                tasks=tasks,
                clock=clock,
                observer=observer,
            )
            # Each owner of a part would have to go back to the same commit: those are told.
            asked = key_groups is not None or checkpoint_id is not None or savepoint is not None
            with _passing_over(position.base, allowed=settings.fall_back_to_older and not asked):
                restored = await restore(opened, cache)
            used = (position.newest, position.base) if position.passed_over is None else (position.base,)
            retention = retain(local, tasks, position.epoch, *used)
            machinery = machinery_of(opened, restored, retention=retention)
            backend = _backend_of(opened, machinery) if key_groups is None else OwnerBackend(machinery)
            _tell_passed_over(position, observer)
            _tell_opened(settings, position, restored.report, clock.monotonic() - begun_s)
            sweep, is_left = None, False
            if commits:
                sweep = SweepBeside(primary.store, settings, threads, epoch=position.epoch, tasks=tasks, clock=clock)
            try:
                if not read_only:
                    backend.begin_due_bases()
                yield backend
                is_left = True
            finally:
                with anyio.move_on_after(settings.close_timeout_s, shield=True):
                    await backend.close()
                    if sweep is not None and is_left:
                        await sweep.first()


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
) -> AsyncGenerator[tuple[CheckpointCoordinator, Spending], None]:
    """As `open_coordinator`, with the count of the coordinator's requests, of which `observer` is told."""
    clock, observer, threads = clock or SystemClock(), Observers(observer or Observer()), threads_of(settings)
    begun_s = clock.monotonic()
    async with (
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
            copies=readable_copies(settings, None, threads),
        )
        position = await job.claim(await job.look())
        _tell_passed_over(position, observer)
        _tell_opened(settings, position, None, clock.monotonic() - begun_s)
        sweep = SweepBeside(primary.store, settings, threads, epoch=position.epoch, tasks=tasks, clock=clock)
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


@contextmanager
def _passing_over(base: Commit | None, *, allowed: bool) -> Generator[None]:
    """If `allowed`, turn damaged or missing data of `base` into `_UnrestorableError`."""
    try:
        yield
    except (CorruptObjectError, MissingObjectError) as error:
        if base is None or not allowed:
            raise
        raise _UnrestorableError(base.sequence, error) from error


def _tell_passed_over(position: Position, observer: Observer) -> None:
    if position.passed_over is not None and position.base is not None:
        observer.older_checkpoint_opened(position.base.checkpoint_id, position.passed_over)


def _check_owners(owners: Sequence[KeyGroupRange]) -> None:
    """Raise `SettingsError` if two of them have a key group: operator state would be dealt to one owner too many."""
    for one, following in pairwise(sorted(owners)):
        if following.first <= one.last:
            raise SettingsError("owners overlap: give each range once", owners=[str(one), str(following)])


def _backend_of(opened: Opened, machinery: Machinery) -> StateBackend:
    return StateBackend(
        machinery,
        inline=inline_encoder(opened),
        spending=opened.primary.spending,
        clock=opened.clock,
        observer=opened.observer,
    )


def _tell_opened(settings: Settings, position: Position, restored: RestoreReport | None, seconds: float) -> None:
    """One line for each opening: where the job stands, and what was read to get there."""
    if restored is None:
        base = None if position.base is None else position.base.checkpoint_id
        _log.info("opened: job=%s checkpoint=%s epoch=%d seconds=%.3f", settings.job, base, position.epoch, seconds)
        return
    _log.info(
        "opened: job=%s checkpoint=%d epoch=%d seconds=%.3f local=%d files, %d bytes primary=%d files, %d bytes"
        " changes=%d repaired=%s not_repaired=%s",
        settings.job,
        restored.checkpoint_id,
        position.epoch,
        seconds,
        restored.files_local,
        restored.bytes_local,
        restored.files_primary,
        restored.bytes_primary,
        restored.changes,
        [each.name for each in restored.fallbacks if each.repaired],
        [each.name for each in restored.fallbacks if not each.repaired],
    )
