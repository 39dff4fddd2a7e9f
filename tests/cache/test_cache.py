"""One download per file, however many readers want it, and never a trace of one that failed."""

import asyncio
import errno
import logging
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from statebackend._cache import download_cache
from statebackend._cache.download_ends import FileReader
from statebackend._tasks import simulate_threads
from statebackend.errors import (
    BackendClosedError,
    CacheDiskError,
    CorruptSegmentError,
    InputError,
    ObjectNotFoundError,
    StoreUnavailableError,
)
from statebackend.ids import Handle
from statebackend.testing import Fail, Hold, Torn, run_virtual
from statebackend.testing.virtual_time import settle
from tests.cache.caches import IDLE_S, Setup, files_below, handle_of, names_in, open_setup

CONTENT = b"0123456789" * 100


@asynccontextmanager
async def reading(setup: Setup, handle: Handle, readers: int) -> AsyncGenerator[list[bytes | BaseException]]:
    """So many readers of one file at once, by the time nothing more happens; afterwards what each of them got."""
    got: list[bytes | BaseException] = []

    async def read() -> None:
        try:
            async with setup.cache.open(handle) as file:
                got.append(await file.read())
        except (Exception, anyio.get_cancelled_exc_class()) as error:  # looked at by the test
            got.append(error)
            if not isinstance(error, Exception):
                raise

    async with anyio.create_task_group() as tasks:
        for _ in range(readers):
            tasks.start_soon(read)
        await settle()
        yield got
        await settle()
        tasks.cancel_scope.cancel()


# ---------------------------------------------------------------------------------------------------- single flight


@run_virtual
async def test_however_many_readers_and_offsets_one_download(tmp_path: Path) -> None:
    """At the same time and afterwards: the file is asked of the primary once."""
    async with open_setup(tmp_path) as setup:
        handle = await setup.stored("a", CONTENT)
        hold = Hold(operation="get")
        setup.primary.plan.append(hold)
        async with reading(setup, handle, 8) as got:
            hold.release()
        assert got == [CONTENT] * 8
        for offset in range(0, 1000, 250):
            async with setup.cache.open(handle) as file:
                assert await file.read(offset, 10) == CONTENT[offset : offset + 10]
        assert setup.downloads == ["a"]
        assert (setup.metrics.cache_downloads, setup.metrics.cache_hits) == (1, 7 + 4)
        assert setup.metrics.cache_downloaded_bytes == 1000


@run_virtual
async def test_a_slow_download_keeps_nobody_from_another_file(tmp_path: Path) -> None:
    """Single flight is per file, not one lock for all."""
    async with open_setup(tmp_path) as setup:
        slow, other = await setup.stored("slow", CONTENT), await setup.stored("other", b"other")
        hold = Hold(key="slow", operation="get")
        setup.primary.plan.append(hold)
        async with reading(setup, slow, 1) as got:
            async with setup.cache.open(other) as file:
                assert await file.read() == b"other"
            assert got == []
            hold.release()
        assert got == [CONTENT]


@run_virtual
async def test_downloads_at_a_time_are_bounded(tmp_path: Path) -> None:
    """A download is in memory as a whole, so their number is what bounds the memory."""
    async with open_setup(tmp_path, restore_concurrency_max=2) as setup, AsyncExitStack() as stack:
        hold = Hold(operation="get")
        setup.primary.plan.append(hold)
        for number in range(5):
            await stack.enter_async_context(reading(setup, await setup.stored(str(number), CONTENT), 1))
        assert hold.held == 2
        hold.release()
        await settle()
        assert len(setup.downloads) == 5


@run_virtual
async def test_reads_of_one_file_come_one_after_the_other(tmp_path: Path) -> None:
    """Those of different files do not wait for each other."""
    at_once = peak = 0

    async def hop() -> None:
        nonlocal at_once, peak
        at_once, peak = at_once + 1, max(peak, at_once + 1)
        await anyio.sleep(1)
        at_once -= 1

    async with open_setup(tmp_path) as setup:
        handles = [await setup.stored(key, CONTENT) for key in "ab"]
        simulate_threads(asyncio.get_running_loop(), hop)
        async with (
            setup.cache.open(handles[0]) as one,
            setup.cache.open(handles[0]) as same,
            setup.cache.open(handles[1]) as other,
        ):
            for files, expected in (((one, same, one), 1), ((one, other), 2)):
                peak = 0
                async with anyio.create_task_group() as tasks:
                    for file in files:
                        tasks.start_soon(file.read, 10, 10)
                assert peak == expected


