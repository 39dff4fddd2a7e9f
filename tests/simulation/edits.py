"""Jobs that are seeded, cloned, transformed, erased from and swept in any order, killed at any request.

They are judged by dictionaries.

Beside the stream nothing runs here, unlike in `world.py`: these are edits of stopped jobs, and what is looked for is a
job that has got too much or too little by what was done to it, to its source or to its clones; and for
a table that is mirrored now and then, and does not equal its state.
"""

import random
from contextlib import suppress
from typing import Any, Literal

import msgspec
import pytest

import statebackend as sb
from statebackend._upkeep.seeding import sorted_runs
from statebackend.errors import InputError, StateBackendError
from statebackend.testing import CrashStore, run_virtual
from tests import invariants
from tests.mirroring.listed import Listed
from tests.rewrite.jobs import settings_of

PERSONS = [f"person {number}" for number in range(12)]
STEPS = 8
Rows = dict[str, list[int]]
State = dict[str, Rows]
"""By job, then by key: the list of "person 1" in the state `left` is under "left person 1"."""


class Edited:
    """One seed: jobs in a store that may forget what was not answered, and what each of them must have."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.mirroring = random.Random(f"{seed} mirrors")  # its own: it moves nothing else
        self.tables: dict[tuple[str, str], Listed] = {}
        self.store = CrashStore(seed=seed)
        self.jobs: State = {"job-0": {}}
        inline = self.chance.choice((0, 1 << 16))
        self.base = settings_of(8, upload__attempts_max=1, inline_bytes_max=inline, checkpoints_retained=2)

    def settings(self, job: str) -> sb.Settings:
        return msgspec.structs.replace(self.base, job=job)

    async def run(self, steps: int) -> None:
        await self.batch("job-0")
        for _ in range(steps):
            job = self.chance.choice(sorted(self.jobs))
            await self.chance.choice(
                (self.batch, self.batch, self.seed, self.clone, self.transform, self.erase, self.sweep)
            )(job)
            for each in self.jobs:
                await self.assert_has_just_what_was_done_to_it(each)
            if self.mirroring.random() < 0.5:
                await self.mirror(self.mirroring.choice(sorted(self.jobs)))

    async def batch(self, job: str) -> None:
        async with sb.open_backend(self.settings(job), store=self.store.open()) as backend:
            for _ in range(self.chance.randint(1, 3)):
                for _ in range(self.chance.randint(1, 6)):
                    state, key = self.chance.choice(("left", "right")), self.chance.choice(PERSONS)
                    value = self.chance.randrange(1000)
                    backend.list_state(state, int)[key].append(value)
                    self.jobs[job].setdefault(f"{state} {key}", []).append(value)
                await backend.checkpoint(backend.next_checkpoint_id)

    async def mortal(self, call: Any) -> bool:
        """Call it, perhaps killed at one of its requests; then again, until it has happened. False: it is refused."""
        options: dict[str, Any] = {} if self.chance.random() < 0.5 else {"crash_at": self.chance.randint(1, 40)}
        with suppress(StateBackendError):
            store = self.store.open(**options)
            await call(store)
            return True
        try:
            await call(self.store.open())
        except InputError:
            return False
        return True

    async def seed(self, job: str) -> None:
        """Make a job of the rows of this one, in runs of a few, of which some keys come twice."""
        name, rows = f"job-{len(self.jobs)}", dict[str, Any]()
        kept: Literal["first", "last"] = self.chance.choice(("first", "last"))
        for state in ("left", "right"):
            mine = [(key.removeprefix(f"{state} "), found) for key, found in self.jobs[job].items() if state in key]
            twice = [(key, [-1]) for key, _ in mine if self.chance.random() < 0.3]
            rows[state] = mine + twice if kept == "first" else twice + mine

        def states(backend: Any) -> None:
            for state in rows:
                backend.list_state(state, int)

        async def call(store: sb.ObjectStore) -> None:
            await sb.seed(self.settings(name), states, rows, duplicates=kept, store=store)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sorted_runs, "RUN_ROWS", self.chance.randint(1, 9))
            patch.setattr("statebackend._upkeep.seeding.sources.PAIRS_AT_ONCE", self.chance.randint(1, 3))
            await self.mortal(call)  # false: it had happened, and nobody heard of it
            self.jobs[name] = {key: list(found) for key, found in self.jobs[job].items()}
            await self.assert_a_seed_is_the_first_commit(name, states)

    async def clone(self, job: str) -> None:
        name = f"job-{len(self.jobs)}"

        async def call(store: sb.ObjectStore) -> None:
            await sb.clone(self.settings(name), from_=self.settings(job), store=store, from_store=store)

        assert await self.mortal(call)
        self.jobs[name] = {key: list(found) for key, found in self.jobs[job].items()}
        await self.assert_nothing_keeps_the_source(job)

    async def transform(self, job: str) -> None:
        """Move all keys of one state of some persons into the other, in which nobody has them: else it is refused."""
        some = self.chance.sample(PERSONS, 3)
        moved = {f"right {key}" for key in some} & self.jobs[job].keys()
        collides = any(key.replace("right", "left", 1) in self.jobs[job] for key in moved)
        before = {key: list(found) for key, found in self.jobs[job].items()}
        after = {key.replace("right", "left", 1) if key in moved else key: found for key, found in before.items()}

        def function(key: str, value: Any) -> Any:
            return [("left" if key in some else "right", key, value)]

        async def call(store: sb.ObjectStore) -> None:
            if await self.read(job, store) == before or moved == set():
                is_new = not any(key.startswith("left") for key in self.jobs[job])
                new_states = ["left"] if is_new else []
                await sb.transform(self.settings(job), "right", function, new_states=new_states, store=store)

        is_known = any(key.startswith("right") for key in before)
        done = await self.mortal(call)
        if done and is_known:
            self.assert_no_two_became_one(job, collides=collides)
            self.jobs[job] = after

    async def erase(self, job: str) -> None:
        key = self.chance.choice(PERSONS)

        async def call(store: sb.ObjectStore) -> None:
            await sb.erase(self.settings(job), [key], store=store)

        if await self.mortal(call):
            for state in ("left", "right"):
                self.jobs[job].pop(f"{state} {key}", None)

    async def sweep(self, job: str) -> None:
        await sb.sweep(self.settings(job), dry_run=False, min_age_s=0.0, store=self.store.open())

    async def mirror(self, job: str) -> None:
        """Bring a table to one of the job's states, perhaps killed at one of its requests, and then once more."""
        state, settings = self.mirroring.choice(("left", "right")), self.settings(job)
        table = self.tables.setdefault((job, state), Listed())
        mirror = sb.Mirror(state, to=table)
        if self.mirroring.random() < 0.5:
            with suppress(StateBackendError):
                dying = self.store.open(crash_at=self.mirroring.randint(1, 40))
                await sb.mirror_once(settings, mirror, store=dying)
        expected = {
            key.removeprefix(f"{state} "): found for key, found in self.jobs[job].items() if key.startswith(state)
        }
        try:
            await sb.mirror_once(settings, mirror, store=self.store.open())
        except InputError:  # it has no such state, or not any more
            table = Listed()
        self.assert_table_is_the_state(table.rows, expected, f"{state} in {job}")

    async def read(self, job: str, store: sb.ObjectStore) -> dict[str, list[int]]:
        async with sb.open_backend(self.settings(job), store=store, read_only=True) as backend:
            return {
                f"{state} {key!s}": list(found)
                for state in ("left", "right")
                for key, found in backend.list_state(state, int).items()
            }

    async def assert_has_just_what_was_done_to_it(self, job: str) -> None:
        """And its newest commit is whole."""
        store = self.store.open()
        keys = [info.key async for info in store.list(f"{job}/")]
        objects = {key.removeprefix(f"{job}/"): await store.get(key) for key in keys}
        invariants.assert_commit_is_whole(invariants.commits_of(invariants.read_log(objects, job))[-1], objects)
        assert await self.read(job, store) == self.jobs[job], job

    async def assert_nothing_keeps_the_source(self, job: str) -> None:
        """A clone that is made needs nothing of its source any more."""
        assert await sb.savepoints(self.settings(job), store=self.store.open()) == []

    def assert_table_is_the_state(self, found: Rows, expected: Rows, which: str) -> None:
        """However far behind the mirror was, and whatever was done to the job since."""
        assert found == expected, f"the table of {which} has {found} instead of {expected}"

    async def assert_a_seed_is_the_first_commit(self, job: str, states: Any) -> None:
        """A job that has a state is not seeded."""
        refused = False
        try:
            await sb.seed(self.settings(job), states, {"left": {"nobody": [0]}}, store=self.store.open())
        except InputError:
            refused = True
        assert refused, job

    def assert_no_two_became_one(self, job: str, *, collides: bool) -> None:
        """A transformation that was not refused has lost no key."""
        assert not collides, job


@run_virtual
async def simulate_edits(seed: int) -> None:
    """One seed. Raises `AssertionError` where a job is not as it must be."""
    await Edited(seed).run(STEPS)
