"""Ranges of key groups in processes that come and go: opened at a committed base, worked on, contributed.

    async with open_range_owners() as owners:               once in a process
        async with owners.attempt(task) as attempt:         for each task
            ...                                             read and write the states of `attempt.backend`
            contribution = await attempt.contribute()

The process that commits hands out a `RangeTask` for each range, and makes the commit from what comes back: `combine`,
then `CheckpointCoordinator.commit`. Several attempts may work on one range, at once and on several hosts; each uploads
under names that no other attempt has, and the one that is committed is the winner.

The state an attempt leaves is cached for the next attempt, in the process or on the host's disk. The next attempt uses
it only if its lineage proves that it leads to the base of that attempt.
"""

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import TaskGroup, TaskStatus

from statebackend._backend.assembly import Opened, base_schedule
from statebackend._backend.copy_writers import OpenUploader, choose_copies
from statebackend._backend.job import Job
from statebackend._backend.stores import Primary, open_primary, open_store, telling_requests
from statebackend._backend.tables import parents_left, table_parents, tables_in_memory
from statebackend._checkpoint.materialization.base_schedule import BaseSchedule
from statebackend._checkpoint.rescale import range_of
from statebackend._checkpoint.restore import LocalCopies
from statebackend._codec.commit import Commit
from statebackend._log.fresh_names import attempt_names, new_log_id
from statebackend._log.position import Position
from statebackend._observers import Observers
from statebackend._ranges.attempt import Attempt, RangeBackend, begun, settings_of, states_of
from statebackend._ranges.cached_in_process import CachedRanges, Start, start_from_process
from statebackend._ranges.cached_on_host import start_from_host
from statebackend._ranges.contribution import Contribution, combine
from statebackend._ranges.range_task import RangeTask, TaskBase, open_base
from statebackend._ranges.shared_apart import SharedApart
from statebackend._ranges.shared_local_copies import HostCopies
from statebackend._state.declared import COLUMNAR, KeyedStates
from statebackend._state.kinds.operator_state import mode_of
from statebackend._tasks import foreign, open_tasks
from statebackend._threads import WorkerThreads
from statebackend.abc import Clock, ObjectStore, Observer, StateChangeUploader
from statebackend.abc.clock import SystemClock
from statebackend.errors import BackendClosedError, TableDiskError
from statebackend.ids import Epoch, KeyGroupRange
from statebackend.settings import Settings

__all__ = ["Attempt", "Contribution", "RangeOwners", "RangeTask", "combine", "open_range_owners"]

Schedules = dict[KeyGroupRange, BaseSchedule]


