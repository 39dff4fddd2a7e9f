"""Owners of parts of the key groups upload, one coordinator commits: all parts of a checkpoint, or none."""

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import statebackend as sb
from statebackend._log.coordinator import check_coverage
from statebackend._log.names import entry_key
from statebackend._tables.key_groups import key_group
from statebackend.errors import (
    BackendClosedError,
    CheckpointExistsError,
    FencedError,
    InputError,
    OutcomeUnknownError,
    SettingsError,
    StoreAccessError,
)
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fail, FaultyStore, Hold

SETTINGS = sb.Settings(job="fleet", primary="memory://unused", persist_delay_s=0.0, max_parallelism=12)
RANGES = [sb.owners.KeyGroupRange(0, 3), sb.owners.KeyGroupRange(4, 4), sb.owners.KeyGroupRange(5, 11)]
WHOLE = [sb.owners.KeyGroupRange(0, 11)]
SEVERAL_OR_ONE = pytest.mark.parametrize("ranges", [RANGES, WHOLE], ids=["several", "one"])


class Parts:
    """A coordinator and the owners of the ranges, as they would be in processes of their own."""

    def __init__(self, coordinator: sb.owners.CheckpointCoordinator, owners: list[sb.StateBackend]) -> None:
        self.coordinator = coordinator
        self.owners = owners

    def write(self, keys: range, value: int) -> None:
        for owner in self.owners:
            numbers = owner.value_state("n", int)
            numbers.update({key: value for key in keys if key_group(key, 12) in owner.key_groups})

    async def snapshots(self, checkpoint_id: int) -> list[sb.owners.SnapshotResult]:
        return [await owner.snapshot(checkpoint_id) for owner in self.owners]

    async def checkpoint(self, checkpoint_id: int) -> None:
        await self.coordinator.commit(checkpoint_id, await self.snapshots(checkpoint_id))
        for owner in self.owners:
            await owner.notify_complete(checkpoint_id)


@asynccontextmanager
async def opened(
    store: sb.ObjectStore, ranges: list[sb.owners.KeyGroupRange] = RANGES, **options: Any
) -> AsyncGenerator[Parts]:
    """`options`: on which commit they stand."""
    async with AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(sb.owners.open_coordinator(SETTINGS, store=store, **options))
        owners = [
            await stack.enter_async_context(sb.open_backend(SETTINGS, store=store, key_groups=part, **options))
            for part in ranges
        ]
        yield Parts(coordinator, owners)


async def state_of(store: sb.ObjectStore, **options: int) -> dict[sb.Key, int]:
    async with sb.open_backend(SETTINGS, store=store, read_only=True, **options) as backend:  # type: ignore[arg-type]
        return dict(backend.value_state("n", int))


async def test_parts_make_one_checkpoint_and_come_back_together_or_apart() -> None:
    """Each snapshot goes through what a message would: it survives encoding."""
    store = MemoryStore()
    async with opened(store) as parts:
        parts.write(range(100), 1)
        sent = msgspec.msgpack.encode(await parts.snapshots(1))
        await parts.coordinator.commit(1, msgspec.msgpack.decode(sent, type=list[sb.owners.SnapshotResult]))
        for owner in parts.owners:
            await owner.notify_complete(1)
        parts.write(range(50), 2)
        await parts.checkpoint(2)
    expected = {key: 2 if key < 50 else 1 for key in range(100)}
    assert await state_of(store) == expected
    assert await state_of(store, checkpoint_id=1) == dict.fromkeys(range(100), 1)
    async with opened(store) as parts:
        found = [dict(owner.value_state("n", int)) for owner in parts.owners]
    assert {key: value for part in found for key, value in part.items()} == expected
    assert sum(map(len, found)) == 100


async def test_one_owner_of_all_key_groups_does_not_fence_its_coordinator() -> None:
    """An owner claims nothing, however much it owns."""
    store = MemoryStore()
    async with (
        sb.owners.open_coordinator(SETTINGS, store=store) as coordinator,
        sb.open_backend(SETTINGS, store=store, key_groups=sb.owners.KeyGroupRange(0, 11)) as owner,
    ):
        owner.value_state("n", int)["k"] = 1
        await coordinator.commit(1, [await owner.snapshot(1)])
        await owner.notify_complete(1)
    assert await state_of(store) == {"k": 1}


