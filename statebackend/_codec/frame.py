"""One change set as it is stored. It is complete: a frame that a ranged read has fetched can be checked and decoded.

    frame    := checksum:u32 size:u32 header log_id payload                              little-endian
    checksum := crc32 of everything behind it
    size     := number of bytes behind it
    header   := sequence_number:u64 first:i16 last:i16 records:u32 raw_length:u32 codec:u8 log_id_length:u8
    codec    := the compression (see `compression`), plus 128 if the payload holds parts
    payload  := parts (see `parts`) or, in a frame of version 1, rows (see `records`): `raw_length` bytes, compressed

A frame whose span is empty, 0 to -1, holds changes of key group -1 only: metadata, which is not written any more.

A reader checks before it believes: first the size against the bytes at hand, then the checksum, then the rest.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import Final

import msgspec

from statebackend._codec.change_sets.changes import Changes, ChangeSet, Only
from statebackend._codec.change_sets.keyed_changes import keyed_changes
from statebackend._codec.change_sets.paged_changes import is_paged
from statebackend._codec.change_sets.parts import Parts, UnknownKindError, decode_parts, encode_parts
from statebackend._codec.change_sets.state_change import decode_rows
from statebackend._codec.compression import ReadBuffer, compress, decompress
from statebackend._codec.crc32_parts import combined
from statebackend.errors import UnsupportedVersionError, ValueDecodeError
from statebackend.ids import KeyGroupRange, SequenceNumber
from statebackend.settings import Compression, KiB, MiB

_PREFIX = struct.Struct("<II")
_HEADER = struct.Struct("<QhhIIBB")
_PARTS: Final = 0x80
"""Set in the codec of a frame whose payload holds parts: a frame is also read alone, without its segment's version."""
HEAD_BYTES: Final = _PREFIX.size + _HEADER.size
FRAME_RAW_BYTES_MAX: Final = 1024 * MiB
"""A larger change set is refused when it is written, and taken for damage when it is read."""

COMBINED_BYTES_MIN: Final = 512 * KiB
"""From here on it is quicker to combine checksums than to read the bytes once more."""

Reject = Callable[[int, str], Exception]
"""Makes the error to raise from an offset in the frame and a reason. Only the caller knows the object's name."""


class FrameHeader(msgspec.Struct, frozen=True):
    """The header of a frame, as far as its reader needs it."""

    log_id: str
    sequence_number: SequenceNumber
    key_groups: KeyGroupRange
    records: int


def frame_chunks(
    change_set: ChangeSet, compression: Compression, *, raw_bytes_max: int = FRAME_RAW_BYTES_MAX
) -> tuple[bytes, ReadBuffer]:
    """Return the frame of one change set in two chunks, what is before the payload and the payload: that may be large.

    With rows in pages it is not compressed, so that a page can be read where it lies. Raises `ValueError` if its
    changes exceed `raw_bytes_max`.
    """
    header = FrameHeader(change_set.log_id, change_set.sequence_number, change_set.key_groups, change_set.records)
    if any(map(is_paged, change_set.changes)):
        parts = Parts()
        for each in change_set.changes:
            parts.add(each)
        return frame_of_pages(header, parts, raw_bytes_max=raw_bytes_max)
    raw = encode_parts(change_set.changes)
    _check_size(raw, raw_bytes_max)
    code, payload = compress(raw, compression)
    behind = _behind_checksum(header, len(raw), code, len(payload))
    return struct.pack("<I", zlib.crc32(payload, zlib.crc32(behind))) + behind, payload


def frame_of_pages(
    header: FrameHeader, parts: Parts, *, raw_bytes_max: int = FRAME_RAW_BYTES_MAX
) -> tuple[bytes, ReadBuffer]:
    """As `frame_chunks`, of what is encoded already: it is neither copied nor read once more."""
    payload, checksum = parts.ended()
    _check_size(payload, raw_bytes_max)
    behind = _behind_checksum(header, len(payload), 0, len(payload))
    return struct.pack("<I", combined(zlib.crc32(behind), checksum, len(payload))) + behind, payload


def _behind_checksum(header: FrameHeader, raw_length: int, code: int, length: int) -> bytes:
    log_id, span = header.log_id.encode(), header.key_groups
    fields = _HEADER.pack(
        header.sequence_number, span.first, span.last, header.records, raw_length, code | _PARTS, len(log_id)
    )
    return b"".join((struct.pack("<I", len(fields) + len(log_id) + length), fields, log_id))


