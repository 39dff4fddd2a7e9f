"""Rows by key: against a dictionary of lists, whatever the keys are and however the table is cut."""

from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend._processing.grouping import by_key, in_order
from statebackend.errors import InputError

COLUMNS = {
    "text": (pa.string(), st.sampled_from(["", "a", "b", "ä", "a\x00", "longer than the others"])),
    "number": (pa.int64(), st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)])),
    "small": (pa.int32(), st.integers(0, 3)),
    "bytes": (pa.binary(), st.sampled_from([b"", b"a", b"\x00", b"\xff"])),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Some rows with a number each, in chunks that are cut anywhere."""
    rows = draw(st.lists(st.tuples(*(values for _, values in COLUMNS.values()), st.integers(0, 2)), max_size=40))
    arrays = [pa.array([row[i] for row in rows], type=type_) for i, (type_, _) in enumerate(COLUMNS.values())]
    whole = pa.table(
        [*arrays, pa.array([row[-1] for row in rows], pa.int64()), pa.array(range(len(rows)), pa.int64())],
        names=[*COLUMNS, "when", "place"],
    )
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    begins, ends = [0, *cuts], [*cuts, len(rows)]
    return pa.concat_tables(whole.slice(begin, end - begin) for begin, end in zip(begins, ends, strict=True))


@given(
    tables(),
    st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=4, unique=True),
    st.lists(st.sampled_from(["when", "small"]), max_size=2, unique=True),
    st.integers(1, 50),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_every_key_comes_once_with_all_of_its_rows_in_order(
    table: pa.Table, key: list[str], order_by: list[str], slab_rows: int
) -> None:
    """By the columns of `order_by`, and as they came where those are equal. No slab is too small for a key's rows."""
    expected = defaultdict(list)
    for row in table.to_pylist():
        expected[row[key[0]] if len(key) == 1 else tuple(row[name] for name in key)].append(row)
    for rows in expected.values():
        rows.sort(key=lambda row: [row[name] for name in order_by])
    found = list(by_key(table, key, order_by, slab_rows=slab_rows))
    assert len(found) == len(expected)
    assert dict(found) == expected
    assert all(type(one) is type(other) for (one, _), other in zip(found, dict(found), strict=True))


@given(tables(), st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3, unique=True))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_sorted_table_has_the_same_rows_with_those_of_a_key_together(table: pa.Table, key: list[str]) -> None:
    """The very order in which `by_key` has them."""
    ordered = in_order(table, key, ["when"])
    assert ordered.to_pylist() == [row for _, rows in by_key(table, key, ["when"]) for row in rows]
    assert ordered.schema == table.schema


@pytest.mark.parametrize(
    ("column", "fact"),
    [
        (pa.array(["a", None, None]), 2),
        (pa.array([1.0, 2.0, 3.0]), "double"),
        (pa.array([True, False, True]), "bool"),
        (pa.array([0, 1, 2], pa.timestamp("us")), "timestamp[us]"),
        (pa.array([[1], [2], [3]]), "list<item: int64>"),
    ],
)
def test_what_can_be_no_key_is_refused_and_named(column: pa.Array, fact: object) -> None:
    """Nulls, and types of which Spark and Python have different ideas of what is equal, or none at all."""
    table = pa.table({"ok": pa.array([1, 2, 3]), "key": column})
    with pytest.raises(InputError) as caught:
        list(by_key(table, ["ok", "key"]))
    assert caught.value.facts["column"] == "key"
    assert fact in caught.value.facts.values()


@pytest.mark.parametrize(("key", "order_by"), [(["kye"], []), (["key"], ["wen"])])
def test_a_column_that_is_not_there_is_named(key: list[str], order_by: list[str]) -> None:
    """And those that are."""
    table = pa.table({"key": ["a"], "when": [1]})
    with pytest.raises(InputError) as caught:
        list(by_key(table, key, order_by))
    assert caught.value.facts["column"] in ("kye", "wen")
    assert caught.value.facts["known"] == ["key", "when"]


def test_many_rows_of_many_keys_come_in_slabs() -> None:
    """More rows than one slab has, so that the parts have to fit together."""
    count = 200_000
    table = pa.table({"key": [n % 777 for n in range(count)], "place": range(count)})
    found = dict(by_key(table, ["key"]))
    assert sum(map(len, found.values())) == count
    assert [row["place"] for row in found[5]] == list(range(5, count, 777))


@pytest.mark.parametrize(
    ("column", "order_by", "said"),
    [
        (pa.array([[1]]), ["x"], "columns that have an order.*'x': 'list"),
        (pa.array([2**60], pa.timestamp("us")), [], "no object.*column='x'"),
        (pa.array([2**60], pa.timestamp("s", tz="UTC")), [], "no object.*column='x'"),
        (pa.array([2**30], pa.date32()), [], "no object.*column='x'"),
    ],
    ids=["no order", "beyond the year 9999", "far beyond it", "a date beyond it"],
)
def test_a_column_that_cannot_be_handed_on_is_named(column: pa.Array, order_by: list[str], said: str) -> None:
    """A table has dozens of them."""
    with pytest.raises(InputError, match=said):
        list(by_key(pa.table({"key": ["a"], "x": column}), ["key"], order_by))
