"""Writers and sweepers on one store whose requests happen one at a time, in any order, with pauses of hours and deaths.

Every request waits for its turn. After each one it is looked whether all that can be opened is whole: of every commit
of the log from where it was swept to, and of every savepoint, whatever it points into.
"""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
from hypothesis import HealthCheck, given, seed
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import statebackend as sb
from statebackend._codec.commit import Claim, Commit, Entry, decode_entry
from statebackend._log.names import entry_key, floor_of, marker_of
from statebackend._tasks import simulate_threads
from statebackend.abc import Body
from statebackend.errors import (
    CheckpointNotFoundError,
    FencedError,
    MissingObjectError,
    OutcomeUnknownError,
    SavepointExistsError,
    SavepointNotFoundError,
    StateBackendError,
    StoreUnavailableError,
)
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fault, FaultyStore
from statebackend.testing.virtual_time import run_virtual, settle
from tests.log.swept import JOB, Job, forget, put

STREAK = 0.85
"""How likely the process of the last request makes the next one: pauses in bad places need long streaks."""


ENDS = (
    FencedError,
    CheckpointNotFoundError,  # swept, or dropped by another writer
    SavepointNotFoundError,
    OutcomeUnknownError,  # what was found in its place was swept before it could be read
    StoreUnavailableError,  # the same, for a claim
)
"""How a writer may end who is held up for hours."""


class DeadError(StateBackendError):
    """The process has ended."""


