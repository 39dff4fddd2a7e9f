"""The first part of the table: segments, in the primary and locally, from the first byte to the commit and after it."""

from collections.abc import Callable

import anyio
import pytest

import statebackend as sb
from statebackend.errors import (
    BackendClosedError,
    FencedError,
    InputError,
    OutcomeUnknownError,
    StateBackendError,
    StoreAccessError,
    StoreUnavailableError,
)
from statebackend.testing import Fail, Hold
from tests.ownership.disk import Disk, Watch, commit, settle
from tests.ownership.table import Fate, row

SEGMENTS = "*/segments/*"


@row("attempt-fails")
async def test_a_failed_attempt_leaves_neither_copy(disk: Disk) -> Fate:
    """Both were there, whole, when the answer was lost; the second attempt's are the only ones after it."""
    hold = Hold(operation="put", key=SEGMENTS, nth=1, moment="after")
    disk.primary.plan += [hold, Fail(operation="put", key=SEGMENTS, nth=1, moment="after")]
    async with disk.backend(upload__timeout_s=0.0) as backend, anyio.create_task_group() as tasks:
        tasks.start_soon(commit, backend, 1)
        await settle()
        watch = Watch(disk.both)
        assert len(disk.both) == 2
        hold.release()
        await settle()
        assert len(disk.both) == 2
        return watch.fate()


@row("attempt-cancelled")
async def test_an_attempt_that_is_cancelled_leaves_neither_copy(disk: Disk) -> Fate:
    """Its checkpoint was given up, and the backend is left before the primary has answered."""
    hold = Hold(operation="put", key=SEGMENTS, moment="after")
    disk.primary.plan.append(hold)
    async with disk.backend(upload__timeout_s=0.0) as backend:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit, backend, 1)
            await settle()
            tasks.cancel_scope.cancel()
        watch = Watch(disk.both)
        assert len(disk.both) == 2
    return watch.fate()


@row("attempt-lost")
async def test_an_attempt_that_finishes_second_leaves_neither_copy(disk: Disk) -> Fate:
    """The commit holds the winner's; the loser's go before the backend is left, and so does all that counted them."""
    hold = Hold(operation="put", key=SEGMENTS, nth=1, moment="after")
    disk.primary.plan.append(hold)
    async with disk.backend(upload__timeout_s=1.0, local_bytes_max=1_000_000) as backend:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit, backend, 1)
            await anyio.sleep(0.9)
            watch = Watch(disk.both)
            assert len(disk.both) == 2
        assert len(disk.both) == 4
        hold.release()
        await settle()
        seen = watch.fate()
        assert disk.segments == {disk.directory / "primary/fleet" / key for key in needed(backend)}
        assert len(disk.copies) == 1
        assert len(backend._writer._scheduler._ownership) == 0
        assert backend._snapshots._retention is not None
        kept = disk.copies | disk.commit_copies
        assert len(backend._snapshots._retention._registry) == len(kept) == 2
        assert backend._snapshots._retention._segments.held_bytes == [sum(path.stat().st_size for path in kept)]
    return seen


@row("attempt-hangs")
async def test_an_attempt_that_has_lost_and_hangs_leaves_neither_copy(disk: Disk) -> Fate:
    """It is not waited for for ever: the backend goes on, and nothing of it is left."""
    disk.primary.plan.append(Hold(operation="put", key=SEGMENTS, nth=1, moment="after"))
    async with disk.backend(upload__timeout_s=1.0) as backend:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit, backend, 1)
            await anyio.sleep(0.9)
            watch = Watch(disk.both)
        assert watch.fate() == "stays"
        await settle()
        return watch.fate()


@row("removal-fails")
async def test_what_cannot_be_removed_is_nobodys(disk: Disk) -> Fate:
    """An orphan in the primary, and not an error: the second attempt commits. The local copy is gone all the same."""
    disk.primary.plan += [
        Fail(operation="put", key=SEGMENTS, nth=1, moment="after"),
        Fail(operation="delete", key=SEGMENTS),
    ]
    async with disk.backend() as backend:
        await commit(backend, 1)
        orphans = disk.segments - {disk.directory / "primary/fleet" / key for key in needed(backend)}
        watch = Watch(orphans)
    assert len(disk.copies) == 1
    await disk.reopen()
    return watch.fate()


