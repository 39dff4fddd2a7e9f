"""The job in the driver, without a Spark: what tasks contribute becomes commits."""

from pathlib import Path

import statebackend as sb
from statebackend._checkpoint.materialization.tiers import members
from statebackend._ranges.range_owners import open_range_owners
from statebackend.spark.executors.claimed_job import open_claimed_job
from statebackend.spark.executors.worker import TaskResult
from tests.ranges.parts import Model, Run


async def test_small_change_sets_are_merged_in_the_commits(tmp_path: Path) -> None:
    """As often as the settings say, and nothing is lost by it."""
    settings = sb.Settings(
        job="fleet",
        primary=f"file://{tmp_path}",
        max_parallelism=4,
        inline_bytes_max=64 << 10,
        materialize_handles_max=0,
        materialize_fan_in=4,
    )
    model = Model()
    async with open_claimed_job(settings, None, sb.Observer()) as job, open_range_owners() as owners:
        run = Run(settings, job.coordinator, 2)
        for number in range(10):
            changes = [(key, number) for key in range(20)]
            found = [await run.contribute(owners, task, changes) for task in run.tasks()]
            results = [TaskResult(each, None, 0.0, {}, 0.0) for each in found]
            await job.commit(results, run.owners, sb.SourceMark("q", number))
            model.apply(changes)
        assert job.coordinator.base is not None
        handles = [[members(each) for each in part.changelog] for part in job.coordinator.base.ranges]
    assert [sum(each) for each in handles] == [10, 10]
    assert all(4 in each for each in handles)
    await model.check(settings)
