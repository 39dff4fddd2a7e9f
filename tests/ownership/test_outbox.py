"""The third part of the table, and what a sweep does with it: rows that a batch puts out."""

import os
from pathlib import Path

import anyio
import pytest

import statebackend as sb
from statebackend._log.outbox import Output
from statebackend.errors import StoreAccessError
from statebackend.ids import SourceMark
from statebackend.testing import Fail, Hold
from tests.ownership.disk import JOB, Disk, Watch, commit, settle
from tests.ownership.table import Fate, row

STAGED = "*/outbox/*"


def staged(disk: Disk) -> set[Path]:
    return set(disk.directory.glob(f"primary/{JOB}/outbox/[!.]*"))


async def put_out(backend: sb.StateBackend, checkpoint_id: int) -> None:
    """A batch that changes nothing and puts out rows."""
    source = SourceMark("query", checkpoint_id)
    await backend.checkpoint(checkpoint_id, source=source, output=Output(b"schema", 1, (b"rows",)))


async def publish(backend: sb.StateBackend) -> None:
    while (taken := await backend.take_output()) is not None:
        backend.published(taken[0])


async def sweep(disk: Disk) -> None:
    """One sweep of all that is old enough, when everything is."""
    for path in disk.directory.glob("primary/**/*"):
        status = path.stat()
        os.utime(path, (status.st_atime, status.st_mtime - 7200.0))
    async with disk.backend() as backend:
        await commit(backend, backend.next_checkpoint_id)
    await sb.sweep(disk.settings(checkpoints_retained=1), dry_run=False, min_age_s=0.0)


@row("staged-fails")
async def test_an_attempt_whose_answer_is_lost_is_removed(disk: Disk) -> Fate:
    """It was there, whole, when the answer was lost; the second attempt's is the only one after it."""
    hold = Hold(operation="put", key=STAGED, nth=1, moment="after")
    disk.primary.plan += [hold, Fail(operation="put", key=STAGED, nth=1, moment="after")]
    async with disk.backend(upload__timeout_s=0.0) as backend, anyio.create_task_group() as tasks:
        tasks.start_soon(put_out, backend, 1)
        await settle()
        watch = Watch(staged(disk))
        hold.release()
        await settle()
        assert len(staged(disk)) == 1
    return watch.fate()


@row("staged-cancelled")
async def test_an_attempt_that_is_cancelled_is_removed(disk: Disk) -> Fate:
    """Before the primary has answered."""
    hold = Hold(operation="put", key=STAGED, moment="after")
    disk.primary.plan.append(hold)
    async with disk.backend(upload__timeout_s=0.0) as backend:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(put_out, backend, 1)
            await settle()
            watch = Watch(staged(disk))
            tasks.cancel_scope.cancel()
        return watch.fate()


@row("staged-lost")
async def test_an_attempt_that_lost_is_removed(disk: Disk) -> Fate:
    """It was there first, and said so last; the commit names the other one."""
    hold = Hold(operation="put", key=STAGED, nth=1, moment="after")
    disk.primary.plan.append(hold)
    async with disk.backend(upload__timeout_s=1.0) as backend:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(put_out, backend, 1)
            await anyio.sleep(0.9)
            watch = Watch(staged(disk))
        assert len(staged(disk)) == 1
        return watch.fate()


@row("staged-uncommitted")
async def test_what_was_staged_for_a_checkpoint_that_failed_stays(disk: Disk) -> Fate:
    """Also when the backend is left, and when the job is opened again."""
    disk.primary.plan.append(Fail(operation="put_if_absent", key="*/commits/*1", error=StoreAccessError("no")))
    async with disk.backend() as backend:
        with pytest.raises(StoreAccessError):
            await put_out(backend, 1)
        watch = Watch(staged(disk))
    disk.primary.plan.clear()
    await disk.reopen()
    return watch.fate()


@row("staged-pending")
async def test_what_nobody_has_published_stays(disk: Disk) -> Fate:
    """However many commits come after it."""
    async with disk.backend() as backend:
        await put_out(backend, 1)
        watch = Watch(staged(disk))
        for checkpoint_id in range(2, 6):
            await commit(backend, checkpoint_id)
    await disk.reopen()
    return watch.fate()


@row("staged-published")
async def test_what_is_published_stays_with_its_commit(disk: Disk) -> Fate:
    """That checkpoint can be opened, and then its output is published again."""
    async with disk.backend() as backend:
        await put_out(backend, 1)
        watch = Watch(staged(disk))
        await publish(backend)
        await commit(backend, 2)
    await disk.reopen()
    return watch.fate()


@row("swept-output")
async def test_what_is_published_goes_with_the_commit_that_named_it(disk: Disk) -> Fate:
    """As soon as that is old enough and not retained."""
    async with disk.backend() as backend:
        await put_out(backend, 1)
        watch = Watch(staged(disk))
        await publish(backend)
    await sweep(disk)
    assert watch.fate() == "stays"  # he who committed after it did not know that it was published
    async with disk.backend() as backend:
        await publish(backend)
        await commit(backend, backend.next_checkpoint_id)
    await sweep(disk)
    return watch.fate()


@row("swept-unnamed")
async def test_what_no_commit_names_is_swept_when_its_epoch_is_over(disk: Disk) -> Fate:
    """As for a segment: its name says who has staged it."""
    async with disk.backend() as backend:
        await backend.outbox.stage(Output(b"schema", 1, (b"rows",)))
    watch = Watch(staged(disk))
    await sweep(disk)
    return watch.fate()


@row("swept-pending")
async def test_what_nobody_has_published_is_not_swept(disk: Disk) -> Fate:
    """Its own commit goes, and the newest one names it."""
    async with disk.backend() as backend:
        await put_out(backend, 1)
        first = disk.commits
        watch = Watch(staged(disk))
        await commit(backend, 2)
    await sweep(disk)
    assert not first & disk.commits
    return watch.fate()
