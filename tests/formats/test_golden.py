"""Files that an earlier release wrote stay readable: `golden/` keeps them, `content_v1` says what they hold."""

import zlib
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from msgspec import UNSET

from statebackend._codec.commit import Claim, Commit, decode_entry
from statebackend._codec.frame import FrameHeader
from statebackend._codec.local_snapshot import LocalSnapshot, decode_local_snapshot
from statebackend._codec.segment import decode_segment
from statebackend._codec.staged import decode_part
from statebackend._runs.page_map import PlacedPart
from statebackend._runs.run_file import open_run
from statebackend._runs.run_table import RunTable
from statebackend._state.declared import KeyedStates
from statebackend._tables.key_groups import OwnedKeys
from statebackend.errors import DataError
from statebackend.ids import (
    EMPTY_RANGE,
    ClockMark,
    Handle,
    KeyGroupRange,
    RestoreSource,
    SequenceNumber,
    SourceMark,
    StateDescriptor,
    StateSize,
    all_key_groups,
)
from tests.aggregates import Mean
from tests.changes import rows_of
from tests.codec import grammar_v1
from tests.codec.samples import COMPRESSIONS
from tests.formats import content_columns, content_outbox, content_v1, content_v2
from tests.formats.make_golden import GOLDEN, golden_files

SEGMENTS = [
    ("segment-v1-example.bin", content_v1.EXAMPLE),
    ("segment-v1-kinds.bin", content_v1.KINDS),
    *((f"segment-v1-{compression}.bin", content_v1.SEGMENT) for compression in COMPRESSIONS),
    ("segment-v2-example.bin", content_v2.EXAMPLE),
    ("segment-v2-kinds.bin", content_v1.KINDS),
    *((f"segment-v2-{compression}.bin", content_v2.SEGMENT) for compression in COMPRESSIONS),
]


def test_every_golden_file_is_tested() -> None:
    """One that nobody reads proves nothing."""
    assert {path.name for path in GOLDEN.iterdir()} == {name for name, _ in SEGMENTS} | {
        "segment-v2-columns-example.bin",
        "segment-v2-columns.bin",
        "segment-v2-pages.bin",
        "commit-v1.bin",
        "claim-v1.bin",
        "commit-v1-history.bin",
        "commit-v1-inline.bin",
        "commit-v1-inline-parts.bin",
        "local-snapshot-v1.bin",
        "commit-v2-outbox.bin",
        "commit-v3-native.bin",
        "commit-v4-columns.bin",
        "commit-v1-sizes.bin",
        "commit-v1-untaken.bin",
        "commit-v1-marks.bin",
        "commit-v1-zone.bin",
        "commit-v5-clock.bin",
        "commit-v6-start.bin",
        "commit-v6-transformed.bin",
        "local-snapshot-v1-native.bin",
        "output-v1.bin",
    }


@pytest.mark.parametrize(("name", "content"), SEGMENTS)
def test_segment_holds_what_was_written(name: str, content: list[tuple[str, int, content_v1.Changes]]) -> None:
    """By the library's reader: names, numbers, spans, and each change with its key's own type.

    The order is kept within each state: of the rows of version 1, those of one state are read together.
    """
    decoded = list(decode_segment((GOLDEN / name).read_bytes(), name))
    assert [header for header, _ in decoded] == [
        FrameHeader(
            log_id,
            SequenceNumber(number),
            _span([change[0] for change in changes]),
            len(changes),
        )
        for log_id, number, changes in content
    ]
    found = [
        [(each.key_group, each.operation, each.state_id, each.key, each.data) for each in rows_of(changes)]
        for _, changes in decoded
    ]
    expected = [changes if "v2" in name else sorted(changes, key=itemgetter(2)) for _, _, changes in content]
    assert repr(found) == repr(expected)


@pytest.mark.parametrize(("name", "content"), SEGMENTS)
def test_segment_is_what_the_grammar_says(name: str, content: list[tuple[str, int, content_v1.Changes]]) -> None:
    """By the reader that knows the grammar only."""
    frames = grammar_v1.read_segment((GOLDEN / name).read_bytes())
    assert [(frame.log_id, frame.sequence_number, frame.changes) for frame in frames] == content


