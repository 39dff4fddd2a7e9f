"""Commits to a job from outside, once. What a change to a stopped job does is the same for each:

    claim -> read a commit -> upload -> one commit      the caller says what is read, and what the commit has

The commit is the switch. Before it nothing of the change is visible, and what was uploaded is deleted again; after it
all of it is. A killed call leaves a claim, and objects of an epoch that is over: the next sweep deletes them.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import msgspec
from msgspec import UNSET

from statebackend._backend.assembly import upload_scheduler
from statebackend._backend.copy_writers import OpenUploader, choose_copies
from statebackend._backend.job import Job
from statebackend._backend.stores import Primary, open_primary, open_threads
from statebackend._changelog.scheduler import UploadScheduler
from statebackend._checkpoint.materialization.bases import Piece, base_of
from statebackend._codec.change_sets.changes import ChangeSet
from statebackend._log.fresh_names import new_names
from statebackend._log.position import Position
from statebackend._tasks import open_tasks
from statebackend._threads import WorkerThreads
from statebackend._upkeep.arguments import check_settings
from statebackend.abc import Clock, ObjectStore, Observer, StateChangeUploader, UploadedSegment
from statebackend.abc.clock import SystemClock
from statebackend.errors import InputError, StoreAccessError, StoreUnavailableError
from statebackend.ids import (
    Base,
    ChangeSetHandle,
    CheckpointId,
    ClockMark,
    Epoch,
    RangeState,
    SnapshotResult,
    SourceMark,
    StateDescriptor,
)
from statebackend.settings import Settings

UNOBSERVED: Final = Observer()


class Uploads:
    """The uploads for a commit of `epoch`. They are ours until the commit may hold them."""

    def __init__(self, scheduler: UploadScheduler, epoch: Epoch, close_timeout_s: float) -> None:
        self._scheduler = scheduler
        self.epoch: Final = epoch
        self._close_timeout_s = close_timeout_s
        self._uploaded: list[UploadedSegment] = []

    @property
    def written(self) -> tuple[int, int]:
        """The number of segments written, and their bytes."""
        return len(self._uploaded), sum(uploaded.primary.length for uploaded in self._uploaded)

    async def base(self, piece: Piece) -> Base:
        """Write one segment of bases. The frames are emptied."""
        uploaded = await self._scheduler.upload_alone(piece.frames)
        self._uploaded.append(uploaded)
        return base_of(piece, uploaded.primary)

    def adopt(self, bases: Iterable[Base]) -> None:
        """Take over bases that other processes have written for the commit."""
        self._uploaded += [UploadedSegment(base.segment) for base in bases]

    async def change_sets(self, change_sets: Iterable[ChangeSet]) -> Sequence[ChangeSetHandle]:
        """Write these change sets, of which there are some, as one segment. Their handles, in order."""
        uploaded, entries = await self._scheduler.upload_listed(list(change_sets))
        self._uploaded.append(uploaded)
        return [ChangeSetHandle(uploaded.primary, *msgspec.structs.astuple(entry)) for entry in entries]

    async def discard_unless_held(self, error: BaseException, *, is_sent: bool) -> None:
        """Delete everything unless a commit may hold it. Bounded, and not cancelled. `is_sent`: the commit was sent."""
        # Then only these errors say that it does not exist. After any other, deleting might damage it.
        if is_sent and not isinstance(error, (InputError, StoreAccessError, StoreUnavailableError)):
            return
        with anyio.move_on_after(self._close_timeout_s, shield=True):
            await self._scheduler.discard(self._uploaded).wait()


@asynccontextmanager
async def open_uploads(
    settings: Settings,
    primary: ObjectStore,
    epoch: Epoch,
    threads: WorkerThreads,
    *,
    clock: Clock,
    uploader: StateChangeUploader | OpenUploader | None = None,
) -> AsyncGenerator[Uploads]:
    """Open the uploads for one commit of `epoch` to `primary`, the job's part of it. They have no local copies."""
    async with open_tasks() as tasks:
        copies = choose_copies(uploader, primary, None, settings=settings, tasks=tasks, observer=UNOBSERVED)
        scheduler = upload_scheduler(
            settings,
            copies.uploader,
            new_name=new_names(epoch),
            threads=threads,
            tasks=tasks,
            clock=clock,
            observer=UNOBSERVED,
        )
        yield Uploads(scheduler, epoch, settings.close_timeout_s)


