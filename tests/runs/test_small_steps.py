"""Look-ups and merges that take many steps, each of which ends where it is hardest: within keys of one order."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from statebackend._codec.xxh64 import Hashes
from statebackend._columns.keys import Parts
from statebackend._runs import found_rows, page_map
from statebackend._runs.run_table import RunTable
from tests.runs.flushing import flush
from tests.runs.test_lookup import OWNED, alike, filled, found_in


def scattered(table: RunTable, texts: dict[str, str]) -> None:
    """Set these rows."""
    rows, _ = table.find_or_add(pa.array(texts))
    table.scatter(rows, pa.RecordBatch.from_pydict({"text": list(texts.values())}))
    list(table.drain(0))


@pytest.mark.parametrize("hashes", [3, 40])
def test_a_step_of_a_merge_may_end_within_keys_of_one_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashes: int
) -> None:
    """A row in its last pages may have been replaced by one of the overlay that comes in the next step."""
    monkeypatch.setattr(page_map, "STREAMED_BYTES_MAX", 1)
    texts = {f"key {number}": "old" for number in range(400)}
    table = filled(texts, alike(hashes))
    flush(table, OWNED, tmp_path)
    for turn in range(2):
        changed = {f"key {number}": f"new {turn}" for number in range(turn, 400, 7)} | {f"more {turn}": "more"}
        scattered(table, changed)
        texts |= changed
        gone = [key for number, key in enumerate(texts) if number % 11 == turn]
        table.drop(table.find(pa.array(gone)))
        for key in gone:
            del texts[key]
        list(table.drain(0))
        flush(table, OWNED, tmp_path)
        list(table.drain(0))
        assert len(table._rows) == 0
        assert table.runs.rows == table.num_rows == len(texts), "a key has two rows, or none"
        assert found_in(table, [*texts, *gone]) == texts


@pytest.mark.parametrize("at_once", [1, 100, 1 << 16])
def test_what_many_steps_of_a_look_up_find_is_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Each key has its own row, whichever step found it; one that is asked for twice has one."""
    monkeypatch.setattr(page_map, "READ_BYTES_MAX", 2 * 4096)
    monkeypatch.setattr(found_rows, "ADDED_AT_ONCE", at_once)
    texts = {f"key {number}": f"{number}" * (1 + number % 9) for number in range(3000)}
    table = filled(texts)
    flush(table, OWNED, tmp_path)
    list(table.drain(0))
    assert table.runs.num_pages > 20
    asked = [*texts, "none", *list(texts)[::3], "nor this"]
    rows = table.find(pa.array(asked))
    there = rows >= 0
    assert [asked[number] for number in np.flatnonzero(~there).tolist()] == ["none", "nor this"]
    found = table.gather(rows[there])["text"].to_pylist()
    assert found == [texts[key] for key in asked if key in texts]
    assert len(np.unique(rows[there])) == len(texts)


def test_what_lies_behind_the_last_row_of_a_page_is_no_row(tmp_path: Path) -> None:
    """Where a full page has hashes, one of four rows has zeros, and places of an empty string: there is no such key."""

    def hash_keys(parts: Parts) -> Hashes:
        return parts[0].lengths.astype(np.uint64) * np.uint64(8)

    texts = {"x" * length: f"{length}" for length in range(1, 5)}
    table = filled(texts, hash_keys)
    flush(table, OWNED, tmp_path)
    list(table.drain(0))
    assert found_in(table, ["", *texts]) == texts