class Raw:
    """Bytes as they are."""

    schema = "raw"

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, data: bytes | bytearray | memoryview) -> bytes:
        return bytes(data)


@pytest.mark.parametrize("name", ["segment-v1-kinds.bin", "segment-v2-kinds.bin"])
def test_every_kind_of_state_holds_what_was_written(name: str) -> None:
    """Whatever its cells say, and in the types that they were written in."""
    known = [
        StateDescriptor(0, "value", "value", '"int"', version=1),
        StateDescriptor(1, "list", "list", '{"one_of":["int","str"]}'),
        StateDescriptor(2, "map", "map", '"int"', key_schema='"str"'),
        StateDescriptor(3, "timers", "timers", "event"),
        StateDescriptor(4, "reducing", "reducing", '"int"'),
        StateDescriptor(5, "aggregating", "aggregating", '{"tuple":{"item_types":["int","int"]}}'),
        StateDescriptor(6, "own", "value", "own:raw"),
    ]
    states = KeyedStates(all_key_groups(128), 128, known)
    for _, changes in decode_segment((GOLDEN / name).read_bytes(), "golden"):
        states.replay(changes)
    upcast = states.value_state("value", int, migrate=lambda value: value * 100)
    assert dict(upcast) == {"a": 700, "b": 8, "c": 900, "d": 10}
    assert states.list_state("list", int | str)["a"] == [1, 2, 3, "x" * 297]  # type: ignore[arg-type]
    assert states.map_state("map", str, int)["a"] == {"y": 2}
    assert list(states.timers("timers").due(9)) == [(1.0, "a"), (2.0, "a")]
    assert states.reducing_state("reducing", int, max)["a"] == 5
    assert states.aggregating_state("aggregating", Mean())["a"] == 3.0
    assert states.value_state("own", Raw())["a"] == b"\xc1"


def test_columns_hold_what_was_written() -> None:
    """Of every type; what is logged and what is in a base alike. A dropped key goes."""
    data = (GOLDEN / "segment-v2-columns.bin").read_bytes()
    for _, changes in decode_segment(data, "golden"):
        of = content_columns.table(content_columns.COLUMNS, content_columns.KEY_TYPE)
        for each in changes:
            of.apply(each)  # type: ignore[arg-type]
        rows = of.find(pa.array(content_columns.KEYS, content_columns.KEY_TYPE))
        assert of.num_rows == len(rows)
        assert of.gather(rows).equals(content_columns.batch(content_columns.COLUMNS))
    of = content_columns.filled(
        {"n": ("int64", [1]), "name": ("string", ["y"])}, pa.string(), content_columns.EXAMPLE_DROPPED
    )
    ((_, changes),) = decode_segment((GOLDEN / "segment-v2-columns-example.bin").read_bytes(), "golden")
    for each in changes:
        of.apply(each)  # type: ignore[arg-type]
    rows = of.find(pa.array([*content_columns.EXAMPLE_KEYS, *content_columns.EXAMPLE_DROPPED]))
    assert rows[2] == -1
    assert of.gather(rows[:2]).equals(content_columns.batch(content_columns.EXAMPLE))


def test_pages_hold_what_was_written(tmp_path: Path) -> None:
    """Of every type; decoded as a whole, and looked up in the file."""
    data = (GOLDEN / "segment-v2-pages.bin").read_bytes()
    keys = pa.array(content_columns.KEYS, content_columns.KEY_TYPE)
    ((_, changes),) = decode_segment(data, "golden")
    in_memory = content_columns.table(content_columns.COLUMNS, content_columns.KEY_TYPE)
    for each in changes:
        in_memory.apply(each)
    over = RunTable(in_memory.described, OwnedKeys(all_key_groups(128), 128))
    handle = Handle("golden", 0, len(data), zlib.crc32(data))
    (part,) = open_run(GOLDEN / "segment-v2-pages.bin", handle).parts
    over.attach([PlacedPart(part, (all_key_groups(128),), is_whole=True)])
    for of in (in_memory, over):
        assert of.gather(of.find(keys)).equals(content_columns.batch(content_columns.COLUMNS))
        assert of.num_rows == len(keys)


