"""Ranges of a job whose columnar states are over runs, in processes that come and go, as on Spark's executors."""

import random
import shutil
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pyarrow as pa
import pytest

import statebackend as sb
from statebackend._backend import tables as own_tables
from statebackend._checkpoint.materialization.layers import layers
from statebackend._ranges.range_owners import Contribution, RangeOwners, RangeTask, open_range_owners
from statebackend._runs.run_table import RunTable
from statebackend._tables.key_groups import key_group
from statebackend.testing import run_virtual
from tests.knobs import replaced, settings_with
from tests.ranges.parts import Run, open_run
from tests.runs.invariants import assert_looks_up_in_what_is_committed, assert_rows_are_the_model
from tests.runs.test_jobs_over_runs import HOW, Model, columns, rows_of

GROUPS = 12


class Batch(msgspec.Struct, frozen=True):
    """Keys that get a row, and those that are dropped, whose rows all have this number."""

    number: int
    keys: Sequence[str]
    dropped: Sequence[str] = ()

    def apply(self, model: Model) -> None:
        for key in self.keys:
            model[key] = model.get(key, (0, ""))[0] + 1, f"{self.number} {key}"
        for key in self.dropped:
            model.pop(key, None)

    def work(self, task: RangeTask, backend: Any) -> None:
        """What an attempt does with its part."""
        state = columns(backend)
        keys = [key for key in self.keys if key_group(key, GROUPS) in task.key_groups]
        if keys:
            rows = pa.table({"k": keys, "x": [1] * len(keys), "y": [f"{self.number} {key}" for key in keys]})
            state.merge(rows, on="k", how=HOW)
        dropped = [key for key in self.dropped if key_group(key, GROUPS) in task.key_groups]
        state.rows(pa.array(dropped, pa.string())).drop()
        backend.value_state("seen", int).put_many(keys[:3], [self.number] * len(keys[:3]))


def table_in(backend: Any) -> Any:
    """The table of the columns."""
    return columns(backend)._rows.table


def settings_in(directory: Path, **changes: Any) -> sb.Settings:
    """A job in files, whose every commit has a base or a layer, as the ratio says."""
    return settings_with(
        job="job",
        primary=f"file://{directory}/primary",
        local=(f"{directory}/local",),
        **{
            "max_parallelism": GROUPS,
            "table": "runs",
            "table_dir": f"{directory}/tables",
            "materialize_handles_max": 1,
            "materialize_interval_s": 0,
            "materialize_changelog_ratio": 1000.0,
            "inline_bytes_max": 0,
            **changes,
        },
    )


@pytest.fixture
def settings(tmp_path: Path) -> sb.Settings:
    return settings_in(tmp_path)


def check_lookup(backend: Any) -> None:
    """The columns of an attempt look up in what is committed."""
    assert_looks_up_in_what_is_committed(table_in(backend), backend._snapshots.committed)


async def contribute(owners: RangeOwners, task: RangeTask, batch: Batch) -> Contribution:
    """One attempt."""
    over_runs = task.settings.table == "runs"

    def work(backend: Any) -> None:
        assert isinstance(table_in(backend), RunTable) is (over_runs or task.settings.state_memory_bytes > 0)
        check_lookup(backend)
        batch.work(task, backend)

    return await owners.contribute(task, work)


async def commit(run: Run, owners: RangeOwners, batch: Batch, model: Model) -> list[Contribution]:
    """A batch: each range once, and the commit."""
    found = [await contribute(owners, task, batch) for task in run.tasks()]
    await run.commit(found)
    batch.apply(model)
    return found


async def check(settings: sb.Settings, model: Model) -> None:
    """Over runs and in memory, all of the job has this."""
    for table in ("runs", "heap"):
        async with sb.open_backend(replaced(settings, table=table), read_only=True) as backend:
            state = columns(backend)
            assert_rows_are_the_model(rows_of(state.to_arrow()), len(state), model)


def keys_of(count: int, begin: int = 0) -> list[str]:
    return [f"k{number}" for number in range(begin, count)]


