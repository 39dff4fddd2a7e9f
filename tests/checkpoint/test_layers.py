"""Which layers a new one takes in, when a base is due, and how often a change is written by these rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.how_far.one_driver import life_of
from statebackend._checkpoint.materialization.base_schedule import BaseTriggers, is_due
from statebackend._checkpoint.materialization.layers import begin_of, first_to_merge, layers, segments_of, tail
from statebackend._checkpoint.materialization.tiers import due, id_in_layer, last_id, mark_of, members, members_in
from statebackend.ids import Base, ChangeSetHandle, Handle, KeyGroupRange, RangeState, SequenceNumber, all_key_groups
from statebackend.settings import MiB

ALL = all_key_groups(128)


def handle(
    name: str, number: int, length: int = 100, groups: KeyGroupRange = ALL, segment: str = ""
) -> ChangeSetHandle:
    """A handle of a change set with that log id."""
    of_file = Handle(segment or f"segments/{name} {number}", 0, length + 500, 4_000_000_000)
    return ChangeSetHandle(of_file, name, SequenceNumber(number), 400, length, groups, 10)


def layer(members: int, number: int, length: int, place: int = 0) -> list[ChangeSetHandle]:
    """A layer of so many change sets, in three files, behind `place` others."""
    pages = [handle(f"+{members}s{place} 0-127", number, length, groups, str(groups)) for groups in (HALF, OTHER)]
    return [handle(f"+{members}r{place} 0-127", number, 50), *pages]


HALF, OTHER = KeyGroupRange(0, 63), KeyGroupRange(64, 127)
TAIL = [handle("0-127", number) for number in range(20, 23)]


def state(changelog: list[ChangeSetHandle], base_bytes: int = 10_000) -> RangeState:
    """A state with one base."""
    base = Base(Handle("segments/base", 0, base_bytes, 1), (ALL,), len(ALL))
    return RangeState(ALL, tuple(changelog), (base,))


def test_layers_are_the_first_handles_of_a_changelog() -> None:
    """Each says how many change sets it stands for, in each of its handles, and counts once."""
    changelog = [*layer(16, 15, 900), *layer(4, 19, 300, 1), *TAIL]
    assert layers(changelog) == [(0, 3), (3, 6)]
    assert tail(changelog) == TAIL
    assert [begin_of(changelog, number) for number in range(3)] == [0, 3, 6]
    assert members_in(changelog) == 23
    assert layers([TAIL[0], *layer(16, 15, 900)]) == []
    assert [each.key_groups for each in segments_of(changelog[:3])] == [(ALL,), (HALF,), (OTHER,)]


def test_layers_of_two_openings_are_two_though_their_last_members_have_one_number() -> None:
    """Each opening counts its change sets from 0. Were they one, the newer one would not be looked up first."""
    older = handle(*id_in_layer([handle("0-127", 1)], 0, "s"))
    newer = handle(*id_in_layer([older, handle("0-127", 0), handle("0-127", 1)], 1, "r"))
    assert last_id(older) == last_id(newer)
    assert layers([older, newer]) == [(0, 1), (1, 2)]
    assert members_in([older, newer]) == 3


def test_a_new_layer_stands_for_all_that_it_takes_in() -> None:
    """Its last member is the last of the changelog, so that readers know where they are."""
    changelog = [*layer(16, 15, 900), *layer(4, 19, 300, 1), *TAIL]
    assert id_in_layer(changelog, 3, "s") == ("+7s1 0-127", 22)
    new = handle(*id_in_layer(changelog, 0, "r"))
    assert (members(new), mark_of(new), last_id(new)) == (23, "r", last_id(TAIL[-1]))


def test_layers_are_no_change_sets_to_merge_by_their_number() -> None:
    """However small they are."""
    assert due([*layer(1, 15, 10), *layer(1, 16, 10, 1)], 2) is None
    assert due([*layer(1, 15, 10), *TAIL], 2) == (3, 6)


@pytest.mark.parametrize(
    ("sizes", "first"),
    [([], 0), ([1000], 1), ([300], 0), ([1000, 400], 2), ([1000, 300], 1), ([600, 300], 0), ([9700], None)],
)
def test_a_new_layer_takes_in_those_that_are_not_larger_than_all_that_is_newer(
    sizes: list[int], first: int | None
) -> None:
    """The tail has 300 bytes. With the base it takes in everything."""
    changelog = [handle(f"+2s{at} 0-127", at, size) for at, size in enumerate(sizes)]
    assert first_to_merge(state([*changelog, *TAIL]), ratio=1.0, base_bytes=10_000) == first


def test_without_a_base_or_with_another_kind_a_base_is_due() -> None:
    """As when the ratio is 0."""
    assert first_to_merge(RangeState(ALL, tuple(TAIL)), ratio=1.0, base_bytes=0) is None
    assert first_to_merge(state(TAIL), ratio=0.0, base_bytes=10_000) is None


def test_only_what_is_behind_the_layers_makes_the_next_one_due() -> None:
    """By its number, its changes or its bytes, whatever the size of the base."""
    changelog = [*layer(1000, 15, 90_000), *TAIL]
    for triggers, expected in [
        (BaseTriggers(handles_max=4), False),
        (BaseTriggers(handles_max=3), True),
        (BaseTriggers(changelog_ratio=1.0, changelog_bytes_min=301), False),
        (BaseTriggers(changelog_ratio=1.0, changelog_bytes_min=300), True),
        (BaseTriggers(changelog_ratio=1.0, changelog_bytes_min=MiB, changelog_changes_min=31), False),
        (BaseTriggers(changelog_ratio=1.0, changelog_bytes_min=MiB, changelog_changes_min=30), True),
    ]:
        assert is_due(state(changelog), triggers, interval_is_over=False, in_layers=True) == expected
    assert not is_due(state(changelog[:3]), BaseTriggers(handles_max=1), interval_is_over=True, in_layers=True)


@pytest.mark.parametrize(("keys", "written", "layers_max"), [(2, 3, 2), (20, 5.1, 5), (60, 5.6, 6), (1000, 7.6, 10)])
def test_a_change_is_written_a_few_times(keys: int, written: float, layers_max: int) -> None:
    """By the million keys; a layer is due for each 500,000 changes."""
    found = life_of(keys * 1_000_000)
    assert found.written <= written
    assert found.layers_max <= layers_max


@given(st.lists(st.integers(1, 1000), max_size=60))
def test_each_layer_is_larger_than_all_behind_it(tails: list[int]) -> None:
    """So their number is at most that of the doublings."""
    sizes: list[int] = []
    for number, tail_bytes in enumerate(tails):
        changelog = [handle(f"+2s{at} 0-127", at, size) for at, size in enumerate(sizes)]
        changelog.append(handle("0-127", number + 1000, tail_bytes))
        first = first_to_merge(state(changelog, 1 << 40), ratio=1.0, base_bytes=1 << 40)
        assert first is not None
        sizes = [*sizes[:first], sum(sizes[first:]) + tail_bytes]
        assert all(size > sum(sizes[at + 1 :]) for at, size in enumerate(sizes))
