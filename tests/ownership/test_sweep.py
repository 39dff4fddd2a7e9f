"""The fourth part of the table: what a sweep deletes, and what it leaves alone."""

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import statebackend as sb
from statebackend._local.job_directories import lock_root
from statebackend._upkeep.savepoints import record_start
from statebackend.ids import Epoch
from tests.committed import stand_on
from tests.ownership.disk import JOB, Disk, Watch, commit, settle
from tests.ownership.table import Fate, row


async def sweep(disk: Disk) -> sb.reports.SweepReport:
    """One sweep of all that is old enough."""
    return await sb.sweep(disk.settings(checkpoints_retained=1), dry_run=False, min_age_s=0.0)


def age(disk: Disk, seconds: float = 7200.0) -> None:
    """What lies in the primary was written that much earlier."""
    for path in disk.directory.glob("primary/**/*"):
        status = path.stat()
        os.utime(path, (status.st_atime, status.st_mtime - seconds))


async def superseded(disk: Disk, *, savepoint: str | None = None, seconds: float = 7200.0) -> set[Path]:
    """Two commits that have nothing in common, the second one later than the first: the segments of the first."""
    async with disk.backend() as backend:
        backend.value_state("n", int)["k"] = 1
        await backend.checkpoint(1, savepoint=savepoint)
        first = disk.segments
        age(disk, seconds)
        stand_on(backend)
        await commit(backend, 2)
        await settle()
    return first


@row("swept-orphan")
async def test_what_a_killed_writer_left_is_swept_when_its_epoch_is_over(killed: Callable[[str], Disk]) -> Fate:
    """Really killed, before his commit. The next writer has opened the job, and that ends it."""
    disk = killed("before the commit")
    orphans = disk.segments
    async with disk.backend() as backend:
        assert backend._coordinator.base is not None
        keys = backend._coordinator.base.segments()
        await commit(backend, 2)
    watch = Watch(orphans - {disk.directory / "primary" / JOB / key for key in keys})
    await sweep(disk)
    await disk.reopen()
    return watch.fate()


@row("swept-live")
async def test_what_the_last_writer_left_is_not_swept(killed: Callable[[str], Disk]) -> Fate:
    """Nobody can tell him from one who is about to commit."""
    disk = killed("before the commit")
    watch = Watch(disk.segments)
    await sweep(disk)
    return watch.fate()


@row("swept-superseded")
async def test_a_segment_goes_with_the_last_commit_that_points_into_it(disk: Disk) -> Fate:
    """As soon as that commit is old enough."""
    watch = Watch(await superseded(disk))
    await sweep(disk)
    await disk.reopen()
    return watch.fate()


@row("swept-young")
async def test_a_segment_stays_while_a_commit_that_points_into_it_is_young(disk: Disk) -> Fate:
    """Whatever minimum age was asked for."""
    watch = Watch(await superseded(disk, seconds=0.0))
    await sweep(disk)
    return watch.fate()


@row("swept-needed")
async def test_a_segment_that_a_retained_commit_points_into_stays(disk: Disk) -> Fate:
    """However old it is."""
    async with disk.backend() as backend:
        await commit(backend, 1)
        watch = Watch(disk.segments)
        age(disk)
        await commit(backend, 2)
    await sweep(disk)
    return watch.fate()


@row("swept-commit")
async def test_a_commit_object_that_is_not_retained_goes(disk: Disk) -> Fate:
    """And the claim before it."""
    async with disk.backend() as backend:
        await commit(backend, 1)
        watch = Watch(disk.commits)
        age(disk)
        await commit(backend, 2)
    await sweep(disk)
    await disk.reopen()
    return watch.fate()


@row("swept-savepoint")
async def test_a_savepoint_stays_with_all_it_points_into(disk: Disk) -> Fate:
    """Its commit object, its segments and its mark."""
    async with disk.backend() as backend:
        backend.value_state("n", int)["k"] = 1
        await backend.checkpoint(1, savepoint="s")
        kept = {path for path in disk.commits if path.name.endswith("1")} | disk.segments
        kept |= set(disk.directory.glob(f"primary/{JOB}/savepoints/s/*"))
        age(disk)
        stand_on(backend)
        await commit(backend, 2)
    watch = Watch(kept)
    assert len(kept) == 3
    await sweep(disk)
    return watch.fate()


