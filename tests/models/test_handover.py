"""One job from hand to hand: a driver, attempts at ranges, a rewrite, a rollback; with output, savepoints and sweeps.

Attempts at one range are made more than once, on whatever host, each with changes of its own, and chance says which of
them wins. What is committed is what the winners did.
"""

import copy
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import statebackend as sb
from statebackend._codec.commit import Commit, decode_entry
from statebackend._log.outbox import Output, Staged, joined
from statebackend._ranges.range_owners import Contribution, RangeOwners, RangeTask, combine, open_range_owners
from tests.knobs import settings_with
from tests.models.invariants import assert_every_byte_is_there, assert_handed_on, assert_published_as_staged
from tests.ranges.parts import Changes, Run, add

HOSTS = PROCESSES = 2
RETAINED = 3
EPOCHS = 6


@dataclass
class Expected:
    """What a checkpoint holds. `outputs`: of which batches, and their parts, as far as they were not published."""

    max_parallelism: int = 12
    batch: int = -1
    rows: dict[sb.Key, list[int]] = field(default_factory=dict[sb.Key, list[int]])
    notes: Counter[int] = field(default_factory=Counter[int])
    outputs: list[tuple[int, list[bytes]]] = field(default_factory=list[tuple[int, list[bytes]]])


@dataclass
class Done:
    """What an attempt has done, or a driver: it is in the state if that is committed."""

    changes: Changes
    notes: list[int]
    output: Output | None
    staged: Staged | None = None
    contribution: Contribution | None = None


