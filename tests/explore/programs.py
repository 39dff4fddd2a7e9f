"""What the processes of a job do, by the library's own code: drivers, sweepers, readers that follow, and who keeps.

Between these and the library lies nothing but a store that waits for answers. A batch is one object whose bytes say
which batches are in it: its own, or, where a base takes their place, all up to it.
"""

from collections.abc import Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from statebackend._backend.job import Job
from statebackend._checkpoint.lineage import extended, lineage_of
from statebackend._checkpoint.rescale import range_of
from statebackend._codec.commit import Commit, decode_entry
from statebackend._following.following import Following
from statebackend._log.coordinator import CheckpointCoordinator
from statebackend._log.fresh_names import new_names, new_stamp
from statebackend._log.log_reader import LogReader
from statebackend._log.position import FoundCommit, Position, Positions
from statebackend._log.savepoint_markers import Savepoints
from statebackend._log.sweeping.log_sweep import Sweep
from statebackend._ranges.contribution import Contribution, combine
from statebackend._ranges.equal_ranges import ranges_of
from statebackend._reading.feed import stretch_after
from statebackend._reading.opened_state import told_if_swept
from statebackend._upkeep.job_primary import JobPrimary
from statebackend.abc import Observer, RestoreReport
from statebackend.errors import (
    CheckpointNotFoundError,
    FencedError,
    MissingObjectError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    RewindError,
    SavepointExistsError,
    StateGoneError,
    StoreUnavailableError,
)
from statebackend.ids import (
    ChangeSetHandle,
    Handle,
    KeyGroupRange,
    RangeState,
    SequenceNumber,
    SnapshotResult,
    SourceMark,
    all_key_groups,
)
from statebackend.spark.replay import FirstBatch, Policies, Step, decide, newest_marks
from tests.at_work import plenty
from tests.explore.processes import Process, Program, Request
from tests.knobs import settings_with

JOB = "explored"
SETTINGS = settings_with(
    job=JOB,
    primary="memory://unused",
    max_parallelism=2,
    checkpoints_retained=1,
    upload__attempts_max=2,
    upload__retry_delay_s=0.0,
    upload__primary_outage_s=0.0,
)
THREADS = plenty()
QUERY = "query"
OWNERS = ranges_of(2, 2)
"""Of two ranges of key groups: a batch has rows for one of them, and the other one contributes nothing."""
OFFSETS = Request("offsets", "")
"""Asked of Spark, not of the store: the next batch that it delivers."""

STOPPED = (
    FencedError,
    OutcomeUnknownError,
    StoreUnavailableError,
    RewindError,
    StateGoneError,
    CheckpointNotFoundError,
)
"""How a driver may end. The query stops then, and is started again."""


def content_of(commit: Commit) -> Sequence[str]:
    """The objects that hold the state of a commit, in order."""
    return [each.segment.key for part in commit.ranges for each in part.changelog]


def drive(
    batches: int, *, checkpoint_id: int | None = None, merges: bool = False, restores: bool = True, leaves: bool = True
) -> Program:
    """A driver: opens the job, commits so many batches as Spark delivers them, and leaves, or is killed.

    `checkpoint_id`: opens that one in place of the newest. `merges`: each commit has a base and nothing of before.
    """

    async def run(process: Process) -> None:
        job = _job(process, checkpoint_id)
        try:
            position = await job.claim(await job.look())
            coordinator = job.coordinator(position)
            _tell_opened(process, position)
            content: dict[KeyGroupRange, bytes] = {}
            if coordinator.base is not None and restores:
                for part in coordinator.base.ranges:
                    content[part.key_groups] = await _read(process, part)
            # To go back is to accept what is missing.
            goes_on: FirstBatch = 0 if checkpoint_id is None else "any"
            await _commit(process, coordinator, content, batches, goes_on, merges=merges)
            if leaves:
                await coordinator.write_hint()
        except STOPPED as error:
            process.tell(("stopped", type(error).__name__))
        except MissingObjectError:
            process.tell(("missed", None))

    return run


