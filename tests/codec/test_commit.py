"""Commit objects: they come back, every cut and flipped bit is found, and what is refused or passed over."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend._codec.commit import Claim, Commit, decode_entry, encode_entry
from statebackend.errors import CorruptCommitError, InputError, UnsupportedVersionError, WrongJobError
from statebackend.ids import (
    ChangeSetHandle,
    CheckpointId,
    CommitSequence,
    Epoch,
    Handle,
    KeyGroupRange,
    RangeState,
    RocksDBBase,
    RocksDBFile,
    SequenceNumber,
    SourceMark,
    StagedOutput,
    StateDescriptor,
)
from tests.codec.grammar_v1 import read_commit, write_commit
from tests.formats.make_golden import GOLDEN

NAME = "commits/000000000007"
JOB = "fleet"
MEMORY_BYTES_MAX = 64 * 1024

COUNTS = st.integers(0, 2**63 - 1)
RANGES = st.tuples(st.integers(0, 32_767), st.integers(0, 32_767)).map(lambda ends: KeyGroupRange(min(ends), max(ends)))
SEGMENTS = st.builds(Handle, st.text(max_size=20), COUNTS, COUNTS, st.integers(0, 2**32 - 1))
HANDLES = st.builds(
    ChangeSetHandle,
    segment=SEGMENTS,
    log_id=st.text(max_size=10),
    sequence_number=COUNTS.map(SequenceNumber),
    offset=COUNTS,
    length=COUNTS,
    key_groups=RANGES,
    records=COUNTS,
)
SOURCES = st.builds(SourceMark, st.text(max_size=9), COUNTS, st.text(max_size=9))
OUTPUTS = st.builds(
    StagedOutput,
    SOURCES,
    COUNTS,
    st.binary(max_size=9),
    st.lists(st.builds(Handle, st.text(max_size=20), COUNTS, COUNTS, COUNTS), max_size=2).map(tuple),
)
FILES = st.builds(RocksDBFile, st.from_regex(r"[0-9]{6}\.sst", fullmatch=True), SEGMENTS)
NATIVE = st.builds(
    RocksDBBase, RANGES, COUNTS.map(CheckpointId), st.tuples(RANGES), st.lists(FILES, min_size=1, max_size=2).map(tuple)
)


def fitting(commit: Commit) -> Commit:
    """The same with ranges that have each key group once, and a parent that comes before it."""
    count, groups = len(commit.ranges), commit.max_parallelism
    owned = [KeyGroupRange(groups * place // count, groups * (place + 1) // count - 1) for place in range(count)]
    parent = None if commit.parent is None or not commit.sequence else commit.parent % commit.sequence
    return msgspec.structs.replace(
        commit,
        parent=parent,
        ranges=tuple(
            msgspec.structs.replace(part, key_groups=own) for part, own in zip(commit.ranges, owned, strict=True)
        ),
    )


COMMITS = st.builds(
    Commit,
    job=st.just(JOB),
    sequence=COUNTS.map(CommitSequence),
    checkpoint_id=COUNTS.map(CheckpointId),
    epoch=COUNTS.map(Epoch),
    parent=st.none() | COUNTS.map(CommitSequence),
    stamp=st.text(max_size=32),
    max_parallelism=st.integers(3, 32_768),
    ranges=st.lists(
        st.builds(
            RangeState,
            RANGES,
            st.lists(HANDLES, max_size=3).map(tuple),
            rocksdb=st.lists(NATIVE, max_size=2).map(tuple),
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
    states=st.lists(
        st.builds(StateDescriptor, COUNTS, st.text(max_size=9), st.just("value"), st.text(max_size=9)),
        max_size=3,
        unique_by=(lambda state: state.state_id, lambda state: state.name),
    ).map(tuple),
    source=st.none() | SOURCES,
    outbox=st.lists(OUTPUTS, max_size=2).map(tuple),
    committed_at_s=st.floats(0, 2**40),
    release=st.text(max_size=9),
    marks=st.none() | st.lists(SOURCES, max_size=2).map(tuple),
).map(fitting)


def sample(**changed: Any) -> Commit:
    """A commit with something in every field."""
    values: dict[str, Any] = {
        "job": JOB,
        "sequence": 7,
        "checkpoint_id": 42,
        "epoch": 3,
        "parent": 6,
        "stamp": "5f0c",
        "max_parallelism": 128,
        "ranges": (
            RangeState(
                KeyGroupRange(0, 127),
                (
                    ChangeSetHandle(
                        Handle("segments/a1", 0, 611, 0xDEADBEEF),
                        "0-127",
                        SequenceNumber(0),
                        8,
                        99,
                        KeyGroupRange(3, 9),
                        5,
                    ),
                ),
            ),
        ),
        "states": (StateDescriptor(0, "legs", "value", '"int"'),),
        "source": SourceMark("query", 41, "run"),
        "committed_at_s": 1.5,
        "release": "0.1.0",
    }
    return Commit(**(values | changed))


def error_of(error: type[Exception], call: Callable[..., object], *args: Any, **options: Any) -> Any:
    """What the call raises, found within the memory bound."""
    tracemalloc.start()
    with pytest.raises(error) as caught:
        call(*args, **options)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < MEMORY_BYTES_MAX
    return caught.value


def corruption_of(data: bytes) -> CorruptCommitError:
    """The error of decoding `data`, which names the object and a place in it."""
    error: CorruptCommitError = error_of(CorruptCommitError, decode_entry, data, NAME, job=JOB)
    assert error.facts["object"] == NAME
    assert 0 <= error.facts["offset"] <= max(len(data), 16)
    return error


@settings(deadline=None)
@given(COMMITS)
def test_commit_comes_back_by_both_readers(commit: Commit) -> None:
    """The library's, and the one that knows the grammar only."""
    data = encode_entry(commit, NAME).body
    assert decode_entry(data, NAME, job=JOB) == commit
    assert msgspec.convert(read_commit(data), Commit) == commit