class RangeOwners:
    """The ranges of key groups that one process works on, in turn or several at once. Made by `open_range_owners`.

    It belongs to one event loop in one process, and is not for a child forked from it.
    """

    def __init__(
        self,
        *,
        store: ObjectStore | None,
        uploader: StateChangeUploader | OpenUploader | None,
        clock: Clock,
        observer: Observer,
        tasks: TaskGroup,
        apart: SharedApart,
    ) -> None:
        self._store = SharedStore(store, tasks)
        self._apart = apart
        self._uploader = uploader
        self._clock = clock
        self._observer = observer
        self._cached = CachedRanges()
        self._host: tuple[Settings, HostCopies] | None = None
        self._schedules: dict[tuple[str, str], tuple[Epoch, Schedules]] = {}  # by primary and job
        self._process = os.getpid()
        self._closed = False

    def close(self) -> None:
        """Take no more attempts. Twice is fine."""
        self._closed = True

    async def contribute(self, task: RangeTask, work: Callable[[RangeBackend], Awaitable[None] | None]) -> Contribution:
        """One attempt in one call: `work` reads and writes the states. It is called on the loop, and perhaps awaited.

        Raises as `attempt` and `Attempt.contribute`, and what `work` raises.
        """
        async with self.attempt(task) as attempt:
            working = work(attempt.backend)
            if working is not None:
                await foreign(working)
            return await attempt.contribute()

    @asynccontextmanager
    async def attempt(self, task: RangeTask) -> AsyncGenerator[Attempt]:
        """The range of `task`, open at its base until the context is left. Nothing of it runs on after that.

        Raises `CorruptCommitError`, `MissingObjectError`, `StoreError`s, `SettingsError`, as `open_backend` for what
        it restores, and `BackendClosedError`. An attempt that is left without a contribution has changed nothing; its
        uploads are removed, best effort.
        """
        if self._closed or os.getpid() != self._process:
            raise BackendClosedError(
                "these ranges belong to another process or to a context that was left: open range owners here"
            )
        parents: Sequence[Path] = ()
        async with AsyncExitStack() as stack:
            attempt: Attempt | None = None
            while attempt is None:
                try:
                    attempt = await stack.enter_async_context(self._attempt_once(task, parents))
                except TableDiskError as error:  # it may have filled while the range was restored
                    parents = parents_left(parents or table_parents(task.settings), error)
            yield attempt

    @asynccontextmanager
    async def _attempt_once(self, task: RangeTask, parents: Sequence[Path]) -> AsyncGenerator[Attempt]:
        """As `attempt`. `parents`: where files of tables may lie if the disk of the host's own directory has failed."""
        settings, host = settings_of(task), self._host_of(task.settings)
        async with (
            self._store.store_of(task.settings, host.threads) as store,
            open_primary(
                settings, host.threads, commits=False, instead=store, clock=self._clock, observer=self._observer
            ) as primary,
            telling_requests(primary.spending),
            host.open() as local,
            open_base(task, primary, host, local) as base,
            self._start(task, base.commit, parents, host.threads) as start,
            open_tasks() as tasks,
        ):
            opened = self._opened(
                task, base, settings, primary=primary, local=local, start=start, threads=host.threads, tasks=tasks
            )
            schedule_if_due = partial(self._schedule_if_due, task, base.commit)
            async with begun(task, opened, base, start=start, schedule_if_due=schedule_if_due) as attempt:
                yield attempt
            if local is not None and base.body:
                await host.tidy(local, base.commit, task.epoch)

    def _opened(
        self,
        task: RangeTask,
        base: TaskBase,
        settings: Settings,
        *,
        primary: Primary,
        local: LocalCopies | None,
        start: Start,
        threads: WorkerThreads,
        tasks: TaskGroup,
    ) -> Opened:
        return Opened(
            settings=settings,
            primary=primary,
            local=local,
            job=Job(primary.store, settings, threads, clock=self._clock),
            position=Position(None, base.commit, base.commit),
            epoch=task.epoch,
            new_name=attempt_names(task.epoch, base.commit),
            log_id=new_log_id(task.key_groups),
            states=states_of(task, base.commit, start),
            tables=start.opened,
            copies=choose_copies(
                self._uploader, primary.store, local, settings=settings, tasks=tasks, observer=self._observer
            ),
            threads=threads,
            tasks=tasks,
            clock=self._clock,
            observer=self._observer,
        )

    def _host_of(self, settings: Settings) -> HostCopies:
        """The local copies, remembered across attempts until one has other settings."""
        if self._host is None or self._host[0] != settings:
            self._host = settings, HostCopies(settings, clock=self._clock)
        return self._host[1]

    def _start(
        self, task: RangeTask, base: Commit | None, parents: Sequence[Path], threads: WorkerThreads
    ) -> AbstractAsyncContextManager[Start]:
        settings, key_groups, owners = task.settings, task.key_groups, task.owners
        if settings.table == "rocksdb":
            return start_from_host(settings, key_groups, owners, task.epoch, base, parents=parents, threads=threads)
        apart = self._apart.of(settings, threads)
        tables = tables_in_memory(settings, key_groups, parents, apart=apart, fetches_whole=True)
        return start_from_process(self._cached, settings, key_groups, owners, base, tables=tables)

    def _schedule_if_due(self, task: RangeTask, base: Commit | None, states: KeyedStates) -> BaseSchedule | None:
        """The schedule of the range, if bases of its `states` are due. Raises `MaterializationError`.

        It begins with the epoch.
        """
        job, now_s = (task.settings.primary, task.settings.job), self._clock.monotonic()
        found = self._schedules.get(job)
        if found is None or found[0] != task.epoch:
            found = self._schedules[job] = task.epoch, Schedules()
        _, schedules = found
        opening = task.key_groups not in schedules
        if opening:
            schedules[task.key_groups] = base_schedule(task.settings, task.key_groups, now_s=now_s)
        schedule, committed = schedules[task.key_groups], range_of(base, task.key_groups)
        schedule.check()
        schedule.note_bases(committed, now_s)
        in_files = task.settings.table == "rocksdb" and task.settings.rocksdb_bases and not _is_columns(base)
        is_due = schedule.is_due(
            committed,
            now_s,
            in_files=in_files,
            in_layers=states.runs.looks_up,
            due=states.runs.want_base,
            opening=opening,
        )
        return schedule if is_due else None


