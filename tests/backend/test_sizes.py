"""Each commit says how much there is of each state, and the first after an opening, where that was read from."""

from pathlib import Path

import pytest
from msgspec import UNSET, UnsetType

import statebackend as sb
from statebackend._checkpoint.rescale import range_of
from statebackend._codec.commit import Commit
from statebackend._ranges.range_owners import open_range_owners
from statebackend._upkeep.job_primary import open_job_primary
from statebackend._upkeep.rewrite import rewrite
from statebackend.ids import (
    CheckpointId,
    CommitSequence,
    Epoch,
    KeyGroupRange,
    RangeState,
    RestoreSource,
    StateSize,
)
from statebackend.objectstore import MemoryStore
from tests.knobs import replaced
from tests.ranges.parts import open_run

SETTINGS = sb.Settings(job="fleet", primary="memory://unused", persist_delay_s=0.0, max_parallelism=12)


async def newest(store: sb.ObjectStore | None, settings: sb.Settings = SETTINGS) -> Commit:
    """The newest commit, read beside the writer."""
    async with open_job_primary(settings, store) as primary:
        end = await primary.log.end()
        assert end is not None
        commit = await primary.log.load(end.sequence)
        assert isinstance(commit, Commit)
        return commit


def sizes_of(part: RangeState) -> dict[int, tuple[int, int]]:
    """The keys and bytes by state, each of which is known by itself."""
    assert not isinstance(part.sizes, UnsetType)
    found = {state_id: (each.keys, each.size_bytes) for each in part.sizes for state_id in each.states}
    assert len(found) == len(part.sizes)
    return found


@pytest.mark.parametrize("bases", [False, True])
async def test_each_commit_has_them_and_so_has_that_of_the_next_backend(*, bases: bool) -> None:
    """Whether it was opened from change sets or from bases, and for a state that it never declares."""
    store = MemoryStore()
    settings = replaced(SETTINGS, materialize_handles_max=1 if bases else 1000)
    async with sb.open_backend(settings, store=store) as backend:
        numbers, seen = backend.value_state("numbers", float), backend.map_state("seen", str, str)
        numbers.put_many(range(30), [1.0] * 30)
        seen["a"]["bc"] = "d"
        await backend.checkpoint(1)
        first = sizes_of((await newest(store)).ranges[0])
        assert (first[0][0], first[1][0]) == (30, 1)
        of_one = first[0][1] // 30
        del numbers[3]
        await backend.checkpoint(2)
    for checkpoint_id in (3, 4):
        async with sb.open_backend(settings, store=store) as backend:
            backend.value_state("others", float)["x"] = 1.0
            await backend.checkpoint(checkpoint_id)
        (part,) = (await newest(store)).ranges
        assert bool(part.all_bases) == bases
        assert sizes_of(part) == {0: (29, 29 * of_one), 1: first[1], 2: (1, of_one)}


async def test_a_range_tells_its_own_and_keeps_them_while_nobody_opens_it() -> None:
    """Ranges that are joined have the sum. Parts of one do not know them until they are opened."""
    store, whole = MemoryStore(), KeyGroupRange(0, 11)
    async with open_run(SETTINGS, 3, store) as run, open_range_owners(store=store) as owners:
        await run.batch(owners, [(key, 1) for key in range(100)])
        before = [sizes_of(part) for part in (await newest(store)).ranges]
        assert sum(sizes[0][0] for sizes in before) == 100
        assert all(sizes[0][0] > 10 for sizes in before)
    async with open_run(SETTINGS, 3, store) as run, open_range_owners(store=store) as owners:
        assert len(await run.batch(owners, [(0, 1)])) == 1
        commit = await newest(store)
        after = [sizes_of(part) for part in commit.ranges]
        assert [new != old for new, old in zip(after, before, strict=True)].count(True) == 1, "a longer list"
        assert [len(new) for new in after] == [2, 2, 2]
        assert sizes_of(range_of(commit, whole))[0][0] == 100
        assert sizes_of(range_of(commit, whole))[1][1] == sum(sizes[1][1] for sizes in after)
    async with open_run(SETTINGS, 4, store) as run, open_range_owners(store=store) as owners:
        await run.batch(owners, [(0, 1)])
        parts = (await newest(store)).ranges
        assert [part.sizes is UNSET for part in parts].count(False) == 1
        await run.batch(owners, [(key, 1) for key in range(100)])
        assert sum(sizes_of(part)[0][0] for part in (await newest(store)).ranges) == 100


