"""The job's clock is committed with the state, and every backend goes on from it."""

from typing import Any

import pytest

import statebackend as sb
from statebackend._codec.commit import Commit
from statebackend._log.names import entry_key
from statebackend.errors import InputError
from statebackend.ids import ClockMark
from statebackend.objectstore import MemoryStore
from tests.knobs import replaced

SETTINGS = sb.Settings(job="fleet", primary="memory://unused", persist_delay_s=0.0, max_parallelism=16)


async def newest(store: sb.ObjectStore) -> tuple[Commit, int]:
    """The newest commit, and the version that it is written in."""
    async with sb.owners.open_coordinator(SETTINGS, store=store) as coordinator:
        assert coordinator.base is not None
        body = await store.get(f"fleet/{entry_key(coordinator.base.sequence)}")
        return coordinator.base, bytes(body)[7]


async def test_it_comes_back_with_the_commit_and_goes_on() -> None:
    """What was late then is late now; what had expired has; a batch that was not committed has not moved it."""
    store = MemoryStore()
    async with sb.open_backend(SETTINGS, store=store) as backend:
        assert (backend.clock_s, backend.clock_before_s) == (None, None)
        backend.advance_clock(100)
        backend.value_state("recent", int, ttl=sb.TimeToLive(10))["a"] = 1
        backend.timers("idle").register("a", 105)
        info = await backend.checkpoint(1)
        backend.advance_clock(200)
    assert (await newest(store))[0].clock == ClockMark(100.0, "event")
    async with sb.open_backend(SETTINGS, store=store, read_only=True) as backend:
        assert dict(backend.value_state("recent", int, ttl=sb.TimeToLive(10))) == {"a": 1}
        assert backend.newest is not None
        assert (backend.newest.checkpoint_id, backend.newest.clock) == (info.checkpoint_id, ClockMark(100.0, "event"))
    async with sb.open_backend(SETTINGS, store=store) as backend:
        assert (backend.clock_s, backend.clock_before_s) == (100.0, 100.0)
        idle, recent = backend.timers("idle"), backend.value_state("recent", int, ttl=sb.TimeToLive(10))
        with pytest.raises(InputError, match="before the clock"):
            idle.register("a", 99)
        backend.advance_clock(110)
        assert (backend.clock_s, backend.clock_before_s, list(recent)) == (110.0, 100.0, [])
        assert list(backend.due_timers()) == [(105, "a", "idle")]
        await backend.checkpoint(2)
    async with sb.open_backend(SETTINGS, store=store, checkpoint_id=1) as backend:
        assert (backend.clock_s, backend.timers("idle").registered("a")) == (100.0, (105.0,))


async def test_a_batch_that_is_not_committed_leaves_the_clock_where_it_was() -> None:
    """The next process sees that of the commit, and fires the timer that the other one had taken."""
    store = MemoryStore()
    async with sb.open_backend(SETTINGS, store=store) as backend:
        backend.advance_clock(100)
        backend.timers("idle").register("a", 150)
        await backend.checkpoint(1)
    async with sb.open_backend(SETTINGS, store=store) as backend:
        backend.advance_clock(200)
        assert [key for _, key, _ in backend.due_timers()] == []
        backend.timers("idle")
        assert [key for _, key, _ in backend.due_timers()] == ["a"]
    async with sb.open_backend(SETTINGS, store=store) as backend:
        assert backend.clock_s == 100
        backend.timers("idle")
        backend.advance_clock(200)
        assert [key for _, key, _ in backend.due_timers()] == ["a"]


@pytest.mark.parametrize("moves", [[], [-1.0], ["not begun"]])
async def test_a_commit_without_a_clock_keeps_its_version(moves: list[Any]) -> None:
    """An earlier release can read it. One that has begun needs the new one."""
    store = MemoryStore()
    async with sb.open_backend(SETTINGS, store=store) as backend:
        for to_s in moves:
            backend.advance_clock(float("-inf") if to_s == "not begun" else to_s)
        backend.value_state("legs", int)["a"] = 1
        await backend.checkpoint(1)
    commit, version = await newest(store)
    assert (commit.clock, version) == ((ClockMark(-1.0, "event"), 5) if moves == [-1.0] else (None, 1))


async def test_whoever_has_no_clock_keeps_that_of_the_commit() -> None:
    """A run of the program before it had one; and a rewrite to other key groups."""
    store = MemoryStore()
    async with sb.open_backend(SETTINGS, store=store) as backend:
        backend.advance_clock(100, "processing")
        backend.timers("idle").register("a", 150)
        await backend.checkpoint(1)
    async with sb.open_backend(SETTINGS, store=store) as backend:
        await backend.checkpoint(2)
    assert (await newest(store))[0].clock == ClockMark(100.0, "processing")
    await sb.rewrite(replaced(SETTINGS, max_parallelism=8), store=store)
    async with sb.open_backend(replaced(SETTINGS, max_parallelism=8), store=store) as backend:
        assert (backend.clock_s, backend.timers("idle").registered("a")) == (100.0, (150.0,))
        with pytest.raises(InputError, match="another kind"):
            backend.advance_clock(200, "event")


@pytest.mark.parametrize("clock", [ClockMark(99.9, "event"), ClockMark(101.0, "processing")])
async def test_a_coordinator_commits_no_clock_that_goes_back(clock: ClockMark) -> None:
    """Nor one of another kind. Nothing was committed."""
    store = MemoryStore()
    async with sb.open_backend(SETTINGS, store=store) as backend:
        backend.advance_clock(100)
        await backend.checkpoint(1)
    all_groups = sb.owners.KeyGroupRange(0, 15)
    async with (
        sb.owners.open_coordinator(SETTINGS, store=store) as coordinator,
        sb.open_backend(SETTINGS, store=store, key_groups=all_groups) as owner,
    ):
        snapshot = await owner.snapshot(2)
        with pytest.raises(InputError, match="never goes back"):
            await coordinator.commit(2, [snapshot], clock=clock)
        await owner.notify_aborted(2)
        committed = await coordinator.commit(3, [await owner.snapshot(3)], clock=ClockMark(100.0, "event"))
        assert committed.commit.clock == ClockMark(100.0, "event")


async def test_the_state_in_the_commit_knows_its_next_timer() -> None:
    """Of the clock's kind; `None` once it has fired."""
    store = MemoryStore()
    async with sb.open_backend(SETTINGS, store=store) as backend:
        backend.timers("other", "processing").register("a", 1)
        backend.advance_clock(100)
        backend.timers("idle").register("a", 150)
        await backend.checkpoint(1)
        assert [part.next_timer_s for part in (await newest(store))[0].ranges] == [150.0]
    async with sb.open_backend(SETTINGS, store=store) as backend:
        backend.timers("idle")
        backend.advance_clock(150)
        assert len(list(backend.due_timers())) == 1
        await backend.checkpoint(2)
    assert [part.next_timer_s for part in (await newest(store))[0].ranges] == [None]
