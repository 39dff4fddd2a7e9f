"""Pages are copied from mapped files by the kernel: quickly, and never at the price of a killed process."""

import os
from mmap import PAGESIZE
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from statebackend._runs import page_map, page_reader
from statebackend._runs.in_page import NEAR
from statebackend._runs.mapped import copied, hastened, may_hasten, which_absent
from statebackend._runs.overlay_memory import OverlayMemory
from statebackend._runs.page_map import PlacedPart
from statebackend._runs.run_file import OpenFile, OpenRun, open_run
from statebackend._runs.run_table import RunTable
from statebackend.errors import StoreUnavailableError
from tests.runs.flushing import flush
from tests.runs.test_damaged_runs import GROUPS, OWNED, SCHEMA, keys_of, segment_of


class Unmapped(OpenFile):
    """A file of a file system without mmap, or in a process that is not allowed to copy so."""

    address = None


def over(file: OpenRun) -> RunTable:
    """A table that looks up in this file alone, and keeps nothing in memory from batch to batch."""
    table = RunTable(SCHEMA, OWNED, memory=OverlayMemory(1))
    table.attach([PlacedPart(part, (GROUPS,), is_whole=True) for part in file.parts])
    return table


def numbers_of(table: RunTable, count: int) -> list[int]:
    """What is found of these keys, none of which is in memory then or afterwards."""
    rows = table.find(pa.array(keys_of(count)))
    found: list[int] = table.gather(rows)["n"].to_pylist()
    list(table.drain(0))
    assert not len(table.live_rows())
    return found


def test_places_are_copied_in_their_order() -> None:
    """More of them than one call takes, some of them several times."""
    content = np.random.default_rng(1).integers(256, size=200_000, dtype=np.uint8)
    places = np.random.default_rng(2).integers(len(content) - 64, size=3000)
    into = np.zeros(3000 * 64, np.uint8)
    assert copied(content.ctypes.data + places, 64, into)
    assert (into.reshape(-1, 64) == content[places[:, np.newaxis] + np.arange(64)]).all()


def test_a_place_that_is_not_there_is_told() -> None:
    """As memory that nobody has: the process lives."""
    content, into = np.zeros(128, np.uint8), np.zeros(128, np.uint8)
    assert not copied(np.array([content.ctypes.data, 4096]), 64, into)


def test_what_lies_on_the_disk_alone_is_told(tmp_path: Path) -> None:
    """A file with a hole at both ends: nobody has read these pages yet."""
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.seek(PAGESIZE)
        file.write(bytes(2 * PAGESIZE))
        file.truncate(4 * PAGESIZE)
    file = OpenFile.at(path)
    assert file.address is not None
    places = file.address + np.array([0, 1, 1.5, 2, 2.5]) * PAGESIZE
    assert which_absent(places.astype(np.int64), PAGESIZE).tolist() == [True, False, False, False, True]
    assert which_absent(places.astype(np.int64)[1:2], PAGESIZE).tolist() == [False]


def test_places_are_asked_for_ahead(tmp_path: Path) -> None:
    """Wherever they begin, and more of them than one call takes. Memory that nobody has is told."""
    if not may_hasten():
        pytest.skip("the system does not let us")
    path = tmp_path / "file"
    path.write_bytes(bytes(16 * PAGESIZE))
    file = OpenFile.at(path)
    assert file.address is not None
    places = file.address + np.random.default_rng(1).integers(15 * PAGESIZE, size=3000)
    assert hastened(places, PAGESIZE)
    assert not hastened(np.array([PAGESIZE]), PAGESIZE)


