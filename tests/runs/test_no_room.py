"""A disk that is full, and a process that may open no more files: an error of ours, and nothing is lost."""

import errno
import os
import resource
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import statebackend as sb
from statebackend._checkpoint.materialization.tiers import PAGES, mark_of
from statebackend.testing import run_virtual
from tests.faults.file_calls import watched
from tests.faults.file_operations import FailingDisk
from tests.runs.test_damaged_runs import EVERY_BYTE
from tests.runs.test_jobs_over_runs import Job, table_of
from tests.runs.test_layers import LayeredJob

AT_ONCE: Mapping[str, Any] = {
    "materialize_retry_delay_s": 0.0,
    "upload__attempts_max": 1,
    "upload__retry_delay_s": 0.0,
    "upload__primary_outage_s": 0.0,
}
"""What fails is not repeated, but by the next checkpoint."""

MERGES: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "a layer": (10, {}),
    "a layer that takes one in": (200, {}),
    "a base that takes it in": (200, {"materialize_changelog_ratio": 0.1}),
}
"""What is due once so many keys of 300 have changed, which have a base and a layer, with these settings."""


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
    job = Job(tmp_path, **AT_ONCE)
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


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("place", ["primary", "local", "tables"])
def test_a_disk_that_fills_at_any_step_of_a_merge(tmp_path: Path, place: str, merge: str) -> None:
    """Batches go on, nothing half written is named or left, and the next one has it merged.

    `EVERY_BYTE=1` for each write; else it is every third.
    """
    merge_on = run_virtual(merge_on_a_full_disk)
    assert merge_on(tmp_path / "for ever", place, merge, 1, onwards=True)
    nth, step = 1, 1 if EVERY_BYTE else 3
    while merge_on(tmp_path / f"{nth}", place, merge, nth, onwards=False):
        nth += step
    assert nth > 1


async def merge_on_a_full_disk(directory: Path, place: str, merge: str, nth: int, *, onwards: bool) -> bool:
    """The `nth` write in that place fails, or all from that one on. False if there were not so many."""
    count, changes = MERGES[merge]
    job = LayeredJob(directory, **AT_ONCE, **({"local": ()} if place == "tables" else {}))
    await job.with_layers(1, 300)
    before = runs_in(await job.newest())
    async with job.open(**changes) as backend:
        job.write(backend, [f"k{number}" for number in range(1, count)], ["k0", "k299"])
        job.checkpoint_id += 1
        await backend.checkpoint(job.checkpoint_id)
        stored = files_in(directory / "primary")
        disk = FailingDisk(errno.ENOSPC, nth, onwards=onwards)
        with watched(directory / place, disk):
            await backend._base_writer.settled()
        has_failed = disk.matched >= nth
        assert backend._base_writer.failures == (has_failed and place != "local")
        if backend._base_writer.failures:
            assert files_in(directory / "primary") == stored
        job.check(backend)
        for number in range(2):
            job.write(backend, [f"k{number}"])
            await job.commit(backend)
        assert backend._base_writer.failures == 0
    assert temporary_in(directory / place) == []
    assert runs_in(await job.newest()) != before
    assert (await sb.verify(job.settings)).damages == ()
    async with job.open():
        pass
    return has_failed


def files_in(root: Path) -> set[Path]:
    """The segments in the primary."""
    return {path for path in root.rglob("segments/*") if path.is_file()}


def temporary_in(root: Path) -> list[Path]:
    """Files that are still to be named."""
    return list(root.rglob("*.tmp"))


def runs_in(state: Any) -> set[str]:
    """The objects with pages that the state names."""
    layers = {each.segment.key for each in state.changelog if mark_of(each) == PAGES}
    return layers | {each.segment.key for each in state.bases}


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
