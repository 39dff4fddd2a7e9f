"""Ranges go by the one clock of their job, whoever else has worked on them, and say when their next timer is due."""

from typing import Any

import pytest
from msgspec import UNSET

import statebackend as sb
from statebackend._checkpoint.rescale import range_of
from statebackend._codec.commit import Commit
from statebackend._ranges.range_owners import RangeOwners, open_range_owners
from statebackend.ids import ClockMark, KeyGroupRange, RangeState
from statebackend.objectstore import MemoryStore
from tests.ranges.parts import Run, open_run

SETTINGS = sb.Settings(job="fleet", primary="memory://unused", persist_delay_s=0.0, max_parallelism=12)


async def batch(run: Run, owners: RangeOwners, now_s: float, writes: dict[sb.Key, float]) -> list[int]:
    """Write keys and their timers at a time of the clock; how many timers were due in each range that was opened."""
    due: list[int] = []

    def work(backend: Any, keys: list[sb.Key]) -> None:
        recent, idle = backend.value_state("recent", int, ttl=sb.TimeToLive(10)), backend.timers("idle")
        for key in keys:
            recent[key] = 1
            idle.register(key, writes[key])
        due.append(len(list(backend.due_timers())))

    clock = ClockMark(now_s, "event")
    contributions = []
    for task in run.tasks(clock):
        keys = [key for key, _ in run.changes_of(task, [(key, 0) for key in writes])]
        if keys:
            contributions.append(await owners.contribute(task, lambda backend, keys=keys: work(backend, keys)))
    await run.commit(contributions, clock=clock)
    return due


def next_of(run: Run) -> list[Any]:
    assert run.coordinator.base is not None
    return [part.next_timer_s for part in run.coordinator.base.ranges]


async def test_a_range_that_is_not_opened_keeps_its_next_timer() -> None:
    """From the first commit on, in which a range without rows has none."""
    store = MemoryStore()
    async with open_run(SETTINGS, 3, store) as run, open_range_owners(store=store) as owners:
        await batch(run, owners, 100, {"a": 120.0})
        first = next_of(run)
        assert sorted(map(str, first)) == ["120.0", "None", "None"]
        await batch(run, owners, 110, dict.fromkeys(range(40), 130.0))
        assert sorted(set(map(str, next_of(run)))) == ["120.0", "130.0"]
        await batch(run, owners, 125, {"a": 140.0})
        assert next_of(run) == [130.0, 130.0, 130.0]


async def test_a_range_that_others_left_begins_at_the_commit() -> None:
    """The states that an attempt has left in the process may have seen a clock that no commit has."""
    store = MemoryStore()
    async with open_run(SETTINGS, 1, store) as run, open_range_owners(store=store) as owners:
        await batch(run, owners, 100, {"a": 120.0})
        (task,) = run.tasks(ClockMark(109.0, "event"))  # nothing expires by then: what is dropped is another history
        await owners.contribute(task, lambda backend: None)  # and nobody commits it
        (task,) = run.tasks(ClockMark(105.0, "event"))
        async with owners.attempt(task) as attempt:
            assert attempt.found == "process"
            assert (attempt.backend.clock_s, attempt.backend.clock_before_s) == (105.0, 100.0)
            assert "a" in attempt.backend.value_state("recent", int, ttl=sb.TimeToLive(10))
            await attempt.contribute()  # nor this
        (task,) = run.tasks()
        async with owners.attempt(task) as attempt:
            assert attempt.found == "process"
            assert (attempt.backend.clock_s, attempt.backend.clock_before_s) == (100.0, 100.0)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [(5.0, 7.0, 5.0), (None, 7.0, 7.0), (None, None, None), (UNSET, 7.0, UNSET), (UNSET, None, UNSET)],
)
def test_ranges_that_are_joined_have_the_earliest_timer(left: Any, right: Any, expected: Any) -> None:
    """If both know theirs. A part has that of the whole, or a later one."""
    parts = (
        RangeState(KeyGroupRange(0, 5), (), next_timer_s=left),
        RangeState(KeyGroupRange(6, 11), (), next_timer_s=right),
    )
    commit = Commit(
        job="fleet",
        sequence=0,  # type: ignore[arg-type]
        checkpoint_id=0,  # type: ignore[arg-type]
        epoch=1,  # type: ignore[arg-type]
        parent=None,
        stamp="",
        max_parallelism=12,
        ranges=parts,
        states=(),
    )
    for key_groups, found in (
        (KeyGroupRange(0, 11), expected),
        (KeyGroupRange(1, 2), left),
        (KeyGroupRange(6, 9), right),
    ):
        assert range_of(commit, key_groups).next_timer_s == found


async def test_a_time_to_live_that_comes_later_counts_alike_in_all_ranges() -> None:
    """Also in those without rows just then, and in one whose attempt has not declared the state."""
    store = MemoryStore()

    async def at(run: Run, owners: RangeOwners, now_s: float, ttl_s: float | None, opened: int = 3) -> set[sb.Key]:
        """One batch, in which the first `opened` ranges get tasks; the keys that these see."""
        seen = set[sb.Key]()

        def work(backend: Any) -> None:
            ttl = None if ttl_s is None else sb.TimeToLive(ttl_s)
            state = backend.value_state("recent", int, ttl=ttl)
            if now_s == 0:
                state.update({key: 1 for key in range(40) if sb.owners.key_group(key, 12) in backend.key_groups})
            seen.update(state)

        clock = ClockMark(now_s, "event")
        tasks = run.tasks(clock)
        given = [await owners.contribute(task, work) for task in tasks[:opened]]
        given += [await owners.contribute(task, lambda _: None) for task in tasks[opened:][:1]]
        await run.commit(given, clock=clock)
        return seen

    async with open_run(SETTINGS, 3, store) as run, open_range_owners(store=store) as owners:
        everything = await at(run, owners, 0, None)
        assert len(everything) == 40
        first = await at(run, owners, 1000, 100, opened=1)
        assert first < everything
        assert await at(run, owners, 1099, 100) == everything
        assert await at(run, owners, 1100, 100) == set()
