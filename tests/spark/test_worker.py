"""The task of an executor, called as Spark calls it, one batch after the other in one process, without Spark."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import statebackend as sb
from statebackend._processing.runner import ProcessorRunner
from statebackend._ranges.equal_ranges import ranges_of
from statebackend._ranges.range_owners import RangeTask, combine
from statebackend._ranges.range_task import committed_base
from statebackend.spark.executors.pickling import pickled
from statebackend.spark.executors.placement import SALT
from statebackend.spark.executors.worker import JOBS_MAX, BatchSpec, RunSpec, TaskResult, run
from statebackend.testing import run_virtual


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    """The worker freezes what its process has loaded."""
    yield
    gc.unfreeze()


class Looking(sb.spark.KeyedProcessor):
    """Looks through its state bit by bit, over batches."""

    def open(self, context: Any) -> None:
        self.counts = context.value_state("counts", int)
        self.looking = iter(self.counts)

    def process(self, key: Any, rows: Any, context: Any) -> None:
        self.counts[key] = self.counts.get(key, 0) + len(rows)
        next(self.looking, None)


async def attempts(settings: sb.Settings, processor: Any, batches: list[list[str]]) -> list[TaskResult]:
    """The result of a task for each of these batches of keys, each committed."""
    results, owners = list[TaskResult](), ranges_of(1, settings.max_parallelism)
    run_spec = pickled(RunSpec(ProcessorRunner(processor, key="key", order_by=(), has_output=False), None))
    async with sb.owners.open_coordinator(settings) as coordinator:
        for batch_id, keys in enumerate(batches):
            checkpoint_id, epoch = coordinator.next_checkpoint_id, coordinator.epoch
            base = committed_base(coordinator, owners, body_bytes_max=1 << 20)
            task = RangeTask(settings, owners[0], owners, epoch, checkpoint_id, base)
            rows = pa.record_batch({"c0": keys, SALT: pa.array([0] * len(keys), pa.int32())})
            (row,) = run(run_spec, pickled(BatchSpec(task, (0,), ("key",), batch_id)), [rows])
            results.append(msgspec.msgpack.decode(row.column(0)[0].as_py(), type=TaskResult))
            found = [results[-1].contribution]
            snapshots, inline = combine(found, coordinator.base, owners, checkpoint_id=checkpoint_id, epoch=epoch)
            await coordinator.commit(checkpoint_id, snapshots, None, inline=inline)
    return results


class Adding(sb.spark.KeyedProcessor):
    """Adds so much for each row."""

    def __init__(self, each: int) -> None:
        self.each = each

    def open(self, context: Any) -> None:
        self.counts = context.value_state("counts", int)

    def process(self, key: Any, rows: Any, context: Any) -> None:
        self.counts[key] = self.counts.get(key, 0) + self.each * len(rows)


@run_virtual
async def test_a_worker_that_spark_reuses_runs_the_processor_of_this_run(tmp_path: Path) -> None:
    """The query was stopped, its processor edited, and started again: Spark's worker is the same process."""
    settings = sb.Settings(job="edited", primary=f"file://{tmp_path}/primary", local=())
    for each in (1, 10, 1):
        await attempts(settings, Adding(each), [["a", "b"], ["a"]])
    async with sb.open_backend(settings, read_only=True) as backend:
        assert dict(backend.value_state("counts", int)) == {"a": 2 + 20 + 2, "b": 1 + 10 + 1}


@run_virtual
async def test_a_worker_keeps_the_jobs_that_it_works_for_apart(tmp_path: Path) -> None:
    """More than it keeps open, of one name and another, below one primary and another, all with the same processor."""
    places = [(job, place) for place in ("here", "there") for job in "abc"]
    assert len(places) > JOBS_MAX
    for turn in range(2):
        for number, (job, place) in enumerate(places):
            settings = sb.Settings(job=job, primary=f"file://{tmp_path}/{place}", local=())
            await attempts(settings, Adding(1), [["a"] * (number + 1)])
            async with sb.open_backend(settings, read_only=True) as backend:
                assert dict(backend.value_state("counts", int)) == {"a": (number + 1) * (turn + 1)}


@run_virtual
async def test_what_a_processor_has_kept_does_not_keep_the_files_of_its_range_open(tmp_path: Path) -> None:
    """Else the next attempt could not use them, and would restore the range from the primary."""
    pytest.importorskip("rocksdict", reason="the extra rocksdb")
    settings = sb.Settings(job="j", primary=f"file://{tmp_path}/primary", local=(f"{tmp_path}/local",), table="rocksdb")
    results = await attempts(settings, Looking(), [["a", "b", "c"], ["a"], ["b"]])
    assert [result.contribution.found for result in results] == ["new", "host", "host"]
    assert [result.contribution.report for result in results] == [None] * 3
