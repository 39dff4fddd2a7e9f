"""Ranges of key groups in processes that come and go: opened at a committed base, worked on, contributed.

    async with open_range_owners() as owners:               once in a process
        async with owners.attempt(task) as attempt:         for each task
            ...                                             read and write the states of `attempt.backend`
            contribution = await attempt.contribute()

The process that commits hands out a `RangeTask` for each range, and makes the commit of what comes back: `combine`,
then `CheckpointCoordinator.commit`. Several attempts may be made at one range, at once and on several hosts; what they
upload has names that no other attempt has, and whichever of them is committed has won.

What an attempt leaves behind is of use for the next one only if that goes on from there, which its lineage tells.
"""

import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from anyio.abc import TaskGroup

from statebackend._backend.assembly import Opened, base_schedule
from statebackend._backend.copy_writers import OpenUploader, choose_copies
from statebackend._backend.job import Job, Position
from statebackend._backend.stores import Primary, primary_of, telling_requests
from statebackend._checkpoint.base_schedule import BaseSchedule
from statebackend._checkpoint.rescale import range_of
from statebackend._checkpoint.restore import LocalCopies
from statebackend._clock import SystemClock
from statebackend._codec.commit import Commit
from statebackend._log.fresh_names import attempt_names, new_log_id
from statebackend._observers import Observers
from statebackend._ranges.attempt import Attempt, RangeTask, TaskBase, base_of, begun, settings_of, states_of
from statebackend._ranges.cached_in_process import Held, KeptRanges, held_in_memory
from statebackend._ranges.cached_on_host import held_on_host
from statebackend._ranges.contribution import Contribution, combine
from statebackend._ranges.open_primary import HeldStores
from statebackend._ranges.range_backend import RangeBackend
from statebackend._ranges.shared_local_copies import HostCopies
from statebackend._tasks import foreign, open_tasks
from statebackend._threads import WorkerThreads
from statebackend.abc import Clock, ObjectStore, Observer, StateChangeUploader
from statebackend.errors import BackendClosedError
from statebackend.ids import Epoch, KeyGroupRange
from statebackend.settings import Settings

__all__ = ["Attempt", "Contribution", "RangeOwners", "RangeTask", "combine", "open_range_owners"]

Schedules = dict[KeyGroupRange, BaseSchedule]


class RangeOwners:
    """The ranges of key groups that one process works on, in turn or several at once. Made by `open_range_owners`.

    Of one event loop in one process: not for a child that was forked since.
    """

    def __init__(
        self,
        *,
        store: ObjectStore | None,
        uploader: StateChangeUploader | OpenUploader | None,
        clock: Clock,
        observer: Observer,
        tasks: TaskGroup,
    ) -> None:
        self._stores = HeldStores(store, tasks)
        self._uploader = uploader
        self._clock = clock
        self._observer = observer
        self._kept = KeptRanges()
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
        """The range of `task`, open at its base until the context is left: nothing of it goes on after that.

        Raises `CorruptCommitError`, `MissingObjectError`, `StoreError`s, `SettingsError`, as `open_backend` for what
        it restores, and `BackendClosedError`. Left without a contribution, an attempt has changed nothing; what it has
        uploaded is removed as far as that can be done.
        """
        if self._closed or os.getpid() != self._process:
            raise BackendClosedError("the ranges of another process, or of a context that was left: open them here")
        settings, host = settings_of(task), self._host_of(task.settings)
        async with self._stores.store_of(task.settings, host.threads) as store:
            primary = primary_of(settings, store, clock=self._clock, observer=self._observer)
            base = await base_of(task, primary, host.threads)
            schedule = self._schedule_if_due(task, base.commit)
            async with (
                telling_requests(primary.spending),
                host.open() as local,
                self._held(task, base.commit, host.threads) as held,
                open_tasks() as tasks,
            ):
                opened = self._opened(
                    task, base, settings, primary=primary, local=local, held=held, threads=host.threads, tasks=tasks
                )
                async with begun(task, opened, base, held=held, schedule=schedule) as attempt:
                    yield attempt
                if local is not None:
                    await host.tidy(local, base.commit, task.epoch)

    def _opened(
        self,
        task: RangeTask,
        base: TaskBase,
        settings: Settings,
        *,
        primary: Primary,
        local: LocalCopies | None,
        held: Held,
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
            states=states_of(task, base.commit, held),
            tables=held.opened,
            copies=choose_copies(
                self._uploader, primary.store, local, settings=settings, tasks=tasks, observer=self._observer
            ),
            threads=threads,
            tasks=tasks,
            clock=self._clock,
            observer=self._observer,
        )

    def _host_of(self, settings: Settings) -> HostCopies:
        """What is known of the roots goes on from attempt to attempt, until there is one with other settings."""
        if self._host is None or self._host[0] != settings:
            self._host = settings, HostCopies(settings, clock=self._clock)
        return self._host[1]

    def _held(self, task: RangeTask, base: Commit | None, threads: WorkerThreads) -> AbstractAsyncContextManager[Held]:
        if task.settings.table == "heap":
            return held_in_memory(self._kept, task.settings, task.key_groups, task.owners, base)
        return held_on_host(task.settings, task.key_groups, task.owners, task.epoch, base, threads=threads)

    def _schedule_if_due(self, task: RangeTask, base: Commit | None) -> BaseSchedule | None:
        """The schedule of the range, if its bases are due. Raises `MaterializationError`. It begins with the epoch."""
        job, now_s = (task.settings.primary, task.settings.job), self._clock.monotonic()
        found = self._schedules.get(job)
        if found is None or found[0] != task.epoch:
            found = self._schedules[job] = task.epoch, Schedules()
        _, schedules = found
        if task.key_groups not in schedules:
            schedules[task.key_groups] = base_schedule(task.settings, task.key_groups, now_s=now_s)
        schedule, committed = schedules[task.key_groups], range_of(base, task.key_groups)
        schedule.check()
        schedule.note_bases(committed, now_s)
        return schedule if schedule.is_due(committed, now_s) else None


@asynccontextmanager
async def open_range_owners(
    *,
    store: ObjectStore | None = None,
    uploader: StateChangeUploader | OpenUploader | None = None,
    clock: Clock | None = None,
    observer: Observer | None = None,
) -> AsyncGenerator[RangeOwners]:
    """What a process needs to work on ranges, for as long as the context lasts; all attempts are over by then.

    `store`, `uploader`, `clock`, `observer`: as for `open_backend`.
    """
    async with open_tasks() as tasks:
        owners = RangeOwners(
            store=store,
            uploader=uploader,
            clock=clock or SystemClock(),
            observer=Observers(observer or Observer()),
            tasks=tasks,
        )
        try:
            yield owners
        finally:
            owners.close()
