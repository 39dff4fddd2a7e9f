"""An uploader under test: the ways round it to what it has stored, and the trouble it can be brought into."""

import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import anyio

from statebackend.abc import ObjectStore, Segment, StateChangeUploader, UploadedSegment
from statebackend.testing.cancellation import turns
from statebackend.testing.faults import Fault, FaultyStore, Hold, Moment, Operation

WRITES: Final[tuple[Operation, ...]] = ("put", "put_if_absent")


@dataclass(kw_only=True, eq=False)
class UploaderUnderTest:
    """What `UploaderConformance` wants to know of an uploader. The rest of this class is for the kit.

    `primary` is the store that you would give to `open_backend`, as seen from the job's root. It need not be the object
    through which the uploader writes, and proves more where it is not. `local` is the local store, where the uploader
    keeps copies there. `places` are all stores that the uploader writes to, wrapped before it got them, so that the kit
    can make them fail and hang. Without them the tests that want trouble are skipped.
    """

    uploader: StateChangeUploader
    primary: ObjectStore
    local: ObjectStore | None = None
    places: Sequence[FaultyStore] = ()

    async def stored(self) -> Collection[Any]:
        """A name for each copy that exists, wherever it lies. Override it for places that cannot be listed."""
        return {(number, info.key) for number, place in enumerate(self.places) async for info in place.list("")}

    async def check(self, segment: Segment, uploaded: UploadedSegment) -> None:
        """What was handed out is there, whole, where a restore looks for it, and is what the handles say."""
        content = b"".join(segment.body)
        handle = uploaded.primary
        assert await _holds(self.primary, handle.key, content)
        assert (handle.offset, handle.length, handle.checksum) == (0, len(content), zlib.crc32(content))
        if uploaded.local is None:
            assert uploaded.dropped != "", "a reason says something"
        else:
            assert uploaded.dropped is None, "the local copy is there, and was dropped"
            assert uploaded.local == handle
            assert self.local is not None
            assert await _holds(self.local, handle.key, content)

    def plan(self, *faults: Callable[[], Fault]) -> None:
        """Each place gets faults of its own."""
        for place in self.places:
            place.plan.extend(fault() for fault in faults)

    def hold(self, moment: Moment, *, at: slice = slice(None), nth: int | None = None) -> Sequence[Hold]:
        """Hold every write at these places, or the nth of each kind."""
        holds: list[Hold] = []
        for place in self.places[at]:
            added = [Hold(operation=write, moment=moment, nth=nth) for write in WRITES]
            place.plan.extend(added)
            holds.extend(added)
        return holds

    def calm(self) -> None:
        """The trouble is over: what was held goes on, and nothing fails any more."""
        for place in self.places:
            for fault in place.plan:
                if isinstance(fault, Hold):
                    fault.release()
            place.plan.clear()

    async def settle(self, holds: Iterable[Hold] = ()) -> None:
        """Wait until nothing is under way at any place but what `holds` hold, and nobody begins anything."""
        calls = -1
        while calls != (calls := sum(len(place.calls) for place in self.places)):
            while sum(place.under_way for place in self.places) > sum(hold.held for hold in holds):  # noqa: ASYNC110
                await anyio.sleep(0.001)  # a thread or a server is at work, which has no event for us
            await turns(20)


async def _holds(place: ObjectStore, key: str, content: bytes) -> bool:
    """Not asked in an `assert`, for which pytest looks for half a minute how a megabyte differs from another."""
    return await place.get(key) == content


def segment_of(number: int, *chunks: bytes | bytearray | memoryview) -> Segment:
    """A segment of these chunks. Another number gives it another name."""
    content = b"".join(chunks)
    return Segment(f"{number:032x}", chunks, len(content), zlib.crc32(content), ("0-127",))


async def upload_all(uploader: StateChangeUploader, segments: Sequence[Segment]) -> Sequence[UploadedSegment]:
    """Upload all at once; the results in the order of `segments`."""
    uploads: dict[str, UploadedSegment] = {}

    async def upload(segment: Segment) -> None:
        uploads[segment.name] = await uploader.upload(segment)

    async with anyio.create_task_group() as tasks:
        for segment in segments:
            tasks.start_soon(upload, segment)
    return [uploads[segment.name] for segment in segments]