@pytest.mark.parametrize(
    ("name", "content"), [("commit-v1.bin", content_v1.COMMIT), ("commit-v1-history.bin", content_v1.HISTORY)]
)
def test_commit_holds_what_was_written(name: str, content: dict[str, Any]) -> None:
    """The manifest by the grammar, and the commit by the library's reader."""
    data = (GOLDEN / name).read_bytes()
    assert grammar_v1.read_commit(data) == content
    assert decode_entry(data, name, job="fleet") == msgspec.convert(content, Commit)


@pytest.mark.parametrize(
    ("name", "manifest"),
    [("commit-v1-inline.bin", content_v1.INLINE), ("commit-v1-inline-parts.bin", content_v2.INLINE)],
)
def test_commit_with_inline_change_sets_holds_what_was_written(name: str, manifest: dict[str, Any]) -> None:
    """By both readers: the manifest, and behind it the frames, to which the decoded handles point."""
    data = (GOLDEN / name).read_bytes()
    assert grammar_v1.read_commit(data) == manifest
    commit = decode_entry(data, "carrier", job="fleet")
    assert isinstance(commit, Commit)
    before, *inline = commit.ranges[0].changelog
    assert before == msgspec.convert(content_v1.COMMIT, Commit).ranges[0].changelog[0]
    for handle, (log_id, number, changes) in zip(inline, content_v1.SEGMENT[:3:2], strict=True):
        assert handle.segment == Handle("carrier", 0, len(data), zlib.crc32(data))
        frame = data[handle.offset : handle.offset + handle.length]
        found = grammar_v1.read_frame(frame)
        assert (found.log_id, found.sequence_number, found.changes) == (log_id, number, changes)


def test_commit_with_an_outbox_holds_what_was_written() -> None:
    """By both readers: what it carries of the output is placed, what are objects of their own is left alone."""
    data = (GOLDEN / "commit-v2-outbox.bin").read_bytes()
    assert grammar_v1.read_commit(data) == content_outbox.COMMIT_WITH_OUTBOX
    commit = decode_entry(data, "carrier", job="fleet")
    assert isinstance(commit, Commit)
    before, own = commit.outbox
    assert before == msgspec.convert(content_outbox.COMMIT_WITH_OUTBOX, Commit).outbox[0]
    (part,) = own.parts
    assert (part.key, data[part.offset : part.offset + part.length]) == (
        "carrier",
        (GOLDEN / "output-v1.bin").read_bytes(),
    )
    assert commit.segments() >= {"carrier", *(part.key for part in before.parts)}


def test_staged_output_holds_what_was_written() -> None:
    """By both readers: an Arrow IPC stream, whole."""
    data = (GOLDEN / "output-v1.bin").read_bytes()
    stream = grammar_v1.read_part(data)
    assert decode_part(data, "output-v1.bin") == stream
    assert pa.ipc.open_stream(stream).read_all().to_pylist() == content_outbox.ROWS


def test_claim_holds_what_was_written() -> None:
    """By both readers."""
    data = (GOLDEN / "claim-v1.bin").read_bytes()
    assert grammar_v1.read_commit(data) == content_v1.CLAIM
    assert decode_entry(data, "claim-v1.bin", job="fleet") == msgspec.convert(content_v1.CLAIM, Claim)


def test_commit_with_rocksdb_bases_holds_what_was_written() -> None:
    """By both readers. It points into their files, and is whole for whoever sweeps."""
    data = (GOLDEN / "commit-v3-native.bin").read_bytes()
    assert grammar_v1.read_commit(data) == content_v1.NATIVE
    commit = decode_entry(data, "commit-v3-native.bin", job="fleet")
    assert isinstance(commit, Commit)
    assert commit == msgspec.convert(content_v1.NATIVE, Commit)
    assert commit.segments() == {"segments/0a1b2c", "segments/0a1b2d", "segments/0a1b2e"}


def test_commit_with_columns_beside_rocksdb_holds_what_was_written() -> None:
    """By both readers: one more file, which is a segment."""
    data = (GOLDEN / "commit-v4-columns.bin").read_bytes()
    assert grammar_v1.read_commit(data) == content_v1.COLUMNS
    commit = decode_entry(data, "commit-v4-columns.bin", job="fleet")
    assert isinstance(commit, Commit)
    assert commit == msgspec.convert(content_v1.COLUMNS, Commit)
    assert commit.ranges[0].rocksdb[0].columns_bytes == 2048


