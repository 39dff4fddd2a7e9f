"""The writer: what it uploads and when, who hears of it, and which objects go and which stay."""

import weakref

import anyio
import msgspec
import pytest

from statebackend._changelog.ledger import CHANGE_OVERHEAD_BYTES, UploadedChangeSet
from statebackend.errors import BackendClosedError, InputError, UploadError
from statebackend.ids import SequenceNumber
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

FIRST = SequenceNumber(0)
Uploaded = list[UploadedChangeSet]


def append(log: Log, size_bytes: int, *, data: bytes = b"") -> bytes:
    """Append a change that counts as `size_bytes`, and return its data."""
    data = data or bytes(size_bytes - CHANGE_OVERHEAD_BYTES)
    log.writer.append(change(data))
    return data


async def persist(log: Log, from_: int, outcomes: list[Uploaded | Exception]) -> None:
    """Begin a persist in a task, and let it come as far as it can."""

    async def run() -> None:
        try:
            outcomes.append(list(await log.writer.persist(SequenceNumber(from_))))
        except Exception as error:  # noqa: BLE001  # kept for the test to look at
            outcomes.append(error)

    log.tasks.start_soon(run)
    await settle()


async def checkpoint(log: Log, from_: int) -> tuple[Uploaded, SequenceNumber]:
    """Persist everything from `from_` on: the handles, and the end of their range."""
    to = log.writer.next_sequence_number()
    return list(await log.writer.persist(SequenceNumber(from_))), to


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
    """Row: FsStateChangelogWriterTest.testPersistAgain. Also what an aborted checkpoint uploaded.

    Our `confirm` says that the commit has the handles, so the log forgets them; the next range begins where it ended.
    """
    uploader = Uploader()
    async with open_log(uploader) as log:
        append(log, 20)
        first = await log.writer.persist(FIRST)
        assert await log.writer.persist(FIRST) == first
        end = log.writer.next_sequence_number()
        log.writer.confirm(end)
        assert await log.writer.persist(end) == []
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
    """Row: FsStateChangelogWriterTest.testPersistAfterReset. Aborting is cancelling: the next one has it all."""
    uploader = HeldUploader()
    async with open_log(uploader, persist_delay_s=1, persist_size_threshold_bytes=1000) as log:
        data = append(log, 50)
        with anyio.move_on_after(0.5):  # before anything is sent
            await log.writer.persist(FIRST)
        uploader.complete(1)
        (uploaded,) = await log.writer.persist(FIRST)
        assert contents(uploader, uploaded.handle.segment.key) == [data]
    assert len(uploader.attempts) == 1


@pytest.mark.parametrize("after_s", [0.5, 1.5, 2.5])
@run_virtual
async def test_cancelling_a_persist_at_any_time_loses_nothing_and_uploads_nothing_twice(after_s: float) -> None:
    """Queued, being uploaded, uploaded: the next persist of the range gets it, from one upload."""
    uploader = SlowUploader(1)
    async with open_log(uploader, persist_delay_s=1, persist_size_threshold_bytes=1000) as log:
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
        _, end_1 = await checkpoint(log, 0)
        log.writer.confirm(end_1)
        append(log, 20)
        materialized = log.writer.next_sequence_number()
        append(log, 20)
        _, end_2 = await checkpoint(log, materialized)
        log.writer.confirm(end_2)
        await log.writer.truncate(min(materialized, end_1))
        append(log, 20)
        _, end_3 = await checkpoint(log, end_2)
        log.writer.confirm(end_3)
        append(log, 100)  # uploads pre-emptively
        await settle()
        await log.writer.truncate(min(materialized, end_2))
        append(log, 20)
        uploaded, end_4 = await checkpoint(log, end_3)
        log.writer.confirm(end_4)
        await log.writer.truncate(end_4)
        assert len(uploaded) == 2
        assert segments(uploaded) <= set(uploader.stored)
    assert uploader.discarded == []


