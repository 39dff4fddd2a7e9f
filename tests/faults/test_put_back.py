"""Something is put back from a backup, answers slowly, or is one disk with all the rest: what is left of the job."""

import errno
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

import statebackend as sb
from statebackend._local import range_directories
from statebackend._ranges.range_owners import open_range_owners
from statebackend.errors import CorruptSegmentError
from statebackend.objectstore import LocalStore
from statebackend.testing import Slow, run_virtual
from statebackend.testing.virtual_time import settle
from tests.faults.file_calls import watched
from tests.faults.file_operations import FailingDisk
from tests.faults.job import IMPATIENT, Job, changes_of, contents, expected
from tests.faults.scenarios import BASES, two_batches
from tests.ranges.parts import open_run

TABLES = ["heap", "rocksdb"]


def on_disk(directory: Path, table: str) -> Job:
    """A job with both copies in files, and a base behind each checkpoint."""
    job = Job(directory, table=table, copies=True, **IMPATIENT, **BASES)
    job.well = LocalStore(directory / "primary")
    return job


def put_back(backup: Path, place: Path) -> None:
    shutil.rmtree(place)
    shutil.copytree(backup, place)


@pytest.mark.parametrize("table", TABLES)
@run_virtual
async def test_a_primary_put_back_from_a_backup_has_what_the_backup_has(table: str, tmp_path: Path) -> None:
    """The local copies are of a later time, under the same numbers: none of what they know comes back."""
    job = on_disk(tmp_path, table)
    await two_batches(job)
    shutil.copytree(tmp_path / "primary", tmp_path / "backup")
    await two_batches(job)
    put_back(tmp_path / "backup", tmp_path / "primary")
    job.acknowledged = job.begun = 2
    assert await job.recover() == 4


@pytest.mark.parametrize("table", TABLES)
@run_virtual
async def test_ranges_cached_on_a_host_are_not_used_by_a_primary_put_back(table: str, tmp_path: Path) -> None:
    """Epochs and checkpoints have the same numbers as in the time that is gone; the batches between are other ones."""
    job = on_disk(tmp_path, table)
    await two_batches(job)
    shutil.copytree(tmp_path / "primary", tmp_path / "backup")
    async with open_run(job.settings, 2, job.well) as run, open_range_owners(store=job.well) as owners:
        for _ in range(2):
            await run.batch(owners, [("all", 1000)])
    put_back(tmp_path / "backup", tmp_path / "primary")
    async with open_run(job.settings, 2, job.well) as run, open_range_owners(store=job.well) as owners:
        await job.commit_parts(run, owners, 3)
    assert await job.recover() == 5


@run_virtual
async def test_files_of_a_range_from_before_a_power_cut_are_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of them was synced: here the manifest is that of the last batch, the files are those of the one before.

    Within one start of the machine that cannot be, and both would be believed, as the second half shows.
    """
    boot = tmp_path / "boot"
    monkeypatch.setattr(range_directories, "BOOT_ID", boot)
    for start, found in (("second", "primary"), ("first", "host")):
        boot.write_text("first")
        job = on_disk(tmp_path / start, "rocksdb")
        async with open_run(job.settings, 2, job.well) as run, open_range_owners(store=job.well) as owners:
            for batch in (1, 2, 3):
                await job.commit_parts(run, owners, batch)
                for files in [*job.directory.glob("tables/*/kg_*/files")] if batch == 2 else ():
                    shutil.copytree(files, files.with_name("backup"))
        for files in job.directory.glob("tables/*/kg_*/files"):
            put_back(files.with_name("backup"), files)
        boot.write_text(start)
        async with open_run(job.settings, 2, job.well) as run, open_range_owners(store=job.well) as owners:
            contributions = [await run.contribute(owners, task, changes_of(4)) for task in run.tasks()]
            assert {contribution.found for contribution in contributions} == {found}
            await run.commit(contributions, source=sb.SourceMark("q", 4))
        is_right = False
        with suppress(CorruptSegmentError):  # RocksDB notices a table of another batch if it has the number of its own
            async with job.open(store=job.well, read_only=True) as backend:
                is_right = contents(backend) == expected(4)
        assert is_right is (start == "second")


@pytest.mark.parametrize("table", TABLES)
@run_virtual
async def test_local_copies_put_back_from_a_backup_are_only_too_few(table: str, tmp_path: Path) -> None:
    """What they lack comes from the primary, and what they have too much of goes."""
    job = on_disk(tmp_path, table)
    await two_batches(job)
    for root in range(2):
        shutil.copytree(tmp_path / f"local{root}", tmp_path / f"backup{root}")
    await two_batches(job)
    for root in range(2):
        put_back(tmp_path / f"backup{root}", tmp_path / f"local{root}")
    async with job.open(store=job.well) as backend:
        assert contents(backend) == expected(4)
        assert backend.restored is not None
        assert backend.restored.files_primary > 0
    assert await job.recover() == 6


@run_virtual
async def test_a_slow_primary_costs_time_and_nothing_else(tmp_path: Path) -> None:
    """Each answer takes half a minute: an upload is sent again beside the first one, and counts once."""
    job = Job(tmp_path, copies=True, **BASES)
    await two_batches(job)
    job.strike(Slow(seconds=30.0), Slow(seconds=10.0, moment="after"))
    async with job.open() as backend:
        for _ in range(2):
            await job.commit(backend)
            await settle()
    assert job.acknowledged == 4
    assert await job.recover() == 6


@pytest.mark.parametrize(("table", "number"), [("heap", errno.ENOSPC), ("heap", errno.EIO), ("rocksdb", errno.EROFS)])
@run_virtual
async def test_one_disk_with_both_copies_fails_and_comes_back(table: str, number: int, tmp_path: Path) -> None:
    """Full, read-only or broken: an error, nothing acknowledged, and nothing lost when it is well again."""
    job = on_disk(tmp_path, table)
    await two_batches(job)
    async with job.open(store=job.well) as backend:
        await job.commit(backend)
        with watched(tmp_path, FailingDisk(number, 1, onwards=True)), pytest.raises(sb.StateBackendError):
            await job.commit(backend)
    assert job.acknowledged == 3
    await job.recover()
