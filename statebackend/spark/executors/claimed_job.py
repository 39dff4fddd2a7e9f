"""`ClaimedJob`: the job in the driver while executors do the work. It has the claim, and no state."""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from statebackend._backend.asked_to_open import BeforeClaim
from statebackend._backend.coordinating import open_counted_coordinator
from statebackend._backend.stores import open_threads
from statebackend._checkpoint.spending import Spending
from statebackend._codec.commit import Commit
from statebackend._log.coordinator import CheckpointCoordinator
from statebackend._log.outbox import JobOutbox, Staged
from statebackend._log.savepoint_markers import SavepointInfo
from statebackend._observers import telling_fenced
from statebackend._ranges.merged_in_commits import Snapshots, merged_in_commits, places_in_turn
from statebackend._ranges.range_owners import Contribution, combine
from statebackend._threads import WorkerThreads
from statebackend.abc import Buffer, CheckpointInfo, Clock, Observer
from statebackend.abc.clock import SystemClock
from statebackend.ids import CheckpointId, ClockMark, CommitSummary, Epoch, KeyGroupRange, SourceMark, StagedOutput
from statebackend.settings import Settings
from statebackend.spark.executors.worker import TaskResult


class ClaimedJob:
    """Commits what tasks contribute, and publishes. Made by `open_claimed_job`. Its coroutines run on the loop."""

    def __init__(
        self,
        coordinator: CheckpointCoordinator,
        spending: Spending,
        settings: Settings,
        threads: WorkerThreads,
        *,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self.coordinator: Final = coordinator
        self._settings = settings
        self._threads = threads
        self._spending = spending
        self._clock = clock
        self._observer = observer

    def forget(self) -> None:
        """Do nothing: there is no state here."""

    def history(self) -> AsyncIterator[CommitSummary]:
        """The commit that the state is at, its parent, and so on."""
        return self.coordinator.history()

    @property
    def epoch(self) -> Epoch:
        """The epoch of the claim."""
        return self.coordinator.epoch

    @property
    def fell_back(self) -> bool:
        """As `CheckpointCoordinator.fell_back`."""
        return self.coordinator.fell_back

    @property
    def outbox(self) -> JobOutbox:
        """The job's outbox: what is to be published."""
        return self.coordinator.outbox

    async def savepoint(self, name: str) -> SavepointInfo:
        """As `CheckpointCoordinator.savepoint`."""
        return await self.coordinator.savepoint(name)

    async def take_output(self) -> tuple[StagedOutput, tuple[Buffer, ...]] | None:
        """As `CheckpointCoordinator.take_output`."""
        return await self.coordinator.take_output()

    def published(self, output: StagedOutput) -> None:
        """As `CheckpointCoordinator.published`."""
        self.coordinator.published(output)

    async def commit(
        self,
        results: Sequence[TaskResult],
        ranges: Sequence[KeyGroupRange],
        source: SourceMark,
        staged: Staged | None = None,
        clock: ClockMark | None = None,
    ) -> None:
        """Commit these results as the next checkpoint. Raises as `CheckpointCoordinator.commit`."""
        coordinator, begun, before = self.coordinator, self._clock.monotonic(), self._spending.requests
        checkpoint_id, base = coordinator.next_checkpoint_id, coordinator.base
        contributions = [result.contribution for result in results]
        snapshots, inline = combine(contributions, base, ranges, checkpoint_id=checkpoint_id, epoch=coordinator.epoch)
        if places_in_turn(len(snapshots), checkpoint_id, self._settings.materialize_fan_in):
            snapshots, inline = await self._threads.cpu(self._merged, snapshots, inline, checkpoint_id)
        with telling_fenced(self._observer):
            committed = await coordinator.commit(
                checkpoint_id, snapshots, source, inline=inline, staged=staged, clock=clock
            )
        spent = self._spending.since(before)
        requests = sum((Counter(result.requests) for result in results), spent.requests)
        self._spending.tell()
        if late_rows := sum(result.late_rows for result in results):
            self._observer.rows_late(late_rows)
        for result in results:
            self._tell_observer(result)
        self._observer.checkpoint_committed(
            CheckpointInfo(
                checkpoint_id=checkpoint_id,
                sequence=committed.commit.sequence,
                changes=_new_changes(contributions, base),
                primary_bytes=committed.size_bytes
                + sum(each.snapshot.primary_bytes for each in contributions)
                + (staged.uploaded_bytes if staged is not None else 0),
                local_bytes=sum(each.snapshot.local_bytes for each in contributions),
                requests=requests.total(),
                # Ranges work side by side, so the slowest of them counts.
                seconds=self._clock.monotonic() - begun + max((result.seconds for result in results), default=0.0),
                local=committed.local and all(each.snapshot.local for each in contributions),
                requests_by_kind=dict(requests),
                usd=spent.usd + sum(result.usd for result in results),
                usd_month=spent.usd_month,
                persist_delay_s=spent.persist_delay_s,
            )
        )

    def _merged(self, snapshots: Snapshots, inline: Sequence[bytes], turn: int) -> tuple[Snapshots, Sequence[bytes]]:
        return merged_in_commits(
            snapshots,
            inline,
            self.coordinator.recent,
            turn=turn,
            fan_in=self._settings.materialize_fan_in,
            compression=self._settings.compression,
        )

    def _tell_observer(self, result: TaskResult) -> None:
        """Tell the driver's observer what happened in the worker, where no observer of the user's runs."""
        self._observer.range_opened(result.contribution.found)
        if result.requests:
            self._observer.primary_requested(result.requests, usd=result.usd)
        if result.contribution.report is not None:
            self._observer.restored(result.contribution.report)


@asynccontextmanager
async def open_claimed_job(
    settings: Settings,
    checkpoint_id: CheckpointId | None,
    observer: Observer,
    before_claim: BeforeClaim = lambda _: None,
) -> AsyncGenerator[ClaimedJob]:
    """Claim the job at its newest checkpoint, or at `checkpoint_id`. Raises as `open_coordinator`."""
    clock = SystemClock()
    opening = open_counted_coordinator(
        settings, checkpoint_id=checkpoint_id, clock=clock, observer=observer, before_claim=before_claim
    )
    async with open_threads(settings) as threads, opening as (coordinator, spending):
        yield ClaimedJob(coordinator, spending, settings, threads, clock=clock, observer=observer)


def _new_changes(contributions: Sequence[Contribution], base: Commit | None) -> int:
    """The number of changes in the contributions that are not in `base`.

    Handles of the changelog are carried from commit to commit, so those of older batches must not be counted again. A
    frame is identified by where it is stored.
    """
    parts = () if base is None else base.ranges
    before = {(each.segment.key, each.offset) for part in parts for each in part.changelog}
    handles = (handle for contribution in contributions for handle in contribution.snapshot.state.changelog)
    return sum(each.records for each in handles if (each.segment.key, each.offset) not in before)
