"""Owners of parts of the key groups, for whom a coordinator commits.

`RangesAtWork`       as on Spark's executors: attempts at ranges, also at those that have nothing but due timers
`commit_in_parts`    owners that are there at once, on one host: they share its disk
"""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from random import Random
from typing import Final

import msgspec

from statebackend._backend.coordinating import open_coordinator
from statebackend._backend.opening import open_backend
from statebackend._backend.stores import threads_of
from statebackend._checkpoint.owner_backend import OwnerBackend
from statebackend._codec.commit import Commit
from statebackend._log.coordinator import CheckpointCoordinator
from statebackend._log.log_reader import LogReader
from statebackend._log.savepoint_markers import Savepoints
from statebackend._processing.runner import ProcessorRunner
from statebackend._ranges.equal_ranges import ranges_of, ranges_with_due_timers
from statebackend._ranges.merged_in_commits import merged_in_commits
from statebackend._ranges.range_owners import Contribution, RangeOwners, RangeTask, combine
from statebackend._ranges.range_task import committed_base
from statebackend._state.time.job_clock import JobClock
from statebackend._tables.key_groups import key_group
from statebackend.abc import Clock, ObjectStore
from statebackend.ids import ClockMark, KeyGroupRange, SnapshotResult, SourceMark
from statebackend.objectstore.scoped import ScopedStore
from statebackend.settings import Settings
from tests import invariants
from tests.simulation.job import JOB, ROOT, SimulatedJob
from tests.simulation.states import Change, assert_part, change, owned_by, states_of, value_in
from tests.simulation.store import Place
from tests.simulation.timed import Fired, TimedBatch, put_out

BASE_BYTES_MAX: Final = 1 << 10
"""Small, so that of some commits each attempt reads its own part, and others go along."""
SPARE_ATTEMPTS: Final = 0.15
"""The chance that a range is tried though it has nothing to do, and that it is tried twice."""


class RangesAtWork:
    """One epoch: each batch is an attempt at each range that has rows or due timers, and a commit of what they make."""

    def __init__(
        self,
        settings: Settings,
        coordinator: CheckpointCoordinator,
        process: RangeOwners,
        runner: ProcessorRunner | None,
        *,
        parts: int,
        names: Sequence[str],
        tell: Callable[[str], None],
    ) -> None:
        self.coordinator: Final = coordinator
        self.names: Final = names
        self._settings = settings
        self._tell = tell
        self._process = process
        self._runner = runner
        self._ranges = ranges_of(parts, settings.max_parallelism)

    async def contribute(
        self, changes: Sequence[Change], batch: TimedBatch | None, chance: Random
    ) -> tuple[Sequence[Contribution], Sequence[Fired]]:
        """One contribution for each range that has something to do, and what they have put out."""
        clock = self._clock(batch)
        due = ranges_with_due_timers(self.coordinator.base, self._ranges, clock)
        contributions, found, woken = list[Contribution](), list[Fired](), 0
        for part in self._ranges:
            groups = self._settings.max_parallelism
            own = [each for each in changes if key_group(each[1], groups) in part]
            has_rows = batch is not None and batch.part(part, groups).num_rows > 0
            woken += part in due and not own and not has_rows
            if own or has_rows or part in due or chance.random() < SPARE_ATTEMPTS:
                if chance.random() < SPARE_ATTEMPTS:
                    await self._attempt(part, own, batch, clock)  # its result is lost
                contribution, put = await self._attempt(part, own, batch, clock)
                contributions.append(contribution)
                found += put
        if woken:
            self._tell(f"wakes {woken} idle ranges")
        return contributions, found

    async def commit(
        self,
        contributions: Sequence[Contribution],
        checkpoint_id: int,
        source: SourceMark,
        savepoint: str | None,
        batch: TimedBatch | None,
    ) -> Commit:
        """Commit what the ranges have contributed. Raises as `CheckpointCoordinator.commit`."""
        coordinator, settings = self.coordinator, self._settings
        clock = self._clock(batch)
        snapshots, inline = combine(
            contributions,
            coordinator.base,
            self._ranges,
            checkpoint_id=coordinator.next_checkpoint_id,
            epoch=coordinator.epoch,
        )
        snapshots, inline = merged_in_commits(
            snapshots,
            inline,
            coordinator.recent,
            turn=checkpoint_id,
            fan_in=settings.materialize_fan_in,
            compression=settings.compression,
        )
        committed = await coordinator.commit(checkpoint_id, snapshots, source, savepoint, inline=inline, clock=clock)
        return committed.commit

    def _clock(self, batch: TimedBatch | None) -> ClockMark | None:
        base = self.coordinator.base
        clock = JobClock(None if base is None else base.clock)
        if batch is None:
            return None
        clock.move(batch.to_s, batch.kind)
        return clock.mark

    async def _attempt(
        self, part: KeyGroupRange, changes: Sequence[Change], batch: TimedBatch | None, clock: ClockMark | None
    ) -> tuple[Contribution, Sequence[Fired]]:
        task = RangeTask(
            settings=self._settings,
            key_groups=part,
            owners=tuple(self._ranges),
            epoch=self.coordinator.epoch,
            checkpoint_id=self.coordinator.next_checkpoint_id,
            base=committed_base(self.coordinator, self._ranges, body_bytes_max=BASE_BYTES_MAX),
            clock=clock,
        )
        found: Sequence[Fired] = ()
        async with self._process.attempt(task) as attempt:
            states = states_of(attempt.backend, self.names)
            there = {(name, key): value for name, state in states.items() for key, value in state.items()}
            change(states, there, changes)
            if batch is not None and clock is not None and self._runner is not None:
                table = batch.part(part, self._settings.max_parallelism)
                found = put_out(self._runner(table, batch.time.batch, attempt.backend))
            contribution = await attempt.contribute()
        return msgspec.msgpack.decode(msgspec.msgpack.encode(contribution), type=Contribution), found


