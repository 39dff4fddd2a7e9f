"""A reading is cut into steps by what each of them holds of the changelog: no more than fits, and no step too many."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend._codec.commit import Commit
from statebackend._reading.asked_of_state import KEY_BYTES, ReadingStep, steps
from statebackend.ids import (
    ChangeSetHandle,
    CheckpointId,
    CommitSequence,
    Epoch,
    Handle,
    KeyGroupRange,
    RangeState,
    SequenceNumber,
    all_key_groups,
)

GROUPS = 8
KEYS = 100


def handle(first: int, last: int, keys: int = KEYS, stored_bytes: int = 0) -> ChangeSetHandle:
    """A change set with so many keys."""
    log_id, number = "log", SequenceNumber(0)
    return ChangeSetHandle(Handle("s", 0, 1, 0), log_id, number, 0, stored_bytes, KeyGroupRange(first, last), keys)


def commit_of(*changelog: ChangeSetHandle) -> Commit:
    """A commit of one owner, with this changelog."""
    return Commit(
        job="fleet",
        sequence=CommitSequence(1),
        checkpoint_id=CheckpointId(1),
        epoch=Epoch(1),
        parent=None,
        stamp="",
        max_parallelism=GROUPS,
        ranges=(RangeState(all_key_groups(GROUPS), changelog),),
        states=(),
    )


def cut(commit: Commit, first: int, last: int, keys_max: float, *, holds_values: bool = False) -> list[ReadingStep]:
    """The steps, where so many keys fit into each."""
    groups = [KeyGroupRange(first, last)]
    bytes_max = round(keys_max * KEY_BYTES)
    return list(steps(commit, groups, bytes_max=bytes_max, by_keys=False, holds_values=holds_values))


def spans(found: list[ReadingStep]) -> list[tuple[int, int]]:
    """The first and the last key group of each step."""
    return [(each.first, each.last) for step in found for each in step.wanted]


@pytest.mark.parametrize(
    ("changelog", "keys_max", "expected"),
    [
        ([], 1, [(0, 7)]),
        ([handle(0, 7)], KEYS, [(0, 7)]),
        ([handle(0, 7)], KEYS - 1, [(0, 6), (7, 7)]),
        ([handle(0, 7)], KEYS / 2, [(0, 3), (4, 7)]),
        ([handle(0, 7)], 1, [(group, group) for group in range(GROUPS)]),
        ([handle(3, 3), handle(4, 4)], KEYS, [(0, 3), (4, 7)]),
        ([handle(3, 3), handle(4, 4)], 2 * KEYS, [(0, 7)]),
        ([handle(7, 7), handle(7, 7), handle(0, 0)], KEYS, [(0, 6), (7, 7)]),
        ([handle(0, 1), handle(1, 2)], KEYS, [(0, 0), (1, 1), (2, 7)]),
    ],
)
def test_a_step_holds_no_more_than_fits(
    changelog: list[ChangeSetHandle], keys_max: float, expected: list[tuple[int, int]]
) -> None:
    """Each change set counts in all of its key groups, the first and the last among them. A group is never cut."""
    assert spans(cut(commit_of(*changelog), 0, 7, keys_max)) == expected


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(1, 9), st.integers(0, 9)), max_size=4),
    st.tuples(st.integers(0, 7), st.integers(0, 7)),
    st.integers(1, 20),
    st.booleans(),
)
def test_a_part_is_cut_by_what_it_has(
    drawn: list[tuple[int, int, int, int]], part: tuple[int, int], keys_max: int, holds_values: bool
) -> None:
    """Of a change set that reaches beyond it, by the share of it: who reads a part reads it in no more steps."""
    changelog = [
        handle(min(one, other), max(one, other), keys * 840, size * 840 * KEY_BYTES) for one, other, keys, size in drawn
    ]
    held = dict.fromkeys(range(GROUPS), 0)
    for each in changelog:
        for group in each.key_groups:
            held[group] += (each.records * KEY_BYTES + holds_values * each.length) // len(each.key_groups)
    first, last = sorted(part)
    found = cut(commit_of(*changelog), first, last, keys_max * 840, holds_values=holds_values)
    bytes_max = keys_max * 840 * KEY_BYTES
    assert [group for begin, end in spans(found) for group in range(begin, end + 1)] == [*range(first, last + 1)]
    for begin, end in spans(found):
        assert begin == end or sum(held[group] for group in range(begin, end + 1)) <= bytes_max
        assert end == last or sum(held[group] for group in range(begin, end + 2)) > bytes_max
    for step in found:
        assert step.part.key_groups == step.wanted[0]
        assert all(
            each.key_groups.intersection(step.part.key_groups) == each.key_groups for each in step.part.changelog
        )


def test_some_keys_are_read_in_one_step() -> None:
    """With the change sets between their key groups, and bases of these alone."""
    commit = commit_of(handle(0, 7), handle(3, 3))
    groups = [KeyGroupRange(1, 1), KeyGroupRange(5, 6)]
    (found,) = steps(commit, groups, bytes_max=1, by_keys=True, holds_values=True)
    assert found.wanted == tuple(groups)
    assert [each.key_groups for each in found.part.changelog] == [KeyGroupRange(1, 6), KeyGroupRange(3, 3)]
    assert list(steps(commit, [], bytes_max=1, by_keys=True, holds_values=True)) == []