async def _commit(
    process: Process,
    coordinator: CheckpointCoordinator,
    content: dict[KeyGroupRange, bytes],
    batches: int,
    goes_on: FirstBatch,
    *,
    merges: bool,
) -> None:
    """Commit so many batches as Spark delivers them, to the content that is in memory."""
    first = await process.ask(OFFSETS)
    new_name = new_names(coordinator.epoch)
    for batch in range(first, first + batches):
        mark = SourceMark(QUERY, batch)
        marks = await newest_marks(coordinator.history(), QUERY, adopt=False)
        if decide(mark, marks, Policies(first_batch_id=goes_on)) is Step.PROCESS:
            owner = OWNERS[batch % 2]
            content[owner] = content.get(owner, b"") + b"%d " % batch
            body = content[owner] if merges else b"%d " % batch
            handle = _handle(f"segments/{new_name()}", body, owner)
            await process.store.put(handle.segment.key, (body,))
            contribution = _contribution(coordinator, owner, handle, merges=merges)
            snapshots, frames = combine(
                [contribution],
                coordinator.base,
                OWNERS,
                checkpoint_id=coordinator.next_checkpoint_id,
                epoch=coordinator.epoch,
            )
            committed = await coordinator.commit(coordinator.next_checkpoint_id, snapshots, mark, inline=frames)
            process.tell(("committed", committed.commit.sequence, committed.commit.stamp, batch))
        process.tell(("acknowledged", batch, coordinator.base and coordinator.base.sequence))


class _Batches(NamedTuple):
    """Stands for decoded changes."""

    owner: KeyGroupRange
    body: bytes
    records: int = 1


class _BatchesAtCommit:
    """Stands for the state that a follower holds: what it has read, to be brought forward."""

    def __init__(self, process: Process, commit: Commit) -> None:
        self.commit = commit
        self.content: dict[KeyGroupRange, bytes] = {}
        self.key_groups = all_key_groups(2)
        self.applied_at_s = 0.0
        self._process = process

    async def read(self, handles: Sequence[ChangeSetHandle], _: object) -> Sequence[_Batches]:
        return [_Batches(each.key_groups, await _get(self._process, each)) for each in handles]

    async def advance(self, changes: Sequence[_Batches], commit: Commit, may_go_on: Any) -> None:
        await may_go_on()
        for each in changes:
            self.content[each.owner] = self.content.get(each.owner, b"") + each.body
        self.commit = commit

    async def free(self, may_go_on: Any) -> None:
        """Nothing was kept."""


class _Follower(Following):
    """Follows objects whose bytes say which batches are in them."""

    @asynccontextmanager
    async def opening(self, found: FoundCommit) -> Any:
        state = _BatchesAtCommit(self.clock, found.commit)  # type: ignore[arg-type]
        for part in found.commit.ranges:
            state.content[part.key_groups] = await _read(self.clock, part)  # type: ignore[arg-type]
        yield state, RestoreReport(found.commit.checkpoint_id, found.commit.sequence, 0, 0, 0, 0, 0, 0.0, ())


def inherit(looks: int, batches: int) -> Program:
    """A follower: looks so many times, says what it has when a look has found nothing, takes over, and commits."""

    async def run(process: Process) -> None:
        following = _Follower(
            JobPrimary(SETTINGS, process.store, Positions(process.store, _log(process)), THREADS),  # type: ignore[arg-type]
            key_groups=None,
            every_s=1.0,
            pin=False,
            outer_store=None,
            clock=process,  # type: ignore[arg-type]
            observer=Observer(),
        )
        job = _job(process)

        def read() -> None:
            commit, content = following.state.commit, following.state.content  # type: ignore[attr-defined]
            process.tell(
                ("read", commit.sequence, b"".join(content.get(part.key_groups, b"") for part in commit.ranges))
            )

        try:
            await following.open(wait=False)
            for _ in range(looks):
                process.tell(("looks", None))
                if not await following.step():
                    process.tell(("saw", following.state.commit.sequence))
                read()
            position = await job.claim(await job.look())
            _tell_opened(process, position)
            await following.catch_up(position.base)
            read()
            content = following.state.content  # type: ignore[attr-defined]
            await _commit(process, job.coordinator(position), content, batches, 0, merges=True)
        except STOPPED as error:
            process.tell(("stopped", type(error).__name__))
        except MissingObjectError:
            process.tell(("missed", None))

    return run


def one_after_the_other(*programs: Program) -> Program:
    """The same process does all of these."""

    async def run(process: Process) -> None:
        for program in programs:
            await program(process)

    return run


