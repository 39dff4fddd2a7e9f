"""Ranges of key groups in processes that come and go: opened at a committed base, worked on, contributed.

    async with open_range_owners() as owners:               once in a process
        async with owners.attempt(task) as attempt:         for each task
            ...                                             read and write the states of `attempt.backend`
            contribution = await attempt.contribute()

The process that commits hands out a `RangeTask` for each range, and makes the commit of what comes back: `combine`,
then `CheckpointCoordinator.commit`. Several attempts may be made at one range, at once and on several hosts; what they
upload has names that no other attempt has, and whichever of them is committed has won.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import anyio
import msgspec

from statebackend._backend.copies import OpenUploader, choose_copies
from statebackend._backend.job import Job, Position
from statebackend._backend.names import new_log_id
from statebackend._backend.stores import Primary, open_local, open_store, primary_of, telling_requests
from statebackend._backend.tables import open_tables
from statebackend._backend.wiring import Opened, empty_states, put_together, restore
from statebackend._checkpoint.backend import StateBackend
from statebackend._checkpoint.contributions import Contribution, Found, combine, reported_to
from statebackend._checkpoint.coordinator import CommittedBase
from statebackend._clock import SystemClock
from statebackend._codec.commit import Commit, decode_entry
from statebackend._observers import Observers
from statebackend._tasks import foreign, open_tasks
from statebackend.abc import Clock, ObjectStore, Observer, RestoreReport, StateChangeUploader
from statebackend.errors import CorruptCommitError, MissingObjectError, ObjectNotFoundError
from statebackend.ids import CheckpointId, Epoch, KeyGroupRange
from statebackend.settings import Settings

__all__ = ["Attempt", "Contribution", "RangeOwners", "RangeTask", "combine", "open_range_owners"]


class RangeTask(msgspec.Struct, frozen=True):
    """What an attempt at a range has to know. Pickles; the secrets of `settings` do not.

    `owners` are all ranges of this run, `key_groups` among them. `epoch` is that of who commits, `base` the commit that
    is continued, `None` before the first: `CheckpointCoordinator.epoch` and `.committed`.
    """

    settings: Settings
    key_groups: KeyGroupRange
    owners: tuple[KeyGroupRange, ...]
    epoch: Epoch
    checkpoint_id: CheckpointId
    base: CommittedBase | None


class Attempt:
    """One attempt at a range. `backend` holds its states, at the committed base; `found` says where they were."""

    def __init__(self, task: RangeTask, backend: StateBackend, base: Commit | None, found: Found) -> None:
        self.task: Final = task
        self.backend: Final = backend
        self.found: Final[Found] = found
        self._base = base

    @property
    def report(self) -> RestoreReport | None:
        """Of what had to be read to be there, `None` where nothing had."""
        return self.backend.restored

    async def contribute(self) -> Contribution:
        """Make every change durable, or take it along. Once, and nothing is to be changed after it.

        Raises as `StateBackend.snapshot`; then the attempt has come to nothing. A cancelled call may be made again.
        """
        snapshot, inline = await self.backend.contribute(self.task.checkpoint_id)
        base = None if self._base is None else self._base.sequence
        return Contribution(snapshot, tuple(inline), base, self.found, self.report)


class RangeOwners:
    """The ranges of key groups that one process works on, in turn or several at once. Made by `open_range_owners`."""

    def __init__(
        self,
        *,
        store: ObjectStore | None,
        uploader: StateChangeUploader | OpenUploader | None,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._store = store
        self._uploader = uploader
        self._clock = clock
        self._observer = observer

    async def contribute(self, task: RangeTask, work: Callable[[StateBackend], Awaitable[None] | None]) -> Contribution:
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

        Raises `CorruptCommitError`, `MissingObjectError`, `StoreError`s, `SettingsError`, and as `open_backend` for
        what it restores. Left without a contribution, an attempt has changed nothing; what it has uploaded is removed
        as far as that can be done.
        """
        settings, clock, observer = task.settings, self._clock, self._observer
        async with open_store(settings, commits=False, instead=self._store) as store:
            primary = primary_of(settings, store, clock=clock, observer=observer)
            job = Job(primary.store, settings, clock=clock)
            base, at_hand = await _committed(task, primary)
            async with (
                telling_requests(primary.spending),
                open_local(settings, None, read_only=True) as local,
                open_tables(settings, task.key_groups) as open_table,
                open_tasks() as tasks,
            ):
                reported, among = reported_to(base, task.key_groups, task.owners, task.epoch)
                opened = Opened(
                    settings=settings,
                    primary=primary,
                    local=local,
                    job=job,
                    position=Position(None, base, base),
                    epoch=task.epoch,
                    log_id=new_log_id(task.key_groups),
                    states=empty_states(
                        settings,
                        task.key_groups,
                        base,
                        reported=reported,
                        owners=among,
                        open_table=open_table,
                    ),
                    copies=choose_copies(
                        self._uploader, primary.store, local, settings=settings, tasks=tasks, observer=observer
                    ),
                    tasks=tasks,
                    clock=clock,
                    observer=observer,
                )
                restored = await restore(opened, None, at_hand)
                backend = put_together(opened, restored)
                try:
                    yield Attempt(task, backend, base, _found(restored.report))
                finally:
                    with anyio.move_on_after(settings.close_timeout_s, shield=True):
                        await backend.close()


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
    yield RangeOwners(
        store=store, uploader=uploader, clock=clock or SystemClock(), observer=Observers(observer or Observer())
    )


async def _committed(task: RangeTask, primary: Primary) -> tuple[Commit | None, Mapping[str, bytes]]:
    """The base of a task, and its bytes by its key."""
    if task.base is None:
        return None, {}
    key, body = task.base.key, task.base.body
    if not body:
        try:
            body = await primary.store.get(key)
        except ObjectNotFoundError as error:
            raise MissingObjectError("the commit that the task stands on is gone", object=key) from error
    entry = decode_entry(body, key, job=task.settings.job)
    if not isinstance(entry, Commit):
        raise CorruptCommitError("a claim where a commit should be", object=key, offset=0)
    return entry, {key: body}


def _found(report: RestoreReport | None) -> Found:
    if report is None:
        return "new"
    return "primary" if report.files_primary else "host"
