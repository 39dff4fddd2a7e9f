"""Opens a job for one backend: the whole of it, or that of an owner of some key groups."""

import logging
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Unpack, overload

import anyio

from statebackend._backend.apart import open_apart
from statebackend._backend.asked_to_open import AskedToOpen, HowToOpen
from statebackend._backend.assembly import Opened, empty_states, inline_encoder, machinery_of, restore
from statebackend._backend.copy_writers import choose_copies, retain
from statebackend._backend.job import Job, tell_opened, tell_passed_over
from statebackend._backend.stores import (
    open_local,
    open_primary,
    open_threads,
    readable_copies,
    telling_requests,
)
from statebackend._backend.sweeping import SweepBeside
from statebackend._backend.tables import HEAP, Tables, open_tables, parents_left, table_parents
from statebackend._checkpoint.backend import Machinery, StateBackend
from statebackend._checkpoint.owner_backend import OwnerBackend
from statebackend._checkpoint.spending import Spending
from statebackend._codec.commit import Commit
from statebackend._keywords import keywords_of
from statebackend._local.range_directories import remove_ranges
from statebackend._local.removal import LocalRetention
from statebackend._local.scratch import scratch_parent
from statebackend._log.fresh_names import new_names
from statebackend._log.names import changelog_id
from statebackend._tasks import open_tasks, open_tasks_apart
from statebackend._threads import WorkerThreads
from statebackend.abc import ObjectStore
from statebackend.errors import (
    CorruptObjectError,
    DataError,
    MissingObjectError,
    TableDiskError,
)
from statebackend.ids import Epoch, KeyGroupRange
from statebackend.settings import Settings

_logger = logging.getLogger(__name__)


@overload
def open_backend(
    settings: Settings, *, key_groups: None = None, **how: Unpack[HowToOpen]
) -> AbstractAsyncContextManager[StateBackend]: ...


@overload
def open_backend(
    settings: Settings,
    *,
    key_groups: KeyGroupRange,
    owners: Sequence[KeyGroupRange] | None = None,
    **how: Unpack[HowToOpen],
) -> AbstractAsyncContextManager[OwnerBackend]: ...


@keywords_of(HowToOpen, AskedToOpen)
@asynccontextmanager
async def open_backend(
    settings: Settings,
    *,
    key_groups: KeyGroupRange | None = None,
    owners: Sequence[KeyGroupRange] | None = None,
    **how: Unpack[HowToOpen],
) -> AsyncGenerator[Any]:
    """Open the job's state as of its newest checkpoint, of `checkpoint_id` or of `savepoint`; empty for a new job.

    Opening claims the job, by an entry in its log. A backend that had it open before is fenced: its next checkpoint
    raises `FencedError`. With `read_only` nothing is written, neither to the primary nor to the local copy, nobody is
    fenced, and `checkpoint` raises `InputError`. Only then may it be `at` a moment, as in `read_state`: the newest
    checkpoint that is not later. To go on from there, open that one by its id.

    `store` replaces the store that `settings.primary` names. `local_stores` replace the directories of
    `settings.local`, one for each; only owners of other parts may write to them, too. `uploader`: your own, or a
    callable that takes the primary and the local store and returns one. `cache`: shared with other backends of this job
    that restore from the same files. `observer` is told what happens; `clock` takes the place of the system's.

    With `key_groups` this process owns that part only: the backend is an `OwnerBackend`, which claims nothing and
    whose snapshots a `CheckpointCoordinator` commits; see `statebackend.owners`. `owners`: all parts, this one
    included. Only operator state needs them, which is divided among the owners.

    Raises `WrongJobError`, `CheckpointNotFoundError`, `SavepointNotFoundError`, `CorruptCommitError`, `LocalRootError`,
    or `SettingsError` where the settings contradict what was committed, and has claimed nothing; `CorruptSegmentError`,
    `MissingObjectError`, and `StoreError`s with or without a claim. Leaving the context forgets uncommitted changes,
    and logs a warning of them unless an error leaves it; a state that is changed after that raises
    `BackendClosedError`. It takes at most twice `close_timeout_s`, for closing and then for deleting what no commit
    needs, and one second more for an upload or a deletion under way.
    """
    asked = AskedToOpen(settings, key_groups=key_groups, owners=owners, **how)
    async with open_restorable(asked) as backend:
        yield backend


