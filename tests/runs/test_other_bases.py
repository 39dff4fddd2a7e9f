"""What was read into memory, since its base has no pages, goes into runs with the next base; and a base is told of."""

import logging
from pathlib import Path

import pytest

from statebackend.testing import run_virtual
from tests.runs.test_jobs_over_runs import Job, table_of


@run_virtual
async def test_rows_of_bases_without_pages_go_into_runs(tmp_path: Path) -> None:
    """All key groups of them, also those that nothing has changed in since."""
    job = Job(tmp_path, table="heap")
    await job.with_a_base()
    async with job.open(table="runs") as backend:
        assert len(table_of(backend)._runs) == 0
        job.write(backend, ["k1"])
        await job.commit(backend)
        await job.commit(backend)
        assert len(table_of(backend)._runs) == 500
        job.check(backend)


@pytest.mark.parametrize(("handles_max", "times"), [(0, 1), (1, 0)])
@run_virtual
async def test_a_base_that_is_due_for_memory_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, handles_max: int, times: int
) -> None:
    """Once for each, with what to do about it; one that the triggers ask for is not."""
    caplog.set_level(logging.INFO, logger="statebackend")
    job = Job(tmp_path, materialize_handles_max=handles_max)

    def told() -> list[str]:
        return [each.getMessage() for each in caplog.records if "table_memory_bytes" in each.getMessage()]

    async with job.open() as backend:
        job.write(backend, [f"k{number}" for number in range(1000)])
        await job.commit(backend)
        assert told() == []
        table_of(backend).memory.bytes_max = 10_000
        await job.commit(backend)
        await job.commit(backend)
        assert len(told()) == times


@run_virtual
async def test_a_segment_of_a_base_has_all_rows_of_its_groups(tmp_path: Path) -> None:
    """Groups come together, those of rows in pages beside those of another state: no border lies between the two."""
    job = Job(tmp_path, in_flight_bytes_max=1, persist_size_threshold_bytes=1, max_parallelism=128)
    async with job.open() as backend:
        other = backend.value_state("other", int)
        for number in range(30):
            other[f"v{number}"] = number
        job.write(backend, [f"k{number}" for number in range(40)])
        await job.commit(backend)
        await job.commit(backend)
        assert len(table_of(backend)._runs) == 40
    async with job.open() as backend:
        assert dict(backend.value_state("other", int)) == {f"v{number}": number for number in range(30)}