class Job:
    """The job in `directory`, and what is expected of each of its checkpoints."""

    def __init__(
        self, directory: Path, chance: Random, tables: Sequence[str], processes: Sequence[RangeOwners]
    ) -> None:
        self.directory = directory
        self.chance = chance
        self.tables = tables
        self.processes = processes
        self.now = Expected()
        self.committed: dict[int, Expected] = {}
        self.savepoints: dict[str, int] = {}

    async def epoch(self) -> None:
        """Whoever opens the job next, on its newest checkpoint or on an older one, and what he does."""
        choice = self.chance.choice
        self.tuning: dict[str, Any] = {
            "table": choice(self.tables),
            "rocksdb_bases": choice([True, True, False]),
            "materialize_handles_max": choice([0, 1, 3]),
            "materialize_fan_in": choice([0, 2, 3]),
            "inline_bytes_max": choice([0, 300, 64 << 10]),
            "ranges_cached_max": choice([1, 8]),
        }
        self.roots = choice([0, 1, 2])
        back = choice([None, None, None, *self.retained()])
        if back is not None:
            self.now = copy.deepcopy(self.committed[back])
        who = choice(["driver", "ranges", "ranges", "ranges", "rewrite"] if self.committed else ["driver", "ranges"])
        if who == "rewrite":
            self.now.max_parallelism = choice([5, 7, 12])
            report = await sb.rewrite(self.settings(), checkpoint_id=back)
            if report.checkpoint_id is not None:
                self.committed[report.checkpoint_id] = copy.deepcopy(self.now)
        elif who == "driver":
            async with sb.open_backend(self.settings(), checkpoint_id=back) as backend:
                for _ in range(choice(range(3))):
                    await self.publish(backend)
                    await self.batch_of_driver(backend)
        else:
            async with sb.owners.open_coordinator(self.settings(), checkpoint_id=back) as coordinator:
                parts = choice([1, 2, 3])
                for _ in range(choice(range(5))):
                    await self.publish(coordinator)
                    await self.batch_of_ranges(coordinator, parts)

    async def batch_of_driver(self, backend: sb.StateBackend) -> None:
        self.now.batch += 1
        done = Done(self.changes(), [self.now.batch], self.output())
        work(backend, done)
        checkpoint_id, savepoint, source = backend.next_checkpoint_id, self.name(), self.source
        await backend.checkpoint(checkpoint_id, source=source, output=done.output, savepoint=savepoint)
        self.commit(checkpoint_id, savepoint, [done])

    async def batch_of_ranges(self, coordinator: sb.owners.CheckpointCoordinator, parts: int) -> None:
        self.now.batch += 1
        run, changes, won = Run(self.settings(), coordinator, parts), self.changes(), list[Done]()
        for task in run.tasks():
            own = run.changes_of(task, changes)
            if own or self.chance.random() < 0.4:
                tried = [await self.attempt(task, own) for _ in range(self.chance.choice([1, 2]))]
                won.append(self.chance.choice(tried))
        await self.sweep()
        checkpoint_id, savepoint = coordinator.next_checkpoint_id, self.name()
        snapshots, inline = combine(
            [each.contribution for each in won if each.contribution is not None],
            coordinator.base,
            run.owners,
            checkpoint_id=checkpoint_id,
            epoch=coordinator.epoch,
        )
        parts_of_all = [each.staged for each in won if each.staged is not None]
        staged = joined(parts_of_all) if parts_of_all else None
        snapshots, inline = run.merged(snapshots, inline)
        await coordinator.commit(checkpoint_id, snapshots, self.source, savepoint, inline=inline, staged=staged)
        self.commit(checkpoint_id, savepoint, won)

    async def attempt(self, task: RangeTask, changes: Changes) -> Done:
        """By some process of some host. No two attempts do the same."""
        salt, host = self.chance.randrange(10**6), self.chance.randrange(HOSTS)
        notes = self.chance.choice([[], [salt]])
        done = Done([(key, number + salt) for key, number in changes], notes, self.output())
        task = msgspec.structs.replace(task, settings=self.settings(host))
        async with self.chance.choice(self.processes).attempt(task) as attempt:
            work(attempt.backend, done)
            if done.output is not None:
                done.staged = await attempt.backend.outbox.stage(done.output)
            contribution = await attempt.contribute()
        done.contribution = msgspec.msgpack.decode(msgspec.msgpack.encode(contribution), type=Contribution)
        return done

    def commit(self, checkpoint_id: int, savepoint: str | None, done: Sequence[Done]) -> None:
        """All of this is in the checkpoint, and nothing of what lost."""
        for each in done:
            for key, number in each.changes:
                self.now.rows.setdefault(key, []).append(number)
            self.now.notes.update(each.notes)
        if outputs := [each.output for each in done if each.output is not None]:
            self.now.outputs.append((self.now.batch, [bytes(part) for output in outputs for part in output.parts]))
        self.committed[checkpoint_id] = copy.deepcopy(self.now)
        if savepoint is not None:
            self.savepoints[savepoint] = checkpoint_id

    async def publish(self, state: sb.StateBackend | sb.owners.CheckpointCoordinator) -> None:
        """Some of what is to be published, oldest first."""
        while self.now.outputs and self.chance.random() < 0.6:
            taken = await state.take_output()
            assert taken is not None
            output, streams = taken
            handed_out = (output.source.batch_id, [bytes(part) for part in streams])
            assert_published_as_staged(handed_out, self.now.outputs.pop(0))
            state.published(output)

    async def sweep(self) -> None:
        """At times. By then everything is old."""
        if self.chance.random() < 0.3:
            for path in (self.directory / "primary").rglob("*"):
                os.utime(path, (1.0, 1.0))
            report = await sb.sweep(self.settings(), dry_run=False, min_age_s=0.0)
            assert not report.failures

    async def check(self) -> None:
        """What a reader finds of the newest checkpoint and of the savepoints, and every byte of what is retained."""
        if not self.committed:
            return
        self.now = copy.deepcopy(self.committed[max(self.committed)])  # what was published since is published again
        await self.check_one(self.now)
        for name, checkpoint_id in self.savepoints.items():
            await self.check_one(self.committed[checkpoint_id], savepoint=name)
        assert_every_byte_is_there((await sb.verify(self.settings())).damages, (), None)

    async def check_one(self, expected: Expected, **which: Any) -> None:
        settings = msgspec.structs.replace(
            self.settings(self.chance.randrange(HOSTS)), max_parallelism=expected.max_parallelism
        )
        async with sb.open_backend(settings, read_only=True, **which) as backend:
            rows, sums = backend.list_state("rows", int), backend.value_state("sum", int)
            found = {
                "rows": {key: list(rows[key]) for key in rows},
                "sums": dict(sums),
                "notes": Counter(backend.operator_state("notes", int)),
                "to be published": [each.source.batch_id for each in backend.outbox.pending],
            }
            held = {
                "rows": expected.rows,
                "sums": {key: sum(numbers) for key, numbers in expected.rows.items()},
                "notes": expected.notes,
                "to be published": [batch for batch, _ in expected.outputs],
            }
            assert_handed_on(found, held, which or "newest")

    def retained(self) -> list[int]:
        """The checkpoints that may be gone back to, with the number of key groups that there is now."""
        paths = (self.directory / "primary/fleet/commits").glob("[!.]*")
        entries = [decode_entry(path.read_bytes(), f"commits/{path.name}", job="fleet") for path in paths]
        found = {entry.sequence: entry for entry in entries if isinstance(entry, Commit)}
        following, ids = max(found, default=None), list[int]()
        while following in found and len(ids) < RETAINED:
            ids.append(found[following].checkpoint_id)
            following = found[following].parent
        return [each for each in ids if self.committed[each].max_parallelism == self.now.max_parallelism]

    def settings(self, host: int = 0) -> sb.Settings:
        return settings_with(
            job="fleet",
            primary=f"file://{self.directory}/primary",
            local=tuple(f"{self.directory}/host{host}/{root}" for root in range(self.roots)),
            table_dir=f"{self.directory}/host{host}/tables",
            table_memory_bytes=4 << 20,
            max_parallelism=self.now.max_parallelism,
            checkpoints_retained=RETAINED,
            persist_delay_s=0.0,
            materialize_interval_s=0.0,
            **self.tuning,
        )

    @property
    def source(self) -> sb.SourceMark:
        return sb.SourceMark("query", self.now.batch)

    def changes(self) -> Changes:
        count = self.chance.choice([0, 1, 3, 20])
        return [(self.chance.randrange(20), self.chance.randrange(100)) for _ in range(count)]

    def output(self) -> Output | None:
        parts = [b"a row " * self.chance.choice([1, 100]) for _ in range(self.chance.randrange(3))]
        return self.chance.choice([None, Output(b"schema", len(parts), tuple(parts))])

    def name(self) -> str | None:
        return self.chance.choice([None, None, None, f"after-{len(self.committed)}"])


def work(backend: sb.StateBackend, done: Done) -> None:
    add(backend, done.changes)
    backend.operator_state("notes", int).extend(done.notes)


@pytest.mark.parametrize(("tables", "examples"), [(["heap"], 4), (["heap", "rocksdb"], 1)], ids=["heap", "both"])
def test_whatever_hands_a_job_goes_through_nothing_is_lost_or_counted_twice(tables: list[str], examples: int) -> None:
    """Every checkpoint holds what its winners did; output comes as it was staged, until it is known to be published."""
    if "rocksdb" in tables:
        pytest.importorskip("rocksdict", reason="the extra rocksdb")

    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.integers(0, 2**32))
    def run(seed: int) -> None:
        with tempfile.TemporaryDirectory() as directory:
            anyio.run(live_through_epochs, Path(directory), Random(seed), tables)

    run()


async def live_through_epochs(directory: Path, chance: Random, tables: Sequence[str]) -> None:
    async with AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(open_range_owners()) for _ in range(PROCESSES)]
        job = Job(directory, chance, tables, processes)
        for _ in range(EPOCHS):
            await job.epoch()
            await job.check()