@run_virtual
async def test_closing_keeps_what_a_checkpoint_may_still_commit() -> None:
    """Row: FsStateChangelogWriterTest.testFileAvailableAfterClose.

    One segment holds the checkpoint's set and a pre-emptive one after it: the latter is released, the segment stays.
    """
    uploader = Uploader()
    async with open_log(uploader, threshold_bytes=100, persist_delay_s=1, persist_size_threshold_bytes=1000) as log:
        append(log, 20)
        outcomes: list[Uploaded | Exception] = []
        end = log.writer.next_sequence_number()
        await persist(log, 0, outcomes)
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
async def test_local_copies_stay_with_what_is_confirmed() -> None:
    """Row: FsStateChangelogWriterTest.testLocalFileDiscard (before). Both copies of a segment live and die together."""
    uploader = Uploader(local=True)
    async with open_log(uploader, threshold_bytes=100) as log:
        append(log, 20)
        _, end_1 = await checkpoint(log, 0)
        log.writer.confirm(end_1)
        append(log, 100)
        await settle()
        uploaded, end_2 = await checkpoint(log, end_1)
        log.writer.confirm(end_2)
        assert all(each.local for each in uploaded)
    assert uploader.discarded == []


@run_virtual
async def test_a_checkpoint_whose_commit_is_under_way_survives_a_truncation() -> None:
    """Row: FsStateChangelogWriterTest.testLocalFileAfterMaterialize."""
    uploader = Uploader(local=True)
    async with open_log(uploader) as log:
        ends = []
        for _ in range(2):
            append(log, 20)
            _, end = await checkpoint(log, ends[-1] if ends else 0)
            log.writer.confirm(end)
            ends.append(end)
        append(log, 20)
        uploaded, end_3 = await checkpoint(log, ends[-1])  # not confirmed yet
        append(log, 20)
        log.writer.next_sequence_number()  # a materialisation
        await log.writer.truncate(ends[0])
        log.writer.confirm(end_3)
        assert segments(uploaded) <= set(uploader.stored)
    assert uploader.discarded == []


@run_virtual
async def test_confirming_what_is_truncated_is_normal() -> None:
    """Row: section 30, writer: confirm for a range already truncated. No error, nothing deleted twice."""
    uploader = Uploader()
    async with open_log(uploader) as log:
        append(log, 20)
        _, end = await checkpoint(log, 0)
        await log.writer.truncate(end)
        log.writer.confirm(end)
        await log.writer.truncate(end)
    assert uploader.discarded == ["segment-1"]


@run_virtual
async def test_what_is_confirmed_is_forgotten() -> None:
    """Bounded: neither log nor scheduler remembers what a checkpoint owns, however long the process lives."""
    async with open_log(Uploader()) as log:
        end = 0
        for _ in range(10):
            append(log, 20)
            _, end = await checkpoint(log, end)
            log.writer.confirm(end)
        assert len(log.scheduler._ownership) == 0
        assert log.writer._ledger._uploaded == {}


@run_virtual
async def test_overlapping_checkpoints_lose_nothing_of_the_later_one() -> None:
    """Row: section 30, writer: cp2 triggered before cp1's completion arrives."""
    uploader = Uploader()
    async with open_log(uploader) as log:
        append(log, 20)
        first, _ = await checkpoint(log, 0)
        append(log, 20)
        second, end_2 = await checkpoint(log, 0)
        log.writer.confirm(end_2)  # the first one's completion never arrives
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
        await persist(log, 0, outcomes)
        await log.writer.truncate(SequenceNumber(2))
        await anyio.sleep(2)
        (uploaded,) = outcomes
        assert isinstance(uploaded, list)
        assert len(uploaded) == 2
        assert segments(uploaded) == set(uploader.stored)


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
    """Whoever waits lives elsewhere, and nobody has closed the writer: the error comes all the same."""
    for delay_s in (0, 1):  # being uploaded, and queued
        async with anyio.create_task_group() as callers:
            outcomes: list[Uploaded | Exception] = []
            async with anyio.create_task_group() as tasks:
                scheduler = scheduler_of(
                    SlowUploader(FOREVER_S), tasks, persist_delay_s=delay_s, persist_size_threshold_bytes=1000
                )
                log = Log(writer_on(scheduler, tasks), scheduler, callers)
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
        _, end = await checkpoint(log, 0)
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

    Limit 10, every append uploads; 1, 10 and 1 bytes; the first two are admitted. Appending goes on, whoever waits for
    room waits for an upload to end, and their ends need nothing from whoever waits.
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
    async with open_log(uploader, persist_delay_s=1, persist_size_threshold_bytes=1000) as log:
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
