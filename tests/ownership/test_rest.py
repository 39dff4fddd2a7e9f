"""The third part of the table: commit objects and their hint, temporary files, locks and directories."""

import errno
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from statebackend._local.job_directories import lock_root
from statebackend._log.log_writer import HINT_EVERY
from statebackend.errors import FencedError
from statebackend.testing import Fail
from tests.committed import stand_on
from tests.ownership.disk import JOB, Disk, Watch, commit, settle
from tests.ownership.table import Fate, row


@row("commit")
async def test_a_commit_object_stays(disk: Disk) -> Fate:
    """As it was made, whatever is committed after it."""
    async with disk.backend() as backend:
        await commit(backend, 1)
        watch = Watch(disk.commits)
        await commit(backend, 2)
    async with disk.backend() as backend:
        await commit(backend, 3)
    assert len(disk.commits) == 3
    return watch.fate()


@row("commit-answer-lost")
async def test_a_commit_object_whose_answer_was_lost_is_asked_for_again_and_stays(disk: Disk) -> Fate:
    """Neither deleted nor written a second time."""
    written: list[int] = []

    class Noted(Fail):
        async def strike(self) -> None:
            written.append(_inode(disk))
            await super().strike()

    async with disk.backend() as backend:
        disk.primary.plan.append(Noted(operation="put_if_absent", moment="after", nth=1))
        await commit(backend, 1)
    assert disk.primary.calls.count(("put_if_absent", f"{JOB}/commits/000000000001")) == 2
    return "stays" if written == [_inode(disk)] else "replaced"


@row("commit-raced")
async def test_a_commit_object_that_another_writer_wanted_stays_its_makers(disk: Disk) -> Fate:
    """The loser is fenced, and has neither replaced nor removed it."""
    async with disk.backend() as zombie:
        async with disk.backend() as newer:
            await commit(newer, 1)
        watch = Watch(disk.commits)
        with pytest.raises(FencedError):
            await commit(zombie, 1)
    await disk.reopen()
    assert len(disk.commits) == 1
    return watch.fate()


@row("commit-abandoned")
async def test_a_commit_object_on_a_branch_that_was_left_stays(disk: Disk) -> Fate:
    """The log has no gaps, and the branch can be opened."""
    async with disk.backend() as backend:
        await commit(backend, 1)
        first = disk.commits
        await commit(backend, 2)
    watch = Watch(disk.commits - first)
    async with disk.backend(checkpoint_id=1) as backend:
        await commit(backend, 3)
    assert len(disk.commits) == 3
    return watch.fate()


@row("claim")
async def test_a_claim_stays(disk: Disk) -> Fate:
    """One for each time the job was opened to write, however that ended."""
    async with disk.backend() as backend:
        watch = Watch(disk.claims)
        await commit(backend, 1)
    await disk.reopen()
    async with disk.backend() as zombie:
        await disk.reopen()
        with pytest.raises(FencedError):
            await commit(zombie, 2)
    assert len(disk.claims) == 4
    return watch.fate()


@row("hint")
async def test_the_hint_is_overwritten(disk: Disk) -> Fate:
    """By the sixty-fourth entry, by none before it, and by who leaves in peace."""
    async with disk.backend() as backend:
        hint = Watch([disk.directory / "primary" / JOB / "newest"])
        for checkpoint_id in range(1, HINT_EVERY):
            await commit(backend, checkpoint_id)
        assert hint.fate() == "stays"
        await commit(backend, HINT_EVERY)
        assert hint.fate() == "replaced"
        watch = Watch([disk.directory / "primary" / JOB / "newest"])
        await commit(backend, HINT_EVERY + 1)
        assert watch.fate() == "stays"
    return watch.fate()


@row("temporary")
async def test_the_temporary_file_of_a_write_that_fails_is_removed(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> Fate:
    """The system refuses to sync it: it was there then, and is gone when the error is reported."""
    watches: list[Watch] = []
    sync = os.fsync

    def refusing(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.suffix == ".tmp" and path.is_relative_to(disk.directory / "local0"):
            watches.append(Watch([path]))
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refusing)
    async with disk.backend() as backend:
        await commit(backend, 1)
        await settle()
    assert disk.temporaries == disk.copies == set()
    (fate,) = {watch.fate() for watch in watches}  # of the segment and of the commit
    return fate


@row("temporary-killed")
async def test_the_temporary_file_of_a_killed_writer_goes_when_its_root_is_opened(
    killed: Callable[[str], Disk],
) -> Fate:
    """The kernel killed it in the middle of a local copy; half of it lies there, until somebody has the lock."""
    disk = killed("in a local write")
    watch = Watch(disk.temporaries)
    await disk.reopen()
    return watch.fate()


@row("temporary-foreign")
async def test_a_temporary_file_in_a_root_of_another_backend_is_left_alone(killed: Callable[[str], Disk]) -> Fate:
    """It may be one that its owner is writing."""
    disk = killed("in a local write")
    watch = Watch(disk.temporaries)
    with closing(lock_root(disk.directory / "local0", JOB)) as owner:
        assert owner.owned
        async with disk.backend() as guest:
            await commit(guest, 1)
            await settle()
    return watch.fate()


@row("temporary-primary")
async def test_the_temporary_file_of_a_killed_writer_stays_in_the_primary(killed: Callable[[str], Disk]) -> Fate:
    """It is never taken for an object, and never removed: other hosts may write there, and there is no lock."""
    disk = killed("in a primary write")
    watch = Watch(disk.temporaries)
    async with disk.backend() as backend:
        await commit(backend, 2)
        await settle()
    await disk.reopen()
    return watch.fate()


@row("lock")
async def test_the_lock_file_stays_and_the_lock_does_not(killed: Callable[[str], Disk]) -> Fate:
    """Left behind by a killed process, and by one that ended well: the next one owns the root."""
    disk = killed("before the commit")
    watch = Watch([disk.directory / "local0" / f"job_{JOB}" / "lock"])
    for _ in range(2):
        async with disk.backend() as backend:
            assert backend._snapshots._retention is not None
    return watch.fate()


@row("directories")
async def test_empty_directories_stay(disk: Disk) -> Fate:
    """Whoever has one open, or is about to write there, is not disturbed."""
    async with disk.backend() as backend:
        await commit(backend, 1)
        made = {path for path in disk.directory.rglob("*") if path.is_dir()}
        (copy,) = disk.copies
        stand_on(backend)
        await backend.checkpoint(2)
        await settle()
        assert not copy.exists()
    assert copy.parent in made
    return "stays" if all(path.is_dir() for path in made) else "gone"


def _inode(disk: Disk) -> int:
    (path,) = disk.commits
    return path.stat().st_ino
