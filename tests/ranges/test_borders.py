"""Ranges at their borders: how key groups are cut, which cached state goes first, what a cached one has changed."""

from typing import Any

import pytest

import statebackend as sb
from statebackend._checkpoint.lineage import bases_id, lineage_of
from statebackend._ranges.cached_in_process import CachedRange, CachedRanges, CachedTables, range_name
from statebackend._ranges.equal_ranges import ranges_of
from statebackend._tables.heap import heap_table
from statebackend.errors import SettingsError
from statebackend.ids import Base, ChangeSetHandle, Epoch, Handle, KeyGroupRange, RangeState, SequenceNumber
from tests.reading.test_asked import commit_of

SETTINGS = sb.Settings(job="fleet", primary="memory://unused", max_parallelism=12)


@pytest.mark.parametrize(
    ("parallelism", "sizes"),
    [(1, [12]), (2, [6, 6]), (5, [3, 2, 3, 2, 2]), (11, [2, *[1] * 10]), (12, [1] * 12)],
)
def test_key_groups_are_cut_into_ranges_that_differ_by_one(parallelism: int, sizes: list[int]) -> None:
    """As many slots as there are key groups is not one too many. Each begins where the one before has ended."""
    found = ranges_of(parallelism, 12)
    assert [len(each) for each in found] == sizes
    assert [group for each in found for group in each] == list(range(12))


@pytest.mark.parametrize("parallelism", [0, -1, 13, 1.0, True, "3", None])
def test_a_number_of_slots_that_cannot_be_is_refused(parallelism: Any) -> None:
    """With what it may be."""
    with pytest.raises(SettingsError, match="between 1 and max_parallelism") as raised:
        ranges_of(parallelism, 12)
    assert raised.value.facts["max_parallelism"] == 12


def cached(*, bases: bytes = b"", changed: frozenset[int] = frozenset()) -> CachedRange:
    lineage = lineage_of(None, KeyGroupRange(0, 7))
    return CachedRange(lineage, CachedTables(heap_table), None, Epoch(1), bases, changed)


def test_of_cached_states_that_used_least_recently_goes_first() -> None:
    """One that is put in again counts as used now, though it was there before the others."""
    names = [range_name(SETTINGS, KeyGroupRange(group, group)) for group in range(4)]
    first, second, third, fourth = names
    ranges = CachedRanges()
    for name in (first, second, third, first):
        ranges.put(name, cached(), ranges_max=3)
    ranges.put(fourth, cached(), ranges_max=3)
    assert [name for name in names if ranges.take(name) is not None] == [first, third, fourth]


def change_set(first: int, last: int) -> ChangeSetHandle:
    return ChangeSetHandle(Handle("s", 0, 9, 0), "0-7", SequenceNumber(0), 0, 9, KeyGroupRange(first, last), records=1)


def test_what_was_changed_since_the_bases_is_what_was_cached_and_what_came_since() -> None:
    """New bases replace the changelog of these key groups alone: one that is missing would be lost with it."""
    base = Base(Handle("b", 0, 9, 0), (KeyGroupRange(0, 7),), 8)
    state = RangeState(KeyGroupRange(0, 7), (change_set(0, 1), change_set(4, 5)), (base,))
    mine = cached(bases=bases_id((base,), ()), changed=frozenset({0, 1}))
    assert mine.changed_since(state, [4, 5]) == {0, 1, 4, 5}
    assert mine.changed_since(state, []) == {0, 1}
    others = cached(bases=bases_id((), ()), changed=frozenset({0, 7}))
    assert others.changed_since(state, [4]) == {0, 1, 4, 5}, "all that the changelog may have changed"


def test_an_owner_of_no_commit_begins_with_nothing() -> None:
    """The lineage of a state that was taken from the cache is compared with that of the commit."""
    assert lineage_of(None, KeyGroupRange(0, 7)) != lineage_of(commit_of(change_set(0, 7)), KeyGroupRange(0, 7))