class WatchedStore(MemoryStore):
    """Knows what lies there, and which entries are those of the log: the first at each place, and no later one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.bodies: dict[str, bytes] = {}
        self.log: dict[str, Entry] = {}
        self.made: dict[str, bytes] = {}

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.bodies[key] = b"".join(body)

    async def put_if_absent(self, key: str, body: Body) -> None:
        await super().put_if_absent(key, body)
        self.bodies[key] = b"".join(body)
        inside = key.removeprefix(f"{JOB}/")
        if inside not in self.log:
            self.log[inside] = decode_entry(self.bodies[key], inside, job=JOB)
            self.made[key] = self.bodies[key]

    async def delete(self, key: str) -> None:
        await super().delete(key)
        self.bodies.pop(key, None)

    def commits(self) -> list[Commit]:
        """Those of the log that are still there; what a fenced writer made where an entry was swept is not of it."""
        return [
            entry
            for key, entry in sorted(self.log.items())
            if isinstance(entry, Commit) and self.bodies.get(f"{JOB}/{key}") == self.made[f"{JOB}/{key}"]
        ]

    def openable(self) -> list[Commit]:
        """Those of `commits` that a sweep has not gone beyond, and savepoints."""
        inside = [key.removeprefix(f"{JOB}/") for key in self.bodies]
        floor = max((floor_of(key) or 0 for key in inside), default=0)
        marks = [mark for mark in map(marker_of, inside) if mark is not None]
        return [
            commit for commit in self.commits() if commit.sequence >= floor or any(mark.names(commit) for mark in marks)
        ]

    def claims(self) -> list[str]:
        """Keys of the claims that were made."""
        return [key for key, entry in self.log.items() if isinstance(entry, Claim)]

    def check(self, savepoints: dict[str, int]) -> None:
        """All that can be opened is whole, and what has to exist does."""
        commits = self.commits()
        for commit in self.openable():
            missing = [key for key in commit.segments() if f"{JOB}/{key}" not in self.bodies]
            assert not missing, (commit.sequence, missing)
        sequences = {commit.sequence for commit in commits}
        made = [entry.sequence for entry in self.log.values() if isinstance(entry, Commit)]
        assert not made or max(made) in sequences, "the newest commit is gone"
        assert not self.log or f"{JOB}/{max(self.log)}" in self.bodies, "the end of the log is gone"
        assert set(savepoints.values()) <= sequences, "a savepoint's commit is gone"


@dataclass(kw_only=True, eq=False)
class Actor(Fault):
    """A process, and the fault by which its store lets each of its requests wait for its turn."""

    work: Any
    dead: bool = False
    done: bool = False
    error: Exception | None = None
    waiting: list[anyio.Event] = field(default_factory=list[anyio.Event])

    async def strike(self) -> None:
        if not self.dead:
            self.waiting.append(turn := anyio.Event())
            with anyio.CancelScope(shield=True):
                await turn.wait()
        if self.dead:
            raise DeadError("killed")

    def go(self, which: int) -> None:
        """Let one of its requests happen; all of them fail where it has died."""
        for turn in self.waiting if self.dead else [self.waiting[which]]:
            turn.set()
        self.waiting = [turn for turn in self.waiting if not turn.is_set()]


@dataclass(eq=False)
class World:
    """What happens, and what was acknowledged."""

    chance: random.Random
    deaths: int
    hours: int
    inline_bytes_max: int
    values: dict[tuple[int, str], int] = field(default_factory=dict)
    """By sequence and stamp, what a commit was to hold."""
    savepoints: dict[str, int] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)
    number: int = 0
    swept: int = 0

    def __post_init__(self) -> None:
        # `forget` stands for bases; real ones do not expect it
        self.job = Job(inline_bytes_max=self.inline_bytes_max, materialize_interval_s=0.0)
        self.store = WatchedStore(clock=self.job.clock)
        self.job.store = self.store

    async def write(self, store: FaultyStore, plan: Sequence[str]) -> None:
        """Open the job where the first step says, and do the others."""
        where, *steps = plan
        if where == "beside":
            for _ in steps:
                await self.keep(store)
            return
        options: dict[str, Any] = {}
        if where == "old" and self.ids:
            options["checkpoint_id"] = self.chance.choice(self.ids)
        elif where == "savepoint" and self.savepoints:
            options["savepoint"] = self.chance.choice(sorted(self.savepoints))
        try:
            async with sb.open_backend(self.job.settings, store=store, clock=self.job.clock, **options) as backend:
                for step in steps:
                    await self._step(store, backend, step)
        except ENDS:
            return
        except MissingObjectError:
            # Before its claim, or after a newer one, a writer that is held up may find gone what it looks for.
            assert ("put_if_absent", f"{JOB}/{max(self.store.claims())}") not in store.calls

    async def _step(self, store: FaultyStore, backend: sb.StateBackend, step: str) -> None:
        if step == "drop" and self.savepoints:
            name = self.chance.choice(sorted(self.savepoints))
            del self.savepoints[name]
            with contextlib.suppress(SavepointNotFoundError):
                await sb.drop_savepoint(self.job.settings, name, store=store)
            return
        if step == "keep":
            await self.keep(store)
            return
        if step == "forget":
            forget(backend)
        self.number += 1
        options = {"savepoint": f"s{self.number}"} if step == "name" else {}
        checkpoint_id = int(backend.next_checkpoint_id)
        self.ids.append(checkpoint_id)
        backend.value_state("n", int)["k"] = checkpoint_id
        mark = sb.SourceMark(str(self.number), 0)
        info = await backend.checkpoint(checkpoint_id, source=mark, **options)
        committed = self.store.log[f"commits/{info.sequence:012d}"]
        assert isinstance(committed, Commit)
        assert committed.source == mark, "acknowledged, and not of the log"
        if options:
            self.savepoints[options["savepoint"]] = info.sequence

    async def keep(self, store: FaultyStore) -> None:
        """Make a savepoint of a commit that exists, or did."""
        self.number += 1
        name, checkpoint_id = f"s{self.number}", self.chance.choice([None, *self.ids])
        try:
            made = await sb.savepoint(self.job.settings, name, checkpoint_id=checkpoint_id, store=store)
        except (CheckpointNotFoundError, MissingObjectError, StoreUnavailableError, SavepointExistsError):
            return  # swept, held up for hours, or dropped and swept by others
        self.savepoints[name] = made.sequence

    async def sweep(self, store: FaultyStore) -> None:
        try:
            await sb.sweep(self.job.settings, dry_run=False, min_age_s=0.0, store=store, clock=self.job.clock)
        except MissingObjectError:  # another sweep was at work
            return
        self.swept += 1

    async def run(self, plans: Sequence[Sequence[str] | None]) -> None:
        """Each plan is one process: a writer's, or `None` for a sweeper. All at once, request by request."""
        actors = [Actor(work=plan) for plan in plans]
        async with anyio.create_task_group() as tasks:
            for actor in actors:
                tasks.start_soon(self._live, actor)
            try:
                await self._take_turns(actors)
            finally:
                for actor in actors:
                    actor.dead = True
                    actor.go(0)
        for actor in actors:
            if actor.error is not None:
                raise actor.error
            assert actor.done

    async def _take_turns(self, actors: Sequence[Actor]) -> None:
        last: Actor | None = None
        while True:
            await settle()
            self.store.check(self.savepoints)
            waiting = [actor for actor in actors if actor.waiting]
            if not waiting:
                return
            if self.hours and self.chance.random() < 0.1:
                self.hours -= 1
                self.job.pass_time(3700.0)
            if last not in waiting or self.chance.random() > STREAK:
                last = self.chance.choice(waiting)
            assert last is not None
            if self.deaths and self.chance.random() < 0.03:
                self.deaths -= 1
                last.dead = True
            last.go(self.chance.randrange(len(last.waiting)))

    async def _live(self, actor: Actor) -> None:
        store = FaultyStore(self.store, [actor])
        try:
            await (self.sweep(store) if actor.work is None else self.write(store, actor.work))
        except Exception as error:  # noqa: BLE001  raised by who runs the race
            actor.error = None if actor.dead else error
        actor.done = True

    async def settle_accounts(self) -> None:
        """Everybody is gone. A last writer and a last sweep leave what is needed, and nothing else."""
        await self.job.commit(1, 2, 3)
        self.job.pass_time(3700.0)
        await self.job.commit(4)
        for _ in range(2):  # the pin of a savepoint that was not made keeps its commit once more
            await self.job.sweep()
        self.store.check(self.savepoints)
        named = {info.name: info.sequence for info in await sb.savepoints(self.job.settings, store=self.store)}
        assert self.savepoints.items() <= named.items()  # others belong to a writer that died before it was told
        marks = [key for key in self.store.bodies if key.startswith(f"{JOB}/savepoints/")]
        assert {key.split("/")[2] for key in marks} == named.keys()  # and no pin of one that is not
        commits = self.store.openable()
        assert len(commits) == self.job.settings.checkpoints_retained + len(set(named.values()))
        needed = {key for commit in commits for key in (*commit.segments(), entry_key(commit.sequence))}
        inside = {key.removeprefix(f"{JOB}/") for key in self.store.bodies}
        assert {key for key in inside if key.startswith(("segments/", "commits/"))} - needed == {
            max(self.store.claims())
        }
        for commit in commits:
            if commit.checkpoint_id in self.ids:
                assert await self.job.read(checkpoint_id=commit.checkpoint_id) == commit.checkpoint_id
        for name, sequence in named.items():
            (kept,) = [commit for commit in commits if commit.sequence == sequence]
            assert await self.job.read(savepoint=name) == kept.checkpoint_id