class _UnrestorableError(Exception):
    """The commit at `sequence` cannot be restored, and an older one will do. Never leaves this module."""

    def __init__(self, sequence: int, reason: DataError) -> None:
        super().__init__(str(reason))
        self.sequence: Final = sequence
        self.reason: Final = reason


@asynccontextmanager
async def open_restorable(asked: AskedToOpen) -> AsyncGenerator[StateBackend | OwnerBackend]:
    """Open what is asked for, on a disk that has room; where that cannot be restored and others will do, one of those.

    Raises as `open_backend`.
    """
    unrestorable: dict[int, DataError] = {}
    parents = table_parents(asked.settings)
    async with AsyncExitStack() as stack:
        backend: StateBackend | OwnerBackend | None = None
        while backend is None:
            try:
                backend = await stack.enter_async_context(_open_once(asked, unrestorable, parents))
            except _UnrestorableError as error:
                unrestorable[error.sequence] = error.reason
            except TableDiskError as error:  # it may have filled while the tables were restored
                parents = parents_left(parents, error)
        yield backend


@asynccontextmanager
async def _open_once(
    asked: AskedToOpen, unrestorable: Mapping[int, DataError], parents: Sequence[Path]
) -> AsyncGenerator[StateBackend | OwnerBackend]:
    """Open the newest commit that is not `unrestorable`, or the one that was asked for. As `open_backend`.

    `parents`: where files of tables may lie, as for `open_tables`.
    """
    begun_s = asked.clock.monotonic()
    async with _open_parts(asked, unrestorable, parents) as opened:
        position, observer = opened.position, asked.observer
        with _passing_over(position.base, asked):
            restored = await restore(opened, asked.cache)
        used = (position.newest, position.base) if position.passed_over is None else (position.base,)
        retention = retain(opened.local, opened.tasks, position.epoch, *used)
        machinery = machinery_of(opened, restored, retention=retention)
        backend = _backend_of(opened, machinery) if asked.key_groups is None else OwnerBackend(machinery)
        tell_passed_over(position, observer)
        report = None if asked.warm is not None else restored.report
        tell_opened(asked.settings, position, report, asked.clock.monotonic() - begun_s)
        async with _closing(backend, retention, _sweep_beside(opened) if asked.claims else None, asked.settings):
            _bring_in(opened, machinery)
            if not asked.read_only:
                backend.begin_due_bases()
            yield backend
            if asked.claims and (changed := backend.uncommitted):
                _logger.warning(
                    "job %s is left with changes that no checkpoint has, and they are gone: await checkpoint before "
                    "leaving (states: %s)",
                    asked.settings.job,
                    ", ".join(changed),
                )


@asynccontextmanager
async def _open_parts(
    asked: AskedToOpen, unrestorable: Mapping[int, DataError], parents: Sequence[Path]
) -> AsyncGenerator[Opened]:
    """Open the stores and the tables, find the commit, and claim the job if that is asked. The states are empty."""
    settings, clock, observer, owned = asked.settings, asked.clock, asked.observer, asked.owned
    is_owner = asked.key_groups is not None
    async with (
        open_threads(settings) as threads,
        open_primary(
            settings, threads, commits=asked.claims, instead=asked.store, clock=clock, observer=observer
        ) as primary,
    ):
        job = _job_of(asked, primary.store, threads, unrestorable)
        position = await job.look()
        opening = open_local(
            settings, asked.local_stores, threads, read_only=asked.read_only, shared=is_owner, now_s=clock.time()
        )
        async with (
            telling_requests(primary.spending),
            opening as local,
            _tables_of(asked, threads, parents, primary.spending) as empty,
            open_tasks_apart() if is_owner else open_tasks() as tasks,  # owners: many in one process
        ):
            if asked.claims:
                asked.before_claim(position.summary)
                position = await job.claim(position)
                await _forget_cached_ranges(settings, position.epoch, threads)
            tables, held = (empty, None) if asked.warm is None else await asked.warm.at(position.base)
            states = empty_states(
                settings,
                owned,
                position.base,
                reported=position.base.ranges if position.base is not None else (),
                owners=asked.owners,
                open_table=tables.open_table,
            )
            yield Opened(
                settings=settings,
                primary=primary,
                local=local,
                job=job,
                position=position,
                epoch=position.epoch,
                new_name=new_names(position.epoch),
                log_id=changelog_id(owned),
                states=states,
                tables=tables,
                held=held,
                copies=choose_copies(
                    asked.uploader, primary.store, local, settings=settings, tasks=tasks, observer=observer
                ),
                threads=threads,
                tasks=tasks,
                clock=clock,
                observer=observer,
            )


