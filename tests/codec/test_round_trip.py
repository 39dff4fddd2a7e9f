"""What goes in comes out, by the library's reader and by one that knows the grammar only."""

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend._codec.change_sets.changes import ChangeSet, change_set
from statebackend._codec.change_sets.keyed_changes import keyed_changes
from statebackend._codec.change_sets.parts import encode_parts
from statebackend._codec.change_sets.state_change import Operation, StateChange
from statebackend._codec.compression import compress, decompress
from statebackend._codec.frame import FrameHeader, frame_chunks, open_frame
from statebackend._codec.segment import decode_change_set, encode_segment, read_index
from statebackend.ids import SequenceNumber
from statebackend.settings import Compression
from tests.changes import rows_of
from tests.codec import grammar_v1
from tests.codec.samples import (
    CHANGE_SETS,
    CHANGES,
    COMPRESSIONS,
    NAME,
    frame_of,
    frames_in,
    mixed_segment,
    plain,
    sample_change_sets,
)

unhurried = settings(deadline=None)  # the machine may be busy: nothing here is about time
ANY_COMPRESSION = st.sampled_from(COMPRESSIONS)


def reject(offset: int, reason: str) -> Exception:
    return AssertionError(f"{offset}: {reason}")


@unhurried
@given(st.lists(CHANGES, min_size=1, max_size=30))
def test_rows_of_early_releases_come_back_as_they_were(changes: list[StateChange]) -> None:
    """In order within each state, with empty data, keys of every kind, and bytes told from str."""
    blocks = [changes[:7], changes[7:]] if changes[7:] else [changes]
    payload = b"".join(map(grammar_v1.write_block, blocks))
    frame = grammar_v1.write_frame(payload, raw_length=len(payload), records=len(changes), last=32_767)
    _, parts = decode_change_set(frame, NAME, 0)
    expected = [change for block in blocks for change in sorted(block, key=lambda change: change.state_id)]
    assert list(map(plain, rows_of(parts))) == list(map(plain, expected))
    assert [repr(row.key) for row in rows_of(parts)] == [repr(row.key) for row in expected]


@unhurried
@given(
    compression=ANY_COMPRESSION,
    raw=st.binary(max_size=200) | st.binary(min_size=1, max_size=8).map(lambda part: part * 200),
)
def test_compressed_bytes_come_back(compression: Compression, raw: bytes) -> None:
    """And take no more room than the raw ones, whatever was asked for."""
    code, stored = compress(raw, compression)
    assert bytes(decompress(stored, code, len(raw))) == raw
    assert len(stored) <= len(raw)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("difference", [-1, 1])
def test_bytes_that_are_more_or_fewer_than_promised_are_refused(compression: Compression, difference: int) -> None:
    """A buffer that was not filled would end in zeros that nobody wrote."""
    raw = b"0123456789" * 10
    code, stored = compress(raw, compression)
    with pytest.raises(ValueError):
        decompress(stored, code, len(raw) + difference)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("part", [b"\0", b"ab", b"\0" * 1000 + b"\1"], ids=["one", "two", "long"])
