"""Killed at any of its requests, or with any answer lost, there is a whole clone or none, and the next call ends it."""

from contextlib import suppress

import pytest

import statebackend as sb
from statebackend.errors import InputError, StateBackendError
from statebackend.objectstore import MemoryStore
from statebackend.testing import CrashStore, Fail, FaultyStore, Moment, run_virtual
from tests import invariants
from tests.clone.test_clone import COPY, named, read
from tests.erase.persons import ADA, BOB, BOTH, writes
from tests.rewrite.jobs import objects_of, settings_of, work

SETTINGS = settings_of(16, upload__attempts_max=1, **BOTH)


async def is_there(store: sb.ObjectStore, before: object) -> bool:
    """True if the clone is there, with all of it; false if nothing can be read."""
    try:
        assert await read(store, SETTINGS) == before
    except AssertionError:
        with pytest.raises(InputError, match="no checkpoint"):
            async with sb.read_rows(named(SETTINGS), store=store):
                pass
        return False
    return True


async def left_behind(store: sb.ObjectStore) -> list[str]:
    """What a sweep of both jobs leaves though nothing needs it."""
    for settings in (SETTINGS, named(SETTINGS)):
        async with sb.open_backend(settings, store=store) as backend:  # whose epoch ends that of what is left
            await backend.checkpoint(backend.next_checkpoint_id)
        await sb.sweep(settings, dry_run=False, min_age_s=0.0, store=store)
    objects = {info.key.partition("/")[2]: b"" async for info in store.list(f"{COPY}/")}
    for key in objects:
        objects[key] = await store.get(f"{COPY}/{key}")
    needed = invariants.commits_of(invariants.read_log(objects, COPY))[-1].segments()
    return [key for key in objects if key.startswith("segments/") and key not in needed]


@pytest.mark.parametrize("options", [{}, {"states": ["value"], "keys": 0.9}], ids=["whole", "part"])
@run_virtual
async def test_no_request_is_one_at_which_a_kill_tears_it(options: dict[str, object]) -> None:
    """The next call goes on from the same checkpoint, though the source has a newer one by then."""
    requests, outcomes, found = 0, set[bool](), 0
    while True:
        requests += 1
        world = CrashStore(seed=requests)
        before = await work(SETTINGS, world.open(), writes(1, ADA, BOB), writes(2, BOB), writes(3, ADA))
        finished = False
        with suppress(StateBackendError):
            store = world.open(crash_at=requests)
            await sb.clone(named(SETTINGS), from_=SETTINGS, store=store, from_store=store, **options)  # type: ignore[arg-type]
            finished = True
        store = world.open()
        if not options:
            outcomes.add(await is_there(store, before))
        assert (await objects_of(store)).keys() >= {"commits/000000000003"}
        report = await sb.clone(named(SETTINGS), from_=SETTINGS, store=store, from_store=store, **options)  # type: ignore[arg-type]
        found = max(found, report.found)
        if not options:
            assert await is_there(store, before)
        assert await sb.savepoints(SETTINGS, store=store) == []
        assert await left_behind(store) == []
        if finished:
            break
    assert options or outcomes == {True, False}
    assert options or found > 1
    assert requests > 10


@pytest.mark.parametrize("moment", ["before", "after"])
@run_virtual
async def test_no_answer_is_one_whose_loss_tears_it(moment: Moment) -> None:
    """The clone may fail, and a second call completes it."""
    number = 0
    while True:
        number += 1
        store = MemoryStore()
        before = await work(SETTINGS, store, writes(1, ADA, BOB), writes(3, ADA))
        fault = Fail(nth=number, moment=moment)
        with suppress(StateBackendError):
            faulty = FaultyStore(store, [fault])
            await sb.clone(named(SETTINGS), from_=SETTINGS, store=faulty, from_store=faulty)
        if fault.matched < number:
            break
        await is_there(store, before)
        await sb.clone(named(SETTINGS), from_=SETTINGS, store=store, from_store=store)
        assert await is_there(store, before)
        assert await sb.savepoints(SETTINGS, store=store) == []
    assert number > 10


@run_virtual
async def test_a_killed_clone_goes_on_from_the_checkpoint_that_it_had_begun_with() -> None:
    """The source has a newer one by then, and was swept."""
    world = CrashStore(seed=1)
    before = await work(SETTINGS, world.open(), writes(1, ADA), writes(2, BOB))
    store = world.open(crash_at=14)
    with pytest.raises(StateBackendError):
        await sb.clone(named(SETTINGS), from_=SETTINGS, store=store, from_store=store)
    store = world.open()
    (kept,) = await sb.savepoints(SETTINGS, store=store)
    assert kept.name.startswith("clone-")
    await work(SETTINGS, store, *[writes(number, BOB) for number in range(9)])
    await sb.sweep(SETTINGS, store=store, dry_run=False, min_age_s=0.0)
    await sb.clone(named(SETTINGS), from_=SETTINGS, store=store, from_store=store)
    assert await is_there(store, before)