@run_virtual
async def test_what_lies_here_is_the_primarys_file_to_the_byte(tmp_path: Path) -> None:
    """Neither decompressed nor framed: so offsets are the same, and a local copy can be repaired from it."""
    async with open_setup(tmp_path) as setup, setup.cache.open(await setup.stored("a", CONTENT)):
        assert [path.read_bytes() for path in setup.files] == [CONTENT]


# --------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fail(operation="get", nth=1), StoreUnavailableError),
        (Fail(operation="get", nth=1, error=ValueError("a defect of the store")), ValueError),
        (Fail(operation="get", nth=1, error=ObjectNotFoundError("gone", key="a")), ObjectNotFoundError),
    ],
    ids=["unavailable", "defect", "gone"],
)
@run_virtual
async def test_a_failed_download_fails_who_waited_for_it_and_nobody_else(
    fault: Fail, expected: type[Exception], tmp_path: Path
) -> None:
    """It leaves nothing behind, and the next one downloads again.

    Row: section 30, cache: two tasks open the same file concurrently; first download fails.
    """
    async with open_setup(tmp_path) as setup:
        handle = await setup.stored("a", CONTENT)
        hold = Hold(operation="get", nth=1)
        setup.primary.plan += [hold, fault]
        async with reading(setup, handle, 3) as got:
            hold.release()
            await settle()
            assert [type(error) for error in got] == [expected] * 3
            assert (setup.files, setup.cache.held_bytes) == ([], 0)
            assert setup.metrics.cache_bytes == 0
            async with setup.cache.open(handle) as file:
                assert await file.read() == CONTENT
        assert (setup.metrics.cache_download_failures, setup.metrics.cache_downloads) == (1, 1)


@run_virtual
async def test_bytes_that_are_not_what_was_uploaded_are_never_kept(tmp_path: Path) -> None:
    """Cut off or flipped in the primary: an error to the reader, and no file.

    Row: section 30, cache: seek beyond the end, truncated or corrupt compressed file.
    """
    async with open_setup(tmp_path) as setup:
        setup.primary.plan.append(Torn(key="torn", bytes_kept=999, error=None))
        torn, flipped = await setup.stored("torn", CONTENT), handle_of("flipped", CONTENT)
        await setup.primary.put("flipped", [bytes([1]) + CONTENT[1:]])
        for handle in (torn, flipped):
            with pytest.raises(CorruptSegmentError):
                async with setup.cache.open(handle):
                    pass
        assert (setup.files, setup.cache.held_bytes) == ([], 0)


@run_virtual
async def test_a_disk_that_takes_nothing_fails_an_open_and_passes_a_get_on_to_the_primary(tmp_path: Path) -> None:
    """The cache saves time and decides nothing: a full disk of its own must not stand between us and the state."""
    async with open_setup(tmp_path) as setup:
        handle = await setup.stored("a", CONTENT)
        (directory,) = {path.parent for path in setup.parent.glob("*/lock")}
        (directory / "0").mkdir()  # where the first file would be in the end, and the second one at first
        (directory / "1.tmp").mkdir()
        with pytest.raises(CacheDiskError):
            async with setup.cache.open(handle):
                pass
        assert setup.files == []
        assert await setup.cache.get(handle) == CONTENT
        assert await setup.cache.get(handle) == CONTENT  # and this one has a place
        assert setup.downloads == ["a"] * 4
        assert setup.metrics.cache_downloads == 1


