"""Key-group ranges and the other small values. Rows in quotes name the behaviours this project re-thinks."""

import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.ids import (
    EMPTY_RANGE,
    MAX_PARALLELISM_LIMIT,
    ChangeSetHandle,
    Handle,
    KeyGroupRange,
    SequenceNumber,
    all_key_groups,
)


@pytest.mark.parametrize("other", [KeyGroupRange(3, 7)])
def test_a_range_intersects_one_inside_it(other: KeyGroupRange) -> None:
    """Row `KeyGroupRangeTest.testKeyGroupIntersection (inside)`: the inner one, both ways; itself with itself."""
    whole = KeyGroupRange(0, 10)
    assert whole.intersection(other) == other.intersection(whole) == other
    assert whole.intersection(whole) == whole


def test_disjoint_ranges_have_the_empty_intersection() -> None:
    """Row `KeyGroupRangeTest.testKeyGroupIntersection (disjoint)`: the empty range, both ways."""
    low, high = KeyGroupRange(0, 5), KeyGroupRange(6, 10)
    assert low.intersection(high) == high.intersection(low) == EMPTY_RANGE


@pytest.mark.parametrize(("one", "two", "both"), [((0, 10), (5, 20), (5, 10)), ((3, 12), (0, 10), (3, 10))])
def test_overlapping_ranges_intersect_where_they_overlap(
    one: tuple[int, int], two: tuple[int, int], both: tuple[int, int]
) -> None:
    """Row `KeyGroupRangeTest.testKeyGroupIntersection (overlap)`: symmetric."""
    left, right = KeyGroupRange(*one), KeyGroupRange(*two)
    assert left.intersection(right) == right.intersection(left) == KeyGroupRange(*both)


@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 1), (1, 2), (42, 42), (3, 7), (0, 32767), (32766, 32767)])
def test_a_range_includes_both_ends_and_not_their_neighbours(first: int, last: int) -> None:
    """Row `KeyGroupRangeTest.testKeyGroupRangeBasics`: count, iteration in order, membership."""
    groups = KeyGroupRange(first, last)
    assert len(groups) == last - first + 1
    assert list(groups) == list(range(first, last + 1))
    assert first in groups
    assert last in groups
    assert first - 1 not in groups
    assert last + 1 not in groups
    assert groups


@pytest.mark.parametrize(("first", "last"), [(-3, 2), (-1, -1), (5, 4), (0, -2), (-1, 0), (1, 0)])
def test_what_is_no_range_is_an_argument_error(first: int, last: int) -> None:
    """Row `KeyGroupRangeTest.testKeyGroupRangeBasics (invalid)`: (-3, 2), and anything else that is not one."""
    with pytest.raises(ValueError):
        KeyGroupRange(first, last)


def test_the_empty_range_holds_nothing() -> None:
    """It is falsy, iterates over nothing, and intersects everything to itself."""
    assert not EMPTY_RANGE
    assert (len(EMPTY_RANGE), list(EMPTY_RANGE)) == (0, [])
    assert 0 not in EMPTY_RANGE
    assert -1 not in EMPTY_RANGE
    assert (
        EMPTY_RANGE.intersection(KeyGroupRange(0, 10)) == KeyGroupRange(0, 10).intersection(EMPTY_RANGE) == EMPTY_RANGE
    )


ranges = st.builds(
    lambda ends: KeyGroupRange(min(ends), max(ends)),
    st.tuples(st.integers(0, 60), st.integers(0, 60)),
) | st.just(EMPTY_RANGE)


@given(ranges, ranges)
def test_an_intersection_is_that_of_the_sets(left: KeyGroupRange, right: KeyGroupRange) -> None:
    """Ranges are sets of groups, whatever their ends are."""
    assert set(left.intersection(right)) == set(left) & set(right)
    assert left.intersection(right) == right.intersection(left)


@given(st.integers(1, MAX_PARALLELISM_LIMIT))
def test_all_key_groups_are_as_many_as_the_parallelism_allows(max_parallelism: int) -> None:
    """From group 0 on, without a gap."""
    groups = all_key_groups(max_parallelism)
    assert (groups.first, len(groups)) == (0, max_parallelism)


def test_only_whole_numbers_are_key_groups() -> None:
    """A key that was not hashed is no member, and asking is no error."""
    assert "3" not in KeyGroupRange(0, 10)
    assert None not in KeyGroupRange(0, 10)
    assert 3.0 not in KeyGroupRange(0, 10)


def test_values_that_name_things_survive_storage_and_pickling() -> None:
    """They are written into commit objects and sent to workers; what comes back is equal."""
    segment = Handle("segments/a", 0, 100, 0xFFFFFFFF)
    handle = ChangeSetHandle(segment, "log", SequenceNumber(7), 8, 50, KeyGroupRange(3, 7), 12)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(handle), type=ChangeSetHandle) == handle
    assert pickle.loads(pickle.dumps(handle)) == handle
    assert len({handle, pickle.loads(pickle.dumps(handle))}) == 1


def test_a_range_that_was_damaged_in_storage_is_refused() -> None:
    """Decoding checks it as making one does."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode([5, 4]), type=KeyGroupRange)


def test_values_cannot_be_changed() -> None:
    """A handle is shared by many who rely on it."""
    with pytest.raises(AttributeError):
        KeyGroupRange(0, 1).first = 5  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Handle("a", 0, 1, 2).key = "b"  # type: ignore[misc]
