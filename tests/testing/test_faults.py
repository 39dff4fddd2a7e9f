"""Trouble comes exactly as it was ordered. What `FaultyStore` does with `Fail` and `Hold` is in `tests/objectstore`."""

from pathlib import Path

import anyio
import pytest

import statebackend as sb
from statebackend.abc import Capability, ObjectStore
from statebackend.errors import StoreUnavailableError
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fail, FaultyStore, FaultyUploader, Hold, Slow, Throttle, Torn, run_virtual
from statebackend.testing.kits.uploader_under_test import segment_of
from statebackend.uploaders import DuplicatingUploader, PrimaryUploader


async def test_a_fault_may_begin_with_the_nth_call_and_never_end() -> None:
    """What a disk that breaks looks like."""
    store = FaultyStore(MemoryStore(), [Fail(operation="put", nth=2, onwards=True)])
    await store.put("a", [b"x"])
    for key in ("b", "c", "d"):
        with pytest.raises(StoreUnavailableError):
            await store.put(key, [b"x"])
    assert await store.get("a") == b"x"


@run_virtual
async def test_a_slow_store_takes_its_time() -> None:
    """Before it does anything, or before it says that it did."""
    store = FaultyStore(
        MemoryStore(), [Slow(operation="put", seconds=60), Slow(operation="put", seconds=1, moment="after")]
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.put, "a", [b"x"])
        await anyio.sleep(59.9)
        assert await store.head("a") is None
        await anyio.sleep(0.2)
        assert await store.head("a") is not None
    assert anyio.current_time() == 61


@run_virtual
async def test_a_throttled_store_lets_so_many_calls_pass_in_any_interval() -> None:
    """The window slides, refused calls do not count, and whoever waits gets through."""
    store = FaultyStore(MemoryStore(), [Throttle(operation="put", calls_max=2, interval_s=10)])
    passed: list[float] = []
    for _ in range(30):
        try:
            await store.put("a", [b"x"])
            passed.append(anyio.current_time())
        except StoreUnavailableError:
            pass
        await anyio.sleep(1)
    assert passed == [0, 1, 10, 11, 20, 21]
    assert await store.head("a") is not None  # other operations are not throttled


@pytest.mark.parametrize("operation", ["put", "put_if_absent"])
async def test_a_torn_put_stores_the_beginning_and_fails(operation) -> None:
    """However the body was cut into chunks."""
    store = FaultyStore(MemoryStore(), [Torn(operation=operation, nth=1, bytes_kept=4)])
    with pytest.raises(StoreUnavailableError):
        await getattr(store, operation)("a", [b"012", b"345"])
    assert await store.get("a") == b"0123"
    await store.put("a", [b"012", b"345"])
    assert await store.get("a") == b"012345"


async def test_a_torn_put_may_be_acknowledged() -> None:
    """What a disk does that forgets what it was asked to sync."""
    store = FaultyStore(MemoryStore(), [Torn(bytes_kept=1, error=None)])
    await store.put("a", [b"012"])
    assert await store.get("a") == b"0"


async def test_a_restore_notices_a_torn_local_copy(tmp_path: Path) -> None:
    """The second of three copies is cut short, and acknowledged: that one comes from the primary, and is repaired."""
    settings = sb.Settings(job="torn", primary="memory://is-given", local=(str(tmp_path),))
    store = MemoryStore()
    async with anyio.create_task_group() as tasks:

        def duplicating(primary: ObjectStore, local: ObjectStore | None) -> DuplicatingUploader:
            assert local is not None
            torn = FaultyStore(local, [Torn(operation="put", nth=2, bytes_kept=20, error=None)])
            return DuplicatingUploader(primary, torn, secondary_grace_s=60, dropped=lambda *_: None, tasks=tasks)

        async with sb.open_backend(settings, store=store, uploader=duplicating) as backend:
            for number in range(3):
                backend.value_state("n", int)["key"] = number
                await backend.checkpoint(number)
    for fallbacks, files_local in ((1, 2), (0, 3)):
        async with sb.open_backend(settings, store=store) as backend:
            assert backend.value_state("n", int)["key"] == 2
            assert backend.restored is not None
            assert [fallback.repaired for fallback in backend.restored.fallbacks] == [True] * fallbacks
            assert backend.restored.files_local == files_local


async def test_counts_the_calls_that_are_under_way() -> None:
    """Held ones among them, and none that has ended, however it ended."""
    hold = Hold(operation="put")
    store = FaultyStore(MemoryStore(), [hold, Fail(operation="get")])
    with pytest.raises(StoreUnavailableError):
        await store.get("a")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.put, "a", [b"x"])
        tasks.start_soon(store.put, "b", [b"x"])
        await hold.reached.wait()
        await anyio.lowlevel.checkpoint()
        assert (store.under_way, hold.held) == (2, 2)
        tasks.cancel_scope.cancel()
    assert (store.under_way, hold.held) == (0, 0)


async def test_a_wrapper_can_do_what_the_store_inside_can() -> None:
    """A place that cannot list is not made one that can."""

    class Plain(MemoryStore):
        @property
        def capabilities(self) -> frozenset[Capability]:
            return frozenset()

    assert FaultyStore(Plain()).capabilities == frozenset()


async def test_an_upload_fails_before_it_has_begun() -> None:
    """By the segment's name; nothing is stored, and others are not concerned."""
    place = MemoryStore()
    first, second = segment_of(1, b"x"), segment_of(2, b"y")
    uploader = FaultyUploader(PrimaryUploader(place), [Fail(operation="upload", key=first.name)])
    with pytest.raises(StoreUnavailableError):
        await uploader.upload(first)
    assert [info.key async for info in place.list("")] == []
    uploaded = await uploader.upload(second)
    assert await place.get(uploaded.primary.key) == b"y"


async def test_an_upload_whose_result_is_lost_leaves_what_it_stored() -> None:
    """As a process does that is killed between the two: nobody has a handle to it."""
    place = MemoryStore()
    uploader = FaultyUploader(PrimaryUploader(place), [Fail(operation="upload", moment="after")])
    with pytest.raises(StoreUnavailableError):
        await uploader.upload(segment_of(1, b"x"))
    assert [await place.get(info.key) async for info in place.list("")] == [b"x"]


async def test_an_upload_hangs_until_it_is_released_and_a_discard_may_fail() -> None:
    """Every fault works on uploaders as it does on stores; `calls` tells what came, and with which key."""
    place = MemoryStore()
    hold = Hold(operation="upload")
    uploader = FaultyUploader(PrimaryUploader(place), [hold, Fail(operation="discard")])
    segment = segment_of(1, b"x")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(uploader.upload, segment)
        await hold.reached.wait()
        assert [info.key async for info in place.list("")] == []
        hold.release()
    uploaded = await uploader.upload(segment)
    with pytest.raises(StoreUnavailableError):
        await uploader.discard(uploaded)
    assert uploader.calls == [
        ("upload", segment.name),
        ("upload", segment.name),
        ("discard", uploaded.primary.key),
    ]
