"""One attempt at a range of key groups: what it is told, what it begins with, what it contributes and leaves behind."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio
import msgspec

from statebackend._backend.assembly import Opened, Restored, empty_states, fill, inline_encoder, machinery_of
from statebackend._checkpoint.backend import KeyedBackend, Machinery
from statebackend._checkpoint.lineage import Lineage, bases_id, lineage_of, runs_id
from statebackend._checkpoint.materialization.base_schedule import BaseSchedule
from statebackend._checkpoint.materialization.tiers import last_id
from statebackend._checkpoint.rescale import range_of
from statebackend._checkpoint.snapshots import InlineEncoder
from statebackend._codec.commit import Commit
from statebackend._log.names import entry_key
from statebackend._ranges.cached_in_process import CachedRange, RunsLeft, Start
from statebackend._ranges.contribution import Contribution, Found, opened_with
from statebackend._ranges.range_task import RangeTask, TaskBase
from statebackend._ranges.shared_local_copies import copying_base
from statebackend._state.declared import KeyedStates
from statebackend.abc import RestoreReport
from statebackend.ids import CheckpointId, RangeState, RocksDBBase, SnapshotResult
from statebackend.settings import KiB, Settings
from statebackend.settings.settings import INLINE_BYTES

INLINE_BYTES_MIN: Final = 4 * KiB
"""The least share of a commit that a range may fill, however many share `inline_bytes_max`: a PUT costs more."""


ScheduleIfDue = Callable[[KeyedStates], BaseSchedule | None]


class RangeBackend(KeyedBackend):
    """The state of one range for one attempt. Bases are written only if the attempt is told to: `begin_bases`."""

    def __init__(self, machinery: Machinery, *, inline: InlineEncoder) -> None:
        super().__init__(machinery)
        self._inline = inline

    @property
    def changed(self) -> frozenset[int]:
        """The key groups that have changed since their last base."""
        return self._base_writer.changed

    @property
    def to_take_over(self) -> Callable[[], None] | None:
        """As `BaseWriter.to_take_over`."""
        return self._base_writer.to_take_over

    @property
    def base_failures(self) -> int:
        """How many times in a row writing bases has failed."""
        return self._base_writer.failures

    async def begin_bases(self) -> None:
        """Begin to write bases of the attempt's commit, before anything is changed. `contribute` waits for them."""
        checkpoint_id = CheckpointId(0) if self.newest is None else self.newest.checkpoint_id
        self._base_writer.begin_if_due(self._snapshots.committed, checkpoint_id, due=True)

    async def contribute(self, checkpoint_id: int) -> tuple[SnapshotResult, Sequence[bytes]]:
        """Every change so far, durable or in the returned frames: what is small is not uploaded, the commit carries it.

        Bases that were begun are in the snapshot by now, unless they could not be written. Raises as
        `OwnerBackend.snapshot`. A cancelled call has lost nothing, and may be repeated.
        """
        await self._base_writer.settled()
        async with self._checkpointing:
            return await self._contribute(checkpoint_id, self._inline)


class Attempt:
    """One attempt at a range. `backend` holds its states, at the committed base; `found` says where they were."""

    def __init__(
        self,
        task: RangeTask,
        opened: Opened,
        backend: RangeBackend,
        *,
        start: Start,
        found: Found,
        adopted: RocksDBBase | None,
        schedule: BaseSchedule | None,
    ) -> None:
        """`adopted`: the RocksDB base whose files the tables have. `schedule`: told how writing bases went."""
        self.task: Final = task
        self.backend: Final = backend
        self.found: Final[Found] = found
        self._opened = opened
        self._start = start
        self._adopted = adopted
        self._schedule = schedule

    @property
    def report(self) -> RestoreReport | None:
        """The report on what had to be read to reach the base, `None` if nothing had to be."""
        return self.backend.restored

    async def contribute(self) -> Contribution:
        """Make every change durable, or put it into the contribution. Call it once, and change nothing after it.

        Raises as `OwnerBackend.snapshot`; then the attempt has failed. A cancelled call may be repeated.
        """
        snapshot, inline = await self.backend.contribute(self.task.checkpoint_id)
        if self._schedule is not None:
            if self.backend.base_failures:
                self._schedule.failed(self._opened.clock.monotonic())
            else:
                self._schedule.succeeded()
        self._start.cache(self._left(snapshot.state))
        base = self._opened.position.base
        return Contribution(snapshot, tuple(inline), None if base is None else base.sequence, self.found, self.report)

    def _left(self, state: RangeState) -> CachedRange:
        base = self._opened.position.base
        before = range_of(base, self.task.key_groups)
        last = last_id(state.changelog[-1]) if state.changelog else lineage_of(base, self.task.key_groups).last
        found = runs_id(before) if self._opened.states.runs.looks_up else None
        runs = RunsLeft(found, runs_id(state), self.backend.to_take_over)
        return CachedRange(
            lineage=Lineage(state.history or b"", last),
            tables=self._start.tables,
            states=self._opened.states,
            epoch=self.task.epoch,
            bases=bases_id(state.bases, state.rocksdb),
            changed=self.backend.changed,
            rocksdb=next((rocksdb for rocksdb in state.rocksdb if rocksdb not in before.rocksdb), self._adopted),
            runs=runs if self._opened.tables.are_over_runs else None,
        )


