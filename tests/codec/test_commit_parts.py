"""The parts of a commit say of each range what the whole does, and are checked to the byte."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend._codec.commit import Commit, decode_entry, encode_entry
from statebackend._codec.commit_parts import parts_of
from statebackend.errors import CorruptCommitError
from statebackend.ids import KeyGroupRange
from tests.codec.test_commit import COMMITS, JOB, sample

KEY = "commits/000000000007"


@given(commit=COMMITS, inline=st.binary(max_size=20))
def test_a_part_is_what_the_whole_says_of_its_range(commit: Commit, inline: bytes) -> None:
    """Handles into the commit's own inline frames are whole as well."""
    body = encode_entry(commit, KEY, [inline]).body
    whole = decode_entry(body, KEY, job=JOB)
    assert isinstance(whole, Commit)
    parts = parts_of(whole, KEY, body)
    assert len(parts.places) == len(whole.ranges)
    assert parts.carries_changes is bool(inline)
    for place, (part, (offset, length, _)) in enumerate(zip(whole.ranges, parts.places, strict=True)):
        found = parts.decode(body[offset : offset + length], place, part.key_groups)
        assert found == msgspec.structs.replace(whole, ranges=(part,), outbox=())


def test_whatever_else_lies_there_is_refused() -> None:
    """Any flipped bit, any cut, and the part of other key groups."""
    body = encode_entry(sample(), KEY).body
    commit = decode_entry(body, KEY, job=JOB)
    assert isinstance(commit, Commit)
    parts, owned = parts_of(commit, KEY, body), commit.ranges[0].key_groups
    ((offset, length, _),) = parts.places
    data = body[offset : offset + length]
    flipped = [data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :] for at in range(length) for bit in range(8)]
    for wrong in (*flipped, *(data[:end] for end in range(length)), data + b"\0"):
        with pytest.raises(CorruptCommitError):
            parts.decode(wrong, 0, owned)
    with pytest.raises(CorruptCommitError):
        parts.decode(data, 0, KeyGroupRange(owned.first, owned.last - 1))
    assert parts.decode(data, 0, owned).ranges == commit.ranges
