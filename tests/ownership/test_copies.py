"""The second part of the table: local copies, from the one that is late to the one in a root of somebody else."""

import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from statebackend._tasks import open_tasks
from statebackend.errors import FencedError, OutcomeUnknownError
from statebackend.testing import Fail, Hold, Slow
from tests.committed import committed_handles, stand_on
from tests.ownership.disk import Disk, Watch, commit, settle
from tests.ownership.table import Fate, row


@row("copy-fails")
async def test_a_local_copy_that_fails_is_removed_and_the_commit_is_made(disk: Disk) -> Fate:
    """It was there, whole, when its disk reported an error: it is not believed."""
    hold = Hold(operation="put", moment="after")
    async with disk.backend(secondary=[hold, Fail(operation="put", moment="after")], upload__timeout_s=0.0) as backend:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit, backend, 1)
            await hold.reached.wait()
            watch = Watch(disk.copies)
            hold.release()
        await settle()
        assert (len(disk.segments), len(disk.commits)) == (1, 1)
        return watch.fate()


@row("copy-late")
async def test_a_local_copy_that_is_late_is_removed_when_its_writing_ends(disk: Disk) -> Fate:
    """The commit is made without it; the thread that is stuck comes back later, and the file goes."""
    hold = Hold(operation="put", moment="after", stubborn=True)
    async with disk.backend(secondary=[hold]) as backend:
        await commit(backend, 1)
        watch = Watch(disk.copies)
        await settle()
        assert watch.fate() == "stays"
        hold.release()
        await settle()
        return watch.fate()


@row("copy-over-budget")
async def test_a_local_copy_beyond_the_budget_is_not_written(disk: Disk) -> Fate:
    """One byte short: no copy; the commit is made, and the budget is what it was."""
    async with disk.backend() as backend:
        await commit(backend, 1)
    (copy,) = disk.copies
    size = copy.stat().st_size
    async with disk.backend(local_bytes_max=2 * size - 1) as backend:
        await commit(backend, 2)
        await settle()
        assert len(disk.segments) == 2
        assert backend._snapshots._retention is not None
        assert backend._snapshots._retention._segments.held_bytes == [size]
    return "never there" if disk.copies == {copy} else "stays"


@row("copy-superseded")
async def test_a_local_copy_goes_when_a_commit_does_without_it(disk: Disk) -> Fate:
    """Not before that commit, and not the primary's. (Nothing is materialized yet: the test forgets the handles.)"""
    async with disk.backend() as backend:
        await commit(backend, 1)
        watch, old = Watch(disk.copies), disk.segments
        await commit(backend, 2)
        await settle()
        assert watch.fate() == "stays"
        stand_on(backend, *committed_handles(backend)[1:])
        await commit(backend, 3)
        await settle()
        assert old < disk.segments
        assert {path.name for path in disk.copies} == {path.name for path in disk.segments - old}
        return watch.fate()


@row("copy-needed")
async def test_a_local_copy_stays_when_the_checkpoint_that_would_do_without_it_fails(disk: Disk) -> Fate:
    """It is superseded by a commit, and by nothing less: the job is restored from it.

    Row: section 30, local: abort of cp n+1, then failure.
    """
    async with disk.backend() as backend:
        await commit(backend, 1)
        watch = Watch(disk.copies)
        stand_on(backend)  # as if it had been materialized
        disk.primary.plan.append(Fail(operation="put_if_absent"))
        with pytest.raises(OutcomeUnknownError):
            await commit(backend, 2)
        await settle()
        assert watch.fate() == "stays"
    disk.primary.plan.clear()
    report = await disk.reopen()
    assert report is not None
    assert (report.checkpoint_id, report.files_local, report.files_primary) == (1, 1, 0)
    return watch.fate()


@row("copy-abandoned")
async def test_the_local_copies_of_a_branch_go_when_another_one_is_committed(disk: Disk) -> Fate:
    """Opening the older checkpoint deletes nothing: until it is committed, the newest commit is the other branch's."""
    async with disk.backend() as backend:
        await commit(backend, 1)
        kept = disk.copies
        await commit(backend, 2)
    watch = Watch(disk.copies - kept)
    async with disk.backend(checkpoint_id=1) as backend:
        await settle()
        assert watch.fate() == "stays"
        await commit(backend, 3)
        await settle()
        assert kept < disk.copies
        return watch.fate()


