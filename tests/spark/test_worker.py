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
from statebackend._ranges.owners import RangeTask, combine
from statebackend._ranges.range_task import committed_base
from statebackend.spark.executors.pickling import pickled
from statebackend.spark.executors.placement import SALT
from statebackend.spark.executors.worker import BatchSpec, RunSpec, TaskResult, run
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


@run_virtual
async def test_what_a_processor_has_kept_does_not_keep_the_files_of_its_range_open(tmp_path: Path) -> None:
    """Else the next attempt could not use them, and would restore the range from the primary."""
    pytest.importorskip("rocksdict", reason="the extra rocksdb")
    settings = sb.Settings(job="j", primary=f"file://{tmp_path}/primary", local=(f"{tmp_path}/local",), table="rocksdb")
    results = await attempts(settings, Looking(), [["a", "b", "c"], ["a"], ["b"]])
    assert [result.contribution.found for result in results] == ["new", "host", "host"]
    assert [result.contribution.report for result in results] == [None] * 3
