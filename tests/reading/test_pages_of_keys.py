"""A few keys of a large state over runs are read by their pages: requests and bytes do not grow with the state."""

from pathlib import Path

import pytest

import statebackend as sb
from statebackend.testing import run_virtual
from tests.runs.afar import FarJob
from tests.runs.ranges import always_by_ranges
from tests.runs.test_jobs_over_runs import Model, rows_of, settings_of

KEYS = 40_000


async def read(job: FarJob, *keys: str, checkpoint_id: int | None = None) -> Model:
    """By a process that has no copies."""
    settings = settings_of(job.settings, local=())
    opening = sb.read_batches(settings, "rows", keys=keys, store=job.store, checkpoint_id=checkpoint_id)
    found: Model = {}
    async with opening as batches:
        async for batch in batches:
            found |= rows_of(batch)
    return found


def bytes_of(job: FarJob) -> int:
    """What was asked for of segments with pages."""
    wholes = sum(len(job.store.bytes_of(key)) for key in job.store.wholes)
    return wholes + sum(each.length for each in job.store.ranges if job.store.is_paged(each.key))


@pytest.fixture
def job(tmp_path: Path) -> FarJob:
    return FarJob(tmp_path)


@run_virtual
async def test_keys_cost_their_pages(job: FarJob) -> None:
    """Of a base that nobody holds in memory; those that are not there, too. A newer change counts."""
    await job.on_an_empty_host(KEYS)
    stored = sum(len(job.store.bytes_of(key)) for key in job.store.paged)
    with always_by_ranges():
        for keys in (["k7"], ["k7", "nobody", f"k{KEYS - 1}"]):
            job.store.forget()
            assert await read(job, *keys) == {key: job.model[key] for key in keys if key in job.model}
            assert job.store.wholes == []
            assert bytes_of(job) < stored / 4
        async with job.open() as backend:
            job.write(backend, ["k7"], ["k8"])
            await backend.checkpoint(job.checkpoint_id + 1)
        job.store.forget()
        assert await read(job, "k7", "k8", "k9") == {key: job.model[key] for key in ("k7", "k9")}
        assert job.store.wholes == []


@run_virtual
async def test_many_keys_are_read_as_all_are(job: FarJob) -> None:
    """A request for each would cost more than the whole."""
    await job.on_an_empty_host(KEYS)
    keys = [f"k{number}" for number in range(0, KEYS, 50)]
    assert await read(job, *keys) == {key: job.model[key] for key in keys}
    assert job.store.wholes == job.store.paged


@run_virtual
async def test_a_page_that_is_damaged_on_its_way_is_asked_for_again(job: FarJob) -> None:
    """Once. If it is still damaged, the read fails."""
    await job.on_an_empty_host(KEYS)
    flips = [1]

    def damaged(asked: object, data: bytes) -> bytes:
        if len(data) != 4096 or not flips[0]:
            return data
        flips[0] -= 1
        return data[:-1] + bytes([data[-1] ^ 1])

    job.store.damage = damaged
    with always_by_ranges():
        assert await read(job, "k7") == {"k7": job.model["k7"]}
        assert flips == [0]
        flips[0] = 2
        with pytest.raises(sb.errors.CorruptSegmentError):
            await read(job, "k7")