def savepoints_of(primary: ObjectStore, settings: Settings) -> Savepoints:
    """The savepoints of the job, for a process that works on it."""
    store = ScopedStore(primary, ROOT)
    return Savepoints(store, LogReader(store, JOB, threads_of(settings)), timeout_s=settings.commit_timeout_s)


async def commit_in_parts(
    job: SimulatedJob,
    settings: Settings,
    parts: Sequence[KeyGroupRange],
    disk: Place,
    *,
    connect: Callable[[Place, str], ObjectStore],
    clock: Clock,
) -> None:
    """Make one checkpoint of all `parts`. Each opens while the changes of those before it are in no commit yet.

    Asserts that each has the state of its part, and that the disk has all of a checkpoint that is called local.
    """
    groups, contents = settings.max_parallelism, dict(job.contents_at(job.newest))
    owners: list[OwnerBackend] = []
    snapshots: list[SnapshotResult] = []
    async with AsyncExitStack() as stack:
        primary = connect(job.primary, "coordinator")
        coordinator = await stack.enter_async_context(open_coordinator(settings, store=primary, clock=clock))
        checkpoint_id = coordinator.next_checkpoint_id
        for part in parts:
            primary, local = (connect(place, f"owner {part}") for place in (job.primary, disk))
            opening = open_backend(settings, key_groups=part, store=primary, local_stores=[local], clock=clock)
            owners.append(await stack.enter_async_context(opening))
            assert_part(owners[-1], contents, part, groups)
            states = states_of(owners[-1])
            for name, key in owned_by(part, contents, groups):
                states[name][key] = contents[name, key] = value_in(name, f"of {part}")
            snapshots.append(await owners[-1].snapshot(checkpoint_id))
        attempt = job.attempt(checkpoint_id, contents, job.time_at(job.newest))
        source = SourceMark(JOB, attempt.number)
        commit = (await coordinator.commit(checkpoint_id, snapshots, source=source)).commit
        job.acknowledge(attempt, commit)
        for owner in owners:
            await owner.notify_complete(checkpoint_id)
    if all(snapshot.local for snapshot in snapshots):
        invariants.assert_local_copy_is_complete(commit, disk.objects, job.objects)