def sweep() -> Program:
    """One sweep, of everything that is garbage."""

    async def run(process: Process) -> None:
        sweeping = Sweep(
            process.store,  # type: ignore[arg-type]
            _log(process),
            checkpoints_retained=SETTINGS.checkpoints_retained,
            clock=process,  # type: ignore[arg-type]
            min_age_s=0.0,
            concurrency_max=1,
        )
        try:
            report = await sweeping.run(dry_run=False)
        except (MissingObjectError, StoreUnavailableError):  # another sweep is at work, or the store gave no answer
            return
        process.tell(("swept", report.stopped is None))

    return run


def follow(looks: int) -> Program:
    """A reader that follows: looks for the newest commit so many times, reads what is new, and all of the newest."""

    async def run(process: Process) -> None:
        log = _log(process)
        primary = JobPrimary(SETTINGS, process.store, Positions(process.store, log), THREADS)  # type: ignore[arg-type]
        seen = -1
        for _ in range(looks):
            process.tell(("looks", None))
            try:
                last = await log.newest(await log.end())
            except MissingObjectError:  # a claim named it, and it was swept before it could be read
                process.tell(("late", None))
                continue
            if last is None or last.sequence == seen:
                process.tell(("saw", seen))
                continue
            try:
                if seen >= 0:
                    stretch = await stretch_after(primary, seen, last)
                    process.tell(("new", seen, tuple(commit.sequence for commit in stretch.commits)))
                content: list[bytes] = []

                async def read(last: Commit = last, content: list[bytes] = content) -> None:
                    content.extend([await _read(process, part) for part in last.ranges])

                await told_if_swept(primary, last, read())
            except (CheckpointNotFoundError, RewindError) as error:
                process.tell(("told", type(error).__name__, last.sequence))
            except MissingObjectError:
                process.tell(("missed", last.sequence))
            else:
                process.tell(("read", last.sequence, b"".join(content)))
            process.tell(("saw", last.sequence))
            seen = last.sequence

    return run


def keep(name: str, sequence: int) -> Program:
    """Gives a commit that exists a name, from outside."""

    async def run(process: Process) -> None:
        log = _log(process)
        try:
            commit = await log.load_commit(sequence)
            await Savepoints(process.store, log).keep(name, commit, random=new_stamp())  # type: ignore[arg-type]
        except (CheckpointNotFoundError, MissingObjectError, SavepointExistsError, StoreUnavailableError):
            return
        process.tell(("kept", sequence, commit.stamp))

    return run


def find_end() -> Program:
    """Says where the log ends."""

    async def run(process: Process) -> None:
        end = await _log(process).end()
        process.tell(("end", None if end is None else end.sequence, None if end is None else end.lost))

    return run


def entry_of(key: str, body: bytes) -> object:
    """The entry of the log with these bytes."""
    return decode_entry(body, key, job=JOB)


def _log(process: Process) -> LogReader:
    return LogReader(process.store, JOB, THREADS)  # type: ignore[arg-type]


def _job(process: Process, checkpoint_id: int | None = None) -> Job:
    return Job(process.store, SETTINGS, THREADS, clock=process, checkpoint_id=checkpoint_id)  # type: ignore[arg-type]


def _tell_opened(process: Process, position: Position) -> None:
    assert position.claim is not None
    process.tell(("opened", position.claim.sequence, position.claim.stamp))


async def _read(process: Process, part: RangeState) -> bytes:
    return b"".join([await _get(process, handle) for handle in part.changelog])


async def _get(process: Process, handle: ChangeSetHandle) -> bytes:
    try:
        return await process.store.get(handle.segment.key)
    except ObjectNotFoundError as error:
        raise MissingObjectError("gone", object=handle.segment.key) from error


def _contribution(
    coordinator: CheckpointCoordinator, owner: KeyGroupRange, handle: ChangeSetHandle, *, merges: bool
) -> Contribution:
    base = coordinator.base
    before = () if merges else range_of(base, owner).changelog
    snapshot = SnapshotResult(
        checkpoint_id=coordinator.next_checkpoint_id,
        state=RangeState(owner, (*before, handle), history=extended(lineage_of(base, owner).history, [handle])),
        local=False,
        epoch=coordinator.epoch,
        base=None if base is None else base.checkpoint_id,
    )
    return Contribution(snapshot, (), None if base is None else base.sequence, "primary")


def _handle(key: str, body: bytes, owner: KeyGroupRange) -> ChangeSetHandle:
    segment = Handle(key, 0, len(body), 0)
    return ChangeSetHandle(
        segment=segment,
        log_id="0",
        sequence_number=SequenceNumber(0),
        offset=0,
        length=len(body),
        key_groups=owner,
        records=1,
    )
