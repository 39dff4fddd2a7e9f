"""Reads changes back from handles: which files to read, which parts of them, and what they hold."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

import msgspec

from statebackend._codec.change_sets.changes import Changes, Only
from statebackend._codec.segment import (
    HEAD,
    FrameEntry,
    checksum_of,
    decode_segment,
    index_offset,
    open_change_set,
    read_index,
    read_index_in,
)
from statebackend.abc import ObjectStore
from statebackend.errors import CorruptSegmentError, DataError
from statebackend.ids import Base, ChangeSetHandle, Handle, KeyGroupRange
from statebackend.settings import KiB

TAIL_BYTES: Final = 16 * KiB
"""Read from the end of a base to find its index. The index of a segment of 16 MiB fits."""


class SegmentRead(msgspec.Struct, frozen=True):
    """One file to read, and the frames wanted from it, in the order in which they are applied.

    Of a frame only the changes of its handle's key groups are wanted; of a base those of `key_groups`, which need not
    be neighbours.
    """

    segment: Handle
    change_sets: tuple[ChangeSetHandle, ...]
    key_groups: tuple[KeyGroupRange, ...] | None = None

    @property
    def is_sparse(self) -> bool:
        """True if less than half of the file is wanted: then its frames are better fetched one by one."""
        return 2 * sum(handle.length for handle in self.change_sets) < self.segment.length

    def frames_in(self, data: bytes) -> "SegmentRead":
        """The frames to read of the segment, whose verified content is `data`."""
        return self

    async def find_frames(self, store: ObjectStore) -> "SegmentRead":
        """The frames to read of the segment. For these nothing has to be read from `store`."""
        return self


class BaseRead(msgspec.Struct, frozen=True):
    """A base to read. Its own index says where its frames lie; the commit does not."""

    base: Base

    @property
    def segment(self) -> Handle:
        """The file to read."""
        return self.base.segment

    @property
    def is_sparse(self) -> bool:
        """True if less than half of the base's key groups are wanted. Its bytes are known from its frames only."""
        return 2 * self.base.live < self.base.key_groups_written

    def frames_in(self, data: bytes) -> SegmentRead:
        """The frames that hold the base's key groups. Raises `CorruptSegmentError`."""
        return self._select(read_index(memoryview(data), self.segment.key))

    async def find_frames(self, store: ObjectStore) -> SegmentRead:
        """The frames that hold the base's key groups, found by reading only its head and its index.

        Raises `CorruptSegmentError`, `UnsupportedVersionError`, and what the store raises.
        """
        key, size_bytes = self.segment.key, self.segment.length
        head = await store.get_range(key, 0, len(HEAD))
        tail = await store.get_range(key, max(0, size_bytes - TAIL_BYTES), TAIL_BYTES)
        offset = index_offset(memoryview(tail), size_bytes, key)
        if size_bytes - offset > len(tail):
            tail = await store.get_range(key, offset, size_bytes - offset)
        return self._select(read_index_in(memoryview(head), memoryview(tail), size_bytes, key))

    def _select(self, entries: Sequence[FrameEntry]) -> SegmentRead:
        live = self.base.key_groups
        return SegmentRead(
            self.segment,
            tuple(
                ChangeSetHandle(self.segment, *msgspec.structs.astuple(entry))
                for entry in entries
                if any(entry.key_groups.intersection(each) for each in live)
            ),
            live,
        )


def plan_reads(handles: Sequence[ChangeSetHandle], key_groups: KeyGroupRange) -> Sequence[SegmentRead]:
    """The files that hold changes of `key_groups`, in order. Neighbours in one file are one read.

    Change sets without a key group, metadata of early segments, are passed over: they change no state.
    """
    wanted = (handle for handle in handles if handle.key_groups.intersection(key_groups))
    grouped = groupby(wanted, key=lambda handle: handle.segment)
    return [SegmentRead(segment, tuple(change_sets)) for segment, change_sets in grouped]


def verify(data: bytes, segment: Handle) -> None:
    """Raise `CorruptSegmentError` unless `data` is, to the byte, what was uploaded as `segment`."""
    if len(data) != segment.length:
        raise CorruptSegmentError(
            "segment has the wrong length", object=segment.key, offset=min(len(data), segment.length), size=len(data)
        )
    if checksum_of((data,)) != segment.checksum:
        offset = _first_bad_offset(data, segment.key)
        raise CorruptSegmentError("segment checksum differs", object=segment.key, offset=offset)


def frames_of(data: bytes, read: SegmentRead) -> Sequence[memoryview]:
    """The frames wanted from a verified segment, in order."""
    return _cut(memoryview(data), 0, read.change_sets)


async def fetch_frames(store: ObjectStore, read: SegmentRead) -> Sequence[memoryview]:
    """Fetch the wanted frames by ranged reads, neighbours by one read. They are verified when they are decoded."""
    frames: list[memoryview] = []
    for run in _runs(read.change_sets):
        offset, end = run[0].offset, run[-1].offset + run[-1].length
        data = await store.get_range(read.segment.key, offset, end - offset)
        frames += _cut(memoryview(data), offset, run)
    return frames


def changes_of(
    frames: Iterable[memoryview],
    handles: Iterable[ChangeSetHandle],
    key_groups: tuple[KeyGroupRange, ...] | None = None,
    *,
    only: Only | None = None,
) -> Iterator[Changes]:
    """Yield the changes of each change set from its frame, in order: those of `key_groups`, or of its handle's groups.

    Of what `only` leaves out nothing is decoded.

    They come in parts as they were written, decoded one at a time. Raises `CorruptSegmentError` if a frame is damaged,
    cut off, or of another change set: before its first part, unless a part contradicts what its checksum covers.
    """
    for frame, handle in zip(frames, handles, strict=True):
        header, parts = open_change_set(frame, handle.segment.key, handle.offset, only=only)
        if (header.log_id, header.sequence_number) != (handle.log_id, handle.sequence_number):
            raise CorruptSegmentError("another change set lies here", object=handle.segment.key, offset=handle.offset)
        wanted = key_groups or (handle.key_groups,)
        yield from (found for part in parts if (found := part.of_groups(wanted)) is not None)


def _runs(handles: Sequence[ChangeSetHandle]) -> Iterator[Sequence[ChangeSetHandle]]:
    """Group handles that follow each other without a gap."""
    run: list[ChangeSetHandle] = []
    for handle in handles:
        if run and handle.offset != run[-1].offset + run[-1].length:
            yield run
            run = []
        run.append(handle)
    if run:
        yield run


def _cut(view: memoryview, begin: int, handles: Sequence[ChangeSetHandle]) -> Sequence[memoryview]:
    return [view[handle.offset - begin : handle.offset - begin + handle.length] for handle in handles]


def _first_bad_offset(data: bytes, name: str) -> int:
    """The offset where the damage begins, as far as the segment's own checksums can tell."""
    try:
        for _ in decode_segment(data, name):
            pass
    except DataError as error:
        return int(error.facts.get("offset", 0))
    return 0