async def test_one_owner_owns_everything_if_it_says_so() -> None:
    """With operator state, too. Without `key_groups` the owners were ignored, and the job opened as a whole."""
    store = MemoryStore()
    for number in range(2):
        async with (
            sb.owners.open_coordinator(SETTINGS, store=store) as coordinator,
            sb.open_backend(SETTINGS, store=store, key_groups=WHOLE[0], owners=WHOLE) as owner,
        ):
            owner.operator_state("rules", str, "union").append("x")
            owner.value_state("n", int)["k"] = number
            await coordinator.commit(number, [await owner.snapshot(number)])
            assert len(list(owner.operator_state("rules", str, "union"))) == number + 1
    assert await state_of(store) == {"k": 1}
    with pytest.raises(SettingsError, match="say which key groups"):
        async with cast("Any", sb.open_backend)(SETTINGS, store=store, owners=WHOLE):
            pass


@pytest.mark.parametrize("owners", [RANGES[:1] * 2 + RANGES[1:], [RANGES[2], *RANGES], [RANGES[0], *WHOLE]])
async def test_owners_that_overlap_are_refused(owners: list[sb.owners.KeyGroupRange]) -> None:
    """The same range twice, in any order: operator state would be dealt to an owner that is not there."""
    with pytest.raises(SettingsError, match="give each range once"):
        async with sb.open_backend(SETTINGS, store=MemoryStore(), key_groups=RANGES[0], owners=owners):
            pass


@pytest.mark.parametrize("options", [{"checkpoint_id": 1}, {"savepoint": "first"}])
async def test_parts_begin_a_branch_at_an_older_checkpoint_or_a_savepoint(options: dict[str, Any]) -> None:
    """Made and found by who commits; the owners go on from there with him."""
    store = MemoryStore()
    async with opened(store) as parts:
        parts.write(range(40), 1)
        await parts.coordinator.commit(1, await parts.snapshots(1), savepoint="first")
        parts.write(range(40), 2)
        await parts.checkpoint(2)
    async with opened(store, **options) as parts:
        parts.write(range(10), 3)
        await parts.checkpoint(3)
        assert [each.checkpoint_id async for each in parts.coordinator.history()] == [3, 1]
    assert await state_of(store) == {key: 3 if key < 10 else 1 for key in range(40)}


@SEVERAL_OR_ONE
async def test_a_checkpoint_that_was_aborted_goes_with_the_next_one(ranges: list[sb.owners.KeyGroupRange]) -> None:
    """One owner failed: nothing of it is seen, and nothing of it is lost."""
    store = MemoryStore()
    async with opened(store, ranges) as parts:
        parts.write(range(40), 1)
        await parts.snapshots(1)
        for owner in parts.owners:
            await owner.notify_aborted(1)
        assert await state_of(store) == {}
        parts.write(range(10), 2)
        await parts.checkpoint(2)
    assert await state_of(store) == {key: 2 if key < 10 else 1 for key in range(40)}


@SEVERAL_OR_ONE
async def test_a_notification_that_is_missed_costs_nothing(ranges: list[sb.owners.KeyGroupRange]) -> None:
    """The next snapshot holds what the one before held; the two are one checkpoint after the other."""
    store = MemoryStore()
    async with opened(store, ranges) as parts:
        parts.write(range(40), 1)
        await parts.coordinator.commit(1, await parts.snapshots(1))
        parts.write(range(10), 2)
        await parts.checkpoint(2)
        with pytest.raises(InputError):
            await parts.owners[0].notify_complete(1)
        for owner in parts.owners:
            await owner.notify_subsumed(1)
    assert await state_of(store) == {key: 2 if key < 10 else 1 for key in range(40)}


async def test_a_commit_that_is_told_of_while_the_next_snapshot_is_made_is_in_that_once() -> None:
    """What it holds is applied once, and not again as a change of the next one's."""
    store = MemoryStore()
    hold = Hold(operation="put", key="*segments*", nth=2)
    key = next(key for key in range(100) if key_group(key, 12) in RANGES[0])
    async with opened(FaultyStore(store, [hold])) as parts, anyio.create_task_group() as tasks:
        hops = parts.owners[0].list_state("hops", str)
        hops[key].append("a")
        await parts.coordinator.commit(1, await parts.snapshots(1))
        hops[key].append("b")
        tasks.start_soon(parts.checkpoint, 2)
        await hold.reached.wait()
        tasks.start_soon(parts.owners[0].notify_complete, 1)
        await anyio.wait_all_tasks_blocked()
        hold.release()
    async with sb.open_backend(SETTINGS, store=store, read_only=True) as backend:
        assert list(backend.list_state("hops", str)[key]) == ["a", "b"]


