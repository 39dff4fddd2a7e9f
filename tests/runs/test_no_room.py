"""A disk that is full, and a process that may open no more files: an error of ours, and nothing is lost."""

import errno
import os
import resource
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import statebackend as sb
from statebackend.testing import run_virtual
from tests.faults.file_calls import watched
from tests.faults.file_operations import FailingDisk
from tests.runs.test_jobs_over_runs import Job, table_of


@contextmanager
def descriptors(free: int) -> Generator[None]:
    """So many more files may be opened."""
    _, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(int(each.name) for each in Path("/proc/self/fd").iterdir())  # that the tests before have open
    resource.setrlimit(resource.RLIMIT_NOFILE, (most + 64, hard))
    taken = list[int]()
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(free):
            os.close(taken.pop())
        yield
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def fill(directory: Path, number: int = errno.ENOSPC) -> Any:
    """From now on nothing is written below that directory."""
    return watched(directory, FailingDisk(number, 1, onwards=True))


@pytest.mark.parametrize("place", ["primary", "local"])
@run_virtual
async def test_a_disk_that_fills_while_a_base_is_written(tmp_path: Path, place: str) -> None:
    """Local copies are left out. What a full primary does not take is written again, and the job goes on."""
    job = Job(
        tmp_path,
        materialize_retry_delay_s=0.0,
        upload__attempts_max=1,
        upload__retry_delay_s=0.0,
        upload__primary_outage_s=0.0,
    )
    async with job.open() as backend:
        job.write(backend, [f"k{number}" for number in range(500)])
        await backend.checkpoint(1)
        with fill(tmp_path / place):
            await backend._base_writer.settled()
        job.check(backend)
        job.checkpoint_id = 1
        await job.commit(backend)
        await job.commit(backend)
        assert len(table_of(backend)._runs) == 500
    async with job.open():
        pass


@run_virtual
async def test_a_disk_that_is_full_when_a_page_file_is_opened(tmp_path: Path) -> None:
    """Without local copies it is written, in the next directory where there is no room."""
    job = Job(tmp_path)
    await job.with_a_base()
    shutil.rmtree(tmp_path / "local")
    with fill(tmp_path / "tables"):
        async with job.open() as backend:
            assert len(table_of(backend)._runs) == 500
    async with job.open():
        pass


@run_virtual
async def test_a_process_that_may_open_no_more_files(tmp_path: Path) -> None:
    """Whenever they run out: the job opens, or there is an error of ours; with more of them all is there."""
    job = Job(tmp_path)
    await job.with_a_base()
    outcomes = set[str]()
    for free in range(0, 40, 3):
        try:
            with descriptors(free):
                async with sb.open_backend(job.settings, read_only=True) as backend:
                    job.check(backend)
            outcomes.add("opened")
        except sb.errors.StateBackendError as error:
            outcomes.add(type(error).__name__)
    assert "opened" in outcomes
    assert len(outcomes) > 1
    async with job.open():
        pass