@run_virtual
async def test_a_full_disk_is_logged_once_however_often_the_primary_is_read_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was 3,584 times in 24 s. Another reason is news again."""
    trouble = [errno.ENOSPC]

    def refuse(path: Path, _: bytes) -> None:
        raise OSError(trouble[0], os.strerror(trouble[0]), str(path))

    monkeypatch.setattr(download_cache, "_write", refuse)
    async with open_setup(tmp_path) as setup:
        handles = [await setup.stored(f"a{number}", CONTENT) for number in range(20)]
        for _ in range(3):
            for handle in handles:
                assert await setup.cache.get(handle) == CONTENT
        trouble[0] = errno.EIO
        for handle in handles:
            assert await setup.cache.get(handle) == CONTENT
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [os.strerror(number) in text for number, text in zip((errno.ENOSPC, errno.EIO), logged, strict=True)] == [
        True,
        True,
    ]


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


@pytest.mark.parametrize("damage", [remove, cut, flip])
@run_virtual
async def test_a_file_that_was_damaged_behind_our_back_is_downloaded_again(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    """Somebody cleans the temporary directory, or the disk goes bad: verified before it is believed."""
    async with open_setup(tmp_path) as setup:
        handle = await setup.stored("a", CONTENT)
        async with setup.cache.open(handle):
            damage(setup.files[0])
            assert await setup.cache.get(handle) == CONTENT  # from the primary
            assert await setup.cache.get(handle) == CONTENT  # from a file of its own beside the damaged one
            await settle()
            assert setup.downloads == ["a"] * 3
            assert setup.cache.held_bytes == 2 * len(CONTENT)  # the damaged one is still in use
        await settle()
        assert [path.read_bytes() for path in setup.files] == [CONTENT]
        assert setup.cache.held_bytes == len(CONTENT)
        assert setup.metrics.cache_evictions == {"damaged": 1}


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, -1), (0, 1001), (1000, 1), (1001, 0), (1001, None)])
@run_virtual
async def test_beyond_the_file_nothing_is_read(offset: int, length: int | None, tmp_path: Path) -> None:
    """A clear error, and the file is as usable as before; its end itself is no error.

    Row: section 30, cache: seek beyond the end, truncated or corrupt compressed file. Hazard 17.
    """
    async with open_setup(tmp_path) as setup:
        async with setup.cache.open(await setup.stored("a", CONTENT)) as file:
            with pytest.raises(InputError) as caught:
                await file.read(offset, length)
            assert caught.value.facts["size"] == 1000
            assert await file.read(1000) == b""
            assert await file.read() == CONTENT
        assert setup.cache.held_bytes == 1000


# ---------------------------------------------------------------------------------------------------- cancellation


@run_virtual
async def test_one_who_is_cancelled_leaves_the_download_to_the_others(tmp_path: Path) -> None:
    """Also where it was the one that began it."""
    async with open_setup(tmp_path) as setup:
        handle = await setup.stored("a", CONTENT)
        hold = Hold(operation="get")
        setup.primary.plan.append(hold)
        scope = anyio.CancelScope()

        async def first() -> None:
            with scope:
                async with setup.cache.open(handle):
                    pass

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first)
            await settle()
            async with reading(setup, handle, 2) as got:
                scope.cancel()
                await settle()
                assert hold.held == 1
                hold.release()
            assert got == [CONTENT] * 2
        assert setup.downloads == ["a"]


@run_virtual
async def test_the_last_one_who_is_cancelled_cancels_the_download(tmp_path: Path) -> None:
    """Nothing goes on for nobody, and nothing is left of it; the next one begins anew."""
    async with open_setup(tmp_path) as setup:
        handle = await setup.stored("a", CONTENT)
        hold = Hold(operation="get", nth=1)
        setup.primary.plan.append(hold)
        with anyio.move_on_after(1):
            async with reading(setup, handle, 3):
                await anyio.sleep_forever()
        await settle()
        assert (hold.held, setup.primary.under_way) == (0, 0)
        assert (setup.files, setup.cache.held_bytes) == ([], 0)
        assert await setup.cache.get(handle) == CONTENT
        assert setup.metrics.cache_download_failures == 0


@run_virtual
async def test_a_download_that_is_cancelled_while_it_is_being_written_leaves_no_file(tmp_path: Path) -> None:
    """A thread that has begun runs to its end, so the file is there before the cancellation is noticed."""
    hops: list[anyio.Event] = []

    async def hop() -> None:
        hops.append(anyio.Event())
        if len(hops) == 2:  # verified, and now written
            await hops[-1].wait()

    async with open_setup(tmp_path) as setup:
        handle = await setup.stored("a", CONTENT)
        simulate_threads(asyncio.get_running_loop(), hop)
        with anyio.move_on_after(1):
            async with setup.cache.open(handle):
                pytest.fail("it is not written")
        hops[1].set()
        await settle()
        assert (setup.files, setup.cache.held_bytes) == ([], 0)
        setup.cache.check_invariants()


@run_virtual
async def test_who_comes_while_a_cancelled_download_stops_waits_for_its_end(tmp_path: Path) -> None:
    """A store may take its time: even then two downloads of one file never run at once."""
    async with open_setup(tmp_path) as setup:
        handle = await setup.stored("a", CONTENT)
        hold = Hold(operation="get", nth=1, stubborn=True)
        setup.primary.plan.append(hold)
        with anyio.move_on_after(1):
            async with setup.cache.open(handle):
                pass
        async with reading(setup, handle, 2) as got:
            assert (setup.downloads, got) == (["a"], [])
            hold.release()
            await settle()
            assert got == [CONTENT] * 2
        assert setup.downloads == ["a", "a"]


# -------------------------------------------------------------------------------------------------------- eviction


@run_virtual
async def test_idle_time_counts_from_the_last_release(tmp_path: Path) -> None:
    """In Flink's cache a timer of the first release is not stopped by re-use, and deletes early.

    Row: section 30, cache: file re-used shortly before the old idle timer fires. Hazard 17.
    """
    async with open_setup(tmp_path) as setup:
        handle = await setup.stored("a", CONTENT)
        await anyio.sleep(1)
        await setup.cache.get(handle)
        await anyio.sleep(IDLE_S - 1)
        await setup.cache.get(handle)  # released again one second before it would have gone
        await anyio.sleep(IDLE_S - 1)
        assert len(setup.files) == 1
        await anyio.sleep(1)
        await settle()
        assert (setup.files, setup.cache.held_bytes) == ([], 0)
        assert setup.metrics.cache_evictions == {"idle": 1}
        assert setup.downloads == ["a"]


@run_virtual
async def test_what_is_in_use_is_never_idle(tmp_path: Path) -> None:
    """However long; its idle time begins when its last reader releases it."""
    async with open_setup(tmp_path) as setup:
        handle = await setup.stored("a", CONTENT)
        async with setup.cache.open(handle) as file:
            async with setup.cache.open(handle):
                await anyio.sleep(10 * IDLE_S)
            await anyio.sleep(10 * IDLE_S)
            assert await file.read() == CONTENT
        await anyio.sleep(IDLE_S - 1)
        assert len(setup.files) == 1
        await anyio.sleep(1)
        await settle()
        assert setup.files == []


@run_virtual
async def test_without_idle_time_a_file_goes_with_its_last_reader(tmp_path: Path) -> None:
    """`cache_idle_s=0`: shared while it is read, and kept for nobody."""
    async with open_setup(tmp_path, cache_idle_s=0.0) as setup:
        async with setup.cache.open(await setup.stored("a", CONTENT)):
            assert len(setup.files) == 1
        await settle()
        assert setup.files == []


@run_virtual
async def test_room_is_made_by_what_has_been_idle_longest(tmp_path: Path) -> None:
    """By the last release, not by the download: what was just used again stays."""
    async with open_setup(tmp_path, cache_bytes_max=3000) as setup:
        handles = [await setup.stored(key, CONTENT) for key in "abcd"]
        for handle in handles[:3]:
            await setup.cache.get(handle)
        await setup.cache.get(handles[0])
        await setup.cache.get(handles[3])
        assert setup.cache.held_bytes == 3000
        for handle in (handles[0], handles[2], handles[3]):
            await setup.cache.get(handle)
        assert setup.downloads == ["a", "b", "c", "d"]
        await settle()
        assert len(setup.files) == 3
        assert setup.metrics.cache_evictions == {"room": 1}


@run_virtual
async def test_what_is_in_use_is_not_evicted_for_room(tmp_path: Path) -> None:
    """Only files in use exceed the limit: the first one to be released is the first to go."""
    async with open_setup(tmp_path, cache_bytes_max=1500) as setup:
        handles = [await setup.stored(key, CONTENT) for key in "abc"]
        async with AsyncExitStack() as stack:
            files: list[FileReader] = [await stack.enter_async_context(setup.cache.open(handle)) for handle in handles]
            assert setup.cache.held_bytes == 3000
            assert [await file.read() for file in files] == [CONTENT] * 3
        await settle()
        assert setup.cache.held_bytes == 1000
        assert len(setup.files) == 1


@run_virtual
async def test_a_file_is_released_once_however_often_it_is_said(tmp_path: Path) -> None:
    """FLINK-30561: a second close took a use that was somebody else's, and deleted the file under him."""
    async with open_setup(tmp_path, cache_idle_s=0.0) as setup:
        handle = await setup.stored("a", CONTENT)
        async with setup.cache.open(handle) as other:
            async with setup.cache.open(handle) as file:
                file.release()
                file.release()
                with pytest.raises(InputError):
                    await file.read()
            await settle()
            assert await other.read() == CONTENT
        await settle()
        assert setup.files == []