@pytest.mark.parametrize("refused", ["nothing", "the call", "threads"])
def test_pages_of_the_next_piece_are_asked_for_while_one_is_looked_up_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """Each page once, in order. Where the system does not let us, they are asked for when they are wanted."""
    asked, before = list[int](), list[int]()

    def ask(places: Any, _: int) -> bool:
        asked.extend(places.tolist())
        return True

    def ask_before(_: OpenFile, offsets: list[int], __: int) -> None:
        before.extend(offsets)

    def absent(places: Any, _: int) -> Any:
        return np.isin(places, asked, invert=True)

    def refuse(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    path, handle = segment_of(tmp_path, 2000)
    table = over(open_run(path, handle))
    monkeypatch.setattr(page_map, "READ_BYTES_MAX", 3 * 4096)
    monkeypatch.setattr(page_reader, "hastened", ask)
    monkeypatch.setattr(page_reader, "which_absent", absent)
    monkeypatch.setattr(page_reader, "may_hasten", lambda: refused != "the call")
    monkeypatch.setattr(OpenFile, "hasten", ask_before)
    if refused == "threads":
        monkeypatch.setattr(Thread, "start", refuse)
    assert numbers_of(table, 2000) == list(range(2000))
    part = table._runs.parts[0].part
    found = before if refused == "the call" else asked
    assert not (before if found is asked else asked)
    assert len(found) == part.head.pages > 9
    assert found == sorted(set(found))


@pytest.mark.parametrize("pages", [2, 2048])
def test_a_mapped_file_that_is_cut_short_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    """To touch the mapping would kill the process by SIGBUS. Its pages were all proved before, and some asked for."""
    monkeypatch.setattr(page_map, "READ_BYTES_MAX", pages * 4096)
    path, handle = segment_of(tmp_path, 1000)
    file = open_run(path, handle)
    table = over(file)
    assert numbers_of(table, 1000) == list(range(1000))
    assert file.parts[0].file.address is not None
    os.truncate(path, file.parts[0].offset)
    with pytest.raises(StoreUnavailableError):
        numbers_of(table, 1000)


def test_files_that_cannot_be_mapped_are_read(tmp_path: Path) -> None:
    """As on systems without such a call."""
    path, handle = segment_of(tmp_path, 1000)
    table = over(open_run(Unmapped(os.open(path, os.O_RDONLY), path), handle))
    for _ in range(2):
        assert numbers_of(table, 1000) == list(range(1000))


def test_what_no_file_is_cannot_be_mapped() -> None:
    """A pipe stands for a file system without mmap."""
    reading, writing = os.pipe()
    os.close(writing)
    assert OpenFile(reading, Path("pipe")).address is None


def test_the_other_copy_is_mapped_in_the_place_of_a_damaged_one(tmp_path: Path) -> None:
    """From then on pages are copied from there."""
    path, handle = segment_of(tmp_path, 1000)
    copy = tmp_path / "copy"
    data = bytearray(path.read_bytes())
    data[8 * 4096] ^= 1
    copy.write_bytes(data)
    file = open_run(copy, handle)
    table = over(file)
    file.mended_by(lambda: os.open(path, os.O_RDONLY))
    before = file.parts[0].file.address
    for _ in range(2):
        assert numbers_of(table, 1000) == list(range(1000))
    part = file.parts[0]
    assert part.file.address not in {None, before}
    into = np.zeros(part.head.pages * 4096, np.uint8)
    places = part.file.address + part.offset + np.arange(part.head.pages) * 4096  # type: ignore[operator]
    assert copied(places, 4096, into)
    assert into.tobytes() == path.read_bytes()[part.offset : part.offset + len(into)]


def test_rows_far_from_where_they_should_be_are_found(tmp_path: Path) -> None:
    """Hashes that are not spread evenly: those of a page lie at its end, so that each is looked for by halving."""
    texts = keys_of(2000)

    def uneven(parts: list) -> np.ndarray:
        numbers = np.array([int(each[-5:]) for each in pa.array(texts_of(parts)).to_pylist()], np.uint64)
        return (numbers % np.uint64(4)) + (np.uint64(1) << (numbers // np.uint64(40) + np.uint64(8))) + numbers

    def texts_of(parts: list) -> list[str]:
        (part,) = parts
        ends = zip(part.starts.tolist(), part.lengths.tolist(), strict=True)
        return [part.data[start : start + length].tobytes().decode() for start, length in ends]

    table = RunTable(SCHEMA, OWNED, hash_keys=uneven, memory=OverlayMemory(1))
    rows, _ = table.find_or_add(pa.array(texts))
    names = [f"name {number}" for number in range(2000)]
    table.scatter(rows, pa.RecordBatch.from_pydict({"n": list(range(2000)), "name": names}))
    list(table.drain(0))
    flush(table, OWNED, tmp_path)
    list(table.drain(0))
    found = table.gather(table.find(pa.array(texts)))
    assert found["n"].to_pylist() == list(range(2000))
    assert max(part.part.records for part in table._runs.parts) > NEAR


def test_rows_that_come_in_order_lie_where_their_keys_should(tmp_path: Path) -> None:
    """In the index. In one by key group and hash, a tenth of the keys would lie behind each other in a tenth of it."""
    path, handle = segment_of(tmp_path, 20_000)
    table = over(open_run(path, handle))
    table.memory.bytes_max = 1 << 30
    for rows in table.pieces():
        assert distance(table) < 60
        in_order = table.keys(rows[:2000])
    table = over(open_run(path, handle))
    table.find(in_order)
    assert distance(table) < 60
    table.drop(table.find(in_order))
    assert distance(table, gone=True) < 60


def distance(table: RunTable, *, gone: bool = False) -> int:
    """How far a row lies from the place of its key in the index, at most."""
    rows = table._gone.rows if gone else table._rows
    live = rows.live()
    if not len(live):
        return 0
    places = rows._index._places
    at = np.zeros(rows.used, np.int64)
    there = np.flatnonzero(places >= 0)
    at[places[there]] = there
    return int((at[live] - (rows.orders(rows.hashes(live)) >> rows._index._shift)).max())
