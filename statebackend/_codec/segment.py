"""A segment: one uploaded object with the change sets of one or more writers.

    segment := magic version:u8 frame+ index trailer
    magic   := "sbsegmt"
    index   := msgpack([[log_id, sequence_number, offset, length, [first, last], records], ...])
    trailer := index_offset:u64 index_length:u32 checksum:u32 "sbsegend"                 little-endian
    checksum := crc32 of magic, version, index and the trailer's first two fields

In a segment of version 1 each frame holds rows, in one of version 2 parts, which a frame also says itself.

Frames are compressed one by one (`frame`), so an offset in the stored object is enough for a ranged read. They follow
each other without gaps from offset 8 to the index, in the order of the index. A reader stops at the first bad byte, and
names the object, the offset and the reason; it never guesses past it. Head and trailer keep their shape in every
version, so that a segment of a newer release can be told from a flipped bit.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from statebackend._codec.change_sets.changes import Changes, ChangeSet, Only
from statebackend._codec.change_sets.parts import Parts
from statebackend._codec.compression import ReadBuffer
from statebackend._codec.frame import (
    HEAD_BYTES,
    FrameHeader,
    Reject,
    compressed_away,
    frame_chunks,
    frame_length,
    frame_of_pages,
    open_frame,
    with_frame,
)
from statebackend.errors import CorruptSegmentError, UnsupportedVersionError
from statebackend.ids import KeyGroupRange, SequenceNumber
from statebackend.settings import Compression

MAGIC: Final = b"sbsegmt"
VERSION: Final = 2
"""The newest known version, and the one that is written."""
HEAD: Final = MAGIC + bytes([VERSION])
END: Final = b"sbsegend"
_TRAILER = struct.Struct("<QII8s")
_COVERED = struct.Struct("<QI")


class FrameEntry(msgspec.Struct, frozen=True, array_like=True):
    """One entry of the index: where the frame of a change set lies in the segment, and what it holds."""

    log_id: str
    sequence_number: SequenceNumber
    offset: int
    length: int
    key_groups: KeyGroupRange
    records: int


class EncodedSegment(msgspec.Struct, frozen=True):
    """A segment ready to be stored: its bytes in chunks, its index, and the crc32 of the whole."""

    chunks: tuple[ReadBuffer, ...]
    size_bytes: int
    checksum: int
    entries: tuple[FrameEntry, ...]

    @property
    def raw_bytes(self) -> int:
        """The size of the segment if nothing were compressed."""
        heads = self.chunks[1 : 1 + 2 * len(self.entries) : 2]
        return self.size_bytes + sum(map(compressed_away, heads, (entry.length for entry in self.entries)))


_index_decoder = msgspec.msgpack.Decoder(list[FrameEntry])


class EncodedFrame(NamedTuple):
    """The frame of a change set that has no place in a segment yet."""

    head: bytes
    payload: ReadBuffer
    entry: FrameEntry
    """At offset 0."""

    @property
    def sequence_number(self) -> SequenceNumber:
        """That of its change set."""
        return self.entry.sequence_number

    @property
    def key_groups(self) -> KeyGroupRange:
        """Those of its change set."""
        return self.entry.key_groups

    @property
    def records(self) -> int:
        """The number of its change set's changes."""
        return self.entry.records

    @property
    def size_bytes(self) -> int:
        """Bytes of the frame."""
        return self.entry.length