def test_commit_with_a_clock_holds_what_was_written() -> None:
    """By both readers: the clock, and the next timer of each range, of which one has none."""
    data = (GOLDEN / "commit-v5-clock.bin").read_bytes()
    assert grammar_v1.read_commit(data) == content_v1.CLOCK
    commit = decode_entry(data, "commit-v5-clock.bin", job="fleet")
    assert isinstance(commit, Commit)
    assert commit == msgspec.convert(content_v1.CLOCK, Commit)
    assert commit.summary.clock == ClockMark(1357016340.25, "event")
    assert [part.next_timer_s for part in commit.ranges] == [1357020000.5, None]


def test_commit_with_sizes_holds_what_was_written() -> None:
    """By both readers: of each state or of several together, in one range nothing; and where the other came from."""
    data = (GOLDEN / "commit-v1-sizes.bin").read_bytes()
    assert grammar_v1.read_commit(data) == content_v1.SIZES
    commit = decode_entry(data, "commit-v1-sizes.bin", job="fleet")
    assert isinstance(commit, Commit)
    assert [part.sizes for part in commit.ranges] == [
        (StateSize((0,), 48_800, 412_345), StateSize((1, 3), 5_000_000_000, 77, is_estimate=True)),
        (),
    ]
    assert [part.restored for part in commit.ranges] == [RestoreSource(3, 1, 1024, 66, 0.25), UNSET]


def test_commit_with_an_untaken_state_holds_what_was_written() -> None:
    """By both readers: who declared the union state says nothing, as in a commit of an earlier release."""
    data = (GOLDEN / "commit-v1-untaken.bin").read_bytes()
    assert grammar_v1.read_commit(data) == content_v1.UNTAKEN
    commit = decode_entry(data, "commit-v1-untaken.bin", job="fleet")
    assert isinstance(commit, Commit)
    assert [[each.is_untaken for each in part.operator] for part in commit.ranges] == [[True], [False]]


def test_commit_with_marks_holds_what_was_written() -> None:
    """By both readers: the newest batch of each query, under a commit that was made for none."""
    data = (GOLDEN / "commit-v1-marks.bin").read_bytes()
    assert grammar_v1.read_commit(data) == content_v1.MARKS
    commit = decode_entry(data, "commit-v1-marks.bin", job="fleet")
    assert isinstance(commit, Commit)
    assert commit.source is None
    assert commit.marks == (SourceMark("a1c4", 7), SourceMark("6e2f", 41, "9c01"))
    assert commit.summary.newest_mark == SourceMark("6e2f", 41, "9c01")


def test_commit_with_a_start_holds_what_was_written() -> None:
    """By both readers. An earlier release refuses it; in an earlier version it is damage."""
    data = (GOLDEN / "commit-v6-start.bin").read_bytes()
    assert data[7] == 6
    assert grammar_v1.read_commit(data) == content_v1.START
    commit = decode_entry(data, "commit-v6-start.bin", job="fleet")
    assert isinstance(commit, Commit)
    assert commit.summary.starts_from == {"orders": {"0": 1234, "1": 9}}
    with pytest.raises(DataError, match="a start in a version that has none"):
        decode_entry(grammar_v1.write_commit(content_v1.START, version=5), "commit-v6-start.bin", job="fleet")


def test_commit_of_a_transformation_holds_what_was_written() -> None:
    """By both readers. An earlier release, whose feed would show nothing of it, refuses it."""
    data = (GOLDEN / "commit-v6-transformed.bin").read_bytes()
    assert data[7] == 6
    assert grammar_v1.read_commit(data) == content_v1.TRANSFORMED
    commit = decode_entry(data, "commit-v6-transformed.bin", job="fleet")
    assert isinstance(commit, Commit)
    assert commit.transformed == ("legs", "late")
    with pytest.raises(DataError, match="states that were transformed in a version that has none"):
        decode_entry(grammar_v1.write_commit(content_v1.TRANSFORMED, version=5), "commit-v6-start.bin", job="fleet")


