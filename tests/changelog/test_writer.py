"""The writer: what it uploads and when, who hears of it, and which objects go and which stay."""

import weakref

import anyio
import msgspec
import pytest

from statebackend._changelog.ledger import UploadedChangeSet
from statebackend._codec.change_sets.changes import ChangeSet
from statebackend._codec.change_sets.keyed_changes import CHANGE_OVERHEAD_BYTES
from statebackend.errors import BackendClosedError, InputError, UploadError
from statebackend.ids import CheckpointId, SequenceNumber
from statebackend.testing.virtual_time import run_virtual, settle
from tests.changelog.fakes import (
    FOREVER_S,
    HeldUploader,
    Log,
    SlowUploader,
    Uploader,
    change,
    contents,
    open_log,
    scheduler_of,
    writer_on,
)
from tests.changes import rows_of

FIRST = SequenceNumber(0)
CP1, CP2, CP3, CP4 = map(CheckpointId, (1, 2, 3, 4))
Uploaded = list[UploadedChangeSet]


def append(log: Log, size_bytes: int, *, data: bytes = b"") -> bytes:
    """Append a change that counts as `size_bytes`, and return its data."""
    data = data or bytes(size_bytes - CHANGE_OVERHEAD_BYTES)
    log.writer.append(change(data))
    return data


async def persist(
    log: Log, from_: int, outcomes: list[Uploaded | Exception], checkpoint_id: CheckpointId | None = None
) -> None:
    """Begin a persist in a task, and let it come as far as it can."""

    async def run() -> None:
        try:
            outcomes.append(list(await log.writer.persist(SequenceNumber(from_), checkpoint_id)))
        except Exception as error:  # noqa: BLE001  # kept for the test to look at
            outcomes.append(error)

    log.tasks.start_soon(run)
    await settle()


async def checkpoint(log: Log, checkpoint_id: CheckpointId, from_: SequenceNumber) -> tuple[Uploaded, SequenceNumber]:
    """Persist everything from `from_` on: the handles, and the end of their range."""
    to = log.writer.next_sequence_number()
    return list(await log.writer.persist(from_, checkpoint_id)), to


async def committed(log: Log, checkpoint_id: CheckpointId, from_: SequenceNumber) -> tuple[Uploaded, SequenceNumber]:
    """As `checkpoint`, and confirmed."""
    uploaded, to = await checkpoint(log, checkpoint_id, from_)
    log.writer.confirm(from_, to, checkpoint_id)
    return uploaded, to


def segments(uploaded: Uploaded) -> set[str]:
    return {each.handle.segment.key for each in uploaded}


# ----------------------------------------------------------------------------------------------------- what is uploaded


@run_virtual
async def test_appending_uploads_nothing() -> None:
    """Row: FsStateChangelogWriterTest.testAppend."""
    uploader = Uploader()
    async with open_log(uploader, threshold_bytes=1000) as log:
        for _ in range(3):
            append(log, 20)
        await settle()
    assert uploader.sent == []


@run_virtual
async def test_reaching_the_threshold_uploads_what_is_open() -> None:
    """Row: FsStateChangelogWriterTest.testPreUpload (1). Reaching is enough, and all of it goes."""
    uploader = HeldUploader()
    async with open_log(uploader, threshold_bytes=1000) as log:
        data = append(log, 999, data=bytes(range(256)) * 3)  # not enough: 768 and what is added for a key
        await settle()
        assert uploader.sent == []
        append(log, 1000 - 768 - CHANGE_OVERHEAD_BYTES)
        uploader.complete(1)
        await settle()
        assert uploader.sent == [[("a", 0)]]
        assert contents(uploader, "segment-1")[0] == data


@run_virtual
async def test_a_persist_waits_for_the_pre_emptive_upload_under_way() -> None:
    """Row: FsStateChangelogWriterTest.testPreUpload (2)."""
    uploader = HeldUploader()
    async with open_log(uploader, threshold_bytes=1000) as log:
        append(log, 1000)
        outcomes: list[Uploaded | Exception] = []
        await persist(log, 0, outcomes)
        assert len(uploader.attempts) == 1
        assert outcomes == []
        uploader.complete(1)
        await settle()
        (uploaded,) = outcomes
        assert isinstance(uploaded, list)
        assert segments(uploaded) == {"segment-1"}


