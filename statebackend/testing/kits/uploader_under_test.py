"""An uploader under test, with direct access to what it stored and to the faults of its stores."""

import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import anyio

from statebackend.abc import ObjectStore, Segment, StateChangeUploader, UploadedSegment
from statebackend.testing.faults import Fault, FaultyStore, Hold, Moment, Operation
from statebackend.testing.kits.cancellation import turns

WRITES: Final[tuple[Operation, ...]] = ("put", "put_if_absent")


@dataclass(kw_only=True, eq=False)
class UploaderUnderTest:
    """Describes an uploader to `UploaderConformance`. The methods are for the kit.

    `primary` is the store that you would pass to `open_backend`, as seen from the job's root. It need not be the object
    through which the uploader writes, and proves more if it is not. `local` is the local store, if the uploader keeps
    copies there. `places` are all stores that the uploader writes to, wrapped before the uploader got them, so that the
    kit can make them fail and hang. Without them the tests that need faults are skipped.
    """

    uploader: StateChangeUploader
    primary: ObjectStore
    local: ObjectStore | None = None
    places: Sequence[FaultyStore] = ()

    async def stored(self) -> Collection[Any]:
        """A name for each existing copy, wherever it lies. Override it for places that cannot be listed."""
        return {(number, info.key) for number, place in enumerate(self.places) async for info in place.list("")}

    async def check(self, segment: Segment, uploaded: UploadedSegment) -> None:
        """Assert that the handles are right: the segment is there, whole, where a restore looks for it."""
        content = b"".join(segment.body)
        handle = uploaded.primary
        assert await _holds(self.primary, handle.key, content)
        assert (handle.offset, handle.length, handle.checksum) == (0, len(content), zlib.crc32(content))
        if uploaded.local is None:
            assert uploaded.dropped != "", "the reason is empty"
        else:
            assert uploaded.dropped is None, "the local copy is there although it was dropped"
            assert uploaded.local == handle
            assert self.local is not None
            assert await _holds(self.local, handle.key, content)

    def plan(self, *faults: Callable[[], Fault]) -> None:
        """Give each place its own faults."""
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
        """Stop all faults: held calls continue, and nothing fails any more."""
        for place in self.places:
            for fault in place.plan:
                if isinstance(fault, Hold):
                    fault.release()
            place.plan.clear()

    async def settle(self, holds: Iterable[Hold] = ()) -> None:
        """Wait until no place has anything in progress except what `holds` hold, and nothing new starts."""
        calls = -1
        while calls != (calls := sum(len(place.calls) for place in self.places)):
            while sum(place.under_way for place in self.places) > sum(hold.held for hold in holds):  # noqa: ASYNC110
                await anyio.sleep(0.001)  # a thread or a server is at work, and has no event to wait for
            await turns(20)


async def _holds(place: ObjectStore, key: str, content: bytes) -> bool:
    """Compare outside of `assert`: pytest would spend half a minute on how two megabytes differ."""
    return await place.get(key) == content


def segment_of(number: int, *chunks: bytes | bytearray | memoryview) -> Segment:
    """A segment of these chunks. The number is part of its name."""
    content = b"".join(chunks)
    return Segment(f"{number:032x}", chunks, len(content), zlib.crc32(content), ("0-127",))


async def upload_all(uploader: StateChangeUploader, segments: Sequence[Segment]) -> Sequence[UploadedSegment]:
    """Upload all concurrently; the results are in the order of `segments`."""
    uploads: dict[str, UploadedSegment] = {}

    async def upload(segment: Segment) -> None:
        uploads[segment.name] = await uploader.upload(segment)

    async with anyio.create_task_group() as tasks:
        for segment in segments:
            tasks.start_soon(upload, segment)
    return [uploads[segment.name] for segment in segments]
