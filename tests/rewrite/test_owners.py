"""Operator state stays with the ranges that reported it; neighbours are merged if there are fewer key groups."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

import statebackend as sb
from statebackend._state.kinds.operator_state import Mode
from statebackend._tables.key_groups import key_group
from statebackend._upkeep.key_group_change import regrouped_owners
from statebackend.ids import OperatorElements, RangeState
from statebackend.objectstore import MemoryStore
from tests.rewrite.jobs import newest_commit, settings_of

MODES: dict[int, Mode] = {0: "split", 1: "union", 2: "broadcast"}


def ranges_of(*reports: dict[int, Sequence[bytes]]) -> list[RangeState]:
    """As many ranges, of one key group each."""
    return [
        RangeState(
            sb.owners.KeyGroupRange(place, place),
            (),
            operator=tuple(OperatorElements(state_id, tuple(found)) for state_id, found in report.items()),
        )
        for place, report in enumerate(reports)
    ]


@given(st.integers(1, 40), st.integers(1, 300))
def test_the_new_ranges_cover_every_key_group_once(count: int, max_parallelism: int) -> None:
    """There are as many as before, unless there are fewer groups than that; none is empty."""
    owners = regrouped_owners(ranges_of(*[{}] * count), MODES, max_parallelism)
    assert len(owners) == min(count, max_parallelism)
    assert [group for owner in owners for group in owner.key_groups] == list(range(max_parallelism))


def test_each_range_keeps_what_it_had_reported() -> None:
    """In every mode; a range that reported nothing of a state still reports nothing."""
    reports: list[dict[int, Sequence[bytes]]] = [{0: [b"a"], 2: [b"x"]}, {}, {1: [b"u", b"v"], 2: [b"x"]}]
    owners = regrouped_owners(reversed(ranges_of(*reports)), MODES, 64)
    assert [owner.operator for owner in owners] == [part.operator for part in ranges_of(*reports)]


def test_neighbours_are_put_together_where_there_are_fewer_groups() -> None:
    """Split and union elements in a row, a broadcast once; what only the second range reported is not lost."""
    owners = regrouped_owners(
        ranges_of({0: [b"a"], 1: [b"u"]}, {0: [b"b", b"c"], 2: [b"x"]}, {0: []}, {1: [b"v"], 2: [b"x"]}, {2: [b"x"]}),
        MODES,
        2,
    )
    assert [owner.operator for owner in owners] == [
        (OperatorElements(0, (b"a", b"b", b"c")), OperatorElements(1, (b"u",)), OperatorElements(2, (b"x",))),
        (OperatorElements(1, (b"v",)), OperatorElements(2, (b"x",))),
    ]


@pytest.mark.parametrize("after", [64, 2])
async def test_a_job_of_several_owners_comes_through(after: int) -> None:
    """Every owner of the new key groups has its keys, and the operator state stays where it was."""
    store, settings = MemoryStore(), settings_of(12)
    parts = [sb.owners.KeyGroupRange(0, 3), sb.owners.KeyGroupRange(4, 4), sb.owners.KeyGroupRange(5, 11)]
    async with sb.owners.open_coordinator(settings, store=store) as coordinator:
        snapshots: list[sb.owners.SnapshotResult] = []
        for number, part in enumerate(parts):
            async with sb.open_backend(settings, store=store, key_groups=part, owners=parts) as owner:
                mine = {key: -key for key in range(300) if key_group(key, 12) in part}
                owner.value_state("n", int).update(mine)
                owner.operator_state("split", int).append(number)
                owner.operator_state("rules", str, mode="broadcast").append("rule")
                snapshots.append(await owner.snapshot(0))
        await coordinator.commit(0, snapshots)
    await sb.rewrite(settings_of(after), store=store)
    commit = await newest_commit(store)
    owners = [part.key_groups for part in commit.ranges]
    assert len(owners) == min(3, after)
    found: dict[sb.Key, int] = {}
    splits: list[list[int]] = []
    for part in owners:
        async with sb.open_backend(
            settings_of(after), store=store, key_groups=part, owners=owners, read_only=True
        ) as owner:
            numbers = dict(owner.value_state("n", int))
            assert all(key_group(key, after) in part for key in numbers)
            assert list(owner.operator_state("rules", str, mode="broadcast")) == ["rule"]
            splits.append(list(owner.operator_state("split", int)))
            found |= numbers
    assert found == {key: -key for key in range(300)}
    assert splits == ([[0], [1], [2]] if after > 2 else [[0, 1], [2]])
