"""A simulation of the whole backend: processes work on one job on a virtual clock, over unreliable stores.

    simulate(1234)                                               one seed; raises `BrokenError` if an invariant breaks
    python -m tests.simulation --seeds 10000                     many seeds
    STATEBACKEND_SEED=1234 nox -s simulation                     one seed again, with its trace

A process that works on the job is called a life. The seed decides a run: the settings, in one of three with columns
that are looked up in runs, in one of six with a memory that they outgrow, how the stores behave (the weather), what
each life writes, when it is cancelled, by a scope or by `task.cancel()`, when it crashes, and which lives continue as
zombies while the next ones work. Half of the seeds also have savepoints, sweeps beside the lives, and nights after
which a sweep finds everything old, and many of these keep commits for their age; savepoints are made of the next
commit, of the newest behind it, and of older ones from outside, and lives start from them. In one of eight the job is
opened again for each batch; in one of three its newest commit may be damaged or lost between two lives, while a host's
disk has a good copy. In half of the seeds the job is read beside all that, by readers quick and slow; in one of three
its change feed is followed, in one of three a state is mirrored into a table, and in one of three there are lives that
follow the job first, and then take it over.

Two thirds of the jobs have a clock, by the times of their rows or by that of their batches, with late rows, timers and
values that expire. Some lives work in ranges, as Spark's executors do, and are woken by the timers of idle ranges.

The model is a dictionary for each attempt at a checkpoint; the truth is what the primary holds. The invariants are
checked at every write that reaches the primary, at every answer that a life gets, and at the end, when the weather
clears up and one more life has to open, commit and leave.

anyio cancels tasks in the order of a set, that is by address. So nothing is drawn in an order that depends on it: the
fate of a request is drawn from its name. Only the lines of a trace at the same instant may change places from run to
run; sorted, the trace of a seed is always the same.

This file starts the lives one after the other, lets them overlap, and asks one more at the end.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

import anyio
import msgspec

from statebackend._backend.opening import open_backend
from statebackend._backend.sweeping import AT_ONCE_EVERY
from statebackend._log.names import entry_key
from statebackend._tasks import simulate_threads
from statebackend.errors import (
    CorruptCommitError,
    MissingObjectError,
)
from statebackend.ids import KeyGroupRange, SourceMark
from statebackend.settings import Settings
from statebackend.testing.crash_store import Write
from statebackend.testing.virtual_time import VirtualClock, run_virtual
from tests import invariants
from tests.runs.heavy_rows import heavy_rows
from tests.simulation.beside.followers import Follower
from tests.simulation.beside.losses import draw_loss
from tests.simulation.beside.maintenance import Maintenance
from tests.simulation.beside.mirrors import Mirrors
from tests.simulation.beside.readers import Reader
from tests.simulation.beside.tables import TablePlan, draw_rollbacks, draw_table
from tests.simulation.job import JOB, SimulatedJob
from tests.simulation.judged import PATIENCE_S, Sabotage
from tests.simulation.life import Life
from tests.simulation.owners import commit_in_parts, savepoints_of
from tests.simulation.scenario import (
    CALM,
    CALM_DISK,
    NIGHT_S,
    LifePlan,
    ReaderPlan,
    Scenario,
    Upkeep,
    draw_followers,
    draw_heirs,
    draw_lateness,
    draw_readers,
    draw_scenario,
    draw_short_lives,
    draw_small,
    draw_table_kind,
    draw_upkeep,
    draw_ways,
)
from tests.simulation.states import assert_part
from tests.simulation.store import Connection, Names, Place, Weather
from tests.simulation.timed import assert_time, draw_time

HOSTS: Final = 2
NIGHT_EVERY: Final = 5
"""Lives between two nights of a job that is opened again for each batch."""
HOP_S: Final = (0.0, 0.0001, 0.003)
"""Seconds that work in a thread takes."""
RETAINED_S: Final = (0.0, 3 * NIGHT_S, 30 * NIGHT_S)
"""Ages up to which commits are kept, one an hour."""


AnyReader = TypeVar("AnyReader", Reader, Follower)


class BrokenError(AssertionError):
    """A seed has violated an invariant. `trace` is what happened, `__cause__` the violation."""

    def __init__(self, seed: int, trace: Sequence[str], cause: BaseException) -> None:
        super().__init__(
            f"seed {seed}: {type(cause).__name__}: {cause}\n"
            f"replay: STATEBACKEND_SEED={seed} nox -s simulation\n"
            f"    or: python -m tests.simulation --first {seed} --seeds 1 --trace"
        )
        self.seed: Final = seed
        self.trace: Final = trace


@dataclass(frozen=True)
class Run:
    """The outcome of one seed. `trace` has a line per event, in order; sorted, it is always the same."""

    seed: int
    commits: int
    attempts: int
    seconds: float
    trace: Sequence[str]


def simulate(seed: int, *, sabotage: Sabotage | None = None) -> Run:
    """Run one seed. Raises `BrokenError` if an invariant does not hold, or if the backend hangs."""
    world = _World(seed, Sabotage() if sabotage is None else sabotage)
    with world.job.judging(), heavy_rows():  # a deadlock, a task left over, a bug in here
        run_virtual(world.run)()
    if (failure := world.job.failure) is not None:
        raise BrokenError(seed, world.trace(), failure) from failure
    return world.result()


class _Host:
    """A machine: its disk outlives its processes, and one of them at a time may write there.

    Only at the end there are several, `processes`, and each of them counts the bytes of its copies for itself.
    """

    def __init__(self, name: str, settings: Settings, job: SimulatedJob) -> None:
        self.disk: Final = Place(name, watch=self._watch)
        self.owner: Life | None = None
        self.processes = 1
        self._limit = settings.local_bytes_max
        self._job = job

    @property
    def locked(self) -> bool:
        """True if a live process owns the disk."""
        return self.owner is not None and not self.owner.ended.is_set()

    def _watch(self, write: Write) -> None:
        with self._job.judging():
            invariants.assert_budget_is_respected(write, self.disk.objects, self.processes * self._limit)


class _World:
    """One run."""

    def __init__(self, seed: int, sabotage: Sabotage) -> None:
        self.seed: Final = seed
        self.sabotage: Final = sabotage
        self._chance = self._drawing("world")
        drawn = draw_lateness(self._drawing("lateness"), draw_scenario(self._drawing("scenario")))
        drawn = draw_small(self._drawing("small"), seed, draw_short_lives(self._drawing("short lives"), drawn))
        self._upkeep: Final = draw_upkeep(self._drawing("upkeep"), drawn.lives, drawn.weather)
        drawn = draw_ways(self._drawing("ways"), drawn, savepoints=self._upkeep.savepoints)
        drawn = draw_heirs(self._drawing("takeover"), drawn)
        mirroring = self._drawing("mirrors")
        self._table = draw_table(mirroring, drawn)
        self._scenario: Final[Scenario] = drawn if self._table is None else draw_rollbacks(mirroring, drawn)
        self.timing: Final = draw_time(self._drawing("time"))
        self._readers = draw_readers(self._drawing("readers"), self._scenario)
        self._followers = draw_followers(self._drawing("followers"), self._scenario)
        self._is_opened_often = len(self._scenario.lives) > AT_ONCE_EVERY
        self.savepoints: Final = self._upkeep.savepoints
        self.settings: Final = msgspec.structs.replace(
            self._scenario.settings,
            checkpoints_retained=self._upkeep.checkpoints_retained,
            sweep_interval_s=self._upkeep.sweep_interval_s or (3600.0 if self._is_opened_often else 0.0),
            checkpoints_retained_s=self._drawing("milestones").choice(RETAINED_S) if self._upkeep != Upkeep() else 0.0,
            **draw_table_kind(self._drawing("table")),
        )
        self.job: Final = SimulatedJob(
            late=self._scenario.weather.late, checkpoints_retained=self.settings.checkpoints_retained
        )
        self._losses = self._drawing("losses")
        self._losing = self._losses.choice((0.0, 0.0, 0.5))
        self._names = Names()
        self._hosts = [_Host(f"disk{number}", self.settings, self.job) for number in range(HOSTS)]
        self._events: list[tuple[float, str]] = []
        self._now_s = 0.0

    def _drawing(self, what: str) -> Random:
        """Chance of its own: what is drawn from it moves nothing else."""
        return Random(f"{self.seed} {what}")  # to be replayed

    async def run(self) -> None:
        """Run every life, then the last one, then the judgement."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_loop_error)
        hop_s = self._chance.choice(HOP_S)
        simulate_threads(loop, lambda: anyio.sleep(hop_s))
        self._clock = VirtualClock()
        self._maintenance = Maintenance(
            self.job,
            self.settings,
            connect=lambda process: self.sabotage.store(
                self._connect(self.job.primary, self._scenario.weather, process)
            ),
            clock=self._clock,
            tell=self.tell,
        )
        async with anyio.create_task_group() as self._tasks:
            self._mirrors = None if self._table is None else self._open_mirrors(self._table)
            lives: list[Life] = []
            for plan in self._scenario.lives:
                if plan.number in self._upkeep.nights or (self._is_opened_often and plan.number % NIGHT_EVERY == 1):
                    await self._pass_night(lives)
                if self._losses.random() < self._losing:
                    await self._lose_newest(plan.number, lives)
                lives.append(await self._begin(plan))
            await self._await_ends(lives)
            await anyio.sleep(self._scenario.weather.late_max_s)  # for requests of dead processes
        if self.job.failure is None:
            await self._clear_up()
            self.job.check_end()

    def tell(self, text: str) -> None:
        """Add a line to the trace."""
        self._now_s = self._clock.monotonic()
        self._events.append((self._now_s, text))

    def _tell_of(self, process: str, text: str) -> None:
        self.tell(f"{process} {text}")

    def trace(self) -> Sequence[str]:
        """All events, in order."""
        return [f"{seconds:12.6f}  {text}" for seconds, text in self._events]

    def result(self) -> Run:
        """The outcome of the run."""
        return Run(self.seed, len(self.job.commits), len(self.job.attempts), self._now_s, self.trace())

    # ------------------------------------------------------------------------------------------------- the lives

    async def _begin(self, plan: LifePlan) -> Life:
        """Start a life; return when the next one is to start."""
        self._damage_disks()
        host = self._free_host(plan)
        label = f"life{plan.number}"
        local = None if host is None else (host.disk, self._connect(host.disk, self._scenario.disk, label))
        primary = self._connect(self.job.primary, self._scenario.weather, label)
        life = Life(self, plan, primary=primary, local=local, clock=self._clock)
        if host is not None:
            host.owner = life
        self._tasks.start_soon(life.run)
        if (sweep := self._upkeep.sweeps.get(plan.number)) is not None:
            self._tasks.start_soon(self._maintenance.sweep, plan.number, sweep)
        if (keep := self._upkeep.keeps.get(plan.number)) is not None:
            self._tasks.start_soon(self._maintenance.keep, plan.number, keep)
        if (reader := self._readers.get(plan.number)) is not None:
            self._tasks.start_soon(self._open_reader(Reader, plan.number, reader).run)
        if (follower := self._followers.get(plan.number)) is not None:
            self._tasks.start_soon(self._open_reader(Follower, plan.number, follower).run)
        if self._mirrors is not None:
            self._tasks.start_soon(self._mirrors.run, plan.number)
        if plan.overlap_s is None:
            await self._await_end(life)
        else:
            with anyio.move_on_after(plan.overlap_s):
                await life.ended.wait()
        return life

    async def _await_ends(self, lives: Sequence[Life]) -> None:
        for life in lives:
            await self._await_end(life)

    async def _await_end(self, life: Life) -> None:
        with anyio.move_on_after(PATIENCE_S):
            await life.ended.wait()
        if not life.ended.is_set():
            self.job.fail(TimeoutError(f"life {life.plan.number} does not end"))
            self._tasks.cancel_scope.cancel()

    def _free_host(self, plan: LifePlan) -> _Host | None:
        """The host of the plan, or another one if a zombie holds its lock; none if zombies hold all."""
        if plan.host is None:
            return None
        free = [host for host in (self._hosts[plan.host], *self._hosts) if not host.locked]
        return free[0] if free else None

    def _connect(self, place: Place, weather: Weather, process: str) -> Connection:
        return Connection(
            place,
            weather,
            seed=self.seed,
            process=process,
            names=self._names,
            tell=self.tell,
            later=lambda delay_s, write: self._tasks.start_soon(self._arrive_late, place, delay_s, write),
        )

    def _connect_calmly(self, place: Place, process: str) -> Connection:
        return self._connect(place, CALM if place is self.job.primary else CALM_DISK, process)

    async def _arrive_late(self, place: Place, delay_s: float, write: Write) -> None:
        await anyio.sleep(delay_s)
        late = f"late {place.name} {write.operation} {self._names(write.key)}, by {delay_s:.0f} s"
        self.tell(f"{late}: {place.apply(write)}")

    # ------------------------------------------------------------------------------------------------- the upkeep

    async def _pass_night(self, lives: Sequence[Life]) -> None:
        await self._await_ends(lives)
        self.tell("a night passes")
        await anyio.sleep(NIGHT_S)

    def _open_reader(self, kind: type[AnyReader], number: int, plan: ReaderPlan) -> AnyReader:
        word = kind.__name__.lower()
        process = f"{word}{number}"
        return kind(
            plan,
            self.job,
            self.settings,
            self.sabotage.store(self._connect(self.job.primary, plan.weather, process)),
            seed=f"{self.seed} {word} {number}",
            tell=partial(self._tell_of, process),
        )

    def _open_mirrors(self, plan: TablePlan) -> Mirrors:
        return Mirrors(
            plan,
            self.job,
            self.settings,
            seed=self.seed,
            connect=partial(self._connect, self.job.primary),
            begin=self._tasks.start_soon,
            tell=self.tell,
        )

    async def _sweep_clean(self) -> None:
        """When all is quiet and old, no garbage remains. The last sweep floor goes one sweep later."""
        sweep = self._maintenance.open_sweep(self._connect_calmly(self.job.primary, "last"), min_age_s=0.0)
        for _ in range(2):
            report = await sweep.run(dry_run=False)
            assert report.stopped is None, f"the last sweep stopped: {report.stopped}"
            assert not report.failures, f"not deleted: {report.failures}"
        left = [each.key for each in (await sweep.run(dry_run=True)).garbage]
        assert not left, f"a sweep has left garbage: {left}"
        if self.settings.checkpoints_retained_s and not self.job.was_damaged:
            retained = {commit.sequence for commit in self.job.retained}
            invariants.assert_thinned_by_age(
                self.job.made_s, retained, self._clock.time(), self.settings.checkpoints_retained_s
            )
            floor = self.job.floor
            self.tell(f"{sum(sequence < floor for sequence in retained)} commits are kept below the floor")
        there = invariants.commits_of(invariants.read_log(self.job.objects, JOB))
        invariants.assert_nothing_is_left_over(self.job.objects, there)

    # ------------------------------------------------------------------------------------------------- the losses

    async def _lose_newest(self, number: int, lives: Sequence[Life]) -> None:
        """Damage the newest commit while nobody is at work, open the job without and with its copy, and judge both."""
        await self._await_ends(lives)
        await anyio.sleep(self._scenario.weather.late_max_s)
        loss = draw_loss(self._losses, self.job.log, self.job.objects, [host.disk for host in self._hosts])
        if loss is None or self._maintenance.sweeping or self.job.failure is not None:
            return
        newest = self.job.newest
        what = "gone" if loss.left is None else "damaged"
        self.tell(f"{loss.key} is {what}, {loss.disk.name} has it, proved: {loss.proved}")
        self.job.lose(loss)
        with self.job.judging(), anyio.fail_after(PATIENCE_S):
            primary = self.sabotage.store(self._connect_calmly(self.job.primary, f"loss{number}"))
            with suppress(CorruptCommitError, MissingObjectError):
                async with open_backend(self.settings, store=primary, clock=self._clock) as backend:
                    raise AssertionError(f"opened on {backend.newest}, though commit {newest} is damaged")
            disk = self._connect_calmly(loss.disk, f"loss{number}")
            try:
                async with open_backend(
                    self.settings, store=primary, local_stores=[disk], clock=self._clock
                ) as backend:
                    sequence = -1 if backend.newest is None else backend.newest.sequence
                    assert sequence == newest, f"opened on {sequence}, though {newest} has a good copy"
                    whole = KeyGroupRange(0, self.settings.max_parallelism - 1)
                    assert_part(backend, self.job.contents_at(newest), whole, self.settings.max_parallelism)
                    assert self.job.objects[loss.key] == loss.whole, "not put back"
            except (CorruptCommitError, MissingObjectError):
                if loss.proved:
                    raise
                self.job.mend(loss)

    # ------------------------------------------------------------------------------------------------- the disks

    def _damage_disks(self) -> None:
        for host in self._hosts:
            if not host.locked and host.disk.objects and self._chance.random() < self._scenario.damages:
                key = self._chance.choice(sorted(host.disk.objects, key=self._names))
                data = host.disk.objects[key]
                damage = self._chance.choice(("lost", "cut", "flipped"))
                self.tell(f"{host.disk.name} {self._names(key)} {damage}")
                if damage == "lost":
                    host.disk.apply(Write("delete", key))
                elif damage == "cut":
                    host.disk.apply(Write("put", key, data[: self._chance.randrange(max(1, len(data)))]))
                else:
                    host.disk.apply(Write("put", key, _flipped(data, self._chance)))

    # --------------------------------------------------------------------------------------------------- the end

    async def _clear_up(self) -> None:
        """In calm weather the job can be worked on, as a whole and in parts, and nothing is missing."""
        self.tell("the weather clears up")
        expected = self.job.contents_at(self.job.newest)
        whole = KeyGroupRange(0, self.settings.max_parallelism - 1)
        # A sweep beside would shorten the history while it is read.
        quiet = msgspec.structs.replace(self.settings, sweep_interval_s=0.0)
        with self.job.judging(), anyio.fail_after(PATIENCE_S):
            primary, disk = (self._connect_calmly(place, "last") for place in (self.job.primary, self._hosts[0].disk))
            async with open_backend(quiet, store=primary, local_stores=[disk], clock=self._clock) as backend:
                assert_part(backend, expected, whole, self.settings.max_parallelism)
                there = [commit for commit in self.job.commits if entry_key(commit.sequence) in self.job.objects]
                invariants.assert_same_history([each async for each in backend.history()], there)
                savepoints = await savepoints_of(primary, quiet).all()
                named = [(each.name, each.sequence) for each in savepoints]
                invariants.assert_savepoints_were_made(named, self.job.objects, JOB)
                time = self.job.time_at(self.job.newest)
                if self.timing is not None and time.clock is not None:
                    assert_time(backend, expected, time, self.timing, self.settings.max_parallelism)
                attempt = self.job.attempt(backend.next_checkpoint_id, expected, time)
                info = await backend.checkpoint(attempt.checkpoint_id, source=SourceMark(JOB, attempt.number))
                self.job.acknowledge(attempt, info)
        if self._upkeep != Upkeep() or self._is_opened_often:
            await anyio.sleep(NIGHT_S)
            with self.job.judging(), anyio.fail_after(PATIENCE_S):
                await self._sweep_clean()
        if parts := _parts(whole):
            with self.job.judging(), anyio.fail_after(PATIENCE_S):
                host, connect = self._hosts[0], self._connect_calmly
                host.processes = len(parts)
                await commit_in_parts(self.job, quiet, parts, host.disk, connect=connect, clock=self._clock)
        if self._mirrors is not None:
            with self.job.judging(), anyio.fail_after(2 * NIGHT_S):
                await self._mirrors.end()

    def _on_loop_error(self, _: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        error = context.get("exception")
        self.job.fail(error if isinstance(error, Exception) else RuntimeError(str(context.get("message"))))


def _parts(whole: KeyGroupRange) -> Sequence[KeyGroupRange]:
    """The key groups in two halves, if there are two groups."""
    middle = whole.last // 2
    return [KeyGroupRange(0, middle), KeyGroupRange(middle + 1, whole.last)] if whole.last > 0 else []


def _flipped(data: bytes, chance: Random) -> bytes:
    if not data:
        return data
    flipped = bytearray(data)
    flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(flipped)
