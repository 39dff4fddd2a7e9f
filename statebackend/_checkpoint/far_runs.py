"""Opens runs that lie in the primary alone, by reading heads and tails: see `docs/decisions/runs-read-through.md`.

head 1 pages 1 tail 1 | head 2 pages 2 tail 2 | ... | index
[..]           [..........]            [..........]  [.....]     the first and the last range at once, then the others
"""

import math
from collections.abc import Sequence
from typing import Final

import anyio

from statebackend._changelog.changelog_reader import TAIL_BYTES
from statebackend._codec.change_sets.paged_changes import TAIL_BYTES_OF_PAGE, PagedChanges
from statebackend._codec.change_sets.parts import PART_HEAD
from statebackend._codec.frame import HEAD_BYTES, log_id_bytes
from statebackend._codec.pages import PAGE_BYTES_MIN
from statebackend._codec.segment import HEAD, FrameEntry, index_offset, read_index_in
from statebackend._runs.far_pages import ReadsApart
from statebackend._runs.known_bytes import KnownBytes, UnknownBytesError
from statebackend._runs.run_file import HEAD_GUESS, OpenRun, open_far, proper
from statebackend._tasks import in_order
from statebackend._threads import WorkerThreads
from statebackend.abc import ObjectStore
from statebackend.errors import CorruptSegmentError
from statebackend.ids import Handle
from statebackend.settings import KiB

FRONT_BYTES: Final = 2 * HEAD_GUESS
"""Read of where a frame begins: its head, and that of its first part."""
REQUESTS_AT_ONCE: Final = 64
"""Ranges that are fetched at a time: each is some KiB."""
REQUEST_BYTES: Final = 128 * KiB
"""As many can be read in the time that a request takes beside others. Where ranges take longer, all is fetched."""
ROUND_BYTES: Final = 512 * KiB
"""As `REQUEST_BYTES`, where the next request has to wait for the answer."""

Place = tuple[int, int]
"""An offset and a length."""


class FarRuns:
    """Opens segments of `primary` as far runs. `reads` reads their pages later."""

    def __init__(self, primary: ObjectStore, reads: ReadsApart, *, threads: WorkerThreads) -> None:
        self._primary = primary
        self._reads = reads
        self._threads = threads
        self._room = anyio.Semaphore(REQUESTS_AT_ONCE)

    async def open(self, segment: Handle, *, share_max: float = math.inf) -> tuple[OpenRun, int] | bytes | None:
        """The run, and the bytes that were read of it; or all bytes, not verified; `None` where ranges do not pay.

        That is also where more than `share_max` of it would be read.

        Raises `CorruptSegmentError`, `UnsupportedVersionError`, and what the store raises.
        """
        known = KnownBytes(segment.length)
        tail_at = max(0, segment.length - TAIL_BYTES)
        wanted: Sequence[Place] = [(tail_at, segment.length - tail_at)]
        if tail_at:
            wanted = [(0, min(FRONT_BYTES, segment.length)), *wanted]
        read = await self._fetch(segment, known, wanted)
        if known.whole is not None:
            return known.whole
        wanted = _borders(known, segment)
        rounds = proper(segment.key, lambda: _rounds(known, segment))
        expected = read + sum(length for _, length in wanted) + REQUEST_BYTES * len(wanted) * rounds
        if expected > segment.length or rounds > segment.length // ROUND_BYTES + 1:
            return None
        while True:
            read += await self._fetch(segment, known, wanted)
            try:
                found = await self._threads.cpu(open_far, known, segment, self._reads)
                self._reads.begin()
                return found, read
            except UnknownBytesError as error:  # frames without pages, or parts behind others
                places = error.places
            wanted = [(offset, min(length + FRONT_BYTES, segment.length - offset)) for offset, length in places]
            if read + sum(length for _, length in wanted) > share_max * segment.length:
                return None

    async def _fetch(self, segment: Handle, known: KnownBytes, places: Sequence[Place]) -> int:
        """Fetch these places. Returns how many bytes they have."""

        async def fetch(place: Place) -> bytes:
            async with self._room:
                return await self._primary.get_range(segment.key, *place)

        async def keep(place: Place, data: bytes) -> None:
            if len(data) != place[1]:
                raise CorruptSegmentError(
                    "segment has the wrong length", object=segment.key, offset=place[0] + len(data)
                )
            known.add(place[0], data)

        await in_order(places, fetch, keep, concurrency_max=REQUESTS_AT_ONCE)
        return sum(length for _, length in places)


def _borders(known: KnownBytes, segment: Handle) -> Sequence[Place]:
    """Where frames end with a tail, and the next ones begin with a head, as far as that is not known."""
    places: list[Place] = []
    for entry in _entries(known, segment):
        end = entry.offset + entry.length
        begin = max(entry.offset, end - entry.length // PAGE_BYTES_MIN * TAIL_BYTES_OF_PAGE)
        place = begin, min(end + FRONT_BYTES, segment.length) - begin
        if not known.has(*place):
            places.append(place)
    return places


def _rounds(known: KnownBytes, segment: Handle) -> int:
    """About how many parts the first frame has: each says where the next one begins, so they are read one by one."""
    if not (entries := _entries(known, segment)):
        return 1
    frame = known.read(entries[0].offset, min(HEAD_GUESS, segment.length - entries[0].offset))
    at = HEAD_BYTES + log_id_bytes(frame)
    kind, _, _, length = PART_HEAD.unpack_from(frame, at)
    return int(entries[0].length // max(1, length)) if kind == PagedChanges.kind else 1


def _entries(known: KnownBytes, segment: Handle) -> Sequence[FrameEntry]:
    """The index; nothing if it is longer than what was read to find it."""
    tail_at = max(0, segment.length - TAIL_BYTES)
    head, tail = known.read(0, len(HEAD)), memoryview(known.read(tail_at, segment.length - tail_at))
    if segment.length - index_offset(tail, segment.length, segment.key) > len(tail):
        return ()
    return read_index_in(memoryview(head), tail, segment.length, segment.key)