def _is_columns(base: Commit | None) -> bool:
    """True if all states of the job under keys lie in memory, so that its bases are entries."""
    kinds = {state.kind for state in base.states if mode_of(state.kind) is None} if base is not None else set[str]()
    return kinds == {COLUMNAR}


@asynccontextmanager
async def open_range_owners(
    *,
    store: ObjectStore | None = None,
    uploader: StateChangeUploader | OpenUploader | None = None,
    clock: Clock | None = None,
    observer: Observer | None = None,
) -> AsyncGenerator[RangeOwners]:
    """Open all that a process needs to work on ranges. Leave every attempt before this context.

    `store`, `uploader`, `clock`, `observer`: as for `open_backend`.
    """
    apart = SharedApart(store)
    async with open_tasks() as tasks:
        owners = RangeOwners(
            store=store,
            uploader=uploader,
            clock=clock or SystemClock(),
            observer=Observers(observer or Observer()),
            tasks=tasks,
            apart=apart,
        )
        try:
            yield owners
        finally:
            owners.close()
            await apart.close()


class SharedStore:
    """The primary of the job that this process works on. It stays open until an attempt works on another job.

    It is the whole store, by `open_store`: each attempt opens a `Primary` of its own in it, to count its own requests.
    """

    def __init__(self, instead: ObjectStore | None, tasks: TaskGroup) -> None:
        self._instead = instead
        self._tasks = tasks
        self._opening = anyio.Lock()
        self._newest: _OpenStore | None = None

    @asynccontextmanager
    async def store_of(self, settings: Settings, threads: WorkerThreads) -> AsyncGenerator[ObjectStore]:
        """The store, for one attempt. Raises as `open_store`."""
        if self._instead is not None:
            yield self._instead
            return
        async with self._opening:  # attempts that begin together share one store, and none is opened twice
            found = self._newest
            if found is None or found.settings != settings:
                found = await self._tasks.start(_stay_open, settings, threads)
                if self._newest is not None:
                    self._newest.retire()
                self._newest = found
            found.users += 1
        try:
            yield found.store
        finally:
            found.users -= 1
            if found is not self._newest:
                found.retire()


class _OpenStore:
    """A store that stays open until a newer one has replaced it and its last user has gone."""

    def __init__(self, settings: Settings, store: ObjectStore) -> None:
        self.settings: Final = settings
        self.store: Final = store
        self.users = 0
        self.unused = anyio.Event()

    def retire(self) -> None:
        """Close it if nobody uses it. Called by what replaces it, and by each user that leaves after that."""
        if not self.users:
            self.unused.set()


async def _stay_open(settings: Settings, threads: WorkerThreads, *, task_status: TaskStatus[_OpenStore]) -> None:
    """Open a store and close it in the same task: an attempt that opened it may be gone long before."""
    async with open_store(settings, threads, commits=False) as store:
        opened = _OpenStore(settings, store)
        task_status.started(opened)
        await opened.unused.wait()