@run_virtual
async def test_a_threshold_of_nothing_uploads_every_append() -> None:
    """6.2: >= and not >, so that 0 means at once."""
    uploader = Uploader()
    async with open_log(uploader, threshold_bytes=0) as log:
        for _ in range(3):
            append(log, 20)
        await settle()
    assert uploader.sent == [[("a", 0)], [("a", 1)], [("a", 2)]]


@run_virtual
async def test_a_persist_makes_what_was_appended_durable() -> None:
    """Row: FsStateChangelogWriterTest.testPersist."""
    uploader = Uploader()
    async with open_log(uploader) as log:
        log.writer.append(change(b"0123456789"))
        (uploaded,) = await log.writer.persist(FIRST)
        assert len(uploader.attempts) == 1
        assert contents(uploader, uploaded.handle.segment.key) == [b"0123456789"]


@run_virtual
async def test_a_range_that_is_durable_is_not_uploaded_again() -> None:
    """Row: FsStateChangelogWriterTest.testPersistAgain. Nor is what an aborted checkpoint uploaded."""
    uploader = Uploader()
    async with open_log(uploader) as log:
        append(log, 20)
        first, end = await checkpoint(log, CP1, FIRST)
        await log.writer.reset(FIRST, end, CP1)
        assert await log.writer.persist(FIRST, CP2) == first
        log.writer.confirm(FIRST, end, CP2)
        assert await log.writer.persist(FIRST, CP3) == first
        assert await log.writer.persist(end, CP4) == []
    assert len(uploader.attempts) == 1


@run_virtual
async def test_a_range_under_way_is_not_uploaded_again() -> None:
    """Row: FsStateChangelogWriterTest.testNoReUploadBeforeCompletion."""
    uploader = HeldUploader()
    async with open_log(uploader) as log:
        append(log, 20)
        outcomes: list[Uploaded | Exception] = []
        await persist(log, 0, outcomes)
        await persist(log, 0, outcomes)
        assert len(uploader.attempts) == 1
        uploader.complete(1)
        await settle()
        assert outcomes[0] == outcomes[1]


@run_virtual
async def test_only_what_is_new_is_uploaded() -> None:
    """Row: FsStateChangelogWriterTest.testPersistNewlyAppended."""
    uploader = HeldUploader()
    async with open_log(uploader) as log:
        append(log, 20)
        outcomes: list[Uploaded | Exception] = []
        await persist(log, 0, outcomes)
        append(log, 20)
        await persist(log, 1, outcomes)
    assert uploader.sent == [[("a", 0)], [("a", 1)]]


@run_virtual
async def test_an_aborted_checkpoint_loses_nothing() -> None:
    """Row: FsStateChangelogWriterTest.testPersistAfterReset. Also where it had not begun to upload."""
    uploader = Uploader()
    async with open_log(uploader) as log:
        data = append(log, 50)
        await log.writer.reset(FIRST, log.writer.next_sequence_number(), CP1)
        (uploaded,) = await log.writer.persist(FIRST, CP2)
        assert contents(uploader, uploaded.handle.segment.key) == [data]
    assert len(uploader.attempts) == 1


@run_virtual
async def test_a_cancelled_checkpoint_loses_nothing() -> None:
    """As aborted, while its changes wait for company: the next one has them all, from one upload."""
    uploader = HeldUploader()
    async with open_log(uploader, company=True, persist_delay_s=1, persist_size_threshold_bytes=1000) as log:
        data = append(log, 50)
        with anyio.move_on_after(0.5):  # before anything is sent
            await log.writer.persist(FIRST, CP1)
        uploader.complete(1)
        (uploaded,) = await log.writer.persist(FIRST, CP2)
        assert contents(uploader, uploaded.handle.segment.key) == [data]
    assert len(uploader.attempts) == 1