# ----------------------------------------------------------------------------------------------------------- close


@run_virtual
async def test_closing_while_files_are_in_use_is_said_at_their_next_read(tmp_path: Path) -> None:
    """The disk is clean at once; a reader gets a clear error, and letting go afterwards is fine.

    Row: section 30, cache: close while streams are open.
    """
    async with AsyncExitStack() as users:
        async with open_setup(tmp_path) as setup:
            handle = await setup.stored("a", CONTENT)
            file = await users.enter_async_context(setup.cache.open(handle))
            assert await file.read(0, 3) == b"012"
        assert files_below(tmp_path) == []
        assert setup.cache.held_bytes == setup.metrics.cache_bytes == 0
        with pytest.raises(BackendClosedError):
            await file.read()
        with pytest.raises(BackendClosedError):
            await setup.cache.get(handle)


@run_virtual
async def test_a_closed_cache_is_not_read_though_its_files_still_lie_there(tmp_path: Path) -> None:
    """Nobody may count on a file that is being removed: it is said at once, and not when the disk is clean."""
    async with open_setup(tmp_path) as setup:
        handle = await setup.stored("a", CONTENT)
        async with setup.cache.open(handle) as file, setup.cache.open(handle) as other:
            assert await file.read(0, 3) == b"012"
            setup.cache.close()
            assert setup.files != []
            for reader in (file, other):
                with pytest.raises(BackendClosedError):
                    await reader.read(0, 3)
        with pytest.raises(BackendClosedError):
            await setup.cache.get(handle)