def test_manifest_is_a_map_of_the_fields() -> None:
    """So that a field can be added, and so that a person can read it with any MessagePack tool."""
    manifest = read_commit(encode_entry(sample(), NAME).body)
    names = [field.name for field in msgspec.structs.fields(Commit)]
    assert list(manifest) == [
        "entry",
        *(name for name in names if name not in ("outbox", "clock", "marks", "starts_from", "transformed")),
    ]
    assert manifest["ranges"][0]["changelog"] == [[["segments/a1", 0, 611, 0xDEADBEEF], "0-127", 0, 8, 99, [3, 9], 5]]


def test_every_flipped_bit_is_found() -> None:
    """In the version too: it lies under the checksum, so damage is never taken for a newer release."""
    data = encode_entry(sample(), NAME).body
    for offset in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[offset] ^= 1 << bit
            corruption_of(bytes(damaged))


def test_every_cut_is_found() -> None:
    """At whatever length the object ends, and with something behind it."""
    data = encode_entry(sample(), NAME).body
    for length in range(len(data)):
        corruption_of(data[:length])
    corruption_of(data + b"\0")
    corruption_of(data + data)


@pytest.mark.parametrize(
    "manifest",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xc0", id="nil"),
        pytest.param(b"\x91" * 5_000, id="nested without end"),
        pytest.param(b"\x81\xa1x" + b"\x91" * 5_000, id="unknown field nested without end"),
        pytest.param(b"\xdf\xff\xff\xff\xff", id="4 billion fields"),
        pytest.param(b"\x81\xa6ranges\xdd\xff\xff\xff\xff", id="4 billion ranges"),
        pytest.param(b"\x81\xa3job\xa1\xff", id="job not UTF-8"),
        pytest.param({"job": JOB}, id="fields missing"),
        pytest.param(read_commit(encode_entry(sample(), NAME).body) | {"epoch": "3"}, id="epoch not a number"),
        pytest.param(
            read_commit(encode_entry(sample(), NAME).body) | {"ranges": [{"key_groups": [9, 3], "changelog": []}]},
            id="key groups the wrong way round",
        ),
        pytest.param(
            read_commit(encode_entry(sample(), NAME).body) | {"ranges": [{"key_groups": [0, 10**12], "changelog": []}]},
            id="more key groups than any job can have",
        ),
        pytest.param(
            read_commit(encode_entry(sample(), NAME).body) | {"max_parallelism": 10**12}, id="parallelism of 10**12"
        ),
        pytest.param(read_commit(encode_entry(sample(), NAME).body) | {"max_parallelism": 0}, id="no parallelism"),
    ],
)
def test_manifest_that_is_none_is_refused(manifest: Any) -> None:
    """Under a right checksum: written by something else than this library."""
    assert corruption_of(write_commit(manifest)).facts["offset"] == 16


@pytest.mark.parametrize("version", [0, 7, 255])
def test_commit_of_another_release_is_told_from_damage(version: int) -> None:
    """Whatever its manifest is: a reader does not look into it."""
    error = error_of(UnsupportedVersionError, decode_entry, write_commit(b"?", version=version), NAME, job=JOB)
    assert (error.facts["object"], error.facts["version"]) == (NAME, version)


@pytest.mark.parametrize("version", [1, 2])
def test_rocksdb_bases_in_a_version_that_has_none_are_refused(version: int) -> None:
    """A reader of that version would pass over them."""
    manifest = read_commit((GOLDEN / "commit-v3-native.bin").read_bytes())
    error = error_of(CorruptCommitError, decode_entry, write_commit(manifest, version=version), NAME, job="fleet")
    assert error.facts["offset"] == 7


@pytest.mark.parametrize("version", [1, 2, 3])
def test_columns_beside_rocksdb_in_a_version_that_has_none_are_refused(version: int) -> None:
    """A reader of that version would restore the state without them."""
    manifest = read_commit((GOLDEN / "commit-v4-columns.bin").read_bytes())
    error = error_of(CorruptCommitError, decode_entry, write_commit(manifest, version=version), NAME, job="fleet")
    assert error.facts["offset"] == 7


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_clock_in_a_version_that_has_none_is_refused(version: int) -> None:
    """A reader of that version would go on without it."""
    manifest = read_commit((GOLDEN / "commit-v5-clock.bin").read_bytes())
    error = error_of(CorruptCommitError, decode_entry, write_commit(manifest, version=version), NAME, job="fleet")
    assert error.facts["offset"] == 7