@pytest.mark.parametrize("after_s", [0.5, 1.5, 2.5])
@run_virtual
async def test_cancelling_a_persist_at_any_time_loses_nothing_and_uploads_nothing_twice(after_s: float) -> None:
    """Queued, being uploaded, uploaded: the next persist of the range gets it, from one upload."""
    uploader = SlowUploader(1)
    async with open_log(uploader, company=True, persist_delay_s=1, persist_size_threshold_bytes=1000) as log:
        append(log, 50)
        with anyio.move_on_after(after_s):
            await log.writer.persist(FIRST)
            await anyio.sleep_forever()
        assert len(await log.writer.persist(FIRST)) == 1
    assert len(uploader.attempts) == 1
    assert uploader.discarded == []


@run_virtual
async def test_cancelling_one_persist_leaves_another_of_the_same_range_waiting() -> None:
    """Two requests that look the same: the one that is given up must not take the other with it."""
    uploader = SlowUploader(1)
    async with open_log(uploader) as log:
        append(log, 20)
        outcomes: list[Uploaded | Exception] = []
        await persist(log, 0, outcomes)
        with anyio.move_on_after(0.5):
            await log.writer.persist(FIRST)
        await anyio.sleep(1)
        (uploaded,) = outcomes
        assert isinstance(uploaded, list)


@run_virtual
async def test_handles_come_in_the_order_of_their_numbers() -> None:
    """Row: section 30, scheduler: several writers, order of completion differs from order of submission."""
    uploader = HeldUploader()
    async with anyio.create_task_group() as tasks:
        scheduler = scheduler_of(uploader, tasks)
        logs = [Log(writer_on(scheduler, tasks, log=name, threshold_bytes=20), scheduler, tasks) for name in "ab"]
        for _ in range(3):
            for log in logs:
                append(log, 20)
        outcomes: list[Uploaded | Exception] = []
        for log in logs:
            await persist(log, 0, outcomes)
        for number in (6, 1, 4, 3, 5, 2):
            uploader.complete(number)
            await settle()
    for uploaded in outcomes:
        assert isinstance(uploaded, list)
        assert [each.handle.sequence_number for each in uploaded] == [0, 1, 2]
        assert len({each.handle.log_id for each in uploaded}) == 1


# ------------------------------------------------------------------------------------------------------------- failures


@run_virtual
async def test_a_failed_upload_fails_the_persist_with_an_io_error() -> None:
    """Row: FsStateChangelogWriterTest.testPersistFailure. The cause says what happened."""
    uploader = HeldUploader()
    uploader.fail(1, RuntimeError("a bug"))
    async with open_log(uploader) as log:
        append(log, 20)
        with pytest.raises(OSError, match="durable") as caught:
            await log.writer.persist(FIRST)
    assert isinstance(caught.value.__cause__, RuntimeError)


@run_virtual
async def test_failed_changes_are_not_tried_again() -> None:
    """Row: FsStateChangelogWriterTest.testPersistFailedChanges. At once, and without an upload: reopen, and replay."""
    uploader = HeldUploader()
    uploader.fail(1, OSError())
    async with open_log(uploader) as log:
        append(log, 20)
        for _ in range(2):
            with pytest.raises(UploadError):
                await log.writer.persist(FIRST)
    assert len(uploader.attempts) == 1


@run_virtual
async def test_changes_after_the_failed_ones_can_be_persisted() -> None:
    """Row: FsStateChangelogWriterTest.testPersistNonFailedChanges."""
    uploader = HeldUploader()
    uploader.fail(1, OSError())
    uploader.complete(2)
    async with open_log(uploader) as log:
        append(log, 20)
        with pytest.raises(UploadError):
            await log.writer.persist(FIRST)
        append(log, 20)
        (uploaded,) = await log.writer.persist(SequenceNumber(1))
        assert uploaded.handle.sequence_number == 1


@run_virtual
async def test_a_truncated_range_cannot_be_persisted() -> None:
    """Row: FsStateChangelogWriterTest.testTruncate."""
    async with open_log(Uploader()) as log:
        append(log, 20)
        await log.writer.truncate(log.writer.next_sequence_number())
        with pytest.raises(InputError):
            await log.writer.persist(FIRST)


# ------------------------------------------------------------------------------------------------- which objects remain


