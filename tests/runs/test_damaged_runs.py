"""Whatever happens to a file of a run: an error of ours, or the right value."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from statebackend._codec.change_sets.changes import PART_BYTES_MAX, change_set
from statebackend._codec.change_sets.keyed_changes import keyed_changes
from statebackend._codec.change_sets.state_change import Operation, StateChange
from statebackend._columns.table_schema import table_schema
from statebackend._runs.page_map import PlacedPart
from statebackend._runs.run_file import OpenRun, open_run
from statebackend._runs.run_table import RunTable
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.placed import WantedEntries
from statebackend.errors import CorruptSegmentError, StateBackendError, StoreUnavailableError
from statebackend.ids import Handle, SequenceNumber, all_key_groups
from tests.runs.flushing import stored
from tests.runs.invariants import assert_damage_is_refused

GROUPS = all_key_groups(4)
OWNED = OwnedKeys(GROUPS, 4)
SCHEMA = table_schema(pa.schema({"n": pa.int64(), "name": pa.string()}), pa.string())
EVERY_BYTE = bool(os.environ.get("EVERY_BYTE"))


def table_of(count: int, shift: int = 0) -> RunTable:
    """Rows of so many keys, in memory."""
    table = RunTable(SCHEMA, OWNED)
    rows, _ = table.find_or_add(pa.array(keys_of(count)))
    numbers = np.arange(count) + shift
    batch = {"n": pa.array(numbers), "name": pa.array([f"name {number:06}" for number in numbers])}
    table.scatter(rows, pa.RecordBatch.from_pydict(batch))
    list(table.drain(0))
    return table


def keys_of(count: int) -> list[str]:
    """The keys."""
    return [f"key {number:05}" for number in range(count)]


def segment_of(directory: Path, count: int, shift: int = 0) -> tuple[Path, Handle]:
    """A segment with pages, and a frame of another state before them."""
    placed = table_of(count, shift).copy().placed(WantedEntries(0, OWNED, list(GROUPS)))
    other = keyed_changes([StateChange(1, int(Operation.SET), 1, "k", b"\x01")])
    frames = [
        change_set("base", SequenceNumber(0), list(other)),
        change_set("base", SequenceNumber(1), list(placed.changes(GROUPS))),
    ]
    return stored(directory, frames)


def read_all(path: Path, handle: Handle, count: int, shift: int = 0) -> None:
    """Open the file and look up every key. Raises what that raises; a wrong value fails the test."""
    check_rows(open_run(path, handle), count, shift)


def check_rows(file: OpenRun, count: int, shift: int = 0) -> None:
    """Look up every key."""
    assert [change.data for changes in file.others() for change in changes.rows()] == [b"\x01"]  # type: ignore[attr-defined]
    table = RunTable(SCHEMA, OWNED)
    table.attach([PlacedPart(part, (GROUPS,), is_whole=True) for part in file.parts])
    rows = table.find(pa.array(keys_of(count)))
    found = table.gather(rows)
    assert found["n"].to_pylist() == list(range(shift, count + shift))
    assert found["name"].to_pylist() == [f"name {number + shift:06}" for number in range(count)]
    assert table.num_rows == count


def test_a_whole_file_has_every_row(tmp_path: Path) -> None:
    """Over several pages, and key groups within a page."""
    path, handle = segment_of(tmp_path, 400)
    read_all(path, handle, 400)
    assert sum(part.head.pages for part in open_run(path, handle).parts) > 3


@pytest.mark.timeout(3600 if EVERY_BYTE else 180)
def test_every_flipped_bit_is_refused_before_its_value_is_used(tmp_path: Path) -> None:
    """At the opening, or when its page is first read. `EVERY_BYTE=1` for the long form."""
    refuse_every_flipped_bit(tmp_path, step=1 if EVERY_BYTE else 53)


def refuse_every_flipped_bit(directory: Path, *, step: int) -> None:
    """One bit in each byte, so many bytes apart."""
    path, handle = segment_of(directory, 300)
    data, copy = path.read_bytes(), directory / "copy"

    def damaged() -> Iterator[None]:
        for offset in range(0, len(data), step):
            flipped = bytearray(data)
            flipped[offset] ^= 1 << offset % 8
            copy.write_bytes(flipped)
            yield

    assert_damage_is_refused(damaged(), lambda _: read_all(copy, handle, 300))


def test_a_file_of_another_length_is_refused(tmp_path: Path) -> None:
    """Cut short anywhere, or longer."""
    path, handle = segment_of(tmp_path, 100)
    data = path.read_bytes()
    for size in (*range(0, len(data), 211), len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(CorruptSegmentError):
            open_run(path, handle)
    path.write_bytes(data + b"\0")
    with pytest.raises(CorruptSegmentError):
        open_run(path, handle)


def test_all_rows_of_a_large_part_come_some_pages_at_a_time(tmp_path: Path) -> None:
    """Where they are applied in place of being looked up, nobody has room for all of them."""
    path, handle = segment_of(tmp_path, 60_000)
    (part,) = (file := open_run(path, handle)).parts
    assert part.head.pages * part.head.page_bytes > 2 * PART_BYTES_MAX
    pieces = list(file.changes(part))
    assert max(each.size_bytes for each in pieces) <= PART_BYTES_MAX
    assert sum(each.records for each in pieces) == 60_000


def test_another_segment_of_the_same_length_is_refused(tmp_path: Path) -> None:
    """The commit names what it wants by the checksum of the whole."""
    (_, handle), (other, other_handle) = segment_of(tmp_path, 300), segment_of(tmp_path, 300, shift=7)
    assert other.stat().st_size == handle.length
    read_all(other, other_handle, 300, shift=7)
    with pytest.raises(CorruptSegmentError):
        open_run(other, handle)


def test_a_page_of_an_older_segment_is_refused(tmp_path: Path) -> None:
    """Each page of it is fine by itself, as a disk that lost a write would have it."""
    (path, handle), (older, _) = segment_of(tmp_path, 300), segment_of(tmp_path, 300, shift=7)
    (part,) = open_run(path, handle).parts
    data, old = bytearray(path.read_bytes()), older.read_bytes()
    for page in range(part.head.pages):
        here = slice(part.offset + page * 4096, part.offset + (page + 1) * 4096)
        stale = bytearray(data)
        stale[here] = old[here]
        path.write_bytes(stale)
        with pytest.raises(CorruptSegmentError):
            read_all(path, handle, 300)
        assert not path.exists(), "nobody opens a damaged copy again"


def test_a_file_that_is_cut_short_while_it_is_open_is_an_error(tmp_path: Path) -> None:
    """It would kill a process that has it mapped."""
    path, handle = segment_of(tmp_path, 300)
    (part,) = open_run(path, handle).parts
    os.truncate(path, part.offset)
    with pytest.raises(StoreUnavailableError):
        part.read(np.array([0]), np.empty(4096, np.uint8))


def test_a_file_whose_name_is_deleted_stays_whole(tmp_path: Path) -> None:
    """As by a sweep of another process."""
    path, handle = segment_of(tmp_path, 300)
    file = open_run(path, handle)
    path.unlink()
    assert sum(each.records for part in file.parts for each in file.changes(part)) == 300


def test_a_lookup_that_fails_changes_nothing(tmp_path: Path) -> None:
    """The rows of other pages are found after it, and those in memory are as they were."""
    path, handle = segment_of(tmp_path, 300)
    file = open_run(path, handle)
    (part,) = file.parts
    table = RunTable(SCHEMA, OWNED)
    table.attach([PlacedPart(part, (GROUPS,), is_whole=True)])
    with path.open("r+b") as writing:
        writing.seek(part.offset + 4096 + 100)
        writing.write(b"\xff\xff\xff\xff")
    found = []
    for key in keys_of(300):
        try:
            found.append(int(table.find(pa.array([key]))[0]) >= 0)
        except StateBackendError:
            found.append(False)
    assert 0 < found.count(False) < 150
    assert table.num_rows == 300
