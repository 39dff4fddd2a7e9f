"""One copy: durable before the handle exists, gone when the upload failed."""

import zlib

import anyio
import pytest

from statebackend.abc import Segment, UploadedSegment
from statebackend.errors import StoreAccessError, StoreUnavailableError
from statebackend.ids import Handle
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fail, FaultyStore, Hold
from statebackend.uploaders import PrimaryUploader, segment_key

BODY = b"change sets"
SEGMENT = Segment("attempt-1", (BODY[:6], BODY[6:]), len(BODY), zlib.crc32(BODY), ("log",))
HANDLE = Handle("segments/attempt-1", 0, len(BODY), zlib.crc32(BODY))


async def keys(store: FaultyStore | MemoryStore) -> list[str]:
    return [info.key async for info in store.list("")]


async def test_the_handle_points_to_the_whole_segment() -> None:
    """Offset, length and checksum describe what lies at the key."""
    store = MemoryStore()
    uploaded = await PrimaryUploader(store).upload(SEGMENT)
    assert uploaded == UploadedSegment(primary=HANDLE, local=None)
    assert segment_key(SEGMENT.name) == HANDLE.key
    assert await store.get(HANDLE.key) == BODY


async def test_an_upload_is_one_request() -> None:
    """Requests cost money: no listing, no probing, no copy."""
    store = FaultyStore(MemoryStore())
    await PrimaryUploader(store).upload(SEGMENT)
    assert store.calls == [("put", HANDLE.key)]


@pytest.mark.parametrize("error", [StoreUnavailableError("full"), StoreAccessError("no"), RuntimeError("a bug")])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_failed_upload_raises_the_stores_error_and_leaves_nothing(error: Exception, moment) -> None:
    """Also where the object had been stored and only the answer was lost."""
    store = FaultyStore(MemoryStore(), [Fail(operation="put", moment=moment, error=error)])
    with pytest.raises(type(error)) as caught:
        await PrimaryUploader(store).upload(SEGMENT)
    assert caught.value is error
    assert await keys(store) == []


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_cancelled_upload_leaves_nothing(moment) -> None:
    """The removal is shielded from the cancellation that made it necessary."""
    hold = Hold(operation="put", moment=moment)
    store = FaultyStore(MemoryStore(), [hold])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(PrimaryUploader(store).upload, SEGMENT)
        await hold.reached.wait()
        tasks.cancel_scope.cancel()
    assert await keys(store) == []
    assert ("delete", HANDLE.key) in store.calls


async def test_a_removal_that_hangs_delays_the_error_by_its_bound_only() -> None:
    """A store that does not answer at all must not hold up the retry for ever."""
    plan = [Fail(operation="put"), Hold(operation="delete")]
    uploader = PrimaryUploader(FaultyStore(MemoryStore(), plan), remove_timeout_s=0)
    with pytest.raises(StoreUnavailableError):
        await uploader.upload(SEGMENT)


async def test_a_removal_that_fails_does_not_hide_why_the_upload_failed() -> None:
    """The caller decides by the first error."""
    plan = [Fail(operation="put"), Fail(operation="delete", error=RuntimeError("a bug"))]
    with pytest.raises(StoreUnavailableError):
        await PrimaryUploader(FaultyStore(MemoryStore(), plan)).upload(SEGMENT)


async def test_discard_removes_the_segment_and_keeps_errors_to_itself() -> None:
    """What remains after a failed discard is unreferenced, so it is not the caller's business."""
    store = FaultyStore(MemoryStore())
    uploader = PrimaryUploader(store)
    uploaded = await uploader.upload(SEGMENT)
    store.plan.append(Fail(operation="delete", nth=1))
    await uploader.discard(uploaded)
    assert await keys(store) == [HANDLE.key]
    await uploader.discard(uploaded)
    assert await keys(store) == []