@run_virtual
async def test_a_pre_emptive_upload_survives_the_truncation_of_what_is_before_it() -> None:
    """Row: FsStateChangelogWriterTest.testFileAvailableAfterPreUpload."""
    uploader = Uploader()
    async with open_log(uploader, threshold_bytes=100) as log:
        append(log, 20)
        _, end_1 = await committed(log, CP1, FIRST)
        append(log, 20)
        materialized = log.writer.next_sequence_number()
        append(log, 20)
        _, end_2 = await committed(log, CP2, materialized)
        await log.writer.subsume(CP1)
        await log.writer.truncate(min(materialized, end_1))
        append(log, 20)
        await committed(log, CP3, materialized)
        append(log, 100)  # uploads pre-emptively
        await settle()
        await log.writer.subsume(CP2)
        await log.writer.truncate(min(materialized, end_2))
        append(log, 20)
        uploaded, _ = await committed(log, CP4, materialized)
        assert len(uploaded) == 4
        assert segments(uploaded) <= set(uploader.stored)
    assert uploader.discarded == []


@run_virtual
async def test_closing_keeps_what_a_checkpoint_may_still_commit() -> None:
    """Row: FsStateChangelogWriterTest.testFileAvailableAfterClose.

    One segment holds the checkpoint's set and a pre-emptive one after it: the latter is released, the segment stays.
    """
    uploader = Uploader()
    async with open_log(
        uploader, threshold_bytes=100, company=True, persist_delay_s=1, persist_size_threshold_bytes=1000
    ) as log:
        append(log, 20)
        outcomes: list[Uploaded | Exception] = []
        end = log.writer.next_sequence_number()
        await persist(log, 0, outcomes, CP1)
        append(log, 100)
        await anyio.sleep(2)
        (uploaded,) = outcomes
        assert isinstance(uploaded, list)
        await log.writer.truncate_and_close(end)
        assert uploader.sent == [[("a", 0), ("a", 1)]]
        assert segments(uploaded) == set(uploader.stored)


@run_virtual
async def test_closing_deletes_what_no_checkpoint_asked_for() -> None:
    """FLINK-25511: pre-emptive uploads beyond the last checkpoint go at close, also those still under way."""
    uploader = HeldUploader()
    async with open_log(uploader, threshold_bytes=100) as log:
        append(log, 100)
        append(log, 100)
        uploader.complete(1)
        await settle()
        await log.writer.truncate_and_close(FIRST)
        assert uploader.discarded == ["segment-1"]
        uploader.complete(2)
        await settle()
    assert uploader.discarded == ["segment-1", "segment-2"]
    assert uploader.stored == {}


@run_virtual
async def test_a_writer_is_a_context_and_its_end_is_a_close() -> None:
    """What a checkpoint under way holds stays; what was reset, and what nobody asked for, goes."""
    uploader = Uploader()
    async with open_log(uploader) as log:
        async with log.writer:
            append(log, 20)
            _, end = await checkpoint(log, CP1, FIRST)
            append(log, 20)
            await checkpoint(log, CP2, end)
            await log.writer.reset(end, log.writer.next_sequence_number(), CP2)
        assert uploader.discarded == ["segment-2"]
        with pytest.raises(BackendClosedError):
            await log.writer.persist(FIRST)
        await log.writer.aclose()
        log.writer.confirm(FIRST, end, CP1)
    assert uploader.discarded == ["segment-2"]


@run_virtual
async def test_a_checkpoint_that_comes_to_nothing_after_the_close_is_deleted() -> None:
    """Its owner hears of it late. Nobody else knows of the object."""
    uploader = Uploader()
    async with open_log(uploader) as log:
        append(log, 20)
        _, end = await checkpoint(log, CP1, FIRST)
        await log.writer.aclose()
        await log.writer.reset(FIRST, end, CP1)
    assert uploader.discarded == ["segment-1"]