@run_virtual
async def test_who_goes_on_looks_up_in_what_was_committed(settings: sb.Settings) -> None:
    """The base, then layers: each is taken over by the next attempt, which reads nothing of them."""
    model: Model = {}
    async with open_run(settings, 2) as run, open_range_owners() as owners:
        await commit(run, owners, Batch(0, keys_of(3000)), model)
        for number, count in enumerate((1500, 250, 30), 1):
            found = await commit(run, owners, Batch(number, keys_of(count), [f"k{2000 + number}"]), model)
            assert {each.found for each in found} == {"process"}
            assert {each.report for each in found} == {None}
        for task in run.tasks():
            async with owners.attempt(task) as attempt:
                table = table_in(attempt.backend)
                bases, *over = table._runs.maps
                assert bases.count == len([key for key in keys_of(3000) if key_group(key, GROUPS) in task.key_groups])
                assert len(over) == len(
                    layers(run.coordinator.base.ranges[task.owners.index(task.key_groups)].changelog)
                )
                assert len(over) == 2
    await check(settings, model)


@run_virtual
async def test_another_process_opens_the_files_of_its_host_unread(settings: sb.Settings, tmp_path: Path) -> None:
    """And one of another host those of the primary. Nothing is in memory but what changed since."""
    model: Model = {}
    async with open_run(settings, 2) as run:
        async with open_range_owners() as owners:
            for number in range(3):
                await commit(run, owners, Batch(number, keys_of(3000 // (number + 1) ** 3)), model)
        for place, found_on in (("local", "host"), ("elsewhere", "primary")):
            run.settings = replaced(settings, local=(f"{tmp_path}/{place}",))
            async with open_range_owners() as owners:
                for task in run.tasks():
                    async with owners.attempt(task) as attempt:
                        assert attempt.found == found_on
                        assert len(table_in(attempt.backend)._rows) < 300
    await check(settings, model)


@run_virtual
async def test_what_an_attempt_made_and_lost_is_not_looked_up_in(settings: sb.Settings) -> None:
    """Neither a base nor a layer, of an attempt without changes of its own, and so with a lineage that fits."""
    model: Model = {}
    async with open_run(settings, 1) as run, open_range_owners() as one, open_range_owners() as other:
        for number in range(8):
            batch = Batch(number, keys_of(2000, begin=500 * number % 1999), [f"k{number}"])
            (task,) = run.tasks()
            idle = await contribute(one, task, Batch(number, []))
            won = await contribute(other if number % 3 else one, task, batch)
            assert idle.snapshot.state.bases or not number
            await run.commit([won])
            batch.apply(model)
            await check(settings, model)
            if number % 2:
                await commit(run, one, Batch(100 + number, ["a", f"k{number + 7}"]), model)
                await check(settings, model)


@contextmanager
def without_memory() -> Generator[None]:
    """Rows leave the memory as soon as a run has them, and bases are due as soon as there is one that none has."""
    over_runs = own_tables._over_runs
    with mock.patch.object(own_tables, "_over_runs", lambda shared, _, *rest: over_runs(shared, 1, *rest)):
        yield


@without_memory()
@run_virtual
async def test_changes_go_into_runs_when_memory_is_short(settings: sb.Settings) -> None:
    """Whatever the triggers say; then rows leave the memory that an attempt leaves to the next one."""
    model: Model = {}
    never = replaced(settings, materialize_handles_max=0, materialize_changelog_ratio=0.0)
    async with open_run(never, 1) as run, open_range_owners() as owners:
        for number in range(4):
            await commit(run, owners, Batch(number, keys_of(1000 // (number + 1))), model)
        async with owners.attempt(run.tasks()[0]) as attempt:
            assert attempt.found == "process"
            assert attempt.backend._base_writer.to_take_over is None
            assert len(table_in(attempt.backend)._rows) <= 500
    await check(settings, model)


@pytest.mark.parametrize("parts", [1, 3, 5])
@run_virtual
async def test_ranges_are_cut_anew(settings: sb.Settings, parts: int) -> None:
    """Layers of all former owners are looked up, in their order, and none of them is read into memory."""
    model: Model = {}
    async with open_range_owners() as owners:
        async with open_run(settings, 2) as run:
            for number, count in enumerate((3000, 1500, 250, 30)):
                await commit(run, owners, Batch(number, keys_of(count), [f"k{2000 + number}"]), model)
        async with open_run(settings, parts) as run:
            for task in run.tasks():
                async with owners.attempt(task) as attempt:
                    table = table_in(attempt.backend)
                    assert len(table._rows) <= 250
                    assert len(table._runs.maps) > 2
            for number, count in enumerate((900, 10, 2000), 10):
                await commit(run, owners, Batch(number, keys_of(count), [f"k{1000 + number}"]), model)
                await check(settings, model)


@run_virtual
async def test_a_process_that_was_away_goes_on_where_the_files_are_the_same(settings: sb.Settings) -> None:
    """What others have changed it applies; where they have written a layer meanwhile, it opens the files again."""
    model: Model = {}
    rarely = replaced(settings, materialize_handles_max=5)
    seen: list[tuple[str, int]] = []
    async with open_run(rarely, 1) as run, open_range_owners() as one, open_range_owners() as other:
        for number in range(16):
            owners = one if number % 4 == 3 else other
            (found,) = await commit(run, owners, Batch(number, keys_of(40), [f"k{number}"]), model)
            if owners is one:
                seen.append((found.found, len(found.snapshot.state.bases)))
            await check(settings, model)
    assert {found for found, _ in seen} == {"host", "process"}


@pytest.mark.parametrize("seed", range(6))
def test_lives_of_ranges(tmp_path: Path, seed: int) -> None:
    """Any batches, by processes of two hosts that come and go; attempts that lose; other ranges, tables, drivers."""
    with without_memory() if seed % 2 else nullcontext():
        live_by_ranges(tmp_path, seed)


@run_virtual
async def live_by_ranges(directory: Path, seed: int) -> None:
    """What is drawn with that seed."""
    rng = random.Random(seed)
    model: Model = {}
    settings = settings_in(
        directory,
        materialize_handles_max=rng.choice([1, 3]),
        materialize_changelog_ratio=rng.choice([0.5, 3.0, 1000.0]),
        materialize_fan_in=rng.choice([0, 2]),
        inline_bytes_max=rng.choice([0, 1 << 16]),
    )
    hosts = [replaced(settings, local=(f"{directory}/{host}",)) for host in ("local", "elsewhere")]
    number = 0
    async with AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(open_range_owners()) for _ in range(3)]
        for _ in range(5):
            tables: dict[str, Any] = rng.choice(
                [
                    *[{"table": "runs"}] * 3,
                    {"table": "heap"},
                    *[{"table": "heap", "state_memory_bytes": rng.choice([4 << 10, 64 << 10])}] * 3,
                ]
            )
            async with open_run(settings, rng.choice([1, 1, 2, 3])) as run:
                for _ in range(rng.randint(1, 7)):
                    number += 1
                    batch = Batch(
                        number,
                        [f"k{rng.randrange(400)}" for _ in range(rng.choice([0, 1, 30, 600]))],
                        [f"k{rng.randrange(400)}" for _ in range(rng.choice([0, 3, 200]))],
                    )
                    batch = msgspec.structs.replace(batch, keys=sorted(set(batch.keys)))
                    run.settings = replaced(rng.choice(hosts), **tables)
                    won: list[Contribution] = []
                    for task in run.tasks():
                        if rng.random() < 0.3:
                            lost = batch if rng.random() < 0.5 else Batch(-number, [f"k{rng.randrange(400)}"])
                            await contribute(rng.choice(processes), task, lost)
                        if rng.random() < 0.85:
                            won.append(await contribute(rng.choice(processes), task, batch))
                        else:  # nothing of the batch is for this range
                            keep = [k for k in batch.keys if key_group(k, GROUPS) not in task.key_groups]
                            drop = [k for k in batch.dropped if key_group(k, GROUPS) not in task.key_groups]
                            batch = msgspec.structs.replace(batch, keys=keep, dropped=drop)
                    if rng.random() < 0.1:  # all of it is delivered again
                        continue
                    await run.commit(won)
                    batch.apply(model)
                    await check(settings, model)
            if rng.random() < 0.3:
                shutil.rmtree(directory / "local", ignore_errors=True)
            if rng.random() < 0.5:
                number += 1
                async with sb.open_backend(settings) as backend:
                    batch = Batch(number, [f"k{rng.randrange(400)}"])
                    batch.work(RangeTask(settings, sb.owners.KeyGroupRange(0, 11), (), 0, 0, None), backend)
                    batch.apply(model)
                    await backend.checkpoint(backend.newest.checkpoint_id + 1 if backend.newest else 0)
                    await backend._base_writer.settled()
                await check(settings, model)
