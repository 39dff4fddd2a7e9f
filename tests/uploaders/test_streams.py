"""What the original's streams to one or two files promise, of our uploaders: they write a whole body or nothing.

A stream that is open between two writes does not exist here, so a failing write, flush, sync or close is one failing
`put`; which system call it was that failed is `test_failing_disk`'s business.
"""

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from zlib import crc32

import pytest

import statebackend as sb
from statebackend._local.segments import LocalSegments
from statebackend._tasks import open_tasks
from statebackend.abc import ObjectStore, Segment, UploadedSegment
from statebackend.errors import StoreAccessError, StoreUnavailableError
from statebackend.objectstore import LocalStore, MemoryStore
from statebackend.testing import Fail, FaultyStore
from statebackend.uploaders import DuplicatingUploader, PrimaryUploader

KEY = "segments/name"
BODY = (b"\x42",)


def segment(*chunks: bytes | memoryview) -> Segment:
    content = b"".join(chunks)
    return Segment("name", chunks, len(content), crc32(content), ("log",))


@asynccontextmanager
async def open_both(
    primary: ObjectStore, secondary: ObjectStore, reasons: list[str]
) -> AsyncGenerator[DuplicatingUploader]:
    async with open_tasks() as tasks:
        yield DuplicatingUploader(
            primary, secondary, secondary_grace_s=60.0, dropped=lambda _, reason: reasons.append(reason), tasks=tasks
        )


async def upload(primary: ObjectStore, secondary: ObjectStore, body: tuple[bytes, ...] = BODY) -> UploadedSegment:
    """Upload to both copies, neither of which may be dropped."""
    reasons: list[str] = []
    async with open_both(primary, secondary, reasons) as uploader:
        uploaded = await uploader.upload(segment(*body))
    assert reasons == []
    return uploaded


def open_files(below: Path) -> list[str]:
    """Files that this process has open there."""
    links = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [str(link) for link in links if link.is_relative_to(below)]


async def test_one_copy_holds_exactly_what_was_written() -> None:
    """Rows: CheckpointStreamWithResultProviderTest.testFactory, and
    CheckpointStreamWithResultProviderTest.testCloseAndFinalizeCheckpointStreamResultPrimaryOnly.
    """
    store = MemoryStore()
    uploaded = await PrimaryUploader(store).upload(segment(*BODY))
    assert uploaded.local is None
    assert await store.get(uploaded.primary.key) == b"\x42"


async def test_two_copies_hold_exactly_what_was_written() -> None:
    """Row: CheckpointStreamWithResultProviderTest.testCloseAndFinalizeCheckpointStreamResultPrimaryAndSecondary."""
    primary, secondary = MemoryStore(), MemoryStore()
    uploaded = await upload(primary, secondary)
    assert uploaded.local == uploaded.primary
    assert await primary.get(KEY) == await secondary.get(KEY) == b"\x42"


