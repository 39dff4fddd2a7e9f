"""Killed at any of its requests, or with any of their answers lost, a rewrite has happened as a whole or not at all."""

from contextlib import suppress
from typing import Any

import pytest

import statebackend as sb
from statebackend.errors import StateBackendError
from statebackend.objectstore import MemoryStore
from statebackend.testing import CrashStore, Fail, FaultyStore, Moment, run_virtual
from tests import invariants
from tests.rewrite.jobs import JOB, SAMPLE, Write, assert_placed, newest_commit, objects_of, read, settings_of, work

SMALL: dict[str, Any] = {
    "in_flight_bytes_max": 4,
    "persist_size_threshold_bytes": 0,
    "upload__attempts_max": 1,
    "inline_bytes_max": 0,
    "checkpoints_retained": 1,
}
LARGE: list[Write] = [("value", f"{number} {'x' * 1000}", number) for number in range(250)]
"""Enough for several bases, each in a segment of its own; no upload is tried twice."""
BEFORE, AFTER = settings_of(16, **SMALL), settings_of(48, **SMALL)


async def check(store: sb.ObjectStore, expected: dict[str, Any]) -> bool:
    """Check that the job is as it was or rewritten, and whole in either case. True if it is rewritten."""
    commit = await newest_commit(store)
    done = commit.max_parallelism == AFTER.max_parallelism
    assert await read(AFTER if done else BEFORE, store) == expected
    return done


@run_virtual
async def test_no_request_is_one_at_which_a_kill_tears_it() -> None:
    """Another run has the same result, and a sweep then deletes what the killed one left, and nothing else."""
    requests, outcomes = 0, set[bool]()
    while True:
        requests += 1
        world = CrashStore(seed=requests)
        expected = await work(BEFORE, world.open(), SAMPLE, LARGE)
        finished = False
        with suppress(StateBackendError):
            report = await sb.rewrite(AFTER, store=world.open(crash_at=requests))
            assert report.segments > 2
            finished = True
        outcomes.add(await check(world.open(), expected))
        await sb.rewrite(AFTER, store=world.open())
        assert await read(AFTER, world.open()) == expected
        await assert_placed(world.open(), AFTER.max_parallelism)
        await _sweep_leaves_nothing(world, expected)
        if finished:
            break
    assert outcomes == {True, False}
    assert requests > 10


async def _sweep_leaves_nothing(world: CrashStore, expected: dict[str, Any]) -> None:
    store = world.open()
    await sb.sweep(AFTER, dry_run=False, min_age_s=0.0, store=store)
    objects = await objects_of(store)
    commits = invariants.commits_of(invariants.read_log(objects, JOB))
    invariants.assert_nothing_is_left_over([key for key in objects if key.startswith("segments/")], commits)
    assert await read(AFTER, store) == expected


@pytest.mark.parametrize("moment", ["before", "after"])
@run_virtual
async def test_no_answer_is_one_whose_loss_tears_it(moment: Moment) -> None:
    """The rewrite may fail, and a second run completes it."""
    number = 0
    while True:
        number += 1
        store = MemoryStore()
        expected = await work(BEFORE, store, SAMPLE, LARGE)
        fault = Fail(nth=number, moment=moment)
        with suppress(StateBackendError):
            await sb.rewrite(AFTER, store=FaultyStore(store, [fault]))
        if fault.matched < number:
            break
        await check(store, expected)
        await sb.rewrite(AFTER, store=store)
        assert await read(AFTER, store) == expected
    assert number > 10