@row("unclaimed-at-close")
async def test_what_no_checkpoint_took_goes_when_the_backend_is_left(disk: Disk) -> Fate:
    """Uploaded in full for a checkpoint that was cancelled while it waited for another segment."""
    disk.primary.plan.append(Hold(operation="put", key=SEGMENTS, nth=2))
    async with disk.backend(
        preemptive_persist_threshold_bytes=1, persist_size_threshold_bytes=1, upload__timeout_s=0.0
    ) as backend:
        numbers = backend.value_state("n", int)
        numbers["a"], numbers["b"] = 1, 2
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(backend.checkpoint, 1)
            await settle()
            tasks.cancel_scope.cancel()
        await settle()
        watch = Watch(disk.segments | {path for path in disk.copies if path.name in names(disk.segments)})
        assert watch.fate() == "stays"
    assert disk.both == set()
    return watch.fate()


@row("unclaimed-at-cancel")
async def test_what_no_checkpoint_took_goes_when_the_backend_is_cancelled(disk: Disk) -> Fate:
    """As above, but the block round the backend is cancelled, and with it every task that could delete."""
    disk.primary.plan.append(Hold(operation="put", key=SEGMENTS, nth=2))
    with anyio.CancelScope() as scope:
        async with disk.backend(
            preemptive_persist_threshold_bytes=1, persist_size_threshold_bytes=1, upload__timeout_s=0.0
        ) as backend:
            numbers = backend.value_state("n", int)
            numbers["a"], numbers["b"] = 1, 2
            with anyio.move_on_after(60.0):
                await backend.checkpoint(1)
            await settle()
            watch = Watch(disk.segments | {path for path in disk.copies if path.name in names(disk.segments)})
            assert watch.fate() == "stays"
            scope.cancel()
            await anyio.sleep_forever()
    assert disk.both == set()
    return watch.fate()


@row("commit-forbidden")
async def test_what_a_commit_that_was_forbidden_had_uploaded_goes_when_the_backend_is_left(disk: Disk) -> Fate:
    """The store has refused the commit object, and it is not there: no restore will ever want its segments."""
    refused = StoreAccessError("made to refuse by a test")
    async with disk.backend() as backend:
        disk.primary.plan.append(Fail(operation="put_if_absent", error=refused))
        with pytest.raises(StoreAccessError):
            await commit(backend, 1)
        watch = Watch(disk.both)
        assert len(disk.both) == 2
    assert disk.commits == set()
    return watch.fate()


@row("savepoint-unmarked")
async def test_what_a_savepoint_without_its_mark_had_uploaded_goes_when_the_backend_is_left(disk: Disk) -> Fate:
    """The commit was never sent, and a backend that has failed sends no other."""
    async with disk.backend() as backend:
        disk.primary.plan.append(Fail(operation="put", key="*/savepoints/*"))
        backend.value_state("n", int)["k"] = 1
        with pytest.raises(StoreUnavailableError):
            await backend.checkpoint(1, savepoint="blue")
        watch = Watch(disk.both)
        assert len(disk.both) == 2
    assert disk.commits == set()
    return watch.fate()


@row("checkpoint-cancelled")
async def test_the_checkpoint_after_a_cancelled_one_commits_what_that_uploaded(disk: Disk) -> Fate:
    """The same two files, still there, and no second upload."""
    hold = Hold(operation="put", key=SEGMENTS, moment="after")
    disk.primary.plan.append(hold)
    async with disk.backend(upload__timeout_s=0.0) as backend:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit, backend, 1)
            await settle()
            tasks.cancel_scope.cancel()
        hold.release()
        await settle()
        watch = Watch(disk.both)
        await backend.checkpoint(2)
        assert disk.segments == {disk.directory / "primary/fleet" / key for key in needed(backend)}
        assert hold.matched == 1
    assert len(disk.both) == 2
    report = await disk.reopen()
    assert report is not None
    assert (report.files_local, report.files_primary) == (1, 0)
    return watch.fate()


@row("checkpoint-refused")
async def test_a_checkpoint_that_is_refused_costs_no_upload(disk: Disk) -> Fate:
    """A source mark of a wrong type is no part of a commit: said twice, and what is uploaded is uploaded once."""
    wrong = sb.SourceMark("q", "seven")  # type: ignore[arg-type]  # the user's bug
    async with disk.backend() as backend:
        backend.value_state("n", int)["k"] = 1
        with pytest.raises(InputError):
            await backend.checkpoint(1, source=wrong)
        watch = Watch(disk.both)
        with pytest.raises(InputError):
            await backend.checkpoint(1, source=wrong)
        await settle()
        assert len(disk.both) == 2
        assert disk.commits == set()
        assert backend._snapshots._retention is not None
        assert backend._snapshots._retention._registry._used == {}
        return watch.fate()


@row("outcome-unknown")
async def test_nobody_deletes_what_a_commit_may_point_into(disk: Disk) -> Fate:
    """No answer ever came, and the commit had been made: the job comes back from both files."""
    lost = Fail(operation="put_if_absent", moment="after")
    async with disk.backend() as backend:
        disk.primary.plan += [lost, Fail(operation="get", key="*/commits/*")]
        with pytest.raises(OutcomeUnknownError):
            await commit(backend, 1)
        watch = Watch(disk.both)
        assert len(disk.both) == 2
    disk.primary.plan.clear()
    report = await disk.reopen()
    assert report is not None
    assert report.files_local == 1
    return watch.fate()


