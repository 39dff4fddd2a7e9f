"""A part of staged output: it comes back by both readers; damage and lies are errors that name it, within bounds."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend._codec.staged import decode_part, encode_part
from statebackend.errors import CorruptObjectError, UnsupportedVersionError
from tests.codec.grammar_v1 import read_part, write_part
from tests.codec.samples import COMPRESSIONS

NAME = "outbox/00000003-00000000-0a1b2c3d4e5f60718293a4b5c6d7e8f9"
MEMORY_BYTES_MAX = 64 * 1024


@settings(deadline=None)
@given(st.binary(max_size=2000), st.sampled_from(COMPRESSIONS), st.integers(1, 20))
def test_a_part_comes_back_by_both_readers(payload: bytes, compression, times: int) -> None:
    """Of whatever bytes: they are Arrow's business."""
    data = encode_part(payload * times, compression)
    assert decode_part(data, NAME) == payload * times
    assert read_part(data) == payload * times


def test_damage_at_every_offset_is_found() -> None:
    """A flipped bit, and an end that is missing: an error that names the object and a place in it."""
    data = encode_part(b"rows " * 9, "zstd")
    for offset in range(len(data)):
        flipped = bytearray(data)
        flipped[offset] ^= 1 << offset % 8
        for damaged in (bytes(flipped), data[:offset]):
            with pytest.raises(CorruptObjectError) as caught:
                decode_part(damaged, NAME)
            assert caught.value.facts["object"] == NAME
            assert 0 <= caught.value.facts["offset"] <= len(data)


@pytest.mark.parametrize(
    ("payload", "raw_length", "codec"),
    [
        pytest.param(b"", 2**63, 0, id="nothing as everything"),
        pytest.param(b"ab", 3, 0, id="too long"),
        pytest.param(b"ab", 1, 0, id="too short"),
        pytest.param(b"ab", 2, 9, id="no such codec"),
        pytest.param(b"\xff" * 40, 2**40, 3, id="more than a codec can hold"),
        pytest.param(b"\xff" * 40, 4000, 1, id="not lz4"),
    ],
)
def test_a_lie_under_a_right_checksum_is_refused(payload: bytes, raw_length: int, codec: int) -> None:
    """And costs no memory."""
    tracemalloc.start()
    with pytest.raises(CorruptObjectError):
        decode_part(write_part(payload, raw_length=raw_length, codec=codec), NAME)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < MEMORY_BYTES_MAX


@pytest.mark.parametrize("version", [0, 2, 255])
def test_a_later_release_s_is_told_from_damage(version: int) -> None:
    """Its checksum covers the version: somebody wrote it."""
    with pytest.raises(UnsupportedVersionError) as caught:
        decode_part(write_part(b"", raw_length=0, version=version), NAME)
    assert caught.value.facts["version"] == version