@run_virtual
async def test_local_copies_stay_with_what_is_confirmed() -> None:
    """Row: FsStateChangelogWriterTest.testLocalFileDiscard (before). Both copies of a segment live and die together."""
    uploader = Uploader(local=True)
    async with open_log(uploader, threshold_bytes=100) as log:
        append(log, 20)
        await committed(log, CP1, FIRST)
        append(log, 100)
        await settle()
        uploaded, _ = await committed(log, CP2, FIRST)
        assert len(uploaded) == 2
        assert all(each.local for each in uploaded)
    assert uploader.discarded == []


@run_virtual
async def test_a_checkpoint_whose_commit_is_under_way_survives_a_truncation() -> None:
    """Row: FsStateChangelogWriterTest.testLocalFileAfterMaterialize. Its confirmation begins at the base."""
    uploader = Uploader(local=True)
    async with open_log(uploader) as log:
        append(log, 20)
        await committed(log, CP1, FIRST)
        append(log, 20)
        await committed(log, CP2, FIRST)
        append(log, 20)
        uploaded, end_3 = await checkpoint(log, CP3, FIRST)  # not confirmed yet
        append(log, 20)
        materialized = log.writer.next_sequence_number()
        await log.writer.subsume(CP1)
        await log.writer.truncate(materialized)
        log.writer.confirm(end_3, materialized, CP3)
        await log.writer.subsume(CP2)
        assert len(uploaded) == 3
        assert segments(uploaded) <= set(uploader.stored)
    assert uploader.discarded == []


@run_virtual
async def test_an_upload_goes_once_it_is_materialized_and_its_checkpoint_subsumed() -> None:
    """Section 14. The outcome of the checkpoint was never told; a newer one that is gone says enough."""
    uploader = Uploader()
    async with open_log(uploader) as log:
        append(log, 20)
        _, end = await checkpoint(log, CP1, FIRST)
        await log.writer.truncate(end)
        assert uploader.discarded == []
        await log.writer.subsume(CP2)
    assert uploader.discarded == ["segment-1"]


@run_virtual
async def test_a_checkpoint_cancelled_over_a_truncation_leaves_nothing_behind() -> None:
    """Its range was materialized while it waited, and it is given up: the upload is nobody's when it arrives."""
    uploader = SlowUploader(0, 1)
    async with open_log(uploader) as log:
        append(log, 20)
        await log.writer.persist(FIRST)
        append(log, 20)
        with anyio.move_on_after(0.5):
            async with anyio.create_task_group() as checkpoints:
                checkpoints.start_soon(log.writer.persist, FIRST, CP1)
                await settle()
                await log.writer.truncate(SequenceNumber(2))
                assert uploader.discarded == []
        await anyio.sleep(1)
    assert uploader.discarded == ["segment-1", "segment-2"]


@run_virtual
async def test_confirming_what_is_truncated_is_normal() -> None:
    """Row: section 30, writer: confirm for a range already truncated. No error, nothing deleted twice."""
    uploader = Uploader()
    async with open_log(uploader) as log:
        append(log, 20)
        _, end = await checkpoint(log, CP1, FIRST)
        await log.writer.reset(FIRST, end, CP1)
        await log.writer.truncate(end)
        log.writer.confirm(FIRST, end, CP1)
        await log.writer.truncate(end)
    assert uploader.discarded == ["segment-1"]


@run_virtual
async def test_what_is_confirmed_and_truncated_is_forgotten() -> None:
    """Bounded: neither log nor scheduler remembers what a checkpoint owns, however long the process lives."""
    async with open_log(Uploader()) as log:
        end = FIRST
        for number in range(10):
            append(log, 20)
            _, end = await committed(log, CheckpointId(number), end)
            await log.writer.truncate(end)
        assert len(log.scheduler._ownership) == 0
        ledger = log.writer._ledger
        assert not any((ledger._uploaded, ledger._detached, ledger._confirmed, ledger._undecided))


@run_virtual
async def test_overlapping_checkpoints_lose_nothing_of_the_later_one() -> None:
    """Row: section 30, writer: cp2 triggered before cp1's completion arrives."""
    uploader = Uploader()
    async with open_log(uploader) as log:
        append(log, 20)
        first, _ = await checkpoint(log, CP1, FIRST)
        append(log, 20)
        second, end_2 = await committed(log, CP2, FIRST)  # the first one's completion never arrives
        await log.writer.truncate_and_close(end_2)
        assert segments(first) < segments(second)
        assert segments(second) == set(uploader.stored)


