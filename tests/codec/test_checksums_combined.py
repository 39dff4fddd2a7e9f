"""Checksums of large frames are put together from those of their parts, and are those of the bytes all the same."""

import struct
import zlib
from itertools import accumulate, pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend._codec.change_sets.changes import change_set
from statebackend._codec.change_sets.keyed_changes import SET
from statebackend._codec.change_sets.state_change import StateChange
from statebackend._codec.crc32_parts import combined, of_pages
from statebackend._codec.frame import COMBINED_BYTES_MIN, frame_chunks
from statebackend._codec.segment import FrameOfPages, decode_segment, encode_segment, segment_of
from statebackend.ids import KeyGroupRange, SequenceNumber
from tests.changes import paged, set_of_rows

ROWS = 40_000


@pytest.mark.parametrize("count", [1, 100, ROWS])
def test_a_frame_of_pages_is_that_of_its_change_set(count: int) -> None:
    """Encoded as rows come, it has the same bytes, with the checksum that a reader computes."""
    changes = [paged(count, 3), paged(7, 4)]
    frame = FrameOfPages()
    for each in changes:
        frame.add(each)
    ended = frame.ended("base", SequenceNumber(5))
    head, payload = frame_chunks(change_set("base", SequenceNumber(5), changes), "zstd")
    assert (ended.head, bytes(ended.payload)) == (head, bytes(payload))
    assert struct.unpack_from("<I", head) == (zlib.crc32(payload, zlib.crc32(head[4:])),)
    assert (ended.key_groups, ended.records, ended.size_bytes) == (
        KeyGroupRange(3, 4), count + 7, len(head) + len(payload)
    )  # fmt: skip


@pytest.mark.parametrize("count", [10, ROWS])
def test_a_segment_has_the_checksum_of_its_bytes(count: int) -> None:
    """Whatever its frames are: small or large, with pages or compressed."""
    frame = FrameOfPages()
    frame.add(paged(count, 3))
    octets = np.random.default_rng(1).bytes(100 if count < 100 else 2 * COMBINED_BYTES_MIN)
    of_keys = set_of_rows("0-7", 1, [StateChange(4, SET[0], 1, "key", octets)])
    frames = [frame.ended("base", SequenceNumber(0)), of_keys]
    for encoded in (encode_segment(frames, "zstd"), segment_of([frames[0]])):
        content = b"".join(encoded.chunks)
        assert (encoded.checksum, encoded.size_bytes) == (zlib.crc32(content), len(content))
        assert next(header.records for header, _ in decode_segment(content, "it")) == count


@pytest.mark.parametrize("length", [0, 1, 7, 4096, 1 << 20, (1 << 20) + 3, 5_000_011])
def test_two_checksums_make_that_of_both(length: int) -> None:
    """Of any length, also where it has many bits."""
    first, second = b"before", bytes(length)
    assert combined(zlib.crc32(first), zlib.crc32(second), length) == zlib.crc32(first + second)


@given(st.lists(st.integers(1, 40), max_size=5), st.sampled_from([1, 16, 4096]), st.randoms(use_true_random=False))
def test_checksums_of_pages_make_that_of_each_run(counts: list[int], page_bytes: int, chance: Random) -> None:
    """However many pages each has."""
    pages = [chance.randbytes(page_bytes) for _ in range(sum(counts))]
    checksums = np.array([zlib.crc32(each) for each in pages], np.uint32)
    ends = list(accumulate(counts, initial=0))
    runs = [b"".join(pages[begin:end]) for begin, end in pairwise(ends)]
    assert of_pages(checksums, page_bytes, counts) == [zlib.crc32(each) for each in runs]