async def test_a_range_that_nobody_has_opened_yet_has_nothing() -> None:
    """In the first commit of a job, too."""
    store = MemoryStore()
    async with open_run(SETTINGS, 3, store) as run, open_range_owners(store=store) as owners:
        await run.batch(owners, [("a", 1)])
    assert sorted(len(sizes_of(part)) for part in (await newest(store)).ranges) == [0, 0, 2]


async def test_a_rewrite_knows_them_for_one_owner() -> None:
    """Of several it does not know whose a key is now. The next opening counts anew."""
    store = MemoryStore()
    async with sb.open_backend(SETTINGS, store=store) as backend:
        backend.value_state("numbers", float).put_many(range(30), [1.0] * 30)
        await backend.checkpoint(1)
    before = (await newest(store)).ranges[0].sizes
    settings = replaced(SETTINGS, max_parallelism=24)
    await rewrite(settings, store=store)
    commit = await newest(store)
    assert (commit.max_parallelism, commit.ranges[0].sizes) == (24, before)
    async with open_run(settings, 3, store) as run, open_range_owners(store=store) as owners:
        await run.batch(owners, [(key, 1) for key in range(100)])
    await rewrite(SETTINGS, store=store)
    assert [part.sizes for part in (await newest(store)).ranges] == [UNSET] * 3


def test_sizes_of_joined_parts_are_those_of_states_known_alike() -> None:
    """What is estimated is not added to what was counted; and nothing is known where one part does not know."""
    first, last = KeyGroupRange(0, 5), KeyGroupRange(6, 11)
    one, many = StateSize((0,), 1, 10), StateSize((0, 1), 5, 50, is_estimate=True)
    known = RangeState(first, (), sizes=(one,))
    for other, expected in (
        ((one,), (StateSize((0,), 2, 20),)),
        ((many,), (one, many)),
        ((), (one,)),
        (UNSET, UNSET),
    ):
        commit = commit_of(known, RangeState(last, (), sizes=other))
        assert range_of(commit, KeyGroupRange(0, 11)).sizes == expected
    assert range_of(commit, KeyGroupRange(0, 3)).sizes is UNSET
    assert range_of(commit, first).sizes == (one,)


def commit_of(*ranges: RangeState) -> Commit:
    return Commit(
        job="fleet",
        sequence=CommitSequence(0),
        checkpoint_id=CheckpointId(1),
        epoch=Epoch(0),
        parent=None,
        stamp="",
        max_parallelism=12,
        ranges=ranges,
        states=(),
    )


async def test_the_first_commit_after_an_opening_says_where_the_state_came_from(tmp_path: Path) -> None:
    """The local copies, or the primary without them; a job that had no state, and later commits, say nothing."""
    settings = sb.Settings(
        job="fleet", primary=(tmp_path / "primary").as_uri(), local=(str(tmp_path / "local"),), persist_delay_s=0.0
    )
    found: list[RestoreSource | UnsetType] = []
    for lost in (False, False, True):
        chosen = replaced(settings, local=(str(tmp_path / "other"),)) if lost else settings
        async with sb.open_backend(chosen) as backend:
            for _ in range(2):
                backend.value_state("numbers", float)[len(found)] = 1.0
                await backend.checkpoint(len(found))
                found.append((await newest(None, chosen)).ranges[0].restored)
    assert [each is UNSET for each in found] == [True, True, False, True, False, True]
    for each, is_local in ((found[2], True), (found[4], False)):
        assert isinstance(each, RestoreSource)
        assert (each.files_local > 0, each.files_primary > 0) == (is_local, not is_local)
        assert (each.bytes_local > 0, each.bytes_primary > 0) == (is_local, not is_local)
        assert each.seconds > 0