@asynccontextmanager
async def _tables_of(
    asked: AskedToOpen, threads: WorkerThreads, parents: Sequence[Path], spending: Spending
) -> AsyncGenerator[Tables]:
    if asked.warm is not None:  # it has its own
        yield HEAP
        return
    async with AsyncExitStack() as stack:
        apart = None
        if asked.settings.table == "runs" or asked.settings.state_memory_bytes:
            apart = await stack.enter_async_context(open_apart(asked.settings, asked.store, spending, threads))
        opening = open_tables(asked.settings, asked.owned, threads, parents, over_runs=True, apart=apart)
        yield await stack.enter_async_context(opening)


def _bring_in(opened: Opened, machinery: Machinery) -> None:
    """Begin to bring in the copies of what was opened where it lies, in the primary."""
    incoming = opened.tables.incoming
    if incoming is not None and incoming.files_left:
        opened.tasks.start_soon(incoming.run, machinery.snapshots.now_local)


def _job_of(
    asked: AskedToOpen, primary: ObjectStore, threads: WorkerThreads, unrestorable: Mapping[int, DataError]
) -> Job:
    return Job(
        primary,
        asked.settings,
        threads,
        clock=asked.clock,
        checkpoint_id=asked.checkpoint_id,
        savepoint=asked.savepoint,
        at_s=asked.at_s,
        copies=partial(readable_copies, asked.settings, asked.local_stores, threads),
        unrestorable=unrestorable,
    )


async def _forget_cached_ranges(settings: Settings, epoch: Epoch, threads: WorkerThreads) -> None:
    """Remove the state that attempts at ranges, of older epochs, have cached on this host."""
    kept = scratch_parent(settings.table_dir, settings.local)
    await remove_ranges(kept, settings.job, epoch, threads, timeout_s=settings.local_read_timeout_s)


def _sweep_beside(opened: Opened) -> SweepBeside:
    return SweepBeside(
        opened.primary.store,
        opened.settings,
        opened.threads,
        epoch=opened.epoch,
        tasks=opened.tasks,
        clock=opened.clock,
        observer=opened.observer,
    )


@asynccontextmanager
async def _closing(
    backend: StateBackend | OwnerBackend,
    retention: LocalRetention | None,
    sweep: SweepBeside | None,
    settings: Settings,
) -> AsyncGenerator[None]:
    """Close the backend after the block, and then remove what nobody needs: for at most `close_timeout_s`.

    A local disk that hangs delays that by no more than `secondary_grace_s`.
    """
    is_left = False
    try:
        yield
        is_left = True
    finally:
        with anyio.move_on_after(settings.close_timeout_s, shield=True):
            await backend.close()
            if retention is not None:
                with anyio.move_on_after(settings.secondary_grace_s):
                    await retention.removed()
            if sweep is not None and is_left:
                await sweep.first()


@contextmanager
def _passing_over(base: Commit | None, asked: AskedToOpen) -> Generator[None]:
    """Turn damaged or missing data of `base` into `_UnrestorableError`, if an older commit will do."""
    try:
        yield
    except (CorruptObjectError, MissingObjectError) as error:
        if base is None:
            raise
        if asked.key_groups is not None and asked.settings.fall_back_to_older:
            error.add_note(
                "fall_back_to_older does not reach an owner of a part, because all owners have to go back to the same"
                " checkpoint: open the coordinator and them at an older checkpoint_id"
            )
        else:
            error.add_note(
                f"checkpoint {base.checkpoint_id} needs it, and no copy can be read: put one back, or open an older"
                " checkpoint by its checkpoint_id; fall_back_to_older=True takes the newest that can be restored"
            )
        if not asked.may_pass_over:
            raise
        raise _UnrestorableError(base.sequence, error) from error


def _backend_of(opened: Opened, machinery: Machinery) -> StateBackend:
    return StateBackend(
        machinery,
        inline=inline_encoder(opened),
        spending=opened.primary.spending,
        clock=opened.clock,
        observer=opened.observer,
    )
