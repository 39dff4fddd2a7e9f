"""A run of a job in parts: who commits, and its owners of key groups, without a Spark between them."""

import itertools
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import msgspec

import statebackend as sb
from statebackend._log.coordinator import Committed
from statebackend._log.outbox import Staged
from statebackend._ranges.merged_in_commits import merged_in_commits
from statebackend._ranges.range_owners import Contribution, RangeOwners, RangeTask, combine
from statebackend._ranges.range_task import committed_base
from statebackend._tables.key_groups import key_group
from statebackend.ids import ClockMark, SnapshotResult

BODY_BYTES_MAX = 1 << 20

Changes = Sequence[tuple[sb.Key, int]]
Apply = Callable[[sb.StateBackend, Changes], None]

TIMERS_S = 7
"""A timer is due after less than this."""


def ranges_of(parts: int, max_parallelism: int) -> tuple[sb.owners.KeyGroupRange, ...]:
    """The key groups in so many ranges."""
    borders = [part * max_parallelism // parts for part in range(parts + 1)]
    return tuple(sb.owners.KeyGroupRange(first, end - 1) for first, end in itertools.pairwise(borders))


def add(backend: sb.StateBackend, changes: Changes) -> None:
    """Add to each key: applied twice, or to another state, it shows. A list remembers in which order."""
    sums, rows = backend.value_state("sum", int, default=0), backend.list_state("rows", int)
    for key, number in changes:
        sums[key] = sums.get(key, 0) + number
        rows[key].append(number)


def tick(backend: sb.StateBackend, changes: Changes) -> None:
    """Set a timer for each change, some time later, and note each timer that is due under its key."""
    idle, fired = backend.timers("idle", "processing"), backend.list_state("fired", float)
    assert backend.clock_s is not None
    for key, number in changes:
        idle.register(key, backend.clock_s + number % TIMERS_S)
    for at, key, _ in backend.due_timers():
        fired[key].append(at)


class Run:
    """One epoch: `tasks` are what it hands out for a batch, and `commit` makes one checkpoint of what comes back."""

    def __init__(self, settings: sb.Settings, coordinator: sb.owners.CheckpointCoordinator, parts: int) -> None:
        self.settings = settings
        self.coordinator = coordinator
        self.owners = ranges_of(parts, settings.max_parallelism)
        self.body_bytes_max = BODY_BYTES_MAX

    def tasks(self, clock: ClockMark | None = None) -> Sequence[RangeTask]:
        """One for each range, at the newest commit. Each goes through what a message would."""
        return [
            RangeTask(
                settings=self.settings,
                key_groups=key_groups,
                owners=self.owners,
                epoch=self.coordinator.epoch,
                checkpoint_id=self.coordinator.next_checkpoint_id,
                base=committed_base(self.coordinator, self.owners, body_bytes_max=self.body_bytes_max),
                clock=clock,
            )
            for key_groups in self.owners
        ]

    def changes_of(self, task: RangeTask, changes: Changes) -> Changes:
        """Those whose keys are of the task's range."""
        groups = self.settings.max_parallelism
        return [change for change in changes if key_group(change[0], groups) in task.key_groups]

    async def contribute(
        self, owners: RangeOwners, task: RangeTask, changes: Changes, *, apply: Apply | None = None
    ) -> Contribution:
        """One attempt, whose result comes back encoded."""
        work = apply or add
        contribution = await owners.contribute(task, lambda backend: work(backend, self.changes_of(task, changes)))
        return msgspec.msgpack.decode(msgspec.msgpack.encode(contribution), type=Contribution)

    async def commit(
        self,
        contributions: Sequence[Contribution],
        *,
        source: sb.SourceMark | None = None,
        savepoint: str | None = None,
        staged: Staged | None = None,
        clock: ClockMark | None = None,
    ) -> Committed:
        checkpoint_id = self.coordinator.next_checkpoint_id
        snapshots, inline = combine(
            contributions,
            self.coordinator.base,
            self.owners,
            checkpoint_id=checkpoint_id,
            epoch=self.coordinator.epoch,
        )
        snapshots, inline = self.merged(snapshots, inline)
        return await self.coordinator.commit(
            checkpoint_id, snapshots, source, savepoint, inline=inline, staged=staged, clock=clock
        )

    def merged(
        self, snapshots: Sequence[SnapshotResult], inline: Sequence[bytes]
    ) -> tuple[Sequence[SnapshotResult], Sequence[bytes]]:
        """With small change sets merged, as in a driver."""
        return merged_in_commits(
            snapshots,
            inline,
            self.coordinator.recent,
            turn=self.coordinator.next_checkpoint_id,
            fan_in=self.settings.materialize_fan_in,
            compression=self.settings.compression,
        )

    async def batch(self, owners: RangeOwners, changes: Changes) -> Sequence[Contribution]:
        """A batch without trouble: the ranges that it brings something to, one after the other, and the commit."""
        contributions = [
            await self.contribute(owners, task, changes) for task in self.tasks() if self.changes_of(task, changes)
        ]
        await self.commit(contributions)
        return contributions


@asynccontextmanager
async def open_run(settings: sb.Settings, parts: int, store: sb.ObjectStore | None = None) -> AsyncGenerator[Run]:
    async with sb.owners.open_coordinator(settings, store=store) as coordinator:
        yield Run(settings, coordinator, parts)


class Model:
    """What the state has to be: every committed batch once, in order."""

    def __init__(self) -> None:
        self.rows: dict[sb.Key, list[int]] = {}

    def apply(self, changes: Iterable[tuple[sb.Key, int]]) -> None:
        for key, number in changes:
            self.rows.setdefault(key, []).append(number)

    async def check(self, settings: sb.Settings, store: sb.ObjectStore | None = None) -> None:
        """A backend of the whole job finds exactly this."""
        async with sb.open_backend(settings, store=store, read_only=True) as backend:
            rows, sums = backend.list_state("rows", int), backend.value_state("sum", int)
            assert {key: list(rows[key]) for key in rows} == self.rows
            assert dict(sums) == {key: sum(numbers) for key, numbers in self.rows.items()}