@row("copy-missed")
async def test_a_superseded_copy_that_could_not_be_removed_is_pruned_at_the_next_open(disk: Disk) -> Fate:
    """Its root was away, like a disk that is not mounted, when it was superseded."""
    async with disk.backend() as backend:
        await commit(backend, 1)
        watch = Watch(disk.copies)
        root = disk.directory / "local0"
        away = root.rename(disk.directory / "elsewhere")
        root.touch()
        stand_on(backend)
        await backend.checkpoint(2)
        await settle()
    root.unlink()
    away.rename(root)
    assert watch.fate() == "stays"
    await disk.reopen()
    return watch.fate()


@row("copy-killed")
async def test_a_local_copy_whose_process_was_killed_is_pruned(killed: Callable[[str], Disk]) -> Fate:
    """The committed one stays; of the other one the primary has an orphan too."""
    disk = killed("before the commit")
    assert len(disk.copies) == len(disk.segments) == 2
    async with disk.backend(roots=0) as reader:
        assert reader._coordinator.base is not None
        (committed,) = reader._coordinator.base.segments()
    watch = Watch(path for path in disk.copies if not committed.endswith(path.name))
    await disk.reopen()
    assert len(disk.copies) == 1
    return watch.fate()


@row("copy-uncommitted")
async def test_a_local_copy_of_a_commit_that_was_not_made_is_pruned(disk: Disk) -> Fate:
    """Nobody answered, and nobody had heard. The primary's copy is left to a sweep."""
    async with disk.backend() as backend:
        await commit(backend, 1)
        before = disk.copies
        disk.primary.plan.append(Fail(operation="put_if_absent"))
        with pytest.raises(OutcomeUnknownError):
            await commit(backend, 2)
    watch = Watch(disk.copies - before)
    disk.primary.plan.clear()
    await disk.reopen()
    assert len(disk.segments) == 2
    return watch.fate()


@row("copy-alone")
async def test_a_local_copy_stays_where_the_primary_has_no_commit(disk: Disk, caplog: pytest.LogCaptureFixture) -> Fate:
    """However often that is opened. They are named; and the first commit makes them garbage."""
    async with disk.backend() as backend:
        await commit(backend, 1)
    watch = Watch(disk.copies)
    shutil.rmtree(disk.directory / "primary")
    for _ in range(2):
        await disk.reopen()
        assert f"{disk.directory}/local0" in caplog.text
        caplog.clear()
    stayed = watch.fate()
    async with disk.backend() as backend:
        await commit(backend, 1)
    await disk.reopen()
    assert watch.fate() == "gone"
    return stayed


@row("copy-bad")
async def test_a_local_copy_that_does_not_verify_is_replaced(disk: Disk) -> Fate:
    """By the primary's bytes, also in a root whose budget is spent."""
    size = await _committed_with_a_bad_copy(disk)
    watch = Watch(disk.copies)
    await disk.reopen(local_bytes_max=size)
    (copy,), (segment,) = disk.copies, disk.segments
    assert copy.read_bytes() == segment.read_bytes()
    return watch.fate()


@row("copy-bad-foreign")
async def test_a_bad_local_copy_in_a_root_of_another_backend_is_left_to_it(disk: Disk) -> Fate:
    """Its owner may know better, or be about to repair it."""
    async with disk.backend():
        await _commit_elsewhere(disk)
        (segment,) = disk.segments
        bad = disk.directory / "local0/job_fleet/taskowned/segments" / segment.name
        bad.parent.mkdir(exist_ok=True)
        bad.write_bytes(b"bad")
        watch = Watch([bad])
        report = await disk.reopen()
        assert report is not None
        assert [fallback.repaired for fallback in report.fallbacks] == [False]
        return watch.fate()


@row("copy-foreign")
async def test_nothing_is_touched_in_a_root_of_another_backend(disk: Disk) -> Fate:
    """Neither what is needed nor what is not, by opening, committing, superseding and closing."""
    async with disk.backend() as owner:
        await commit(owner, 1)
        (copy,) = disk.copies
        orphan = copy.with_name("orphan")
        orphan.write_bytes(b"not in any commit, as far as we know")
        watch = Watch(disk.copies)
        async with disk.backend() as guest:
            stand_on(guest)  # as if it had been materialized
            await commit(guest, 2)
            await settle()
        assert disk.copies == {copy, orphan}
        return watch.fate()