@pytest.mark.parametrize("now_s", [float("nan"), float("inf"), "noon"])
def test_a_clock_that_is_no_time_is_refused(now_s: object) -> None:
    """It would make everything late, or nothing ever."""
    manifest = read_commit((GOLDEN / "commit-v5-clock.bin").read_bytes())
    manifest["clock"]["now_s"] = now_s
    error_of(CorruptCommitError, decode_entry, write_commit(manifest, version=5), NAME, job="fleet")


@pytest.mark.parametrize("name", ["", ".", "..", "../CURRENT", "a/b", "/etc/passwd", "a\0", "x" * 101])
def test_a_file_that_would_lie_elsewhere_is_refused(name: str) -> None:
    """What the commit names is written below a directory of ours."""
    manifest = read_commit((GOLDEN / "commit-v3-native.bin").read_bytes())
    manifest["ranges"][0]["native"][0][3][0][0] = name
    error_of(CorruptCommitError, decode_entry, write_commit(manifest, version=3), NAME, job="fleet")


STATE = {"state_id": 0, "name": "legs", "kind": "value", "schema": '"int"'}


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"ranges": []}, id="no range"),
        pytest.param({"ranges": [{"key_groups": [0, 126], "changelog": []}]}, id="the last key group is missing"),
        pytest.param({"ranges": [{"key_groups": [0, 128], "changelog": []}]}, id="a key group too many"),
        pytest.param(
            {"ranges": [{"key_groups": [first, 127], "changelog": []} for first in (0, 127)]}, id="a key group twice"
        ),
        pytest.param({"max_parallelism": 129}, id="more key groups than the ranges have"),
        pytest.param({"parent": 7}, id="continues itself"),
        pytest.param({"parent": 8}, id="continues a later one"),
        pytest.param({"states": [STATE, STATE | {"name": "hops"}]}, id="two states of one number"),
        pytest.param({"states": [STATE, STATE | {"state_id": 1}]}, id="two states of one name"),
    ],
)
def test_parts_that_cannot_belong_together_are_refused(changed: dict[str, Any]) -> None:
    """Under a right checksum: the state would lack what it had, count it twice, or have no beginning."""
    manifest = read_commit(encode_entry(sample(), NAME).body) | changed
    assert corruption_of(write_commit(manifest)).facts["offset"] == 16


def test_a_claim_that_names_a_later_commit_is_refused() -> None:
    """The newest commit comes before it."""
    claim = Claim(job=JOB, sequence=CommitSequence(7), epoch=Epoch(3), stamp="5f0c", newest=CommitSequence(6))
    manifest = read_commit(encode_entry(claim, NAME).body) | {"newest": 7}
    assert corruption_of(write_commit(manifest)).facts["offset"] == 16


def test_commit_of_another_job_is_refused() -> None:
    """It is whole, but state of one job must not continue another's."""
    error = error_of(WrongJobError, decode_entry, encode_entry(sample(job="other"), NAME).body, NAME, job=JOB)
    assert (error.facts["job"], error.facts["job_found"]) == (JOB, "other")


def test_reader_passes_over_fields_it_does_not_know() -> None:
    """Within a version a later release may say more, in the manifest and in each part of it."""
    manifest = read_commit(encode_entry(sample(), NAME).body)
    manifest["later"] = ["more"]
    manifest["states"][0]["ttl_s"] = 5
    manifest["ranges"][0]["changelog"][0].append("later")
    assert decode_entry(write_commit(manifest), NAME, job=JOB) == sample()


def test_fields_with_defaults_may_be_missing() -> None:
    """An earlier release of version 1 did not write them."""
    manifest = read_commit(encode_entry(sample(), NAME).body)
    for name in ("source", "committed_at_s", "release"):
        del manifest[name]
    decoded = decode_entry(write_commit(manifest), NAME, job=JOB)
    assert decoded == sample(source=None, committed_at_s=0.0, release="")


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"source": SourceMark("query", True)}, id="batch id is a truth"),
        pytest.param({"source": SourceMark(b"query", 1)}, id="query id is bytes"),  # type: ignore[arg-type]
        pytest.param({"checkpoint_id": 1.0}, id="checkpoint id is a float"),
        pytest.param({"checkpoint_id": 2**64}, id="checkpoint id beyond 64 bits"),
        pytest.param({"states": (StateDescriptor(0, 3, "value", ""),)}, id="state's name is a number"),  # type: ignore[arg-type]
        pytest.param({"job": "\ud800"}, id="job is not Unicode"),
        pytest.param({"release": object()}, id="release is an object"),
    ],
)
def test_commit_that_would_not_decode_is_never_written(changed: dict[str, Any]) -> None:
    """A struct does not check its fields. One such object in the log would close the job for good."""
    with pytest.raises(InputError):
        encode_entry(sample(**changed), NAME)
