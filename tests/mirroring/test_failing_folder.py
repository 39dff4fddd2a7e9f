"""A folder that is full, read-only or broken at a file operation: an error that says so, and then the state."""

import errno
from itertools import count
from pathlib import Path

import pytest

from statebackend.errors import StoreAccessError, StoreError, StoreFullError, StoreUnavailableError
from tests.faults.file_calls import watched
from tests.faults.file_operations import FailingDisk
from tests.mirroring.mirrored import EWR, JFK, LGA, Job, shown

SAID: dict[int, type[StoreError]] = {
    errno.ENOSPC: StoreFullError,
    errno.EROFS: StoreAccessError,
    errno.EIO: StoreUnavailableError,
}


@pytest.mark.parametrize("number", SAID, ids=errno.errorcode.__getitem__)
async def test_each_file_operation_fails_from_then_on(number: int, tmp_path: Path) -> None:
    """The step stays written down, is taken again, and has no row twice."""
    for nth in count(1):
        job, folder = Job(), tmp_path / str(nth)
        await job.commit({"a": EWR, "b": JFK})
        await job.mirror(folder)
        await job.commit({"a": LGA, "b": None})
        disk = FailingDisk(number, nth, onwards=True)
        with watched(folder, disk):
            failed = await _error_of(job, folder)
        assert failed is None or isinstance(failed, SAID[number]), disk.failed
        await job.mirror(folder)
        assert shown(folder) == await job.state()
        if disk.matched < nth:
            break
    assert nth > 2


async def _error_of(job: Job, folder: Path) -> StoreError | None:
    try:
        await job.mirror(folder)
    except StoreError as error:
        return error
    return None
