"""Sends one segment: encodes it off the loop, uploads it in a race of attempts, discards what the losers stored."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
from anyio.abc import TaskGroup

from statebackend._codec.change_sets.changes import ChangeSet
from statebackend._codec.segment import (
    EncodedFrame,
    EncodedSegment,
    SealedSet,
    checksum_of,
    frame_of,
    segment_of,
)
from statebackend._retry import Race, RetryPolicy
from statebackend._tasks import foreign, in_order
from statebackend._threads import WorkerThreads
from statebackend.abc import Clock, Observer, Segment, StateChangeUploader, UploadedSegment
from statebackend.settings import Compression, KiB

_logger = logging.getLogger(__name__)

INLINE_ENCODE_BYTES_MAX: Final = 32 * KiB
"""Encoding less than this is quicker than the hop to a thread and back."""
BYTES_PER_THREAD: Final = 256 * KiB
"""Another thread encodes the change sets of a segment for each of these bytes: about a millisecond of work."""

Sealed = list[ChangeSet] | list[SealedSet]
"""Change sets to encode, emptied while that is done. Those that are frames already are taken as they are."""


class UploadAttempt(msgspec.Struct, frozen=True):
    """A finished attempt at uploading a segment, which took `seconds`."""

    segment: Segment
    uploaded: UploadedSegment
    seconds: float


class SegmentSender:
    """Carries out what the scheduler decides. Upload attempts run in `tasks`."""

    def __init__(
        self,
        uploader: StateChangeUploader,
        *,
        policy: RetryPolicy,
        compression: Compression,
        threads: WorkerThreads,
        tasks: TaskGroup,
        clock: Clock,
        observer: Observer,
        new_name: Callable[[], str],
    ) -> None:
        self._uploader = uploader
        self._policy = policy
        self._compression: Compression = compression
        self._threads = threads
        self._tasks = tasks
        self._clock = clock
        self._observer = observer
        self._new_name = new_name

    async def encode(self, change_sets: Sealed, pause: Callable[[], None] | None = None) -> EncodedSegment:
        """Encode one segment of these change sets, in this order; the list is emptied.

        `pause` is called before each that is no frame yet, in a background thread (`WorkerThreads`); without it,
        checkpoints wait for this thread. A cancelled call leaves nothing behind.
        """
        # Each change set is freed as soon as it is encoded, so that a batch is never in memory twice. The list is
        # emptied for that: an idle worker thread keeps the arguments of its last call.
        size_bytes = sum(change_set.size_bytes for change_set in change_sets)
        if pause is None and size_bytes > INLINE_ENCODE_BYTES_MAX and len(change_sets) > 1:
            return await self.joined(await self.encode_frames(change_sets))
        change_sets.reverse()
        frames = _encoded(change_sets, self._compression, pause or (lambda: None))
        if size_bytes <= INLINE_ENCODE_BYTES_MAX:
            return segment_of(frames)
        if pause is None:
            return await self._threads.cpu(segment_of, frames)
        return await self._threads.background(segment_of, frames)

    async def encode_frames(self, change_sets: Sealed) -> Sequence[EncodedFrame]:
        """Encode change sets for `joined`, large ones in several threads at a time; the list is emptied.

        The frames are in the order of the list. A cancelled call leaves nothing behind.
        """
        size_bytes = sum(change_set.size_bytes for change_set in change_sets)
        threads = min(self._threads.cpu_threads_max, len(change_sets), 1 + size_bytes // BYTES_PER_THREAD)
        remaining = deque(enumerate(change_sets))
        change_sets.clear()
        frames: dict[int, EncodedFrame] = {}
        encode = partial(_encode_some, remaining, self._compression)
        if size_bytes <= INLINE_ENCODE_BYTES_MAX:
            frames = encode()
        else:

            async def keep(_: int, encoded: Mapping[int, EncodedFrame]) -> None:
                frames.update(encoded)

            hops = range(threads)
            await in_order(hops, lambda _: self._threads.cpu(encode), keep, concurrency_max=threads)
        return [frames[number] for number in range(len(frames))]

    async def joined(self, frames: Sequence[EncodedFrame]) -> EncodedSegment:
        """Return the segment of these frames, in this order. A cancelled call leaves nothing behind."""
        if sum(frame.entry.length for frame in frames) <= INLINE_ENCODE_BYTES_MAX:
            return segment_of(frames)
        return await self._threads.cpu(segment_of, frames)

    async def read(self, read: Callable[[], bytes]) -> EncodedSegment:
        """Read a file in a thread, to be sent as it is, like a segment."""

        def encoded() -> EncodedSegment:
            data = read()
            return EncodedSegment((data,), len(data), checksum_of((data,)), ())

        return await self._threads.io(encoded)

    def race(self, encoded: EncodedSegment, *, patience: float = 1.0) -> Race[UploadAttempt]:
        """A race of upload attempts, not begun yet. Each is late after `patience` times the usual timeout."""
        log_ids = tuple(dict.fromkeys(entry.log_id for entry in encoded.entries))
        raw_bytes = encoded.raw_bytes

        async def attempt(number: int) -> UploadAttempt:
            durable = partial(race.spare, number)  # the uploader calls it when only the local copy is missing
            segment = Segment(self._new_name(), encoded.chunks, encoded.size_bytes, encoded.checksum, log_ids, durable)
            self._observer.upload_started(segment, attempt=number)
            begun = self._clock.monotonic()
            try:
                uploaded = await foreign(self._uploader.upload(segment))
            except Exception as error:
                self._observer.upload_failed(segment, error, attempt=number)
                raise
            seconds = self._clock.monotonic() - begun
            if uploaded.dropped is not None:
                self._observer.local_copy_dropped(segment.name, uploaded.dropped)
            self._observer.upload_succeeded(segment, uploaded, attempt=number, seconds=seconds, raw_bytes=raw_bytes)
            return UploadAttempt(segment, uploaded, seconds)

        async def discard(lost: UploadAttempt) -> None:
            await self.discard(lost.uploaded)

        policy = msgspec.structs.replace(self._policy, timeout_s=self._policy.timeout_s * patience)
        race = Race(attempt, policy=policy, discard=discard, tasks=self._tasks)
        return race

    async def discard(self, uploaded: UploadedSegment) -> None:
        """Delete every copy of a segment. Never raises an `Exception`: a sweep finds what cannot be deleted."""
        try:
            await foreign(self._uploader.discard(uploaded))
        except Exception:
            _logger.warning("could not discard segment %s", uploaded.primary.key, exc_info=True)


def _encode_some(remaining: deque[tuple[int, SealedSet]], compression: Compression) -> dict[int, EncodedFrame]:
    """Encode change sets until none remains; other threads take from the same ones. Each is freed once encoded."""
    frames: dict[int, EncodedFrame] = {}
    while True:
        try:
            number, change_set = remaining.popleft()
        except IndexError:
            return frames
        frames[number] = frame_of(change_set, compression)
        del change_set


def _encoded(change_sets: Sealed, compression: Compression, pause: Callable[[], None]) -> Iterator[EncodedFrame]:
    while change_sets:
        if not isinstance(change_sets[-1], EncodedFrame):
            pause()
        yield frame_of(change_sets.pop(), compression)