async def test_snapshots_that_do_not_make_a_checkpoint_are_refused() -> None:
    """A part is missing, there twice, of another checkpoint, of another epoch, or knows another state by its number."""
    async with opened(MemoryStore()) as parts:
        parts.write(range(40), 1)
        first, second, third = await parts.snapshots(1)
        stale = msgspec.structs.replace(second, epoch=sb.ids.Epoch(0))
        other = msgspec.structs.replace(second, checkpoint_id=sb.ids.CheckpointId(7))
        (state,) = second.states
        renamed = msgspec.structs.replace(second, states=(msgspec.structs.replace(state, name="other"),))
        twice = msgspec.structs.replace(second, states=(state, msgspec.structs.replace(state, state_id=5)))
        for wrong in (
            [first, third],
            [first, second, second, third],
            [first, second, third, third],
            [],
            *([first, bad, third] for bad in (stale, other, renamed, twice)),
        ):
            with pytest.raises(InputError):
                await parts.coordinator.commit(1, wrong)
        await parts.coordinator.commit(1, [third, first, second])
        with pytest.raises(CheckpointExistsError):
            await parts.coordinator.commit(1, [first, second, third])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)).map(sorted).map(tuple), max_size=5))
def test_ranges_cover_every_key_group_once_or_are_refused(ends: list[tuple[int, int]]) -> None:
    """There twice, overlapping, missing, beyond the last, in any order: by counting each key group."""
    ranges = sorted(sb.owners.KeyGroupRange(*pair) for pair in ends)
    counts = Counter(group for each in ranges for group in each)
    if counts == Counter(range(4)):
        check_coverage(ranges, 4)
    else:
        with pytest.raises(InputError):
            check_coverage(ranges, 4)


async def test_a_snapshot_that_is_given_twice_is_applied_never() -> None:
    """At the end of the list it was committed once, and its changes were applied twice."""
    store = MemoryStore()
    async with opened(store, [WHOLE[0]]) as parts:
        parts.owners[0].list_state("hops", str)["k"].append("a")
        (whole,) = await parts.snapshots(1)
        empty = msgspec.structs.replace(
            whole, state=msgspec.structs.replace(whole.state, key_groups=sb.ids.EMPTY_RANGE)
        )
        for wrong in ([whole, whole], [empty, whole]):
            with pytest.raises(InputError, match="every key group once"):
                await parts.coordinator.commit(1, wrong)
        await parts.coordinator.commit(1, [whole])
    async with sb.open_backend(SETTINGS, store=store, read_only=True) as backend:
        assert list(backend.list_state("hops", str)["k"]) == ["a"]


@pytest.mark.parametrize("stale", range(len(RANGES)))
async def test_owners_on_different_checkpoints_are_not_committed_together(stale: int) -> None:
    """Otherwise its part of the state would be that of the older checkpoint. Opened again, it contributes."""
    store = MemoryStore()
    async with opened(store) as parts:
        for checkpoint_id in (1, 2):
            parts.write(range(40), checkpoint_id)
            await parts.checkpoint(checkpoint_id)
        options: dict[str, Any] = {"store": store, "key_groups": RANGES[stale]}
        async with sb.open_backend(SETTINGS, checkpoint_id=1, **options) as old:
            old.value_state("n", int)
            snapshots = await parts.snapshots(3)
            snapshots[stale] = await old.snapshot(3)
            with pytest.raises(InputError, match="stands on another checkpoint") as caught:
                await parts.coordinator.commit(3, snapshots)
        assert caught.value.facts["checkpoint_id"] == 2
        assert caught.value.facts["found"][str(RANGES[stale])] == 1
        async with sb.open_backend(SETTINGS, **options) as again:
            again.value_state("n", int)
            snapshots[stale] = await again.snapshot(3)
            await parts.coordinator.commit(3, snapshots)
    assert await state_of(store) == dict.fromkeys(range(40), 2)


