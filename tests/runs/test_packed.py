"""Arrays of the overlay after a peak: they have places for the rows that are left, under other numbers."""

import weakref
from pathlib import Path
from typing import Any

import pyarrow as pa

from statebackend._columns.growable import ROWS_MIN
from statebackend._columns.table_schema import table_schema
from statebackend._runs.overlay_memory import OverlayMemory
from statebackend._runs.run_table import RunTable
from statebackend._tables.key_groups import OwnedKeys
from statebackend.ids import all_key_groups
from tests.runs.flushing import flush

GROUPS = 4
OWNED = OwnedKeys(all_key_groups(GROUPS), GROUPS)
SCHEMA = table_schema(pa.schema({"n": pa.int64(), "text": pa.string()}), pa.string())
COUNT = 20_000


def written(table: RunTable, numbers: range, text: str) -> None:
    """These keys with their number, and a text."""
    rows, _ = table.find_or_add(pa.array([f"key {number}" for number in numbers]))
    columns = {"n": list(numbers), "text": [f"{text} {number}" for number in numbers]}
    table.scatter(rows, pa.RecordBatch.from_pydict(columns))


def read(table: RunTable, numbers: range) -> dict[str, list[Any]]:
    """What a look-up finds."""
    rows = table.find(pa.array([f"key {number}" for number in numbers]))
    assert (rows >= 0).all()
    return table.gather(rows).to_pydict()


def places(table: RunTable) -> int:
    """The most that an array has."""
    arrays = [table._changed_at, table._used_at, table._origins, table._is_touched, table._rows._hashes]
    return max(map(len, [*arrays, table._rows._is_live, table._columns["n"]._values, table._columns["text"]._starts]))


def after_a_peak(directory: Path) -> RunTable:
    """Nearly all rows are in a base, and have left; ten have changed since, which is not drained yet."""
    table = RunTable(SCHEMA, OWNED, memory=OverlayMemory(1))
    written(table, range(COUNT), "old")
    list(table.drain(0))
    assert places(table) >= COUNT
    flush(table, OWNED, directory, range(GROUPS))
    written(table, range(10), "new")
    return table


def test_arrays_have_no_places_for_rows_that_have_left(tmp_path: Path) -> None:
    """A row takes 90 bytes, in memory for as long as the process lives otherwise."""
    table = after_a_peak(tmp_path)
    table.window(100)  # some rows stay to be looked at
    list(table.drain(0))
    assert places(table) <= 2 * ROWS_MIN
    assert len(table._rows) <= table._rows.key_bytes <= 100 * len(table._rows), "nor bytes of their keys"
    assert read(table, range(10)) == {"n": list(range(10)), "text": [f"new {number}" for number in range(10)]}
    wanted = range(COUNT - 10, COUNT)
    assert read(table, wanted) == {"n": list(wanted), "text": [f"old {number}" for number in wanted]}
    assert len(table) == COUNT
    assert len(table.window(2 * COUNT)) > COUNT // 2


def test_one_row_is_read_from_the_columns_that_are_left(tmp_path: Path) -> None:
    """Also where one was read from those that there were before, whose memory nothing keeps."""
    table, names = after_a_peak(tmp_path), ["n", "text"]
    row = table.find_one("key 7")
    assert row is not None
    assert table.plain_row(row, names) == {"n": 7, "text": "new 7"}
    before = weakref.ref(table._columns["n"]._values)
    list(table.drain(0))
    assert before() is None
    written(table, range(5, 10), "newest")
    row = table.find_one("key 7")
    assert row is not None
    assert table.plain_row(row, names) == {"n": 7, "text": "newest 7"}


def test_rows_keep_their_numbers_while_somebody_goes_over_them(tmp_path: Path) -> None:
    """And get others at the next drain."""
    table = after_a_peak(tmp_path)
    pieces = table.pieces()
    assert len(next(pieces)) >= 10
    list(table.drain(0))
    assert places(table) >= COUNT
    pieces.close()
    list(table.drain(0))
    assert places(table) <= 2 * ROWS_MIN


def test_rows_that_changed_while_somebody_went_over_them_stay(tmp_path: Path) -> None:
    """Also when they were drained by the time that the next ones are asked for: no run has them as they are."""
    table = after_a_peak(tmp_path)
    list(table.drain(0))
    assert len(table._rows) == 10
    changed = 0
    for rows in table.pieces():
        text = pa.RecordBatch.from_pydict({"text": pa.array(["changed"] * len(rows), pa.string())})
        table.scatter(rows, text)
        list(table.drain(0))
        changed += len(rows)
    assert changed == COUNT
    assert set(read(table, range(COUNT))["text"]) == {"changed"}
