"""A segment cut off at every length, and with every single bit flipped: always one error, naming object and place.

Four ways lead into a segment: the index, the whole, a verified copy of it, and a ranged read of one frame. The sample
has a frame of each codec, so each byte of the format occurs. What was handed out before the error is right.
"""

import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statebackend._changelog.changelog_reader import SegmentRead, changes_of, frames_of, verify
from statebackend._codec.segment import decode_change_set, decode_segment, read_index
from statebackend.errors import CorruptSegmentError
from statebackend.ids import ChangeSetHandle, Handle
from tests.changes import rows_of
from tests.codec.samples import NAME, frame_of, frames_in, mixed_segment, sample_change_sets

SEGMENT = mixed_segment()
HANDLE = Handle(NAME, 0, len(SEGMENT), zlib.crc32(SEGMENT))
INDEX = tuple(read_index(memoryview(SEGMENT), NAME))
WHOLE = [(header, rows_of(changes)) for header, changes in decode_segment(SEGMENT, NAME)]
ROWS = [row for _, rows in WHOLE for row in rows]
READ = SegmentRead(
    HANDLE,
    tuple(
        ChangeSetHandle(
            HANDLE, each.log_id, each.sequence_number, each.offset, each.length, each.key_groups, each.records
        )
        for each in INDEX
    ),
)

MEMORY_BYTES_MAX = 64 * 1024
"""What one read of the sample may take: enough for its 600 bytes and an error, too little for a believed lie."""

