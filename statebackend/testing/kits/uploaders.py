"""Proves that an uploader keeps the contract of `StateChangeUploader`.

    class TestMyUploader(UploaderConformance):
        @asynccontextmanager
        async def open_uploader(self) -> AsyncGenerator[UploaderUnderTest]:
            bucket = FaultyStore(MemoryStore())
            yield UploaderUnderTest(uploader=MyUploader(bucket), primary=bucket, places=[bucket])

Segments are read as a restore reads them: at the primary handle's key, in the store you would pass to `open_backend`.
It uses nothing but the contract: no private names, no message texts, and only your way of opening the uploader.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

import anyio
import pytest

from statebackend.abc import Segment, StateChangeUploader, UploadedSegment
from statebackend.errors import StoreAccessError, StoreUnavailableError
from statebackend.testing.faults import Fail, Fault, Hold, Moment
from statebackend.testing.kits.cancellation import TURNS, How, cancelled, turns
from statebackend.testing.kits.uploader_under_test import WRITES, UploaderUnderTest, segment_of, upload_all

T = TypeVar("T")
After = Callable[[], Awaitable[None]]

REQUESTS_MAX: Final = 12
"""Writes of one upload at one place that are made to fail, one at a time."""


@pytest.mark.asyncio
class UploaderConformance(ABC):
    """Each test opens uploaders over empty places and checks one promise. Tests of undeclared abilities are skipped."""

    keeps_local: ClassVar[bool] = False
    """True if an upload returns a local copy when all goes well."""

    cleans_up: ClassVar[bool] = True
    """True if a failed or cancelled upload removes what it wrote, if its places allow it."""

    discards: ClassVar[bool] = True
    """True if `discard` removes the copies. False for an archive that never deletes."""

    patience_s: ClassVar[float] = 5.0
    """Seconds within which a cancelled call has to end, and work behind a returned call has to settle."""

    @abstractmethod
    def open_uploader(self) -> AbstractAsyncContextManager[UploaderUnderTest]:
        """Open an uploader over empty places. Some tests call it several times, one after the other."""

    # ------------------------------------------------------------------------------------------ what is stored

    async def test_is_an_uploader(self) -> None:
        """`open_backend` tells an uploader from a callable that makes one."""
        async with self._opened() as tested:
            assert isinstance(tested.uploader, StateChangeUploader)

    @pytest.mark.parametrize(
        "body",
        [
            (b"one piece",),
            (b"a", b"bc", b"def"),
            (b"", b"a", b"", b"b", b""),
            tuple(b"%d," % number for number in range(3000)),
            (b"\x00\xff" * 700_000, b"end"),
            (bytearray(b"ab"), memoryview(b"_cd_")[1:3], memoryview(bytes(range(8))).cast("I")),
        ],
        ids=["one chunk", "several chunks", "empty chunks", "many chunks", "large chunk", "any kind of buffer"],
    )
    async def test_what_a_restore_reads_is_the_segment(self, body: tuple[bytes, ...]) -> None:
        """When the upload returns, the whole object at the handle's key is the body, byte for byte."""
        async with self._opened() as tested:
            segment = segment_of(1, *body)
            uploaded = await tested.uploader.upload(segment)
            await tested.check(segment, uploaded)
            assert (uploaded.local is not None) == self.keeps_local

    async def test_a_part_can_be_read_by_itself(self) -> None:
        """Each change set lies in the object where it lay in the body, so that a restore can read one alone."""
        content = bytes(range(256)) * 100
        async with self._opened() as tested:
            key = (await tested.uploader.upload(segment_of(1, content[:3000], content[3000:]))).primary.key
            for offset, length in ((0, 10), (2995, 10), (20_000, 5_600), (25_599, 1)):
                assert await tested.primary.get_range(key, offset, length) == content[offset : offset + length]

    async def test_the_body_stays_as_it_was(self) -> None:
        """The body belongs to the caller, who passes the same one to the next attempt."""
        buffer = bytearray(b"change sets")
        async with self._opened() as tested:
            await tested.uploader.upload(segment_of(1, buffer, memoryview(buffer)[3:7]))
        assert buffer == b"change sets"

    async def test_many_uploads_at_once_do_not_get_in_each_others_way(self) -> None:
        """Concurrent uploads have an object each, with their own bytes."""
        segments = [segment_of(number, b"%d:" % number, bytes([number]) * (number * 997)) for number in range(1, 33)]
        async with self._opened() as tested:
            await self._check_all(tested, segments, await upload_all(tested.uploader, segments))

    async def test_attempts_at_one_body_do_not_share_an_object(self) -> None:
        """A late attempt is joined by another one with the same body. The losers are discarded, the winner stays."""
        segments = [segment_of(number, b"the same") for number in range(1, 5)]
        async with self._opened() as tested:
            uploads = await upload_all(tested.uploader, segments)
            await self._check_all(tested, segments, uploads)
            for loser in uploads[1:]:
                await tested.uploader.discard(loser)
            await tested.check(segments[0], uploads[0])

    @pytest.mark.parametrize("moment", ["before", "after"])
    async def test_an_upload_does_not_return_before_its_object_is_stored(self, moment: Moment) -> None:
        """While every place holds the write, the upload does not return: a checkpoint must not name it yet."""
        await self._count_places()
        returned: list[UploadedSegment] = []
        async with self._opened() as tested:
            holds = tested.hold(moment)

            async def upload() -> None:
                returned.append(await tested.uploader.upload(segment_of(1, b"x")))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(upload)
                await self._any_of(*(hold.reached for hold in holds))
                await turns(100)
                assert returned == []
                tested.calm()
            await tested.check(segment_of(1, b"x"), returned[0])

    # ------------------------------------------------------------------------------------------ discard

    async def test_discard_removes_every_copy_and_nothing_else(self) -> None:
        """After a discard the segment has no copies, and every other segment is whole."""
        self._needs_discard()
        segments = [segment_of(number, b"some", b"%d" % number) for number in range(12)]
        async with self._opened() as tested:
            uploads = await upload_all(tested.uploader, segments[1:])
            others = set(await tested.stored())
            uploaded = await tested.uploader.upload(segments[0])
            assert set(await tested.stored()) > others, "`stored` does not list every copy"
            await tested.uploader.discard(uploaded)
            await self._check_left(tested, others)
            await self._check_all(tested, segments[1:], uploads)

    async def test_discard_may_be_repeated(self) -> None:
        """A caller may repeat a discard whose outcome it does not know; nothing else is deleted."""
        self._needs_discard()
        segments = [segment_of(1, b"x"), segment_of(2, b"y")]
        async with self._opened() as tested:
            lost, kept = await upload_all(tested.uploader, segments)
            await tested.uploader.discard(lost)
            await tested.uploader.discard(lost)
            await tested.check(segments[1], kept)
            await tested.uploader.discard(kept)
            await self._check_left(tested)

    @pytest.mark.parametrize("how", ["scope", "task"])
    async def test_what_a_cancelled_discard_left_the_next_one_removes(self, how: How) -> None:
        """A discard removes what a cancelled upload left, however early or late the cancellation."""
        self._needs_discard()
        for count in TURNS:
            async with self._opened() as tested:
                uploaded = await tested.uploader.upload(segment_of(1, b"x"))
                discard = partial(tested.uploader.discard, uploaded)
                await self._cancelled(tested, discard, how, after=partial(turns, count))
                await discard()
                await self._check_left(tested)

    async def test_what_a_failed_discard_left_the_next_one_removes(self) -> None:
        """A failing discard may raise or not; either way it does no harm."""
        self._needs_discard()
        await self._count_places()
        async with self._opened() as tested:
            uploaded = await tested.uploader.upload(segment_of(1, b"x"))
            tested.plan(lambda: Fail(operation="delete"))
            with suppress(OSError):
                await tested.uploader.discard(uploaded)
            tested.calm()
            await tested.uploader.discard(uploaded)
            await self._check_left(tested)

    # ------------------------------------------------------------------------------------------ trouble

    @pytest.mark.parametrize("error", [StoreUnavailableError, StoreAccessError, OSError])
    @pytest.mark.parametrize("moment", ["before", "after"])
    async def test_an_upload_that_no_place_answers_raises_an_os_error(
        self, moment: Moment, error: type[OSError]
    ) -> None:
        """An I/O error is an `OSError`: only that is retried. Not even a lost answer leaves an object behind."""
        await self._count_places()
        async with self._opened() as tested:
            tested.plan(*(partial(Fail, operation=write, moment=moment, error=error("no")) for write in WRITES))
            with pytest.raises(OSError):  # noqa: PT011  # its kind is the claim
                await tested.uploader.upload(segment_of(1, b"x"))
            tested.calm()
            await self._check_usable_and_clean(tested)

    async def test_an_upload_never_returns_what_could_not_be_stored(self) -> None:
        """Whatever the error, the upload raises: a place with a defect does not raise an `OSError`."""
        await self._count_places()
        async with self._opened() as tested:
            tested.plan(*(partial(Fail, operation=write, error=RuntimeError("a bug")) for write in WRITES))
            with pytest.raises(Exception):  # noqa: B017, PT011  # any will do, as long as there is one
                await tested.uploader.upload(segment_of(1, b"x"))

    @pytest.mark.parametrize("moment", ["before", "after"])
    async def test_any_one_request_may_fail(self, moment: Moment) -> None:
        """A failure at any place gives a whole upload, or an error and no objects."""
        for place in range(await self._count_places()):
            for nth in range(1, REQUESTS_MAX + 1):
                fault = Fail(nth=nth, moment=moment)
                await self._upload_with(place, fault)
                if fault.matched < nth:
                    break

    @pytest.mark.parametrize("moment", ["before", "after"])
    async def test_any_place_may_be_late(self, moment: Moment) -> None:
        """A late copy is waited for or given up; the returned handles are whole, and a discard removes everything."""
        for place in range(await self._count_places()):
            for write in WRITES:
                await self._upload_with(place, Hold(operation=write, moment=moment))

    @pytest.mark.parametrize("how", ["scope", "task"])
    @pytest.mark.parametrize("moment", ["before", "after"])
    async def test_a_cancelled_upload_ends_while_its_places_hang(self, moment: Moment, how: How) -> None:
        """All places hang, or one: no handles, no objects, and an upload beside it is unaffected."""
        count = await self._count_places()
        for hanging in (slice(None), *(slice(place, place + 1) for place in range(count))):
            async with self._opened() as tested:
                await self._cancel_held(tested, tested.hold(moment, at=hanging, nth=1), how)
                await self._check_usable_and_clean(tested)

    @pytest.mark.parametrize("how", ["scope", "task"])
    async def test_an_upload_may_be_cancelled_at_any_moment(self, how: How) -> None:
        """An upload cancelled early or late leaves no objects, or has succeeded.

        After `task.cancel()` a thread may still run. What it leaves is unreferenced and not checked.
        """
        for count in TURNS:
            async with self._opened() as tested:
                segment = segment_of(1, b"x" * 1000, b"y")
                upload = partial(tested.uploader.upload, segment)
                for uploaded in await self._cancelled(tested, upload, how, after=partial(turns, count)):
                    await tested.check(segment, uploaded)
                    await tested.uploader.discard(uploaded)
                await self._check_usable_and_clean(tested, clean=how == "scope")

    async def test_a_removal_that_fails_does_not_hide_why_the_upload_failed(self) -> None:
        """The caller decides by the first error whether to retry."""
        await self._count_places()
        async with self._opened() as tested:
            tested.plan(*(partial(Fail, operation=write) for write in WRITES))
            tested.plan(lambda: Fail(operation="delete", error=RuntimeError("a bug")))
            with pytest.raises(OSError):  # noqa: PT011  # as above
                await tested.uploader.upload(segment_of(1, b"x"))

    async def test_a_removal_that_hangs_is_given_up(self) -> None:
        """A store that no longer answers must not keep a cancelled upload from ending."""
        await self._count_places()
        async with self._opened() as tested:
            holds = tested.hold("after")
            tested.plan(lambda: Hold(operation="delete"))
            upload = partial(tested.uploader.upload, segment_of(1, b"x"))
            held = partial(self._any_of, *(hold.reached for hold in holds))
            await self._cancelled(tested, upload, "scope", after=held)

    # ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[UploaderUnderTest]:
        """Open the uploader; a test's exception comes out unwrapped, and held calls are released first."""
        failure: BaseException | None = None
        async with self.open_uploader() as tested:
            try:
                yield tested
            except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # raised below, out of any task group
                failure = error
            finally:
                tested.calm()
        if failure is not None:
            raise failure

    async def _count_places(self) -> int:
        async with self._opened() as tested:
            count = len(tested.places)
        if count == 0:
            pytest.skip("there is no place that the kit could make fail")
        return count

    def _needs_discard(self) -> None:
        if not self.discards:
            pytest.skip("this uploader does not declare that it discards")

    async def _any_of(self, *events: anyio.Event) -> None:
        with anyio.fail_after(self.patience_s):
            async with anyio.create_task_group() as tasks:

                async def wait(event: anyio.Event) -> None:
                    await event.wait()
                    tasks.cancel_scope.cancel()

                for event in events:
                    tasks.start_soon(wait, event)

    async def _cancelled(
        self, tested: UploaderUnderTest, call: Callable[[], Awaitable[T]], how: How, *, after: After
    ) -> list[T]:
        return await cancelled(call, how=how, after=after, patience_s=self.patience_s, rescue=tested.calm)

    async def _cancel_held(self, tested: UploaderUnderTest, holds: Sequence[Hold], how: How) -> None:
        """Cancel an upload while part of it is held and another one runs beside it."""
        beside: list[UploadedSegment] = []
        async with anyio.create_task_group() as tasks:

            async def upload_beside() -> None:
                beside.append(await tested.uploader.upload(segment_of(2, b"beside")))

            async def held() -> None:
                await self._any_of(*(hold.reached for hold in holds))
                with anyio.fail_after(self.patience_s):
                    await tested.settle(holds)
                tasks.start_soon(upload_beside)

            upload = partial(tested.uploader.upload, segment_of(1, b"x"))
            for uploaded in await self._cancelled(tested, upload, how, after=held):
                await tested.check(segment_of(1, b"x"), uploaded)
                await tested.uploader.discard(uploaded)
            tested.calm()
        await tested.check(segment_of(2, b"beside"), beside[0])
        await tested.uploader.discard(beside[0])

    async def _upload_with(self, place: int, fault: Fault) -> None:
        """Upload while one place fails. The result is a whole upload, or an `OSError`."""
        segment = segment_of(1, b"x" * 1000, b"y")
        async with self._opened() as tested:
            tested.places[place].plan.append(fault)
            uploads: list[UploadedSegment] = []
            ended = anyio.Event()

            async def upload() -> None:
                with suppress(OSError):
                    uploads.append(await tested.uploader.upload(segment))
                ended.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(upload)
                if isinstance(fault, Hold):
                    await self._any_of(fault.reached, ended)
                    await turns(100)
                    for uploaded in uploads:  # while one place still holds its copy
                        await tested.check(segment, uploaded)
                    fault.release()
            tested.calm()
            for uploaded in uploads:
                await tested.check(segment, uploaded)
                await tested.uploader.discard(uploaded)
            await self._check_usable_and_clean(tested)

    async def _check_all(
        self, tested: UploaderUnderTest, segments: Sequence[Segment], uploads: Sequence[UploadedSegment]
    ) -> None:
        assert len({uploaded.primary.key for uploaded in uploads}) == len(segments)
        for segment, uploaded in zip(segments, uploads, strict=True):
            await tested.check(segment, uploaded)

    async def _check_usable_and_clean(self, tested: UploaderUnderTest, *, clean: bool = True) -> None:
        """No copies remain of the earlier uploads, and the next upload works as the first did."""
        tested.calm()
        if clean and self.cleans_up and self.discards:
            await self._check_left(tested)
        segment = segment_of(99, b"the next one")
        await tested.check(segment, await tested.uploader.upload(segment))

    async def _check_left(self, tested: UploaderUnderTest, expected: Collection[Any] = ()) -> None:
        """Exactly `expected` copies exist, or will within the patience: an uploader may clean up in the background."""
        left: set[Any] = set()
        with anyio.move_on_after(self.patience_s):
            await tested.settle()
            while (left := set(await tested.stored())) != set(expected):  # noqa: ASYNC110  # there is no event for it
                await anyio.sleep(0.001)
        assert left == set(expected)