@row("outcome-unknown-behind")
async def test_a_checkpoint_that_waited_for_one_without_an_answer_is_not_tried(disk: Disk) -> Fate:
    """It would commit the same segments, fail, and give them back, and the first one's commit points into them."""
    async with disk.backend() as backend:
        disk.primary.plan += [
            Fail(operation="put_if_absent", moment="after"),
            Fail(operation="get", key="*/commits/*"),
            Fail(operation="put", key="*/savepoints/*"),
        ]
        backend.value_state("n", int)["k"] = 1
        told: list[Exception] = []

        async def checkpoint(checkpoint_id: int, savepoint: str | None) -> None:
            try:
                await backend.checkpoint(checkpoint_id, savepoint=savepoint)
            except StateBackendError as error:
                told.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(checkpoint, 1, None)
            tasks.start_soon(checkpoint, 2, "blue")
        assert [type(error) for error in told] == [OutcomeUnknownError, BackendClosedError]
        watch = Watch(disk.both)
    disk.primary.plan.clear()
    report = await disk.reopen()
    assert report is not None
    assert report.files_local == 1
    return watch.fate()


@row("fenced")
async def test_a_fenced_writer_deletes_neither_its_own_segments_nor_those_of_others(disk: Disk) -> Fate:
    """Both writers' files stay until the next open, which clears the local root of what no commit needs."""
    async with disk.backend() as zombie:
        async with disk.backend() as newer:
            await commit(newer, 1)
        theirs = disk.segments
        with pytest.raises(FencedError):
            await commit(zombie, 1)
        watch = Watch(disk.both)
        assert (len(disk.segments), len(disk.copies)) == (2, 1)  # the newer one was not given the local root
    seen = watch.fate()
    await disk.reopen()
    assert names(disk.copies) == names(theirs)
    assert len(disk.segments) == 2
    return seen


@row("committed")
async def test_what_a_commit_points_into_stays(disk: Disk) -> Fate:
    """Over other checkpoints, another life, and the end of both.

    Row: section 30, local: restore locally, then first confirm.
    """
    async with disk.backend() as backend:
        await commit(backend, 1)
        watch = Watch(disk.both)
        await commit(backend, 2)
        await settle()
    async with disk.backend() as backend:
        await commit(backend, 3)
        await settle()
    report = await disk.reopen()
    assert report is not None
    assert (report.files_local, report.files_primary) == (3, 0)
    return watch.fate()


@row("forgotten")
async def test_the_log_may_forget_what_is_committed(disk: Disk) -> Fate:
    """It truncates, and it closes: neither concerns a segment that a commit holds."""
    async with disk.backend() as backend:
        await commit(backend, 1)
        watch = Watch(disk.both)
        await backend._writer.truncate(backend._writer.next_sequence_number())
        await settle()
        assert watch.fate() == "stays"
    return watch.fate()


@row("killed")
async def test_an_upload_whose_process_was_killed_stays_in_the_primary(killed: Callable[[str], Disk]) -> Fate:
    """Really killed. Nothing looks for it yet: neither the next open nor the next commits."""
    disk = killed("before the commit")
    orphans = disk.segments
    async with disk.backend() as backend:
        watch = Watch(orphans - {disk.directory / "primary/fleet" / key for key in needed(backend)})
        await commit(backend, 2)
        await settle()
    await disk.reopen()
    return watch.fate()


@row("abandoned")
async def test_the_segments_of_a_branch_that_was_left_stay_in_the_primary(disk: Disk) -> Fate:
    """They can be opened by their checkpoint id, with the help of the primary alone."""
    async with disk.backend() as backend:
        await commit(backend, 1)
        kept = disk.segments
        await commit(backend, 2)
    watch = Watch(disk.segments - kept)
    async with disk.backend(checkpoint_id=1) as backend:
        await commit(backend, 3)
        await settle()
    async with disk.backend(checkpoint_id=2) as backend:
        assert backend.value_state("n", int)["k"] == 2
    return watch.fate()


def needed(backend: sb.StateBackend) -> frozenset[str]:
    """Keys of the segments that the newest commit points into."""
    assert backend._coordinator.base is not None
    return backend._coordinator.base.segments()


def names(paths) -> set[str]:
    return {path.name for path in paths}


def _owns(backend: sb.StateBackend, key: int) -> bool:
    try:
        return key not in backend.value_state("n", int)
    except sb.errors.KeyGroupError:
        return False