WRITER = st.builds(
    lambda where, steps: [where, *steps],
    st.sampled_from(["newest", "newest", "old", "savepoint", "beside"]),
    st.lists(st.sampled_from(["put", "forget", "forget", "name", "drop", "keep"]), min_size=1, max_size=4),
)


async def race(plans: Sequence[Sequence[str] | None], chance: random.Random, deaths: int, hours: int) -> World:
    simulate_threads(asyncio.get_running_loop(), anyio.lowlevel.checkpoint)
    world = World(chance, deaths, hours, inline_bytes_max=chance.choice([0, 2**16]))
    await world.job.commit(0, 1)
    async with world.job.backend() as backend:
        for value in (2, 3, 4):
            forget(backend)
            await put(backend, value)
    world.job.pass_time(3700.0)
    await world.job.commit(5)
    world.ids.extend(range(6))
    await world.run(plans)
    await world.settle_accounts()
    return world


@seed(0)
@hypothesis_settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    writers=st.lists(WRITER, min_size=1, max_size=3),
    sweepers=st.integers(1, 2),
    chance=st.integers(0, 2**32).map(random.Random),
    deaths=st.integers(0, 2),
    hours=st.integers(0, 6),
)
def test_no_sweep_deletes_what_is_needed_in_whatever_order_requests_come(
    writers: list[list[str]], sweepers: int, chance: random.Random, deaths: int, hours: int
) -> None:
    """Writers that open at the newest, at old commits and at savepoints, beside sweepers; some die, hours pass."""
    run_virtual(race)([*writers, *[None] * sweepers], chance, deaths, hours)


@seed(1)
@hypothesis_settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    keepers=st.integers(1, 3),
    writers=st.lists(WRITER, max_size=1),
    chance=st.integers(0, 2**32).map(random.Random),
    deaths=st.integers(0, 2),
    hours=st.integers(0, 3),
)
def test_a_commit_that_became_a_savepoint_beside_sweeps_is_whole(
    keepers: int, writers: list[list[str]], chance: random.Random, deaths: int, hours: int
) -> None:
    """Processes that only name old commits, beside two sweeps; a name exists from the moment its marker does."""
    plans = [*writers, *[["beside", "keep", "keep"]] * keepers, None, None]
    run_virtual(race)(plans, chance, deaths, hours)