async def test_two_copies_of_a_body_in_many_parts_are_equal() -> None:
    """Row: DuplicatingCheckpointOutputStreamTest.testDuplicatedWrite. 500 bytes, arrays and slices of arrays."""
    chance = random.Random(500)
    parts: list[bytes | memoryview] = []
    for _ in range(500):
        array = chance.randbytes(512)
        first, last = sorted((chance.randrange(513), chance.randrange(513)))
        parts.append(chance.choice((array[:1], array, memoryview(array)[first:last])))
    primary, secondary = MemoryStore(), MemoryStore()
    async with open_both(primary, secondary, []) as uploader:
        uploaded = await uploader.upload(segment(*parts))
    reference = b"".join(parts)
    assert await primary.get(KEY) == await secondary.get(KEY) == reference
    assert uploaded.primary.length == len(reference)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    "error", [StoreUnavailableError("it throws"), StoreAccessError("it throws"), OSError("it throws")]
)
async def test_a_secondary_that_fails_is_dropped_and_its_error_remembered(moment, error: OSError) -> None:
    """Rows: DuplicatingCheckpointOutputStreamTest.testSecondaryWriteFail, .testFailingSecondaryWriteArrayFail,
    .testFailingSecondaryWriteArrayOffsFail, .testFailingSecondaryFlush and .testFailingSecondarySync, all of
    DuplicatingCheckpointOutputStreamTest. The primary goes on; who asks hears the cause; nothing of the copy remains.
    """
    primary, secondary, reasons = MemoryStore(), FaultyStore(MemoryStore()), list[str]()
    secondary.plan.append(Fail(operation="put", moment=moment, error=error))
    async with open_both(primary, secondary, reasons) as uploader:
        uploaded = await uploader.upload(segment(*BODY))
    assert uploaded.local is None
    assert uploaded.primary.length == 1
    assert await primary.get(KEY) == b"\x42"
    assert ["it throws" in reason for reason in reasons] == [True]
    assert [info async for info in secondary.list("")] == []


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_primary_that_fails_is_an_io_error_at_once(moment) -> None:
    """Rows: DuplicatingCheckpointOutputStreamTest.testPrimaryWriteFail, .testFailingPrimaryWriteArrayFail,
    .testFailingPrimaryWriteArrayOffsFail, .testFailingPrimaryFlush and .testFailingPrimarySync, all of
    DuplicatingCheckpointOutputStreamTest. Neither copy remains.
    """
    primary, secondary = FaultyStore(MemoryStore()), MemoryStore()
    primary.plan.append(Fail(operation="put", moment=moment, error=OSError("it throws")))
    async with open_both(primary, secondary, []) as uploader:
        with pytest.raises(OSError, match="it throws"):
            await uploader.upload(segment(*BODY))
    primary.plan.clear()
    assert [info async for info in primary.list("")] == [info async for info in secondary.list("")] == []


async def test_what_lay_in_a_copy_before_does_not_shift_it() -> None:
    """Row: DuplicatingCheckpointOutputStreamTest.testUnalignedStreamsException. Data is addressed by offset.

    An object is replaced and never continued, so the copies cannot come out of step.
    """
    primary, secondary = MemoryStore(), MemoryStore()
    await secondary.put(KEY, [b"\x2a"])
    await upload(primary, secondary, (b"\x17",))
    assert await primary.get(KEY) == await secondary.get(KEY) == b"\x17"


async def test_discarding_removes_both_copies_and_the_size_is_that_of_one() -> None:
    """Rows: SnapshotResultTest.discardState and SnapshotResultTest.getStateSize."""
    primary, secondary = MemoryStore(), MemoryStore()
    async with open_both(primary, secondary, []) as uploader:
        uploaded = await uploader.upload(segment(bytes(42)))
        assert uploaded.primary.length == 42
        await uploader.discard(uploaded)
    assert [info async for info in primary.list("")] == [info async for info in secondary.list("")] == []


async def test_no_file_stays_open(tmp_path: Path) -> None:
    """Rows: CheckpointStreamWithResultProviderTest.testCloseMethodForwarding, StateChangeFsUploaderTest.testCompression
    (off) and StateChangeFsUploaderTest.testCompression (on): bodies are encoded before a file is opened. FLINK-28602.
    """
    primary, secondary = LocalStore(tmp_path / "primary"), LocalStore(tmp_path / "secondary")
    await upload(primary, secondary)
    assert await primary.get(KEY) == await secondary.get(KEY) == b"\x42"
    assert open_files(tmp_path) == []


async def test_the_size_of_a_local_copy_is_that_of_all_its_files() -> None:
    """Row: IncrementalLocalKeyedStateHandleTest.testDirectorySize. 42, 1024 and 128 bytes, one in a directory below."""
    segments = LocalSegments([MemoryStore()])
    for key, size in (("metadata", 42), ("files/one", 1024), ("files/below/two", 128)):
        await segments.put(key, [bytes(size)])
    assert segments.held_bytes == [1194]


async def test_segments_lie_below_their_job() -> None:
    """Row: StateChangeFsUploaderTest.testBasePath. So that a job can be moved, or removed, as a whole (FLINK-28172)."""
    store = MemoryStore()
    async with sb.open_backend(sb.Settings(job="fleet", primary="memory://x", persist_delay_s=0.0), store=store) as job:
        job.value_state("n", int)["k"] = 1
        await job.checkpoint(1)
    keys = [info.key async for info in store.list("")]
    assert keys
    assert all(key.startswith("fleet/") for key in keys)
