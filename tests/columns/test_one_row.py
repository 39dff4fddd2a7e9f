"""The row of one key, read without Arrow: the same as with it, for every type, and every key that there may be."""

from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend import TimeToLive
from statebackend._columns.arrow import plain_of
from statebackend._columns.batch.user_keys import plain_keys
from statebackend._columns.column_table import ColumnTable
from statebackend.errors import KeyGroupError, KeyTypeError, ValueDecodeError
from statebackend.ids import KeyGroupRange
from tests.columns.column_types import KEYS, TYPES, array
from tests.columns.states import columnar
from tests.examples import name_of


@pytest.mark.parametrize("type_", TYPES, ids=name_of)
@given(data=st.data())
@settings(max_examples=20)
def test_a_row_is_what_arrow_says(type_: pa.DataType, data: st.DataObject) -> None:
    """Or neither of them has a Python value for it. Nulls are there, too, and rows that were never written."""
    values = data.draw(st.lists(st.none() | TYPES[type_], min_size=1, max_size=4))
    state = columnar(pa.schema({"x": type_, "never": type_}), pa.int64())
    keys = range(len(values))
    state.rows(pa.array(keys)).scatter({"x": array(values, type_)})
    for key in keys:
        try:
            expected = plain_of(state.rows([key]).gather())[0]
        except ValueDecodeError:
            with pytest.raises(ValueDecodeError):
                state[key]
            continue
        assert state[key] == expected
        assert {name: type(value) for name, value in state[key].items()} == {
            name: type(value) for name, value in expected.items()
        }


@pytest.mark.parametrize("type_", KEYS, ids=name_of)
@given(data=st.data())
@settings(max_examples=30)
def test_a_key_is_found_where_it_is_found_among_many(type_: pa.DataType, data: st.DataObject) -> None:
    """Among keys that came and went, and whose rows others have now."""
    key_lists = st.lists(KEYS[type_], min_size=1, max_size=30)
    state = columnar(pa.schema({"n": pa.int64()}), type_, key_groups=KeyGroupRange(0, 127))
    for _ in range(3):
        added, dropped = (plain_keys(array(data.draw(key_lists), type_)) for _ in range(2))
        for key in added:
            state[key] = {"n": 1}
        for key in dropped:
            state.pop(key, None)
        _ = list(state.drain(0))
        table = state._rows.table
        for key in (*added, *dropped):
            assert table.find_one(key) == table.find(state._one(key))[0]


def test_a_row_of_plain_columns_takes_no_arrow() -> None:
    """Arrow would take a hundred times as long."""
    state = columnar(pa.schema({"n": pa.int64(), "x": pa.float64(), "s": pa.string(), "b": pa.binary()}), pa.string())
    state["a"] = {"n": 1, "x": 0.5, "s": "é", "b": b"\xff"}
    with patch.object(ColumnTable, "gather", None), patch.object(ColumnTable, "find", None):
        assert state["a"] == {"n": 1, "x": 0.5, "s": "é", "b": b"\xff"}
        with pytest.raises(KeyError):
            state["b"]


def test_keys_that_are_none_are_refused_as_ever() -> None:
    """A key of another type, or owner, is an error and not merely missing."""
    wrong: list[Any] = [1, True, b"a", "\ud800", ("a",), None]
    state = columnar(pa.schema({"n": pa.int64()}), pa.string(), key_groups=KeyGroupRange(0, 0))
    for key in wrong:
        with pytest.raises(KeyTypeError):
            state[key]
    with pytest.raises(KeyGroupError):
        state["ada"]
    pairs = columnar(pa.schema({"n": pa.int64()}), pa.struct({"a": pa.string(), "b": pa.int64()}))
    wrong = [("a",), ("a", 1, 2), ("a", True), ("a", 1 << 63), "a"]
    for key in wrong:
        with pytest.raises(KeyTypeError):
            pairs[key]


def test_a_row_expires() -> None:
    """Unless reading it is a use of it."""
    now = [0.0]
    for on_read in (False, True):
        now[0] = 0.0
        ttl = TimeToLive(10.0, now=lambda: now[0], on_read=on_read)
        state = columnar(pa.schema({"n": pa.int64()}), pa.string(), ttl=ttl)
        state["a"] = {"n": 1}
        now[0] = 9.0
        assert state["a"] == {"n": 1}
        now[0] = 12.0
        assert ("a" in state) == on_read
        assert state.get("a") == ({"n": 1} if on_read else None)
