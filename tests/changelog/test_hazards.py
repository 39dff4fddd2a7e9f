"""What the original got wrong must not come back: hazards 1 to 7, 15 and 16 of section 25 of the reference.

With the real uploaders, writer and scheduler, in virtual time; only the stores are made to misbehave.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

import anyio
import pytest
from anyio.abc import TaskGroup

from statebackend._changelog.changelog_writer import ChangelogWriter
from statebackend._changelog.ledger import UploadedChangeSet
from statebackend._changelog.scheduler import UploadScheduler
from statebackend._tasks import open_tasks
from statebackend.abc import Body
from statebackend.errors import BackendClosedError, StoreUnavailableError, UploadError
from statebackend.ids import CheckpointId, SequenceNumber
from statebackend.objectstore import MemoryStore
from statebackend.testing.virtual_time import VirtualClock, run_virtual, settle
from statebackend.uploaders import DuplicatingUploader
from tests.changelog.fakes import HeldUploader, Log, Uploader, Watcher, change, open_log, scheduler_of, writer_on

FIRST = SequenceNumber(0)
GRACE_S = 0.5
Moment = Literal["before", "after"]


class Store(MemoryStore):
    """Attempt number n to put does `puts[n - 1]` before and after the object is there; what is listed no more works.

    An error "after" the object is there is that of a failed flush or close: the bytes are written, and not durable.
    """

    def __init__(self, *puts: tuple[Moment, BaseException | float]) -> None:
        super().__init__(clock=VirtualClock())
        self._puts = list(puts)

    async def put(self, key: str, body: Body) -> None:
        moment, what = self._puts.pop(0) if self._puts else ("before", 0.0)
        if moment == "before":
            await _do(what)
        await super().put(key, body)
        if moment == "after":
            await _do(what)

    async def keys(self) -> list[str]:
        return [info.key async for info in self.list("")]


async def _do(what: BaseException | float) -> None:
    if isinstance(what, BaseException):
        raise what
    await anyio.sleep(what)


@dataclass
class Both:
    """A writer on both copies, and what became of the local ones."""

    log: Log
    primary: Store
    secondary: Store
    watcher: Watcher
    dropped: list[str] = field(default_factory=list)

    async def persist_one(self) -> UploadedChangeSet:
        self.log.writer.append(change())
        end = self.log.writer.next_sequence_number()
        (uploaded,) = await self.log.writer.persist(SequenceNumber(end - 1))
        return uploaded


@asynccontextmanager
async def open_both(primary: Store, secondary: Store, **changed: object) -> AsyncGenerator[Both]:
    async with open_tasks() as tasks:
        watcher = Watcher()
        dropped: list[str] = []
        uploader = DuplicatingUploader(
            primary,
            secondary,
            secondary_grace_s=GRACE_S,
            dropped=lambda name, _: dropped.append(name),
            tasks=tasks,
        )
        scheduler = scheduler_of(uploader, tasks, watcher, **changed)
        yield Both(Log(writer_on(scheduler, tasks), scheduler, tasks), primary, secondary, watcher, dropped)


# ---------------------------------------------------------------------------------------------- 1: who declares failure


@run_virtual
async def test_hazard_1_an_io_error_is_retried_before_anybody_hears_of_it() -> None:
    """Row: section 30, uploader: real I/O error in attempt 1 with the real uploader, success in attempt 2.

    The persist succeeds once, and exactly one object remains in each copy, that of the second attempt.
    """
    primary = Store(("before", StoreUnavailableError("no answer")))
    async with open_both(primary, Store(), upload__attempts_max=3, upload__retry_delay_s=0.5) as both:
        uploaded = await both.persist_one()
        await settle()
        assert await primary.keys() == await both.secondary.keys() == [uploaded.handle.segment.key]
        assert uploaded.handle.segment.key.endswith("segment-2")
        assert VirtualClock().monotonic() == 0.5
        assert [attempt for attempt, _ in both.watcher.failed] == [1]


@run_virtual
async def test_a_slow_local_copy_does_not_make_an_upload_late() -> None:
    """The primary is there in time, and the local copy within its grace: no attempt joins, and no request is spent."""
    primary, secondary = Store(("before", 0.9)), Store(("before", 1.3))
    async with open_both(primary, secondary, upload__attempts_max=3, upload__timeout_s=1.0) as both:
        uploaded = await both.persist_one()
        assert uploaded.local
        await anyio.sleep(10)
        assert await primary.keys() == await secondary.keys() == [uploaded.handle.segment.key]
        assert uploaded.handle.segment.key.endswith("segment-1")


# ---------------------------------------------------------------------------------------- 2, 3: durable, then published


@pytest.mark.parametrize("moment", ["before", "after"])
@run_virtual
async def test_hazard_2_a_failed_flush_publishes_no_handle_and_leaves_no_file(moment: Moment) -> None:
    """Row: section 30, uploader: error while flushing/closing the remote file. The attempt counts as failed."""
    primary = Store((moment, StoreUnavailableError("disk full")))
    async with open_both(primary, Store()) as both:
        with pytest.raises(UploadError):
            await both.persist_one()
        await settle()
        assert await primary.keys() == await both.secondary.keys() == []
        assert len(both.log.scheduler._ownership) == 0


@run_virtual
async def test_hazard_3_nothing_is_published_or_tracked_before_the_file_is_closed() -> None:
    """The bytes are all there, and closing takes a second: until then there is no handle, and no owner.

    Ended just then, it leaves no object behind.
    """
    primary = Store(("after", 1.0))
    async with open_both(primary, Store()) as both:
        with anyio.move_on_after(0.9):
            await both.persist_one()
        assert await primary.keys() != []
        assert len(both.log.scheduler._ownership) == 0
        assert both.watcher.uploaded == []
        both.log.tasks.cancel_scope.cancel()
    assert await primary.keys() == await both.secondary.keys() == []


# ------------------------------------------------------------------------------------------------ 4, 5: the second copy


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("what", [OSError("disk full"), ValueError("a bug"), 1e6], ids=["I/O", "bug", "hangs"])
@run_virtual
async def test_hazard_4_a_local_copy_that_fails_does_not_fail_the_upload(
    moment: Moment, what: BaseException | float
) -> None:
    """Row: section 30, uploader: local file cannot be opened / written / closed.

    It succeeds at most the grace later, says that it has no local copy, and no part of one remains.
    """
    async with open_both(Store(), Store((moment, what))) as both:
        uploaded = await both.persist_one()
        assert not uploaded.local
        assert VirtualClock().monotonic() <= GRACE_S
        assert len(both.dropped) == 1
        await settle()
        assert await both.secondary.keys() == []
        assert await both.primary.keys() == [uploaded.handle.segment.key]
        assert (await both.persist_one()).local  # and the next one has a copy again


@pytest.mark.parametrize("winner", [1, 2])
@run_virtual
async def test_hazard_5_a_losing_attempt_leaves_nothing_behind(winner: int) -> None:
    """Row: section 30, uploader: losing hedged attempt with local copy. Both its files and all tracking are gone."""
    primary = Store(("before", 1.5 if winner == 1 else 1.9), ("before", 0.8 if winner == 1 else 0.2))
    async with open_both(primary, Store(), upload__attempts_max=2, upload__timeout_s=1) as both:
        uploaded = await both.persist_one()
        assert uploaded.handle.segment.key.endswith(f"segment-{winner}")
        await anyio.sleep(10)
        assert await primary.keys() == await both.secondary.keys() == [uploaded.handle.segment.key]
        assert len(both.log.scheduler._ownership) == 1
        await both.log.writer.truncate_and_close(FIRST)
        await settle()
        assert await primary.keys() == await both.secondary.keys() == []
        assert len(both.log.scheduler._ownership) == 0


# ------------------------------------------------------------------------------------------- 6, 7: who may delete, when


@pytest.mark.parametrize("when", ["uploaded", "in flight"])
@run_virtual
async def test_hazard_6_a_writer_that_closes_does_not_delete_what_others_have_in_the_file(when: str) -> None:
    """The count is kept, whenever the other closes; the object goes with its last change set."""
    uploader = HeldUploader()
    async with anyio.create_task_group() as tasks:
        scheduler = scheduler_of(uploader, tasks, persist_delay_s=1, persist_size_threshold_bytes=1000)
        closing, staying = (_appended(scheduler, tasks, name) for name in "ab")
        results: list[UploadedChangeSet] = []

        async def persist() -> None:
            results.extend(await staying.persist(FIRST))

        tasks.start_soon(persist)
        await anyio.sleep(2)
        if when == "in flight":
            await closing.truncate_and_close(FIRST)
        uploader.complete(1)
        await settle()
        if when == "uploaded":
            await closing.truncate_and_close(FIRST)
        assert len(uploader.attempts) == 1
        assert [each.handle.segment.key for each in results] == list(uploader.stored) == ["segment-1"]
        await staying.truncate_and_close(FIRST)
        assert uploader.stored == {}


def _appended(scheduler: UploadScheduler, tasks: TaskGroup, name: str) -> ChangelogWriter:
    writer = writer_on(scheduler, tasks, log=name, threshold_bytes=0)
    writer.append(change())  # uploads pre-emptively
    return writer


@run_virtual
async def test_hazard_7_a_pre_emptive_upload_in_flight_belongs_to_the_checkpoint_that_waits_for_it() -> None:
    """Row: section 30, writer: pre-emptive upload in flight when persist(cp) is called.

    The persist hears of its local copy, and once the checkpoint is confirmed neither copy is deleted by the log.
    """
    uploader = HeldUploader(local=True)
    async with open_log(uploader, threshold_bytes=0) as log:
        log.writer.append(change())
        await settle()
        assert len(uploader.attempts) == 1
        results: list[UploadedChangeSet] = []

        async def persist() -> None:
            results.extend(await log.writer.persist(FIRST, CheckpointId(1)))

        log.tasks.start_soon(persist)
        await settle()
        uploader.complete(1)
        await settle()
        assert [each.local for each in results] == [True]
        end = log.writer.next_sequence_number()
        log.writer.confirm(FIRST, end, CheckpointId(1))
        await log.writer.truncate(end)
        await log.writer.truncate_and_close(end)
    assert uploader.discarded == []


# --------------------------------------------------------------------------------------------------- 15, 16: the writer


@run_virtual
async def test_hazard_15_closing_leaves_no_persist_pending() -> None:
    """Ten callers in several ranges: each hears of the end."""
    uploader = HeldUploader()
    async with open_log(uploader) as log:
        heard: list[int] = []

        async def persist(number: int) -> None:
            with pytest.raises(BackendClosedError):
                await log.writer.persist(SequenceNumber(number))
            heard.append(number)

        async with anyio.create_task_group() as callers:
            for number in range(10):
                log.writer.append(change())
                callers.start_soon(persist, number)
                await settle()
            await log.writer.truncate_and_close(SequenceNumber(5))
    assert sorted(heard) == list(range(10))


@run_virtual
async def test_hazard_16_old_sets_that_nobody_needs_are_not_uploaded() -> None:
    """6.4, FLINK-30792: what a materialisation sealed, and made unnecessary, stays out of pre-emptive uploads."""
    uploader = Uploader()
    async with open_log(uploader, threshold_bytes=100) as log:
        log.writer.append(change(b"old"))
        materialized = log.writer.next_sequence_number()
        log.writer.append(change(bytes(100)))
        await settle()
        assert uploader.sent == [[("a", 1)]]
        await log.writer.persist(materialized)
        assert uploader.sent == [[("a", 1)]]


@run_virtual
async def test_hazard_16_appending_does_not_fail_for_what_failed_before() -> None:
    """Row: section 30, writer: failure of a newer set, then a pre-emptive flush. Who asks for the range hears of it."""
    uploader = HeldUploader()
    uploader.fail(1, OSError())
    async with open_log(uploader, threshold_bytes=100) as log:
        log.writer.append(change(b"old"))
        log.writer.next_sequence_number()
        log.writer.append(change(bytes(100)))
        await settle()
        log.writer.append(change(bytes(100)))
        await settle()
        assert len(uploader.attempts) == 2
        with pytest.raises(UploadError):
            await log.writer.persist(FIRST)
        uploader.complete(2)
        assert len(await log.writer.persist(SequenceNumber(2))) == 1