def test_what_compresses_best_is_not_taken_for_a_lie(compression: Compression, part: bytes) -> None:
    """The bound on what a stored byte may stand for lies above the best that each codec can do."""
    raw = part * (32 * 1024 * 1024 // len(part))
    code, stored = compress(raw, compression)
    assert decompress(stored, code, len(raw)) == raw


@unhurried
@given(compression=ANY_COMPRESSION, change_set=CHANGE_SETS)
def test_frame_comes_back(compression: Compression, change_set: ChangeSet) -> None:
    """Alone, without the segment around it."""
    frame = b"".join(frame_chunks(change_set, compression))
    header, changes = open_frame(memoryview(frame), reject)
    assert header == FrameHeader(
        change_set.log_id, change_set.sequence_number, change_set.key_groups, change_set.records
    )
    assert grammar_v1.read_frame(frame) == frame_of(change_set)
    assert encode_parts(changes) == encode_parts(change_set.changes)


def test_frame_comes_back_in_its_parts() -> None:
    """One part at a time, so that not all of its changes have to be held."""
    changes = [StateChange(0, Operation.SET, 0, number) for number in range(9)]
    cut = [part for each in keyed_changes(changes) for part in each.cut(1)]
    frame = b"".join(frame_chunks(change_set("0-127", SequenceNumber(0), cut), "zstd"))
    header, parts = open_frame(memoryview(frame), reject)
    assert header.records == len(changes)
    assert [rows_of([part]) for part in parts] == [[change] for change in changes]


@unhurried
@given(compression=ANY_COMPRESSION, change_sets=st.lists(CHANGE_SETS, min_size=1, max_size=4))
def test_segment_comes_back_by_both_readers(compression: Compression, change_sets: list[ChangeSet]) -> None:
    """The library's, and the independent one that decompresses with another library."""
    segment = encode_segment(change_sets, compression)
    data = b"".join(segment.chunks)
    expected = [frame_of(each) for each in change_sets]
    assert frames_in(data) == expected
    assert grammar_v1.read_segment(data) == expected
    assert (segment.size_bytes, segment.checksum) == (len(data), zlib.crc32(data))


@unhurried
@given(compression=ANY_COMPRESSION, change_sets=st.lists(CHANGE_SETS, min_size=1, max_size=4))
def test_each_frame_can_be_read_alone(compression: Compression, change_sets: list[ChangeSet]) -> None:
    """By offset and length in the stored object, as the index and the handles give them."""
    segment = encode_segment(change_sets, compression)
    data = b"".join(segment.chunks)
    assert list(read_index(memoryview(data), NAME)) == list(segment.entries)
    for entry, expected in zip(segment.entries, change_sets, strict=True):
        header, changes = decode_change_set(data[entry.offset : entry.offset + entry.length], NAME, entry.offset)
        assert (header.log_id, header.sequence_number) == (expected.log_id, expected.sequence_number)
        assert encode_parts(changes) == encode_parts(expected.changes)


def test_frames_of_different_codecs_share_a_segment() -> None:
    """The codec is each frame's own."""
    data = mixed_segment()
    assert frames_in(data) == grammar_v1.read_segment(data) == [frame_of(each) for each in sample_change_sets()]
    codecs = {data[entry.offset + 28] - grammar_v1.PARTS for entry in read_index(memoryview(data), NAME)}
    assert codecs == {0, 1, 2, 3}


def test_many_parts_of_several_states_in_one_frame_are_read_by_both() -> None:
    """A change set larger than a part."""
    rows = [StateChange(number % 128, Operation.SET, number // 3000, number, b"x") for number in range(9000)]
    large = change_set("log", SequenceNumber(3), [part for each in keyed_changes(rows) for part in each.cut(20_000)])
    assert len(large.changes) > 3
    data = b"".join(encode_segment([large], "zstd").chunks)
    assert frames_in(data) == grammar_v1.read_segment(data) == [frame_of(large)]


def test_there_is_no_empty_segment() -> None:
    """A segment without change sets would be an object that nothing ever points to, and nothing deletes."""
    with pytest.raises(ValueError):
        encode_segment([], "none")


def test_there_is_no_empty_change_set() -> None:
    """It would have no key groups."""
    with pytest.raises(ValueError):
        change_set("log", SequenceNumber(0), [])


def test_change_set_beyond_the_limit_is_refused_when_written() -> None:
    """And not found out when it is read: the limit of the reader is the writer's.

    Row: section 30, restore: change set > 2 GiB offset. 1 GiB is the limit of one, and offsets have 64 bits.
    """
    (sample, *_) = sample_change_sets()
    raw_bytes = len(encode_parts(sample.changes))
    frame = b"".join(frame_chunks(sample, "zstd", raw_bytes_max=raw_bytes))
    open_frame(memoryview(frame), reject, raw_bytes_max=raw_bytes)
    with pytest.raises(ValueError):
        b"".join(frame_chunks(sample, "zstd", raw_bytes_max=raw_bytes - 1))
    with pytest.raises(AssertionError):
        open_frame(memoryview(frame), reject, raw_bytes_max=raw_bytes - 1)