def settings_of(task: RangeTask) -> Settings:
    """The settings of an attempt: no other change set joins its uploads, and the other ranges share the commit."""
    shared = task.settings.inline_bytes_max
    if shared is None:  # also in a file system, since what is inline goes through the driver and on to each task
        shared = INLINE_BYTES
    return msgspec.structs.replace(
        task.settings,
        persist_delay_s=0.0,
        inline_bytes_max=min(shared, max(shared // len(task.owners), INLINE_BYTES_MIN)),
    )


@asynccontextmanager
async def begun(
    task: RangeTask, opened: Opened, base: TaskBase, *, start: Start, schedule_if_due: ScheduleIfDue
) -> AsyncGenerator[Attempt]:
    """The attempt, with its states at the base. Nothing runs on after the context.

    `schedule_if_due`: called with the states, for the schedule that bases are due by.
    """
    at_hand = {entry_key(base.commit.sequence): base.body} if base.commit is not None and base.body else {}
    restored = await _caught_up(opened, start, at_hand)
    schedule = schedule_if_due(opened.states)
    found = start.found or _found_in(restored.report)
    opened.observer.range_opened(found)
    history = lineage_of(base.commit, task.key_groups).history
    machinery = machinery_of(opened, restored, retention=None, history=history)
    backend = RangeBackend(machinery, inline=inline_encoder(opened))
    if task.clock is not None:
        backend.advance_clock(task.clock.now_s, task.clock.kind)
    try:
        if schedule is not None:
            await backend.begin_bases()
        async with copying_base(base.commit, base.body, opened.local, opened.copies.of_commits):
            yield Attempt(task, opened, backend, start=start, found=found, adopted=restored.adopted, schedule=schedule)
    finally:
        with anyio.move_on_after(opened.settings.close_timeout_s, shield=True):
            await backend.close()


def states_of(task: RangeTask, base: Commit | None, start: Start) -> KeyedStates:
    """The cached states themselves if they are at the base; otherwise new ones on the tables that the attempt has."""
    cached = start.cached
    reported, among = opened_with(base, task.key_groups, task.owners, task.epoch)
    if (
        cached is not None
        and cached.states is not None
        and base is not None
        and not start.missing
        and cached.epoch == base.epoch == task.epoch
        and cached.states.descriptors == base.states
        and [part.operator for part in reported] == [cached.states.operator_report()]  # a lineage says nothing of it
    ):
        cached.states.resume()
        cached.states.clock.stand_at(base.clock)
        return cached.states
    return empty_states(task.settings, task.key_groups, base, reported=reported, owners=among, open_table=start.tables)


async def _caught_up(opened: Opened, start: Start, at_hand: Mapping[str, bytes]) -> Restored:
    base, cached = opened.position.base, start.cached
    if base is None or (cached is not None and not start.missing):
        restored = Restored()
    else:
        restored = await fill(
            opened, base, at_hand=at_hand, at_hand_first=True, missing=None if cached is None else start.missing
        )
    if cached is None:
        return restored
    state = range_of(base, opened.states.key_groups)
    tail = {*restored.changed, *opened.states.runs.groups_in_no_run()}
    # A base that the commit does not point to may be swept while ours would still share files with it.
    adopted = cached.rocksdb if cached.rocksdb in state.rocksdb else None
    return msgspec.structs.replace(restored, changed=cached.changed_since(state, tail), adopted=adopted)


def _found_in(report: RestoreReport | None) -> Found:
    if report is None:
        return "new"
    return (
        "host" if report.files_local and not report.files_primary else "primary"
    )  # what came with the task counts as neither
