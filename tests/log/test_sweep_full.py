"""A sweep of a primary without room frees some without needing any first, and leaves a job that is whole."""

from typing import Any

import pytest

import statebackend as sb
from statebackend.abc import Body
from statebackend.errors import StoreFullError
from statebackend.testing import Fail, FaultyStore
from tests.log.swept import HOUR_S, JOB, Job, put
from tests.log.test_sweep import assert_swept, assert_whole, worked


class NoRoom(FaultyStore):
    """Takes no object more than there were at first, as a file system without inodes."""

    def __init__(self, store: Any, objects_max: int, *faults: Fail) -> None:
        super().__init__(store, faults)
        self._objects_max = objects_max

    async def put(self, key: str, body: Body) -> None:
        if await self.head(key) is None and len([info async for info in self.list("")]) >= self._objects_max:
            raise StoreFullError("no room", key=key)
        await super().put(key, body)


async def sweep_full(job: Job, *faults: Fail) -> sb.reports.SweepReport:
    store = NoRoom(job.store, len(await job.keys()), *faults)
    return await sb.sweep(job.settings, dry_run=False, min_age_s=0.0, store=store, clock=job.clock)


async def test_the_first_sweep_of_a_full_store_takes_the_room_of_claims() -> None:
    """Nobody opens a claim. All that would go otherwise goes, too."""
    job = await worked()
    report = await sweep_full(job)
    assert report.stopped is None
    assert len(report.deleted) == len(set(report.deleted))
    assert "commits/000000000000" in report.deleted
    await assert_swept(job)
    await assert_whole(job)


async def test_later_sweeps_take_the_room_of_former_floors() -> None:
    """In one long epoch there is neither an old claim nor an orphan."""
    job = await worked()
    async with job.backend() as backend:
        for number in range(7, 31):
            if number % 3 == 0:
                job.pass_time(HOUR_S + 100.0)
            await put(backend, number)
            if number % 3 == 0 and number < 30:
                await job.sweep()
    entries = await job.keys("commits/")
    report = await sweep_full(job)
    assert {key for key in entries if key in report.deleted}
    assert report.stopped is None
    assert len(await job.keys("swept/")) <= 2
    await assert_whole(job)


async def test_where_nothing_can_be_spared_nothing_goes_and_it_is_said() -> None:
    """The hint is so old that not even a claim may go."""
    job = await worked()
    await job.store.put(f"{JOB}/newest", [b"0 stamp"])
    before = await job.keys()
    report = await sweep_full(job)
    assert report.stopped is not None
    assert "no room" in report.stopped
    assert (await job.keys(), report.deleted) == (before, ())


@pytest.mark.parametrize("nth", range(1, 30, 3))
async def test_a_full_store_that_stops_deleting_keeps_a_job_whole(nth: int) -> None:
    """Between any two deletions; the next sweep finishes the work."""
    job = await worked()
    await sweep_full(job, Fail(operation="delete", nth=nth, onwards=True))
    await assert_whole(job)
    await job.sweep()
    await assert_swept(job)
