"""Filters of pages that were read: no key that is there is missing, and few others are thought to be."""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend._columns.keys import HashedKeys
from statebackend._runs.page_filters import SET_OF, PageFilters, bits_for
from statebackend._runs.page_map import PageMap, PlacedPart
from statebackend._runs.run_file import open_run
from statebackend._runs.run_table import RunTable
from tests.runs.test_damaged_runs import GROUPS, OWNED, SCHEMA, keys_of, segment_of


@given(st.lists(st.integers(1, 300), min_size=1, max_size=9), st.sampled_from([*SET_OF]), st.data())
def test_what_is_there_may_be_there(counts: list[int], bits: int, data: st.DataObject) -> None:
    """Whichever pages are known, and in whatever order they come to be."""
    first_rows = np.array([0, *counts]).cumsum()
    hashes = np.random.default_rng(counts).integers(1 << 64, size=int(first_rows[-1]), dtype=np.uint64)
    filters = PageFilters(first_rows, bits)
    pages = np.arange(len(counts))
    known = np.zeros(len(counts), np.bool_)
    for page in data.draw(st.permutations(pages.tolist())):
        some = np.array([page])
        filters.add(some, hashes[first_rows[page] : first_rows[page + 1]])
        known[page] = True
        assert filters.which_may(np.repeat(pages, counts), hashes).all()
        assert filters.which_may(pages, hashes[first_rows[:-1]])[~known].all()
        assert filters.which_new(pages).tolist() == np.flatnonzero(~known).tolist()


@pytest.mark.parametrize(("bits", "least", "most"), [(8, 0.01, 0.05), (4, 0.1, 0.2), (2, 0.3, 0.45)])
def test_what_is_not_there_is_seldom_looked_for(bits: int, least: float, most: float) -> None:
    """One time in thirty, six, or 2.5, though the hashes of a page begin alike and end with their key group."""
    rows, pages = 84, 300
    first_rows = np.arange(pages + 1) * rows
    page_of = np.repeat(np.arange(pages), rows)
    chance = np.random.default_rng(5)

    def hashes() -> np.ndarray:
        middle = chance.integers(1 << 40, size=rows * pages, dtype=np.uint64) << np.uint64(7)
        return (page_of.astype(np.uint64) << np.uint64(50)) | middle | np.uint64(9)

    filters = PageFilters(first_rows, bits)
    filters.add(np.arange(pages), hashes())
    assert least < filters.which_may(page_of, hashes()).mean() < most


def test_pages_are_not_read_again_for_keys_that_they_have_not(tmp_path: Path) -> None:
    """What the first look-up found out, the second remembers, and the third need not read."""
    pages = over(tmp_path, 20_000)
    others, own = hashed(f"other {number}" for number in range(20_000)), hashed(keys_of(20_000))
    read = []
    for _ in range(3):
        with counted(pages) as count:
            assert not pages.which(others).any()
        read.append(count())
    assert read[0] == read[1] > 10 * read[2] > 0
    assert pages.which(own).all()


def test_no_filters_are_kept_where_keys_are_found(tmp_path: Path) -> None:
    """A base of which most keys are there, or a table whose memory has no room for two bits of each row."""
    others, own = hashed(f"other {number}" for number in range(1000)), hashed(keys_of(1000))
    for room, keys, is_kept in ((1000, own, False), (249, others, False), (250, others, True)):
        pages = over(tmp_path, 1000, filter_bytes_max=room)
        pages.which(keys)
        assert (pages._reader.filters is not None) == is_kept


def test_rows_have_as_many_bits_as_there_is_room_for() -> None:
    """A byte, half of one, or a quarter."""
    assert [bits_for(1000, room) for room in (1000, 999, 500, 499, 250, 249)] == [8, 4, 4, 2, 2, 0]


def hashed(keys: Iterable[str]) -> HashedKeys:
    """To look up."""
    return RunTable(SCHEMA, OWNED).hashed(pa.array(keys, pa.string()))


def over(directory: Path, count: int, **bounds: int) -> PageMap:
    """The pages of so many keys."""
    file = open_run(*segment_of(directory, count))
    parts = [PlacedPart(part, (GROUPS,), is_whole=True) for part in file.parts]
    return PageMap(parts, max_parallelism=OWNED.max_parallelism, **bounds)


@contextmanager
def counted(pages: PageMap) -> Generator[Callable[[], int]]:
    """How many keys pages are read for."""
    sought, find_in = [0], pages._find_in

    def counting(wanted: Any, *more: Any) -> Any:
        sought.append(len(wanted.numbers))
        return find_in(wanted, *more)

    with mock.patch.object(pages, "_find_in", counting):
        yield lambda: sum(sought)