class FrameOfPages:
    """A frame that rows in pages are added to: they are encoded as they come, and in memory once."""

    def __init__(self) -> None:
        self._parts = Parts()
        self._spans: list[KeyGroupRange] = []
        self._records = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of what was added."""
        return self._parts.size_bytes

    def add(self, changes: Changes) -> None:
        """Encode these changes behind the others."""
        self._parts.add(changes)
        self._spans.append(changes.span)
        self._records += changes.records

    def ended(self, log_id: str, sequence_number: SequenceNumber) -> EncodedFrame:
        """The frame of all that was added, at least one row."""
        span = KeyGroupRange(min(each.first for each in self._spans), max(each.last for each in self._spans))
        head, payload = frame_of_pages(FrameHeader(log_id, sequence_number, span, self._records), self._parts)
        return EncodedFrame(
            head, payload, FrameEntry(log_id, sequence_number, 0, len(head) + len(payload), span, self._records)
        )


SealedSet = ChangeSet | EncodedFrame
"""A change set that nothing joins any more: as it is, or as its frame if it is encoded already."""


def encode_segment(change_sets: Iterable[SealedSet], compression: Compression) -> EncodedSegment:
    """Encode change sets, in the order given. Raises `ValueError` if there are none: no segment is empty."""
    return segment_of(frame_of(each, compression) for each in change_sets)


def frame_of(sealed: SealedSet, compression: Compression) -> EncodedFrame:
    """Encode a change set, unless it is encoded already."""
    return sealed if isinstance(sealed, EncodedFrame) else encode_for_segment(sealed, compression)


def encode_for_segment(change_set: ChangeSet, compression: Compression) -> EncodedFrame:
    """Encode one change set, for `segment_of` or for a commit to carry."""
    head, payload = frame_chunks(change_set, compression)
    entry = FrameEntry(
        change_set.log_id,
        change_set.sequence_number,
        0,
        len(head) + len(payload),
        change_set.key_groups,
        change_set.records,
    )
    return EncodedFrame(head, payload, entry)


def segment_of(frames: Iterable[EncodedFrame]) -> EncodedSegment:
    """Return the segment of these frames, in the order given. Raises `ValueError` if there are none."""
    chunks: list[ReadBuffer] = [HEAD]
    entries: list[FrameEntry] = []
    offset, whole = len(HEAD), zlib.crc32(HEAD)
    for head, payload, entry in frames:
        entries.append(msgspec.structs.replace(entry, offset=offset))
        chunks += (head, payload)
        whole = with_frame(whole, head, payload)
        offset += entry.length
    if not entries:
        raise ValueError("a segment holds at least one change set")
    index = msgspec.msgpack.encode(entries)
    checksum = checksum_of((HEAD, index, _COVERED.pack(offset, len(index))))
    end = (index, _TRAILER.pack(offset, len(index), checksum, END))
    whole = checksum_of(end, whole)
    return EncodedSegment((*chunks, *end), offset + sum(map(len, end)), whole, tuple(entries))


def checksum_of(chunks: Iterable[bytes | bytearray | memoryview], checksum: int = 0) -> int:
    """Return the crc32 of all chunks together, on from that of what lies before them."""
    for chunk in chunks:
        checksum = zlib.crc32(chunk, checksum)
    return checksum


def decode_segment(data: bytes | memoryview, name: str) -> Iterator[tuple[FrameHeader, list[Changes]]]:
    """Yield every frame of a whole segment, in order, each checked before it is yielded.

    Trailer and index are checked first. Raises `CorruptSegmentError`, or `UnsupportedVersionError` for a
    segment of a later release.
    """
    view = memoryview(data)
    entries = read_index(view, name)
    offset = len(HEAD)
    for entry in entries:
        if entry.offset != offset or frame_length(view[offset:], _reject(name, offset)) != entry.length:
            raise CorruptSegmentError("index and frames differ", object=name, offset=offset)
        header, changes = decode_change_set(view[offset : offset + entry.length], name, offset)
        if header != FrameHeader(entry.log_id, entry.sequence_number, entry.key_groups, entry.records):
            raise CorruptSegmentError("index and frame name different change sets", object=name, offset=offset)
        yield header, changes
        offset += entry.length


def decode_change_set(frame: bytes | memoryview, name: str, offset: int) -> tuple[FrameHeader, list[Changes]]:
    """Decode one frame, read alone or as part of a segment. `name` and `offset` say where it lies, for errors."""
    header, changes = open_change_set(frame, name, offset)
    return header, list(changes)


def open_change_set(
    frame: bytes | memoryview, name: str, offset: int, *, only: Only | None = None
) -> tuple[FrameHeader, Iterator[Changes]]:
    """As `decode_change_set`, with the changes a part at a time; for a bad part, the iterator raises."""
    return open_frame(memoryview(frame), _reject(name, offset), only=only)


def read_index(view: memoryview, name: str) -> Sequence[FrameEntry]:
    """The index of a whole segment, checked, and known to span it without gaps."""
    return read_index_in(view[: len(HEAD)], view, len(view), name)


def read_index_in(head: memoryview, tail: memoryview, size_bytes: int, name: str) -> Sequence[FrameEntry]:
    """As `read_index`, of a segment of `size_bytes`, from its `HEAD` and a tail that begins at the index or before."""
    if size_bytes < len(HEAD) + HEAD_BYTES + _TRAILER.size or bytes(head[: len(MAGIC)]) != MAGIC:
        raise CorruptSegmentError("not a segment, or cut off", object=name, offset=0, size=size_bytes)
    trailer = _read_trailer(tail, size_bytes, name)
    index = tail[max(0, trailer.index_offset + len(tail) - size_bytes) : len(tail) - _TRAILER.size]
    if checksum_of((head, index, _COVERED.pack(trailer.index_offset, trailer.index_length))) != trailer.checksum:
        raise CorruptSegmentError("index checksum differs", object=name, offset=trailer.index_offset)
    if not 1 <= (version := head[len(MAGIC)]) <= VERSION:
        raise UnsupportedVersionError(
            "segment of another release: upgrade", object=name, version=version, known=VERSION
        )
    try:
        entries = _index_decoder.decode(index)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise CorruptSegmentError("index does not decode", object=name, offset=trailer.index_offset) from error
    if not entries or sum(entry.length for entry in entries) != trailer.index_offset - len(HEAD):
        raise CorruptSegmentError("index does not span the segment", object=name, offset=trailer.index_offset)
    return entries


def index_offset(tail: memoryview, size_bytes: int, name: str) -> int:
    """Return where the index of a segment of `size_bytes` begins, from the trailer at the end of `tail`."""
    return _read_trailer(tail, size_bytes, name).index_offset


class _Trailer(NamedTuple):
    index_offset: int
    index_length: int
    checksum: int


def _read_trailer(tail: memoryview, size_bytes: int, name: str) -> _Trailer:
    trailer_offset = size_bytes - _TRAILER.size
    if len(tail) >= _TRAILER.size:
        *trailer, end = _TRAILER.unpack(tail[-_TRAILER.size :])
        found = _Trailer(*trailer)
        if end == END and found.index_offset + found.index_length == trailer_offset:
            return found
    raise CorruptSegmentError("segment trailer is damaged or cut off", object=name, offset=trailer_offset)


def _reject(name: str, offset: int) -> Reject:
    return lambda inner, reason: CorruptSegmentError(reason, object=name, offset=offset + inner)
