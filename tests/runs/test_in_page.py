"""A key is found in its page wherever it lies there: also far from where it should, and among keys of the same hash."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend._codec.change_sets.changes import GROUP
from statebackend._codec.change_sets.paged_changes import orders_of
from statebackend._codec.columns import Fixed
from statebackend._codec.pages import PAGE_BYTES_MIN, PageLayout, StoredColumn
from statebackend._runs import in_page
from statebackend._runs.in_page import matching

LAYOUT = PageLayout((StoredColumn("", "int64", "i8"),), (StoredColumn("n", "int64", "i8"),), PAGE_BYTES_MIN)
hashes_of_pages = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=90)
"""Upper and lower halves: many orders are equal, and many hashes."""


@pytest.mark.parametrize("near", [2, 5, 32])
@given(pairs=hashes_of_pages, data=st.data())
def test_a_key_is_found_wherever_it_lies(near: int, pairs: list[tuple[int, int]], data: st.DataObject) -> None:
    """Whatever share of the rows is said to lie before it. Keys that are not there are not."""
    numbers = np.arange(len(pairs))
    hashes = np.array([upper << 32 | lower for upper, lower in sorted(pairs)], np.uint64)
    groups = np.zeros(len(pairs), GROUP)
    pages = LAYOUT.written([0, len(pairs)], hashes, groups, [Fixed(numbers)], [Fixed(numbers)])
    others = np.array([upper << 32 | lower for upper in range(7) for lower in range(3)], np.uint64)
    wanted = np.concatenate([hashes, others])
    keys = np.concatenate([numbers, 1000 + np.arange(len(others))])
    shares = np.array(data.draw(st.lists(st.floats(0, 1), min_size=len(keys), max_size=len(keys))))
    rows = LAYOUT.rows(pages, np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64))
    with mock.patch.object(in_page, "NEAR", near):
        found, steps = matching(rows, orders_of(wanted, np.zeros(len(keys), GROUP)), wanted, [Fixed(keys)], shares)
    assert found.tolist() == numbers.tolist()
    assert steps.tolist() == numbers.tolist()