async def test_owners_on_the_newest_do_not_join_a_branch_from_an_older_checkpoint() -> None:
    """Nor the other way round: the coordinator says which checkpoint is continued."""
    store = MemoryStore()
    async with opened(store) as parts:
        for checkpoint_id in (1, 2):
            parts.write(range(40), checkpoint_id)
            await parts.checkpoint(checkpoint_id)
    async with (
        sb.owners.open_coordinator(SETTINGS, store=store, checkpoint_id=1) as coordinator,
        sb.open_backend(SETTINGS, store=store, key_groups=WHOLE[0]) as owner,
    ):
        with pytest.raises(InputError, match="stands on another checkpoint"):
            await coordinator.commit(3, [await owner.snapshot(3)])
    assert await state_of(store) == dict.fromkeys(range(40), 2)


async def test_a_new_owner_does_not_join_a_job_that_has_committed() -> None:
    """Told of a checkpoint that was never committed, or of none: its base is none of the coordinator's."""
    store = MemoryStore()
    async with opened(store) as parts:
        parts.write(range(40), 1)
        first = await parts.snapshots(1)
        await parts.coordinator.commit(1, first)
        late = [msgspec.structs.replace(each, checkpoint_id=sb.ids.CheckpointId(2)) for each in first]
        with pytest.raises(InputError, match="stands on another checkpoint"):
            await parts.coordinator.commit(2, late)
        for owner in parts.owners:
            await owner.notify_complete(1)
        await parts.snapshots(2)
        for owner in parts.owners:
            await owner.notify_complete(2)  # which was not committed
        with pytest.raises(InputError, match="stands on another checkpoint"):
            await parts.coordinator.commit(3, await parts.snapshots(3))


async def test_nothing_is_committed_by_a_claim_that_was_left() -> None:
    """By the process that still has the coordinator."""
    store = MemoryStore()
    async with opened(store) as parts:
        parts.write(range(10), 1)
        late = await parts.snapshots(1)
    with pytest.raises(BackendClosedError):
        await parts.coordinator.commit(1, late)
    assert await state_of(store) == {}


async def test_owners_neither_claim_nor_commit() -> None:
    """Opening one fences nobody, and it says by what name its snapshots are to be committed."""
    store = MemoryStore()
    async with opened(store) as parts:
        assert {owner.epoch for owner in parts.owners} == {parts.coordinator.epoch} == {1}
        with pytest.raises(AttributeError, match="CheckpointCoordinator commit it"):
            cast("Any", parts.owners[0]).checkpoint  # noqa: B018  # what a user would call
        with pytest.raises(InputError):
            await parts.owners[0].notify_complete(1)
        await parts.owners[0].snapshot(4)
        for taken in (3, 4):
            with pytest.raises(CheckpointExistsError):
                await parts.owners[0].snapshot(taken)


async def test_a_coordinator_that_another_one_followed_is_fenced_with_all_its_parts() -> None:
    """What the parts upload belongs to its epoch."""
    store = MemoryStore()
    async with opened(store) as older:
        older.write(range(10), 1)
        snapshots = await older.snapshots(1)
        async with opened(store) as newer:
            with pytest.raises(FencedError):
                await older.coordinator.commit(1, snapshots)
            newer.write(range(10), 2)
            with pytest.raises(InputError):
                await newer.coordinator.commit(1, snapshots)
            await newer.checkpoint(1)
    assert await state_of(store) == dict.fromkeys(range(10), 2)


EVEN = [sb.owners.KeyGroupRange(first, first + 1) for first in range(0, 12, 2)]


