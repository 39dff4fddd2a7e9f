"""Time that stands still is told: a clock that nothing moves or passes on, and timers that nothing takes."""

import itertools
from typing import Any

import pytest

import statebackend as sb
from statebackend.errors import InputError
from statebackend.ids import ClockMark
from statebackend.objectstore import MemoryStore

SETTINGS = sb.Settings(job="fleet", primary="memory://unused", persist_delay_s=0.0, max_parallelism=16)
ALL = sb.owners.KeyGroupRange(0, 15)
NAMES = (f"told {number}" for number in itertools.count())
"""Timers of a name are told once in a process."""


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "statebackend._checkpoint.snapshots"]


async def run(store: sb.ObjectStore, *moves: float | None) -> None:
    """A run of a program that takes a checkpoint for each of these; `None` where it does not move the clock."""
    async with sb.open_backend(SETTINGS, store=store) as backend:
        for to_s in moves:
            if to_s is not None:
                backend.advance_clock(to_s)
            await backend.checkpoint(backend.next_checkpoint_id)


async def test_a_clock_that_a_run_does_not_move_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """With its second checkpoint: the first may be of an edit by hand. Not to a job that has none."""
    store = MemoryStore()
    await run(store, None, None, None)
    await run(store, 100, None, None)
    await run(store, None)
    await run(store, None, 100, None)
    assert told(caplog) == []
    await run(store, None, None, None)
    assert len(told(caplog)) == 1
    assert "stands at 100" in told(caplog)[0]


async def test_an_owner_is_told_that_its_clock_stands(caplog: pytest.LogCaptureFixture) -> None:
    """As a backend of the whole job."""
    store = MemoryStore()
    await run(store, 100)
    async with (
        sb.owners.open_coordinator(SETTINGS, store=store) as coordinator,
        sb.open_backend(SETTINGS, store=store, key_groups=ALL) as owner,
    ):
        for checkpoint_id in (2, 3):
            await coordinator.commit(checkpoint_id, [await owner.snapshot(checkpoint_id)])
            await owner.notify_complete(checkpoint_id)
    assert len(told(caplog)) == 1


@pytest.mark.parametrize("how", ["due_timers", "due"])
async def test_timers_that_are_due_and_that_nothing_takes_are_told(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """By the name of the timers, once in a process, declared or not: a misspelt `on_timer`, another name for them."""
    store, name = MemoryStore(), next(NAMES)
    async with sb.open_backend(SETTINGS, store=store) as backend:
        backend.advance_clock(100)
        backend.timers(name).register("a", 150)
        backend.timers(next(NAMES), "processing").register("a", 1)
        await backend.checkpoint(1)
        assert told(caplog) == []
    async with sb.open_backend(SETTINGS, store=store) as backend:
        for checkpoint_id in (2, 3):
            backend.advance_clock(200)
            await backend.checkpoint(checkpoint_id)
        assert len(told(caplog)) == 1
        assert name in told(caplog)[0]
    name = next(NAMES)
    async with sb.open_backend(SETTINGS, store=store) as backend:
        timers = backend.timers(name)
        timers.register("a", 200)
        taking: Any = backend.due_timers() if how == "due_timers" else timers.due(0)
        next(taking, None)
        await backend.checkpoint(4)
    assert len(told(caplog)) == 1


async def test_due_timers_are_not_asked_for_without_a_clock() -> None:
    """They would never come. With a clock of another kind than that of all timers, neither."""
    async with sb.open_backend(SETTINGS, store=MemoryStore()) as backend:
        idle = backend.timers("idle")
        idle.register("a", 1)
        for ask in (backend.due_timers, lambda: backend.has_due_timers):
            with pytest.raises(InputError, match="the job has no clock"):
                ask()
        backend.advance_clock(2, "processing")
        for ask in (backend.due_timers, lambda: backend.has_due_timers):
            with pytest.raises(InputError, match="of another kind"):
                ask()
        assert list(idle.due(1)) == [(1, "a")]


@pytest.mark.parametrize("passed", [None, ClockMark(150.0, "event"), ClockMark(200.0, "processing")])
async def test_a_commit_is_not_behind_the_clock_of_an_owner(passed: ClockMark | None) -> None:
    """After a restart its timers would fire again, and what has expired would be there."""
    store = MemoryStore()
    await run(store, None)
    async with (
        sb.owners.open_coordinator(SETTINGS, store=store) as coordinator,
        sb.open_backend(SETTINGS, store=store, key_groups=ALL) as owner,
    ):
        owner.advance_clock(200)
        with pytest.raises(InputError, match="pass that as `clock`") as caught:
            await coordinator.commit(2, [await owner.snapshot(2)], clock=passed)
        assert caught.value.facts == {"owner": ClockMark(200.0, "event"), "clock": passed}
        await owner.notify_aborted(2)
        committed = await coordinator.commit(3, [await owner.snapshot(3)], clock=ClockMark(200.0, "event"))
        assert committed.commit.clock == ClockMark(200.0, "event")
