"""The file of a local snapshot: damage and lies are errors that name it, within bounds."""

import msgspec
import pytest

from statebackend._codec.local_snapshot import HEAD, LocalSnapshot, decode_local_snapshot, encode_local_snapshot
from statebackend.errors import CorruptObjectError, UnsupportedVersionError
from statebackend.ids import ChangeSetHandle, CheckpointId, Handle, KeyGroupRange, RocksDBFile, SequenceNumber
from tests.codec.grammar_v1 import read_local_snapshot, write_local_snapshot

HANDLE = ChangeSetHandle(Handle("segments/a", 0, 100, 7), "0-63", SequenceNumber(4), 8, 50, KeyGroupRange(3, 5), 2)
SAMPLE = LocalSnapshot(
    job="fleet",
    operator="legs",
    checkpoint_id=CheckpointId(42),
    key_groups=KeyGroupRange(0, 63),
    changelog=(HANDLE,),
    rocksdb=(RocksDBFile("000008.sst", Handle("segments/b", 0, 1000, 8)),),
)
NAME = "chk_42/snapshot"


def test_it_comes_back_by_both_readers() -> None:
    """The library's, and the one that knows the grammar only."""
    data = encode_local_snapshot(SAMPLE)
    assert decode_local_snapshot(data, NAME) == SAMPLE
    assert list(read_local_snapshot(data)) == [field.encode_name for field in msgspec.structs.fields(LocalSnapshot)]


def test_damage_at_every_offset_is_found() -> None:
    """A flipped bit, and an end that is missing: an error that names the file and a place in it."""
    data = encode_local_snapshot(SAMPLE)
    for offset in range(len(data)):
        flipped = bytearray(data)
        flipped[offset] ^= 1 << offset % 8
        for damaged in (bytes(flipped), data[:offset]):
            with pytest.raises(CorruptObjectError) as caught:
                decode_local_snapshot(damaged, NAME)
            assert caught.value.facts["object"] == NAME
            assert 0 <= caught.value.facts["offset"] <= len(data)


@pytest.mark.parametrize("manifest", [b"", b"\xc1", b"\x90", b"\x80", b"\x91" * 100_000, msgspec.msgpack.encode([1])])
def test_a_manifest_that_is_none_is_refused(manifest: bytes) -> None:
    """Under a checksum that is right: what was written, and nonsense all the same."""
    with pytest.raises(CorruptObjectError):
        decode_local_snapshot(write_local_snapshot(HEAD, manifest), NAME)


def test_a_later_release_s_is_told_from_damage() -> None:
    """Its checksum covers the version: somebody wrote it."""
    with pytest.raises(UnsupportedVersionError):
        decode_local_snapshot(write_local_snapshot(b"sblocal\x02", b"\x80"), NAME)


def test_fields_of_a_later_release_are_passed_over() -> None:
    """Within version 1 one may be added."""
    manifest = msgspec.msgpack.encode(msgspec.to_builtins(SAMPLE) | {"later": 1})
    assert decode_local_snapshot(write_local_snapshot(HEAD, manifest), NAME) == SAMPLE