async def test_a_cancelled_commit_without_an_answer_is_told_of_by_the_next_one() -> None:
    """Its caller saw the cancellation. The next one was refused as if another writer had come."""
    denied, commits = StoreAccessError("denied"), entry_key(1)
    lost = Fail(operation="put_if_absent", key=f"*{commits}", moment="after", error=denied)
    store = MemoryStore()
    hold = Hold(operation="put_if_absent", key=f"*{commits}")
    refusing = FaultyStore(store, [hold, lost, Fail(operation="get", key=f"*{commits}", error=denied)])
    async with opened(refusing) as parts:
        parts.write(range(10), 1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(parts.coordinator.commit, 1, await parts.snapshots(1))
            await hold.reached.wait()
            tasks.cancel_scope.cancel()
            hold.release()
        refusing.plan.clear()
        with pytest.raises(OutcomeUnknownError, match="reopen"):
            await parts.coordinator.commit(2, await parts.snapshots(2))
    assert await state_of(store) == dict.fromkeys(range(10), 1)


async def test_two_pending_checkpoints_are_committed_one_after_the_other() -> None:
    """Called together: the second found the place taken, by the first, and was told that another writer had come."""
    store = MemoryStore()
    hold = Hold(operation="put_if_absent", key=f"*{entry_key(1)}")
    async with opened(FaultyStore(store, [hold])) as parts, anyio.create_task_group() as tasks:
        for number in (1, 2):
            parts.write(range(10), number)
            tasks.start_soon(parts.coordinator.commit, number, await parts.snapshots(number))
        await hold.reached.wait()
        await anyio.wait_all_tasks_blocked()
        hold.release()
    assert await state_of(store, checkpoint_id=1) == dict.fromkeys(range(10), 1)
    assert await state_of(store) == dict.fromkeys(range(10), 2)


async def test_an_owner_knows_which_ids_are_left_to_it() -> None:
    """Those above what it has handed in, and above what was committed; one that was given up is free again."""
    async with opened(MemoryStore()) as parts:
        owner = parts.owners[0]
        parts.write(range(10), 1)
        await parts.checkpoint(5)
        assert owner.next_checkpoint_id == parts.coordinator.next_checkpoint_id == 6
        with pytest.raises(CheckpointExistsError):
            await owner.snapshot(5)
        await owner.snapshot(8)
        assert owner.next_checkpoint_id == 9
        await owner.notify_aborted(8)
        assert owner.next_checkpoint_id == 6


@pytest.mark.parametrize(
    "key_groups",
    [(0, 3), range(4), sb.ids.EMPTY_RANGE, sb.owners.KeyGroupRange(0, 12)],
    ids=["tuple", "range", "none", "many"],
)
async def test_an_owner_owns_key_groups_of_the_job(key_groups: Any) -> None:
    """No range at all opened the whole job; one beyond its end was opened as it was."""
    for options in ({"key_groups": key_groups}, {"key_groups": RANGES[0], "owners": [*RANGES, key_groups]}):
        with pytest.raises(InputError, match=r"KeyGroupRange\(0, 63\)"):
            async with sb.open_backend(SETTINGS, store=MemoryStore(), **options):
                pass


@pytest.mark.parametrize(
    ("ranges", "offsets", "shards", "marks", "rules"),
    [
        (RANGES, ["abc", "de", "fgh"], ["k", "l", ""], "mno", ["xyz", "xy", "z"]),
        ([EVEN[0], sb.owners.KeyGroupRange(2, 11)], ["abcd", "efgh"], ["k", "l"], "mno", ["xyz", "xy"]),
        (EVEN, ["ab", "cd", "e", "f", "g", "h"], ["", "", "k", "l", "", ""], "mno", ["xyz", "xy", "z"] * 2),
        ([sb.owners.KeyGroupRange(0, 11)], ["abcdefgh"], ["kl"], "mno", ["xyz"]),
    ],
    ids=["as many", "fewer", "more", "one"],
)
async def test_operator_state_of_several_owners_is_dealt_out_to_others(
    ranges: list[sb.owners.KeyGroupRange], offsets: list[str], shards: list[str], marks: str, rules: list[str]
) -> None:
    """Committed by a coordinator, and restored by other owners: by each mode's rule, the surplus of one state after
    that of the other.
    """
    store = MemoryStore()
    async with AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(sb.owners.open_coordinator(SETTINGS, store=store))
        snapshots: list[sb.owners.SnapshotResult] = []
        told = zip(RANGES, ["abc", "de", "fgh"], ["k", "l", ""], ["m", "no", ""], ["xyz", "xy", "z"], strict=True)
        for part, *elements in told:
            owner = await stack.enter_async_context(
                sb.open_backend(SETTINGS, store=store, key_groups=part, owners=RANGES)
            )
            for state, letters in zip(operator_states(owner), elements, strict=True):
                state.extend(list(letters))
            snapshots.append(await owner.snapshot(1))
        await coordinator.commit(1, snapshots)
    found: list[list[str]] = []
    for part in ranges:
        async with sb.open_backend(SETTINGS, store=store, key_groups=part, owners=ranges, read_only=True) as owner:
            found.append(["".join(state) for state in operator_states(owner)])
    assert found == [list(each) for each in zip(offsets, shards, [marks] * len(ranges), rules, strict=True)]


def operator_states(owner: sb.StateBackend) -> list[sb.OperatorState[str]]:
    """Two that are split, one that everybody gets all of, one that everybody has a copy of."""
    return [
        owner.operator_state("offsets", str),
        owner.operator_state("shards", str),
        owner.operator_state("marks", str, "union"),
        owner.operator_state("rules", str, "broadcast"),
    ]
