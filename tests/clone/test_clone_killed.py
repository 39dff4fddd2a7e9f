"""Killed at any of its requests, or with any answer lost, there is a whole clone or none, and the next call ends it."""

from typing import Any

import pytest

import statebackend as sb
from statebackend.errors import InputError, StateBackendError
from statebackend.testing import CrashStore, Moment, run_virtual
from tests import invariants
from tests.clone.test_clone import COPY, named, read
from tests.erase.persons import ADA, BOB, BOTH, writes
from tests.killed_operations import Operation, kill_at_every_request, lose_every_answer
from tests.rewrite.jobs import objects_of, settings_of, work

SETTINGS = settings_of(16, upload__attempts_max=1, **BOTH)


class Clone(Operation):
    """`found`: the most objects that a call found there already."""

    def __init__(self, **options: Any) -> None:
        super().__init__(named(SETTINGS))
        self.options = options
        self.found = 0

    async def prepare(self, store: sb.ObjectStore) -> None:
        self.before = await work(SETTINGS, store, writes(1, ADA, BOB), writes(2, BOB), writes(3, ADA))

    async def run(self, store: sb.ObjectStore) -> None:
        report = await sb.clone(self.settings, from_=SETTINGS, store=store, from_store=store, **self.options)
        self.found = max(self.found, report.found)

    async def has_happened(self, store: sb.ObjectStore) -> bool:
        """True if the clone is there, with all of it; false if nothing can be read. The source is as it was."""
        assert (await objects_of(store)).keys() >= {"commits/000000000003"}
        if not invariants.commits_of(invariants.read_log(await objects_of(store, COPY), COPY)):
            with pytest.raises(InputError, match="no checkpoint"):
                async with sb.read_rows(self.settings, store=store):
                    pass
            return False
        if not self.options:
            assert await read(store, SETTINGS) == self.before
        return True

    async def complete(self, store: sb.ObjectStore, *, has_happened: bool) -> None:
        await self.run(store)
        assert await sb.savepoints(SETTINGS, store=store) == []

    async def sweep(self, store: sb.ObjectStore) -> None:
        """Sweep both jobs, and check what is left of the clone."""
        for settings in (SETTINGS, self.settings):
            async with sb.open_backend(settings, store=store) as backend:  # whose epoch ends that of what is left
                await backend.checkpoint(backend.next_checkpoint_id)
            await sb.sweep(settings, dry_run=False, min_age_s=0.0, store=store)
        objects = await objects_of(store, COPY)
        needed = invariants.commits_of(invariants.read_log(objects, COPY))[-1].segments()
        assert [key for key in objects if key.startswith("segments/") and key not in needed] == []


@run_virtual
async def test_no_request_is_one_at_which_a_kill_tears_it() -> None:
    """The next call goes on with what the killed one has copied."""
    clone = Clone()
    await kill_at_every_request(clone)
    assert clone.found > 1


@run_virtual
async def test_no_request_is_one_at_which_a_kill_tears_a_part() -> None:
    """Of one state, and of some of its keys."""
    await kill_at_every_request(Clone(states=["value"], keys=0.9))


@pytest.mark.parametrize("moment", ["before", "after"])
@run_virtual
async def test_no_answer_is_one_whose_loss_tears_it(moment: Moment) -> None:
    """The clone may fail, and a second call completes it."""
    await lose_every_answer(Clone(), moment)


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
    assert await read(store, SETTINGS) == before