@row("copy-moved")
async def test_a_local_copy_where_nobody_looks_is_pruned(disk: Disk) -> Fate:
    """A second root moves half of the keys; what the restore has fetched anew lies in the right one."""

    def moved() -> list[Path]:
        return [path for path in disk.copies if zlib.crc32(f"segments/{path.name}".encode()) % 2 == 1]

    async with disk.backend() as backend:
        while len(moved()) < 2:  # names are drawn
            await commit(backend, backend.next_checkpoint_id)
    copies, watch = sorted(path.name for path in disk.copies), Watch(moved())
    await disk.reopen(roots=2)
    assert sorted(path.name for path in disk.copies) == copies
    return watch.fate()


@row("copy-left-root")
async def test_a_root_that_is_not_in_the_settings_any_more_is_left_alone(disk: Disk) -> Fate:
    """Whoever removed it from the settings knows why."""

    def there() -> list[Path]:
        return [path for path in disk.copies if path.is_relative_to(disk.directory / "local1")]

    async with disk.backend(roots=2) as backend:
        while not there():  # names are drawn
            await commit(backend, backend.next_checkpoint_id)
    watch = Watch(there())
    async with disk.backend(roots=1) as backend:
        await commit(backend, backend.next_checkpoint_id)
        await settle()
    return watch.fate()


async def _committed_with_a_bad_copy(disk: Disk) -> int:
    async with disk.backend() as backend:
        await commit(backend, 1)
    (copy,) = disk.copies
    content = bytearray(copy.read_bytes())
    content[len(content) // 2] ^= 1
    copy.write_bytes(content)
    return len(content)


async def _commit_elsewhere(disk: Disk) -> None:
    """One checkpoint of the job by a backend without local roots."""
    async with disk.backend(roots=0) as backend:
        await commit(backend, 1)


@row("commit-copy")
async def test_the_copy_of_a_commit_that_carries_nothing_goes_with_the_next_one(disk: Disk) -> Fate:
    """It was that of the newest commit, and is not any more."""
    async with disk.backend() as backend:
        await commit(backend, 1)
        watch = Watch(disk.commit_copies)
        await commit(backend, 2)
        await settle()
        assert len(disk.commit_copies) == 1
        return watch.fate()


@row("commit-copy-needed")
async def test_the_copy_of_a_commit_that_others_point_into_stays(disk: Disk) -> Fate:
    """It carries changes that every later commit needs, also after the job was opened again."""
    async with disk.backend(inline_bytes_max=1000) as backend:
        await commit(backend, 1)
        watch = Watch(disk.commit_copies)
        await commit(backend, 2)
        await settle()
    await disk.reopen()
    assert disk.copies == set()
    return watch.fate()


@row("commit-copy-fenced")
async def test_the_copy_of_a_commit_that_was_fenced_is_removed(disk: Disk) -> Fate:
    """It was there, whole, before the primary said that another one is."""
    hold = Hold(operation="put_if_absent")
    watches: list[Watch] = []

    async def look_and_release() -> None:
        await hold.reached.wait()
        await settle()
        watches.append(Watch(disk.commit_copies))
        hold.release()

    async with disk.backend(inline_bytes_max=1000, commit_timeout_s=1000.0) as zombie:
        await disk.reopen()
        disk.primary.plan.append(hold)
        async with open_tasks() as tasks:
            tasks.start_soon(look_and_release)
            with pytest.raises(FencedError):
                await commit(zombie, 1)
        await settle()
        (watch,) = watches
        return watch.fate()


@row("commit-copy-unknown")
async def test_the_copy_of_a_commit_without_an_answer_stays(disk: Disk) -> Fate:
    """Its commit had been made: the next open finds its changes there."""
    lost = [Fail(operation="put_if_absent", moment="after"), Fail(operation="get", key="*/commits/*")]
    async with disk.backend(inline_bytes_max=1000) as backend:
        disk.primary.plan += [Slow(operation="put_if_absent", seconds=1.0), *lost]
        with pytest.raises(OutcomeUnknownError):
            await commit(backend, 1)
        watch = Watch(disk.commit_copies)
    disk.primary.plan.clear()
    report = await disk.reopen()
    assert report is not None
    assert report.files_local == 1
    return watch.fate()