@pytest.mark.parametrize("stubborn", [False, True])
@run_virtual
async def test_closing_while_somebody_waits_for_a_download(stubborn: bool, tmp_path: Path) -> None:
    """He is told at once. The download is cancelled, and when the context has ended nothing is under way."""
    async with anyio.create_task_group() as tasks:
        errors: list[type[BaseException]] = []
        async with open_setup(tmp_path) as setup:
            handle = await setup.stored("a", CONTENT)
            hold = Hold(operation="get", stubborn=stubborn)
            setup.primary.plan.append(hold)

            async def read() -> None:
                try:
                    await setup.cache.get(handle)
                except BackendClosedError as error:
                    errors.append(type(error))
                    hold.release()

            tasks.start_soon(read)
            tasks.start_soon(read)
            await settle()
        assert errors == [BackendClosedError] * 2
        assert setup.primary.under_way == 0
    assert files_below(tmp_path) == []


@run_virtual
async def test_an_error_or_a_cancellation_of_the_block_leaves_nothing_either(tmp_path: Path) -> None:
    """Not a file, not the directory of this cache."""
    with pytest.raises(ZeroDivisionError):
        async with open_setup(tmp_path) as setup, setup.cache.open(await setup.stored("a", CONTENT)):
            raise ZeroDivisionError
    with anyio.move_on_after(1):
        async with open_setup(tmp_path) as setup, setup.cache.open(await setup.stored("a", CONTENT)):
            await anyio.sleep_forever()
    assert names_in(tmp_path) == ["lock"]
