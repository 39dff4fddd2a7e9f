"""Killed at any request, or with any answer lost, a state is as it was or transformed, and a second call ends it."""

from contextlib import suppress
from typing import Any

import pytest

import statebackend as sb
from statebackend.errors import StateBackendError
from statebackend.objectstore import MemoryStore
from statebackend.testing import CrashStore, Fail, FaultyStore, Moment, run_virtual
from tests import invariants
from tests.rewrite.jobs import JOB, newest_commit, objects_of, read, settings_of, work
from tests.transform.test_transform import moved, renamed

SETTINGS = settings_of(16, upload__attempts_max=1, inline_bytes_max=0, checkpoints_retained=1)


async def is_done(store: sb.ObjectStore, before: dict[str, Any]) -> bool:
    """Check that the job is as it was, or with other keys in one state; true for these."""
    await newest_commit(store)
    found = await read(SETTINGS, store)
    if found == before:
        return False
    assert found == {**before, "list": {moved(key): value for key, value in before["list"].items()}}
    return True


@run_virtual
async def test_no_request_is_one_at_which_a_kill_tears_it() -> None:
    """A sweep then deletes what the killed one left, and nothing else."""
    requests, outcomes = 0, set[bool]()
    while True:
        requests += 1
        world = CrashStore(seed=requests)
        before = await work(SETTINGS, world.open())
        finished = False
        with suppress(StateBackendError):
            await sb.transform(SETTINGS, "list", renamed, store=world.open(crash_at=requests))
            finished = True
        outcomes.add(done := await is_done(world.open(), before))
        if not done:
            await sb.transform(SETTINGS, "list", renamed, store=world.open())
        assert await is_done(world.open(), before)
        store = world.open()
        await sb.sweep(SETTINGS, dry_run=False, min_age_s=0.0, store=store)
        objects = await objects_of(store)
        commits = invariants.commits_of(invariants.read_log(objects, JOB))
        invariants.assert_nothing_is_left_over([key for key in objects if key.startswith("segments/")], commits)
        if finished:
            break
    assert outcomes == {True, False}
    assert requests > 8


@pytest.mark.parametrize("moment", ["before", "after"])
@run_virtual
async def test_no_answer_is_one_whose_loss_tears_it(moment: Moment) -> None:
    """It may fail, and a second call completes it if it has not happened."""
    number = 0
    while True:
        number += 1
        store = MemoryStore()
        before = await work(SETTINGS, store)
        fault = Fail(nth=number, moment=moment)
        with suppress(StateBackendError):
            await sb.transform(SETTINGS, "list", renamed, store=FaultyStore(store, [fault]))
        if fault.matched < number:
            break
        if not await is_done(store, before):
            await sb.transform(SETTINGS, "list", renamed, store=store)
        assert await is_done(store, before)
    assert number > 8
