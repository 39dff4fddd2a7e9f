"""Killed at any of its requests, or with any answer lost, an erasure has happened as a whole or not at all."""

from contextlib import suppress

import pytest

import statebackend as sb
from statebackend.errors import CheckpointNotFoundError, StateBackendError
from statebackend.objectstore import MemoryStore
from statebackend.testing import CrashStore, Fail, FaultyStore, Moment, run_virtual
from tests import invariants
from tests.erase.persons import ADA, BOB, BOTH, ERASED, JOB, without, writes
from tests.rewrite.jobs import newest_commit, objects_of, read, settings_of, work

SETTINGS = settings_of(16, upload__attempts_max=1, **{**BOTH, "checkpoints_retained": 1})


async def check(store: sb.ObjectStore, before: dict[str, object]) -> bool:
    """Check that the job is as it was, or without the key; true if without. Then nothing older can be opened."""
    await newest_commit(store)
    found = await read(SETTINGS, store)
    if found == before:
        return False
    assert found == without(before)
    with pytest.raises(CheckpointNotFoundError):
        await read(SETTINGS, store, checkpoint_id=1)
    return True


@run_virtual
async def test_no_request_is_one_at_which_a_kill_tears_it() -> None:
    """Another call completes it, and a sweep then deletes what the killed one left, and nothing else."""
    requests, outcomes = 0, set[bool]()
    while True:
        requests += 1
        world = CrashStore(seed=requests)
        before = await work(SETTINGS, world.open(), writes(1, ADA, BOB), writes(2, BOB), writes(3, ADA))
        finished = False
        with suppress(StateBackendError):
            await sb.erase(SETTINGS, ERASED, store=world.open(crash_at=requests))
            finished = True
        outcomes.add(await check(world.open(), before))
        await sb.erase(SETTINGS, ERASED, store=world.open())
        assert await check(world.open(), before)
        store = world.open()
        await sb.sweep(SETTINGS, dry_run=False, min_age_s=0.0, store=store)
        objects = await objects_of(store)
        commits = invariants.commits_of(invariants.read_log(objects, JOB))
        invariants.assert_nothing_is_left_over([key for key in objects if key.startswith("segments/")], commits)
        assert await read(SETTINGS, store) == without(before)
        if finished:
            break
    assert outcomes == {True, False}
    assert requests > 10


@pytest.mark.parametrize("moment", ["before", "after"])
@run_virtual
async def test_no_answer_is_one_whose_loss_tears_it(moment: Moment) -> None:
    """The erasure may fail, and a second call completes it."""
    number = 0
    while True:
        number += 1
        store = MemoryStore()
        before = await work(SETTINGS, store, writes(1, ADA, BOB), writes(3, ADA))
        fault = Fail(nth=number, moment=moment)
        with suppress(StateBackendError):
            await sb.erase(SETTINGS, ERASED, store=FaultyStore(store, [fault]))
        if fault.matched < number:
            break
        await check(store, before)
        await sb.erase(SETTINGS, ERASED, store=store)
        assert await check(store, before)
    assert number > 10