@row("swept-mark")
async def test_the_mark_of_a_commit_that_was_not_made_goes(disk: Disk) -> Fate:
    """Its writer was killed between the two, and the next one has taken that place."""
    await superseded(disk)
    path = disk.directory / "primary" / JOB / "savepoints" / "s" / f"{2:012d}-{'0' * 32}"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    watch = Watch([path])
    await sweep(disk)
    return watch.fate()


@row("swept-milestone")
async def test_a_commit_is_kept_for_its_age(disk: Disk) -> Fate:
    """With what it points into, though nothing newer does; until its age is over."""
    watch = Watch(await superseded(disk))
    days = disk.settings(checkpoints_retained=1, checkpoints_retained_s=3 * 86_400.0)
    await sb.sweep(days, dry_run=False, min_age_s=0.0)
    await disk.reopen()
    return watch.fate()


@row("swept-pin")
async def test_the_pin_of_a_savepoint_that_was_not_made_goes(disk: Disk) -> Fate:
    """It keeps its commit in that sweep, and not in the next one."""
    await superseded(disk)
    stamp = "0" * 32
    path = disk.directory / "primary" / JOB / "savepoints" / "s" / f"{1:012d}-{stamp}-{stamp}"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    age(disk)
    watch = Watch([path])
    await sweep(disk)
    return watch.fate()


@row("swept-start")
async def test_a_start_stays_with_its_savepoint(disk: Disk) -> Fate:
    """Until that is dropped."""
    await superseded(disk, savepoint="s")
    await record_start(disk.settings(), "s", Epoch(1))
    age(disk)
    watch = Watch(disk.directory.glob(f"primary/{JOB}/savepoints/s/*-*-*"))
    await sweep(disk)
    return watch.fate()


@row("swept-floor")
async def test_a_sweep_that_goes_further_removes_what_earlier_ones_said(disk: Disk) -> Fate:
    """Not at once: the next sweep does."""
    await superseded(disk)
    await sweep(disk)
    watch = Watch(disk.directory.glob(f"primary/{JOB}/swept/*"))
    for checkpoint_id in (3, 4):
        age(disk)
        async with disk.backend() as backend:
            await commit(backend, checkpoint_id)
        await sweep(disk)
    return watch.fate()


@row("swept-foreign")
async def test_what_is_not_ours_is_not_swept(disk: Disk) -> Fate:
    """Reported, and nothing else."""
    await superseded(disk)
    path = disk.directory / "primary" / JOB / "segments" / "notes.txt"
    path.write_bytes(b"theirs")
    watch = Watch([path])
    report = await sweep(disk)
    assert [each.key for each in report.objects if each.verdict is sb.reports.SweepReason.FOREIGN] == [
        "segments/notes.txt"
    ]
    return watch.fate()


@row("swept-temporary")
async def test_an_old_temporary_file_in_the_primary_goes_with_a_sweep(killed: Callable[[str], Disk]) -> Fate:
    """Older than any clock may be wrong: nobody is still writing it."""
    disk = killed("in a primary write")
    watch = Watch(disk.temporaries)
    await sweep(disk)
    assert watch.fate() == "stays"
    age(disk, 26 * 3600.0)
    await sweep(disk)
    return watch.fate()


@row("swept-copy")
async def test_a_local_copy_of_nothing_that_is_kept_goes_with_a_sweep(killed: Callable[[str], Disk]) -> Fate:
    """Without anybody opening the job on this host."""
    disk = killed("before the commit")
    async with sb.open_backend(disk.settings(roots=0)) as elsewhere:
        await commit(elsewhere, 2)
        assert elsewhere._coordinator.base is not None
        needed = elsewhere._coordinator.base.segments()
    watch = Watch(path for path in disk.copies if f"segments/{path.name}" not in needed)
    await sweep(disk)
    return watch.fate()


@row("swept-copy-foreign")
async def test_a_local_copy_in_a_root_of_a_living_process_is_not_swept(killed: Callable[[str], Disk]) -> Fate:
    """It knows what it needs there, and we do not."""
    disk = killed("before the commit")
    async with sb.open_backend(disk.settings(roots=0)) as elsewhere:
        await commit(elsewhere, 2)
    watch = Watch(disk.copies)
    with closing(lock_root(disk.directory / "local0", JOB)) as owner:
        assert owner.owned
        await sweep(disk)
    return watch.fate()