@run_virtual
async def test_truncating_while_a_persist_waits_takes_nothing_from_it() -> None:
    """Its caller is about to commit the handles: an object they name must not be gone by then."""
    uploader = SlowUploader(0, 1)
    async with open_log(uploader) as log:
        append(log, 20)
        await log.writer.persist(FIRST)
        append(log, 20)
        outcomes: list[Uploaded | Exception] = []
        await persist(log, 0, outcomes, CP1)
        await log.writer.truncate(SequenceNumber(2))
        await anyio.sleep(2)
        (uploaded,) = outcomes
        assert isinstance(uploaded, list)
        assert len(uploaded) == 2
        assert segments(uploaded) == set(uploader.stored)


@run_virtual
async def test_inline_change_sets_are_not_uploaded() -> None:
    """They lie in the commit. Where that came to nothing the next checkpoint may upload them after all, once."""
    uploader = Uploader()
    async with open_log(uploader) as log:
        data = append(log, 20)
        inline = await log.writer.take_inline(FIRST, 1000)
        assert inline is not None
        assert [row.data for each in inline if isinstance(each, ChangeSet) for row in rows_of(each.changes)] == [data]
        assert await log.writer.take_inline(FIRST, 1) is None
        assert uploader.sent == []
        (uploaded,) = await log.writer.persist(FIRST, CP2)
        assert contents(uploader, uploaded.handle.segment.key) == [data]
        end = log.writer.next_sequence_number()
        log.writer.confirm(FIRST, end, CP2)
        append(log, 20)
        assert await log.writer.take_inline(end, 1000) is not None
        log.writer.confirm(end, log.writer.next_sequence_number(), CP3)
        with pytest.raises(InputError):
            await log.writer.persist(end)
    assert uploader.sent == [[("a", 0)]]


# ---------------------------------------------------------------------------------------------------- closing, pressure


@run_virtual
async def test_no_persist_is_left_pending_at_close() -> None:
    """Row: section 30, writer: persist pending when the writer closes. It ends, and the shared object stays."""
    uploader = SlowUploader(5)
    async with anyio.create_task_group() as tasks:
        scheduler = scheduler_of(uploader, tasks, persist_delay_s=1, persist_size_threshold_bytes=1000)
        closing, staying = (Log(writer_on(scheduler, tasks, log=name), scheduler, tasks) for name in "ab")
        outcomes: list[Uploaded | Exception] = []
        for log in (closing, staying):
            append(log, 20)
            await persist(log, 0, outcomes)
        await anyio.sleep(2)
        await closing.writer.truncate_and_close(FIRST)
        await settle()
        (closed,) = outcomes
        assert isinstance(closed, BackendClosedError)
        await anyio.sleep(5)
        _, uploaded = outcomes
        assert isinstance(uploaded, list)
        assert segments(uploaded) == set(uploader.stored) == {"segment-1"}


@run_virtual
async def test_no_persist_is_left_pending_when_the_tasks_end() -> None:
    """The call waits in another task group, and nobody has closed the writer: it gets the error all the same."""
    for delay_s in (0, 1):  # being uploaded, and queued
        async with anyio.create_task_group() as callers:
            outcomes: list[Uploaded | Exception] = []
            async with anyio.create_task_group() as tasks:
                scheduler = scheduler_of(
                    SlowUploader(FOREVER_S), tasks, persist_delay_s=delay_s, persist_size_threshold_bytes=1000
                )
                log = Log(writer_on(scheduler, tasks), scheduler, callers)
                writer_on(scheduler, tasks, log="never comes")
                append(log, 20)
                await persist(log, 0, outcomes)
                tasks.cancel_scope.cancel()
        (error,) = outcomes
        assert isinstance(error, UploadError)
        assert isinstance(error.__cause__, BackendClosedError)


