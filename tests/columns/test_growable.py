"""Columns over a long life: what is replaced leaves no bytes behind, and what a copy shares stays as it was."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from statebackend._codec.columns import Fixed, Strings
from statebackend._columns.column_table import ColumnTable
from statebackend._columns.growable import COMPACTED_BYTES_MIN, FixedColumn, StringColumn
from statebackend._columns.keys import StringKeys
from statebackend._columns.table_schema import table_schema
from statebackend._tables.key_groups import OwnedKeys
from statebackend.ids import all_key_groups

ROWS = 10
LONG = 3 * COMPACTED_BYTES_MIN // ROWS
"""All strings together are worth a compaction once they are replaced."""


def text(letter: str, place: int) -> str:
    """Texts of different lengths."""
    return letter * (LONG + place)


def octets_of(of: ColumnTable) -> int:
    """The bytes that the strings of its one column of text take, those that are not used any more among them."""
    column: Any = of._columns["name"]
    return int(column._end)


def table() -> ColumnTable:
    schema = pa.schema({"n": pa.int32(), "name": pa.string()})
    return ColumnTable(table_schema(schema, pa.string()), OwnedKeys(all_key_groups(16), 16))


def names(of: ColumnTable, rows: Any) -> list[Any]:
    found: list[Any] = of.gather(rows, ["name"]).column(0).to_pylist()
    return found


def test_strings_that_are_replaced_again_and_again_take_no_more_room() -> None:
    """The heap is compacted, and written to behind the strings that are left. Copies read theirs as before."""
    of = table()
    rows, _ = of.find_or_add(pa.array([f"k{number}" for number in range(ROWS)]))
    copies = list[tuple[ColumnTable, list[Any]]]()
    live_bytes = sum(len(text("a", place)) for place in range(ROWS))
    expected = list[Any]([None] * ROWS)
    for number, letter in enumerate("abcdefgh"):
        some = np.arange(ROWS)[number % 2 :: 2]  # of the others the strings stay
        expected = [text(letter, place) if place in some else before for place, before in enumerate(expected)]
        of.scatter(rows[some], pa.record_batch({"name": [expected[place] for place in some]}))
        copies.append((of.copy(), expected))
        assert names(of, rows) == expected
        assert of.size().size_bytes == 4 * ROWS + sum(len(each) for each in expected if each)
        assert octets_of(of) < 3 * live_bytes
    for copied, then in copies:
        assert names(copied, rows) == then


@pytest.mark.parametrize("length", [LONG, 5])
def test_strings_of_keys_that_are_gone_take_no_more_room(length: int) -> None:
    """Nor the keys themselves. Rows are used again, and the size is that of the keys there are."""
    of = table()
    for letter in "abcdefgh":
        keys = [letter * (length + place) for place in range(ROWS)]
        rows, is_new = of.find_or_add(pa.array(keys))
        assert is_new.all()
        assert names(of, rows) == [None] * ROWS
        of.scatter(rows, pa.record_batch({"name": keys}))
        list(of.drain(0))
        assert of.keys(rows).to_pylist() == names(of, rows) == keys
        assert of.size().size_bytes == sum(4 + len(each) for each in keys)
        half = rows[: ROWS // 2]
        of.drop(half)
        of.drop(rows[ROWS // 2 :])
        assert of.size().size_bytes == 0
        list(of.drain(0))
        assert of.num_rows == 0
        assert octets_of(of) < 3 * ROWS * LONG
        key_column: Any = of._rows._keys._parts[0]
        assert key_column._end < 4 * ROWS * LONG


def column_of(strings: list[bytes]) -> Strings:
    """These strings, one behind the other."""
    lengths = np.array(list(map(len, strings)))
    return Strings(np.frombuffer(b"".join(strings), np.uint8), np.cumsum(lengths) - lengths, lengths)


def strings_in(found: Strings) -> list[bytes]:
    raw = found.data.tobytes()
    return [raw[at : at + length] for at, length in zip(found.starts, found.lengths, strict=True)]


@pytest.mark.parametrize("kind", [StringColumn, StringKeys])
def test_a_compaction_is_done_once_more_is_unused_than_used(kind: type[StringColumn | StringKeys]) -> None:
    """And not again before as much is unused once more. Of a little it is not worth its while."""
    column, rows = kind(), np.arange(4)
    column.reserve(0, 4)
    column.write(rows, column_of([b"x" * COMPACTED_BYTES_MIN] * 4))
    for _ in range(3):
        for place in range(4):
            assert not column.is_wasteful, place
            column.write(rows[place : place + 1], column_of([b"y" * COMPACTED_BYTES_MIN]))
        assert not column.is_wasteful, "as much is used"
        column.write(rows[:1], column_of([b"z" * COMPACTED_BYTES_MIN]))
        assert column.is_wasteful
        column.tidy(rows)
    small = kind()
    small.reserve(0, 1)
    for _ in range(9):
        small.write(rows[:1], column_of([b"x" * (COMPACTED_BYTES_MIN // 8)]))
    assert not small.is_wasteful
    small.write(rows[:1], column_of([b"x"]))
    assert small.is_wasteful


@pytest.mark.parametrize("chosen", [[0], [2], [4], [0, 4], [1, 2, 3], [0, 1, 2, 3, 4]])
def test_a_compaction_keeps_each_string(chosen: list[int]) -> None:
    """Of the rows that live, the first and the last among them; what is written next lies behind these."""
    column, rows = StringColumn(), np.arange(5)
    column.reserve(0, 5)

    strings = [b"", b"a", b"bb" * 9, b"ccc", b"dddd" * 20]
    column.write(rows, column_of(strings))
    gone = np.setdiff1d(rows, chosen)
    column.forget(gone)
    live = np.array(chosen)
    column.tidy(live)
    assert strings_in(column.read(live)) == [strings[place] for place in chosen]
    assert column.used_bytes == sum(len(strings[place]) for place in chosen)
    column.write(gone, column_of([b"new" for _ in gone]))
    assert strings_in(column.read(live)) == [strings[place] for place in chosen]
    assert strings_in(column.read(gone)) == [b"new" for _ in gone]


def test_a_copy_of_some_rows_knows_which_are_null() -> None:
    """They have other places there than in the column, of which it remembers how far no row is null."""
    column = FixedColumn(np.int64)
    column.reserve(0, 5)
    column.write(np.arange(4), Fixed(np.arange(4)))
    copied = column.copy(np.array([3, 4, 0]))
    values, valid = copied.read(np.arange(3))
    assert valid is not None
    assert (values[valid].tolist(), valid.tolist()) == ([3, 0], [True, False, True])