class Contents(msgspec.Struct, frozen=True):
    """The contents of a commit: what its ranges hold, and the states that are described in it.

    `left`: objects that nothing of the commit may lie in. Output that is still to be published is copied from there.
    `transformed`: the states that have other values than before.
    """

    ranges: Sequence[RangeState]
    states: Sequence[StateDescriptor]
    left: frozenset[str] = frozenset()
    transformed: tuple[str, ...] = ()


class OfflineJob(msgspec.Struct, frozen=True):
    """A job that was opened to be looked at, and perhaps to be committed to, once."""

    settings: Settings
    primary: Primary
    job: Job
    threads: WorkerThreads
    clock: Clock
    uploader: StateChangeUploader | OpenUploader | None

    async def commit(
        self,
        position: Position,
        write: Callable[[Uploads], Awaitable[Contents]],
        *,
        source: SourceMark | None = None,
        clock: ClockMark | None = None,
        starts_from: Any = None,
        before: Callable[[int], Awaitable[None]] | None = None,
    ) -> tuple[CheckpointId, Uploads]:
        """Commit what `write` makes of `position`, which is claimed. Returns the id of the commit, and its uploads.

        `before` is called with the sequence of the commit right before it is sent. Raises as
        `CheckpointCoordinator.commit`, what uploading raises, and what the two functions raise. A call that fails or is
        cancelled before the commit was sent deletes what it has uploaded. One that is cancelled later finishes first.
        """
        opening = open_uploads(
            self.settings, self.primary.store, position.epoch, self.threads, clock=self.clock, uploader=self.uploader
        )
        async with opening as uploads:
            coordinator = self.job.coordinator(position)
            is_sent = False
            try:
                contents = await write(uploads)
                assert all(part.restored is UNSET for part in contents.ranges), "an edit passes for an owner's work"
                await coordinator.outbox.leave(contents.left)
                checkpoint_id = coordinator.next_checkpoint_id
                snapshots = [
                    SnapshotResult(
                        checkpoint_id=checkpoint_id,
                        state=state,
                        local=False,
                        epoch=coordinator.epoch,
                        states=tuple(contents.states),
                        base=None if position.base is None else position.base.checkpoint_id,
                    )
                    for state in contents.ranges
                ]
                if before is not None:
                    await before(coordinator.next_sequence)
                is_sent = True
                await coordinator.commit(
                    checkpoint_id,
                    snapshots,
                    source,
                    clock=clock,
                    starts_from=starts_from,
                    transformed=contents.transformed,
                )
            except BaseException as error:
                await uploads.discard_unless_held(error, is_sent=is_sent)
                raise
            await coordinator.write_hint()
        return checkpoint_id, uploads


@asynccontextmanager
async def open_offline(
    settings: Settings,
    *,
    commits: bool,
    checkpoint_id: int | None = None,
    savepoint: str | None = None,
    any_parallelism: bool = False,
    store: ObjectStore | None,
    uploader: StateChangeUploader | OpenUploader | None = None,
    clock: Clock | None,
) -> AsyncGenerator[OfflineJob]:
    """Open the job to change it from outside. Nobody is fenced before `Job.claim`.

    The arguments are those of `open_backend` and `Job`; `commits` is false where nothing will be written.
    """
    check_settings(settings)
    clock = clock or SystemClock()
    async with (
        open_threads(settings) as threads,
        open_primary(settings, threads, commits=commits, instead=store, clock=clock, observer=UNOBSERVED) as primary,
    ):
        job = Job(
            primary.store,
            settings,
            threads,
            clock=clock,
            checkpoint_id=checkpoint_id,
            savepoint=savepoint,
            any_parallelism=any_parallelism,
        )
        yield OfflineJob(settings, primary, job, threads, clock, uploader)
