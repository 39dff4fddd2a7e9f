"""From handles back to changes: which files to read, which parts of them, and what they hold."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import msgspec

from statebackend._codec.records import StateChange
from statebackend._codec.segment import checksum_of, decode_change_set, decode_segment
from statebackend.abc import ObjectStore
from statebackend.errors import CorruptSegmentError, DataError
from statebackend.ids import ChangeSetHandle, Handle, KeyGroupRange


class SegmentRead(msgspec.Struct, frozen=True):
    """One file to read, and the change sets wanted from it, in the order in which they are to be applied."""

    segment: Handle
    change_sets: tuple[ChangeSetHandle, ...]

    @property
    def is_sparse(self) -> bool:
        """Whether less than half of the file is wanted: then its frames are better fetched one by one."""
        return 2 * sum(handle.length for handle in self.change_sets) < self.segment.length


def plan_reads(handles: Sequence[ChangeSetHandle], key_groups: KeyGroupRange) -> Sequence[SegmentRead]:
    """The files that hold changes of `key_groups`, in order. Neighbours in one file become one read.

    Metadata is read whatever the range: it concerns who reads the log, and has no key group.
    """
    wanted = (handle for handle in handles if not handle.key_groups or handle.key_groups.intersection(key_groups))
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
    """The frames of the change sets wanted from a verified segment, in order."""
    view = memoryview(data)
    return [view[handle.offset : handle.offset + handle.length] for handle in read.change_sets]


async def fetch_frame(store: ObjectStore, handle: ChangeSetHandle) -> memoryview:
    """The frame of one change set, by a ranged read of nothing else. Checked when it is decoded."""
    return memoryview(await store.get_range(handle.segment.key, handle.offset, handle.length))


def changes_of(frames: Iterable[memoryview], handles: Iterable[ChangeSetHandle]) -> Iterator[list[StateChange]]:
    """The changes of each change set, in order, from its frame.

    Raises `CorruptSegmentError` where a frame is damaged, cut off, or that of another change set.
    """
    for frame, handle in zip(frames, handles, strict=True):
        header, changes = decode_change_set(frame, handle.segment.key, handle.offset)
        if (header.log_id, header.sequence_number) != (handle.log_id, handle.sequence_number):
            raise CorruptSegmentError("another change set lies here", object=handle.segment.key, offset=handle.offset)
        yield changes


def _first_bad_offset(data: bytes, name: str) -> int:
    """Where the damage begins, as far as the segment's own checksums can tell."""
    try:
        for _ in decode_segment(data, name):
            pass
    except DataError as error:
        return int(error.facts.get("offset", 0))
    return 0