@run_virtual
async def test_closing_twice_is_fine() -> None:
    """FLINK-25429. The second time nothing is deleted, whatever it is told."""
    uploader = Uploader()
    async with open_log(uploader) as log:
        append(log, 20)
        _, end = await checkpoint(log, CP1, FIRST)
        await log.writer.truncate_and_close(end)
        await log.writer.truncate_and_close(FIRST)
        with pytest.raises(BackendClosedError):
            await log.writer.persist(FIRST)
    assert uploader.discarded == []


@run_virtual
async def test_a_close_that_is_cancelled_has_closed_and_goes_on_deleting() -> None:
    """Cancelled at its first await: nothing is left that nobody will ever delete."""

    class SlowToDiscard(Uploader):
        async def discard(self, uploaded):  # type: ignore[no-untyped-def]
            await anyio.sleep(1)
            await super().discard(uploaded)

    uploader = SlowToDiscard()
    async with open_log(uploader, threshold_bytes=20) as log:
        append(log, 20)
        append(log, 20)
        await settle()
        with anyio.move_on_after(0.5):
            await log.writer.truncate_and_close(FIRST)
        with pytest.raises(BackendClosedError):
            await log.writer.persist(FIRST)
        await anyio.sleep(2)
    assert uploader.discarded == ["segment-1", "segment-2"]


@run_virtual
async def test_appending_after_close_is_ignored() -> None:
    """Row: StateChangelogStorageTest.testNoAppendAfterClose (disabled). Also above the threshold."""
    uploader = Uploader()
    async with open_log(uploader, threshold_bytes=0) as log:
        await log.writer.truncate_and_close(FIRST)
        append(log, 20)
        await settle()
    assert uploader.sent == []


@run_virtual
async def test_appending_never_waits_and_room_is_where_pressure_arrives() -> None:
    """Row: FsStateChangelogStorageTest.testDeadlockOnUploadCompletion, in our shape.

    Limit 10, every append uploads; 1, 10 and 1 bytes; the first two are admitted. Appending goes on. A call
    that waits for room waits for an upload to end, and that needs nothing from the call.
    FLINK-26592.
    """
    uploader = HeldUploader()
    async with open_log(uploader, threshold_bytes=0, in_flight_bytes_max=10 + 2 * CHANGE_OVERHEAD_BYTES) as log:
        await log.writer.room()
        for size_bytes in (1, 10, 1):
            append(log, size_bytes + CHANGE_OVERHEAD_BYTES)
        with anyio.move_on_after(100) as waiting:
            await log.writer.room()  # also counts what was appended without a turn of the loop in between
        assert waiting.cancelled_caught
        assert len(uploader.attempts) == 2
        for number in (1, 2, 3):
            uploader.complete(number)
        assert len(await log.writer.persist(FIRST)) == 3
        await log.writer.room()


@run_virtual
async def test_a_persist_waits_for_room() -> None:
    """7.4, the hard stage: a checkpoint waits while too much is in flight, and goes on when something has ended."""
    uploader = HeldUploader()
    async with open_log(uploader, threshold_bytes=20, in_flight_bytes_max=20) as log:
        append(log, 20)
        await settle()
        append(log, 18)
        outcomes: list[Uploaded | Exception] = []
        await persist(log, 0, outcomes)
        assert len(uploader.attempts) == 1
        uploader.complete(1)
        uploader.complete(2)
        await settle()
        (uploaded,) = outcomes
        assert isinstance(uploaded, list)
        assert len(uploaded) == 2


class WatchedKey(msgspec.Struct, weakref=True):
    """A key that can be seen to go."""

    name: str = "key"


@run_virtual
async def test_changes_are_let_go_as_soon_as_they_are_encoded() -> None:
    """Bounded: while a slow store takes its time, memory holds the encoded body and not the changes as well."""
    uploader = HeldUploader()
    async with open_log(uploader, company=True, persist_delay_s=1, persist_size_threshold_bytes=1000) as log:
        key = WatchedKey()
        watched = weakref.ref(key)
        log.writer.append(change(key=key))
        del key
        outcomes: list[Uploaded | Exception] = []
        await persist(log, 0, outcomes)
        assert watched() is not None
        await anyio.sleep(2)
        assert len(uploader.attempts) == 1
        assert watched() is None
        uploader.complete(1)
        await settle()
        assert isinstance(outcomes[0], list)