unhurried = settings(
    deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def error_of(call: Callable[..., object], *args: Any) -> CorruptSegmentError:
    """The error of a call: of the one class, with object and offset, and found within the memory bound."""
    tracemalloc.start()  # for the call alone: the rest of a test is five times as slow with it
    try:
        with pytest.raises(CorruptSegmentError) as caught:
            call(*args)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MEMORY_BYTES_MAX
    assert caught.value.facts["object"] == NAME
    assert 0 <= caught.value.facts["offset"] <= 2 * len(SEGMENT)
    return caught.value


def flips(start: int = 0, end: int = len(SEGMENT)) -> Iterator[tuple[int, bytes]]:
    """The sample with each single bit flipped in turn, and where."""
    for offset in range(start, end):
        for bit in range(8):
            damaged = bytearray(SEGMENT)
            damaged[offset] ^= 1 << bit
            yield offset, bytes(damaged)


def cuts() -> Iterator[bytes]:
    """The sample cut off at each length, and with something behind it."""
    for length in range(len(SEGMENT)):
        yield SEGMENT[:length]
    yield SEGMENT + b"\0"
    yield SEGMENT + SEGMENT


def frame_at(offset: int) -> int:
    """Number of the frame that holds `offset`, -1 for what surrounds the frames."""
    return next((number for number, each in enumerate(INDEX) if 0 <= offset - each.offset < each.length), -1)


def test_sample_itself_is_whole() -> None:
    """Otherwise every test below would hold for nothing."""
    verify(SEGMENT, HANDLE)
    assert frames_in(SEGMENT) == [frame_of(each) for each in sample_change_sets()]
    assert rows_of(changes_of(frames_of(SEGMENT, READ), READ.change_sets)) == ROWS


def test_every_flipped_bit_is_found_in_the_whole() -> None:
    """In the frame that holds it, after the frames before it; or before any frame, when no frame holds it."""
    for offset, damaged in flips():
        found: list[Any] = []
        error = error_of(found.extend, decode_segment(damaged, NAME))
        assert frame_at(error.facts["offset"]) == frame_at(offset)
        assert [(header, rows_of(changes)) for header, changes in found] == WHOLE[: max(frame_at(offset), 0)]


def test_every_flipped_bit_is_found_by_the_checksum_of_a_copy() -> None:
    """And the error tells where the damage begins, as far as the checksums inside can tell."""
    for offset, damaged in flips():
        error = error_of(verify, damaged, HANDLE)
        assert frame_at(error.facts["offset"]) == frame_at(offset)


def test_index_is_right_or_refused() -> None:
    """A bit flipped in a frame leaves the index as it was; every other one spoils it."""
    for offset, damaged in flips():
        if frame_at(offset) >= 0:
            assert tuple(read_index(memoryview(damaged), NAME)) == INDEX
        else:
            error_of(read_index, memoryview(damaged), NAME)


def test_every_flipped_bit_is_found_by_a_ranged_read() -> None:
    """A frame that was read alone proves itself, without the index and without a checksum of the whole."""
    for entry in INDEX:
        end = entry.offset + entry.length
        for _, damaged in flips(entry.offset, end):
            error = error_of(decode_change_set, damaged[entry.offset : end], NAME, entry.offset)
            assert entry.offset <= error.facts["offset"] < end


def test_handles_lead_to_the_right_changes_or_to_an_error() -> None:
    """Even where nobody has verified the whole. What surrounds the frames does not matter to handles."""
    for offset, damaged in flips():
        found: list[Any] = []
        if frame_at(offset) >= 0:
            error_of(found.extend, changes_of(frames_of(damaged, READ), READ.change_sets))
            assert rows_of(found) == [row for _, rows in WHOLE[: frame_at(offset)] for row in rows]
        else:
            assert rows_of(changes_of(frames_of(damaged, READ), READ.change_sets)) == ROWS


def test_every_cut_is_found() -> None:
    """At whatever length the object ends. No frame is handed out: the index comes first, and it is at the end."""
    for damaged in cuts():
        found: list[Any] = []
        error_of(found.extend, decode_segment(damaged, NAME))
        error_of(read_index, memoryview(damaged), NAME)
        error_of(verify, damaged, HANDLE)
        assert found == []


def test_place_of_damage_lies_in_the_object() -> None:
    """Also where the trailer says that an index of no length lies far beyond the end."""
    damaged = SEGMENT[:-24] + struct.pack("<QI", 2**56, 0) + SEGMENT[-12:]
    assert error_of(read_index, memoryview(damaged), NAME).facts["offset"] == len(SEGMENT) - 24


def test_every_cut_of_a_frame_is_found() -> None:
    """A ranged read that came back short, or was asked for one byte too many."""
    for entry in INDEX:
        for length in (*range(entry.length), entry.length + 1):
            error = error_of(decode_change_set, SEGMENT[entry.offset :][:length], NAME, entry.offset)
            assert entry.offset <= error.facts["offset"] < entry.offset + entry.length


def test_frame_of_another_place_is_refused() -> None:
    """Each frame is right in itself, but not what the handle asks for."""
    first, second, *_ = READ.change_sets
    moved = ChangeSetHandle(
        HANDLE, first.log_id, first.sequence_number, second.offset, second.length, first.key_groups, first.records
    )
    error = error_of(list, changes_of(frames_of(SEGMENT, SegmentRead(HANDLE, (moved,))), (moved,)))
    assert error.facts["offset"] == second.offset


@unhurried
@given(data=st.binary(max_size=200), head=st.booleans(), tail=st.booleans())
def test_arbitrary_bytes_are_no_segment(data: bytes, head: bool, tail: bool) -> None:
    """Nor are they with a right beginning and a right end."""
    data = (SEGMENT[:8] if head else b"") + data + (SEGMENT[-24:] if tail else b"")
    error_of(frames_in, data)
    error_of(decode_change_set, data, NAME, 0)


@unhurried
@given(st.data())
def test_any_overwritten_stretch_is_found(data: st.DataObject) -> None:
    """Zeros as after a lost page, another part of the same object, noise: many bytes at a time."""
    start = data.draw(st.integers(0, len(SEGMENT) - 1))
    stretch = data.draw(
        st.one_of(
            st.binary(min_size=1, max_size=64),
            st.integers(1, 512).map(bytes),
            st.integers(0, len(SEGMENT) - 1).map(lambda at: SEGMENT[at : at + 64]),
        )
    )
    damaged = (SEGMENT[:start] + stretch + SEGMENT[start + len(stretch) :])[: len(SEGMENT)]
    if damaged != SEGMENT:
        error_of(frames_in, damaged)
        error_of(verify, damaged, HANDLE)