def test_commit_with_time_zones_holds_what_was_written() -> None:
    """By both readers."""
    data = (GOLDEN / "commit-v1-zone.bin").read_bytes()
    assert grammar_v1.read_commit(data) == content_v1.ZONE
    commit = decode_entry(data, "commit-v1-zone.bin", job="fleet")
    assert isinstance(commit, Commit)
    assert commit.source == SourceMark("a1c4", 8, "77aa", "America/New_York")
    assert commit.marks == (SourceMark("6e2f", 41, "9c01", "UTC"),)


def test_commits_from_before_marks_do_not_know_them() -> None:
    """Which is not the same as none."""
    commit = decode_entry((GOLDEN / "commit-v1.bin").read_bytes(), "commit-v1.bin", job="fleet")
    assert isinstance(commit, Commit)
    assert commit.marks is None
    assert commit.source is not None
    assert commit.source.time_zone is UNSET


def test_commits_from_before_sizes_do_not_know_them() -> None:
    """Which is not the same as nothing."""
    commit = decode_entry((GOLDEN / "commit-v1.bin").read_bytes(), "commit-v1.bin", job="fleet")
    assert isinstance(commit, Commit)
    assert [(part.sizes, part.restored) for part in commit.ranges] == [(UNSET, UNSET)]


def test_commits_from_before_clocks_have_none() -> None:
    """And do not know their next timers."""
    commit = decode_entry((GOLDEN / "commit-v1.bin").read_bytes(), "commit-v1.bin", job="fleet")
    assert isinstance(commit, Commit)
    assert commit.clock is None
    assert [part.next_timer_s for part in commit.ranges] == [UNSET]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("local-snapshot-v1.bin", content_v1.LOCAL_SNAPSHOT),
        ("local-snapshot-v1-native.bin", content_v1.LOCAL_NATIVE),
    ],
)
def test_local_snapshot_holds_what_was_written(name: str, content: dict[str, Any]) -> None:
    """By both readers."""
    data = (GOLDEN / name).read_bytes()
    assert grammar_v1.read_local_snapshot(data) == content
    assert decode_local_snapshot(data, "") == msgspec.convert(content, LocalSnapshot)


@pytest.mark.parametrize(
    "name",
    [
        "segment-v2-example.bin",
        "segment-v2-kinds.bin",
        "segment-v2-none.bin",
        "segment-v2-columns-example.bin",
        "segment-v2-columns.bin",
        "commit-v1.bin",
        "commit-v1-history.bin",
        "commit-v1-inline-parts.bin",
        "claim-v1.bin",
        "local-snapshot-v1.bin",
        "commit-v2-outbox.bin",
        "commit-v3-native.bin",
        "commit-v4-columns.bin",
        "commit-v1-sizes.bin",
        "commit-v1-untaken.bin",
        "commit-v1-marks.bin",
        "commit-v1-zone.bin",
        "commit-v5-clock.bin",
        "commit-v6-start.bin",
        "commit-v6-transformed.bin",
        "local-snapshot-v1-native.bin",
        "output-v1.bin",
    ],
)
def test_this_release_writes_the_same_bytes(name: str) -> None:
    """Where no compressor has a say: those may find shorter bytes for the same content in their next release."""
    assert golden_files()[name] == (GOLDEN / name).read_bytes()


@pytest.mark.parametrize(("version", "parts"), [(1, 0), (2, grammar_v1.PARTS)])
def test_each_golden_segment_uses_the_codec_of_its_name(version: int, parts: int) -> None:
    """So that each codec of today is read by every release to come; of rows and of parts."""
    heads: dict[str, bytes] = {
        compression: (GOLDEN / f"segment-v{version}-{compression}.bin").read_bytes()[:37]
        for compression in COMPRESSIONS
    }
    assert {name: head[36] - parts for name, head in heads.items()} == {"none": 0, "lz4": 1, "snappy": 2, "zstd": 3}
    assert {head[7] for head in heads.values()} == {version}


def _span(key_groups: list[int]) -> KeyGroupRange:
    return EMPTY_RANGE if key_groups == [-1] else KeyGroupRange(min(key_groups), max(key_groups))