def _check_size(raw: bytearray, raw_bytes_max: int) -> None:
    if len(raw) > raw_bytes_max:
        raise ValueError(f"a change set of {len(raw)} bytes exceeds {raw_bytes_max}")


def with_frame(checksum: int, head: bytes, payload: ReadBuffer) -> int:
    """The crc32 of something with a frame behind it. A large frame has its own, and is not read once more."""
    if len(payload) < COMBINED_BYTES_MIN:
        return zlib.crc32(payload, zlib.crc32(head, checksum))
    (of_rest, size) = _PREFIX.unpack_from(head)
    return combined(zlib.crc32(head[:4], checksum), of_rest, 4 + size)


def frame_length(head: memoryview, reject: Reject) -> int:
    """The length of the frame that begins at `head`, as the frame says: not yet checked against its checksum."""
    if len(head) < HEAD_BYTES:
        raise reject(0, f"frame cut off after {len(head)} bytes")
    return _PREFIX.size + int(_PREFIX.unpack_from(head)[1])


def log_id_bytes(head: ReadBuffer) -> int:
    """The length of the log id of the frame with this head. Raises `struct.error` where it is cut off."""
    return int(_HEADER.unpack_from(head, _PREFIX.size)[-1])


def compressed_away(head: ReadBuffer, length: int) -> int:
    """Bytes by which compression made a frame of this length shorter, by its head; negative if it made it longer."""
    _, _, _, _, raw_length, _, log_id_length = _HEADER.unpack_from(head, _PREFIX.size)
    return int(raw_length) + HEAD_BYTES + int(log_id_length) - length


def open_frame(
    frame: memoryview, reject: Reject, *, raw_bytes_max: int = FRAME_RAW_BYTES_MAX, only: Only | None = None
) -> tuple[FrameHeader, Iterator[Changes]]:
    """Check one whole frame, and return its header and its changes, a part or less at a time, decoded when asked for.

    So a caller needs room for one of these only, and takes its changes while they are still in the processor's cache.
    Of what `only` leaves out nothing is decoded, and only the checksum of the frame proves it.
    Raises what `reject` makes, at the first thing that is wrong; for a bad part, the iterator raises it, or
    `ValueDecodeError` for a key that is no key, or `UnsupportedVersionError` for changes of an unknown kind.
    """
    if (length := frame_length(frame, reject)) != len(frame):
        raise reject(4, f"frame of {length} bytes where {len(frame)} were expected")
    checksum, _ = _PREFIX.unpack_from(frame)
    if zlib.crc32(frame[4:]) != checksum:
        raise reject(0, "frame checksum differs")
    sequence_number, first, last, records, raw_length, code, log_id_length = _HEADER.unpack_from(frame, _PREFIX.size)
    payload_offset = HEAD_BYTES + log_id_length
    if raw_length > raw_bytes_max or payload_offset > len(frame):
        raise reject(_PREFIX.size, f"frame claims {raw_length} raw bytes and a log id of {log_id_length}")
    try:
        log_id = bytes(frame[HEAD_BYTES:payload_offset]).decode()
        span = KeyGroupRange(first, last)
        raw = decompress(frame[payload_offset:], code & ~_PARTS, raw_length)
    except ValueError as error:
        raise reject(payload_offset, str(error)) from error
    header = FrameHeader(log_id, SequenceNumber(sequence_number), span, records)
    changes = decode_parts(raw, only) if code & _PARTS else _columns(raw, only)
    return header, _checked(changes, header, partial(reject, payload_offset), is_whole=only is None)


def _columns(raw: bytearray, only: Only | None) -> Iterator[Changes]:
    """The changes in a payload of rows. Only the order within a state matters, so each state's come together."""
    for block in decode_rows(raw):
        wanted = block if only is None else [row for row in block if row.state_id == only.state_id]
        yield from keyed_changes(sorted(wanted, key=attrgetter("state_id")))


def _checked(
    parts: Iterator[Changes], header: FrameHeader, reject: Callable[[str], Exception], *, is_whole: bool
) -> Iterator[Changes]:
    found, span = 0, header.key_groups
    try:
        for part in parts:
            found += part.records
            if part.span.intersection(span) != part.span:
                raise reject(f"changes of {part.span} where the header says {span}")
            yield part
    except ValueDecodeError:
        raise
    except UnknownKindError as error:
        raise UnsupportedVersionError("changes of another release: upgrade", reason=str(error)) from error
    except (ValueError, OverflowError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise reject(str(error)) from error
    if is_whole and (found != header.records or not found):
        raise reject(f"{found} changes where the header says {header.records}")
