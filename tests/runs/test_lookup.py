"""Look-ups where pages are unusual: keys of one hash over many pages, rows larger than a page, parts of key groups."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from statebackend._codec.columns import Column
from statebackend._columns.keys import Parts, hash_parts
from statebackend._columns.table_schema import table_schema
from statebackend._runs.overlay_memory import OverlayMemory
from statebackend._runs.page_map import PlacedPart
from statebackend._runs.run_table import RunTable
from statebackend._state.states_in_runs import NewLayer
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.snapshot import StatesSnapshot
from statebackend._threads import FOREGROUND
from statebackend.ids import KeyGroupRange, all_key_groups
from tests.runs.flushing import bases_of, flush

OWNED = OwnedKeys(all_key_groups(8), 8)
SCHEMA = table_schema(pa.schema({"text": pa.string()}), pa.string())


def filled(texts: dict[str, str], hash_keys=hash_parts) -> RunTable:
    """A table of these rows, nothing of which is in runs."""
    table = RunTable(SCHEMA, OWNED, hash_keys=hash_keys, memory=OverlayMemory(1))
    rows, _ = table.find_or_add(pa.array(texts))
    table.scatter(rows, pa.RecordBatch.from_pydict({"text": list(texts.values())}))
    list(table.drain(0))
    return table


def found_in(table: RunTable, keys: list[str]) -> dict[str, str]:
    """The rows that are there."""
    rows = table.find(pa.array(keys))
    there = [key for key, row in zip(keys, rows.tolist(), strict=True) if row >= 0]
    return dict(zip(there, table.gather(rows[rows >= 0])["text"].to_pylist(), strict=True))


def alike(hashes: int):
    """So many hashes, of one key group and one order."""

    def hash_keys(parts: Parts) -> np.ndarray:
        return hash_parts(parts) % np.uint64(hashes) * np.uint64(8)

    return hash_keys


@pytest.mark.parametrize("hashes", [1, 3])
def test_keys_of_one_order_lie_over_many_pages(tmp_path: Path, hashes: int) -> None:
    """Whoever makes such keys, or is unlucky, gets the right rows; the bytes of a key decide."""
    texts = {f"key {number}": "x" * (number % 50) for number in range(600)}
    table = filled(texts, alike(hashes))
    flush(table, OWNED, tmp_path)
    list(table.drain(0))
    assert len(table._rows) == 0
    assert len(table._runs.maps[0]._fences) > 5
    asked = [*texts, "key", "key 600", "none"]
    assert found_in(table, asked) == texts
    table.drop(table.find(pa.array(["key 7"])))
    flush(table, OWNED, tmp_path)
    assert found_in(table, asked) == {key: text for key, text in texts.items() if key != "key 7"}
    assert table.num_rows == 599


def test_a_look_up_in_pages_is_in_the_foreground(tmp_path: Path) -> None:
    """Until it has what it found: merges leave the interpreter to it. What is in memory alone keeps nobody waiting."""
    texts = {f"key {number}": "x" for number in range(600)}
    table, found = filled(texts), list[bool]()

    class Watched(RunTable):
        def _put(self, rows: np.ndarray, columns: Mapping[str, Column]) -> None:
            found.append(FOREGROUND.wait(0))
            super()._put(rows, columns)

    table.__class__ = Watched
    table.find(pa.array(texts))
    assert found == []
    flush(table, OWNED, tmp_path)
    list(table.drain(0))
    table.find(pa.array(texts))
    assert found == [False]
    assert FOREGROUND.wait(0)


def test_the_rows_of_a_layer_are_sorted_by_whoever_reads_them(tmp_path: Path) -> None:
    """In a thread: on the loop, where a layer is asked for, the sorting held up a checkpoint for 100 ms."""
    table, pauses = filled({"key": "text"}), list[int]()
    snapshot = StatesSnapshot({0: table.copy()}, {}, OWNED)
    rows = NewLayer(snapshot, 1).rows(frozenset(OWNED.key_groups), lambda: pauses.append(1))
    assert pauses == []
    assert sum(each.records for each in rows) == 1
    assert pauses


def test_a_copy_for_a_layer_has_the_rows_that_changed(tmp_path: Path) -> None:
    """Those alone, with what is null among them, and it stays as it is."""
    table = filled({f"key {number}": str(number) for number in range(600)})
    flush(table, OWNED, tmp_path)
    keys = pa.array(["key 5", "new", "key 300"])
    table.scatter(table.find_or_add(keys)[0], pa.RecordBatch.from_pydict({"text": ["five", None, ""]}))
    copied = table.copy()
    table.scatter(table.find(keys), pa.RecordBatch.from_pydict({"text": ["later"] * 3}))
    table.drop(table.find(pa.array(["key 300"])))
    table.find_or_add(pa.array([f"more {number}" for number in range(2000)]))
    rows = copied.live_rows()
    texts = copied.gather(rows)["text"].to_pylist()
    assert dict(zip(copied.keys(rows).to_pylist(), texts, strict=True)) == {"key 5": "five", "new": None, "key 300": ""}


@pytest.mark.parametrize("type_", [pa.string(), pa.binary(), pa.int64()], ids=["texts", "bytes", "numbers"])
def test_parts_of_a_key_that_are_of_one_type_are_told_apart(tmp_path: Path, type_: pa.DataType) -> None:
    """Parts have no names in pages: the second once took the place of the first, and no such key was found again."""
    pairs = pa.struct({"from": type_, "to": type_})
    table = RunTable(table_schema(pa.schema({"n": pa.int64()}), pairs), OWNED, memory=OverlayMemory(1))
    parts = [pa.array([place // 30 for place in range(900)]), pa.array([place % 30 for place in range(900)])]
    parts = parts if pa.types.is_integer(type_) else [pc.cast(pc.cast(each, pa.string()), type_) for each in parts]
    keys = pa.StructArray.from_arrays(parts, fields=list(pairs))
    rows, _ = table.find_or_add(keys)
    table.scatter(rows, pa.RecordBatch.from_pydict({"n": list(range(900))}))
    list(table.drain(0))
    flush(table, OWNED, tmp_path)
    list(table.drain(0))
    assert len(table._rows) == 0
    assert table.gather(table.find(keys))["n"].to_pylist() == list(range(900))


def test_a_row_may_be_larger_than_a_page(tmp_path: Path) -> None:
    """Then the pages of its part are as large."""
    texts = {f"key {number}": "x" * (100_000 if number == 7 else 3) for number in range(400)}
    table = filled(texts)
    flush(table, OWNED, tmp_path)
    list(table.drain(0))
    assert {each.part.head.page_bytes for each in table._runs.parts} > {4096}
    assert found_in(table, list(texts)) == texts


def test_newer_bases_of_some_groups_hide_the_older_one(tmp_path: Path) -> None:
    """Their rows alone count, also those that they do not have any more."""
    texts = {f"key {number}": "old" for number in range(800)}
    table = filled(texts)
    flush(table, OWNED, tmp_path)
    groups = dict(zip(texts, table.groups(table.find(pa.array(texts))).tolist(), strict=True))
    changed = [key for key, group in groups.items() if group in (2, 3, 6)]
    rows = table.find(pa.array(changed))
    table.scatter(rows[5:], pa.RecordBatch.from_pydict({"text": ["new"] * len(rows[5:])}))
    table.drop(rows[:5])
    list(table.drain(0))
    flush(table, OWNED, tmp_path, [2, 3, 6])
    list(table.drain(0))
    expected = texts | dict.fromkeys(changed[5:], "new")
    for key in changed[:5]:
        del expected[key]
    assert found_in(table, list(texts)) == expected
    assert table.num_rows == len(expected)
    assert len({each.part.key for each in table._runs.parts}) == 2


def test_an_owner_of_some_groups_counts_its_own_rows(tmp_path: Path) -> None:
    """Of pages that have rows of others, too."""
    texts = {f"key {number}": "x" for number in range(800)}
    table = filled(texts)
    groups = dict(zip(texts, table.groups(table.find(pa.array(texts))).tolist(), strict=True))
    files = bases_of(table.copy(), OWNED, tmp_path, range(8))
    for owned in (KeyGroupRange(0, 2), KeyGroupRange(3, 3), KeyGroupRange(4, 7)):
        part = RunTable(SCHEMA, OwnedKeys(owned, 8))
        part.attach([PlacedPart(each, (owned,), is_whole=False) for file, _ in files for each in file.parts])
        own = [key for key, group in groups.items() if group in owned]
        assert part.num_rows == len(own)
        assert found_in(part, own) == dict.fromkeys(own, "x")
        assert sorted(key for rows in part.pieces() for key in part.keys(rows).to_pylist()) == sorted(own)
