"""The end of a log without a hint is found by listing, also by a process so slow that a sweep comes in between."""

from collections.abc import AsyncIterator

import pytest

import statebackend as sb
from statebackend._backend.stores import threads_of
from statebackend._log.log_reader import LISTINGS_MAX, LogReader
from statebackend._log.names import HINT_KEY, entry_key
from statebackend.errors import MissingObjectError
from statebackend.objectstore.scoped import ScopedStore
from tests.log.swept import JOB, Job


class _SweptAfterListing(ScopedStore):
    """When its entries have been listed, days pass, commits are made, and everything that was listed is swept."""

    job: Job
    listings = 0
    sweeps = 1

    async def list(self, prefix: str) -> AsyncIterator[sb.abc.ObjectInfo]:
        found = [info async for info in super().list(prefix)]
        self.listings += 1
        if self.listings <= self.sweeps:
            await self.job.commit(*range(4))
            self.job.pass_time(100_000.0)
            await self.job.commit(*range(4))
            await self.job.sweep()
            await self.job.store.delete(f"{JOB}/{HINT_KEY}")
        for info in found:
            yield info


@pytest.mark.parametrize("sweeps", [1, 2, LISTINGS_MAX])
async def test_the_end_is_found_though_what_was_listed_last_is_swept_before_it_is_read(sweeps: int) -> None:
    """For a reader that takes days for a request (simulation, seed 2351). It fails if that happens each time."""
    job = Job()
    await job.commit(1, 2)
    await job.store.delete(f"{JOB}/{HINT_KEY}")
    store = _SweptAfterListing(job.store, "")
    store.job, store.sweeps = job, sweeps
    log = LogReader(ScopedStore(store, f"{JOB}/"), JOB, threads_of(job.settings))
    if sweeps == LISTINGS_MAX:
        with pytest.raises(MissingObjectError):
            await log.end()
        return
    end = await log.end()
    assert end is not None
    assert f"{JOB}/{entry_key(end.sequence)}" == [info.key async for info in job.store.list(f"{JOB}/commits/")][-1]
