"""The writer and the local retention together: which local copies a checkpoint finds, and which are gone."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from statebackend._changelog.changelog_writer import ChangelogWriter
from statebackend._changelog.ledger import UploadedChangeSet
from statebackend._local.removal import LocalRetention
from statebackend._local.segments import LocalSegments
from statebackend._tasks import open_tasks
from statebackend.ids import CheckpointId, SequenceNumber
from statebackend.objectstore import MemoryStore
from statebackend.testing.virtual_time import run_virtual, settle
from statebackend.uploaders import DuplicatingUploader
from tests.changelog.fakes import change, scheduler_of, writer_on

CP1, CP2, CP3 = map(CheckpointId, (1, 2, 3))
FIRST = SequenceNumber(0)


@dataclass
class Copies:
    """A writer on both copies, and the retention of the local ones."""

    writer: ChangelogWriter
    retention: LocalRetention
    local: LocalSegments

    async def persist(self, checkpoint_id: CheckpointId, from_: SequenceNumber) -> list[UploadedChangeSet]:
        """A snapshot: persisted, and registered before it is committed."""
        uploaded = list(await self.writer.persist(from_, checkpoint_id))
        assert all(each.local for each in uploaded)
        self.retention.register({each.handle.segment.key for each in uploaded}, checkpoint_id)
        return uploaded

    async def confirm(self, checkpoint_id: CheckpointId, from_: SequenceNumber) -> None:
        self.writer.confirm(from_, self.writer.next_sequence_number(), checkpoint_id)
        self.retention.confirm(checkpoint_id)
        await settle()

    async def there(self, uploaded: list[UploadedChangeSet]) -> list[bool]:
        """Which of them have their local copy."""
        return [await self.local.head(each.handle.segment.key) is not None for each in uploaded]


@asynccontextmanager
async def open_copies() -> AsyncGenerator[Copies]:
    local = LocalSegments([MemoryStore()])
    async with open_tasks() as tasks:
        uploader = DuplicatingUploader(
            MemoryStore(), local, secondary_grace_s=60.0, dropped=lambda *_: None, tasks=tasks
        )
        writer = writer_on(scheduler_of(uploader, tasks), tasks, threshold_bytes=100)
        yield Copies(writer, LocalRetention(local, tasks=tasks), local)


def append(copies: Copies, size_bytes: int = 10) -> None:
    copies.writer.append(change(bytes(size_bytes)))


@run_virtual
async def test_copies_of_a_checkpoint_go_with_the_first_that_has_a_newer_base() -> None:
    """Rows: FsStateChangelogWriterTest.testLocalFileDiscard (before), and
    FsStateChangelogWriterTest.testLocalFileDiscard (after). Until then each checkpoint uses those of the one before it.
    """
    async with open_copies() as copies:
        append(copies)
        await copies.persist(CP1, FIRST)
        await copies.confirm(CP1, FIRST)
        append(copies, 200)  # uploads pre-emptively
        await settle()
        second = await copies.persist(CP2, FIRST)
        await copies.confirm(CP2, FIRST)
        assert await copies.there(second) == [True, True]
        materialized = copies.writer.next_sequence_number()
        append(copies)
        third = await copies.persist(CP3, materialized)
        await copies.confirm(CP3, materialized)
        assert await copies.there(second) == [False, False]
        assert await copies.there(third) == [True]


@run_virtual
async def test_an_aborted_checkpoint_costs_no_copy_and_the_next_one_has_them_all() -> None:
    """Rows: FsStateChangelogWriterTest.testLocalFileAbort (abort) and FsStateChangelogWriterTest.testLocalFileAbort
    (next). The original deletes those of the last good checkpoint as well, which a local restore then lacks; we do not.
    """
    async with open_copies() as copies:
        append(copies)
        first = await copies.persist(CP1, FIRST)
        await copies.confirm(CP1, FIRST)
        append(copies, 200)
        await settle()
        second = await copies.persist(CP2, FIRST)
        await copies.writer.reset(FIRST, copies.writer.next_sequence_number(), CP2)
        copies.retention.abort(CP2)
        await settle()
        assert await copies.there(first) == [True]
        assert await copies.there(second) == [True, True]
        append(copies)
        third = await copies.persist(CP3, FIRST)
        await copies.confirm(CP3, FIRST)
        assert third[:2] == second
        assert await copies.there(third) == [True, True, True]
