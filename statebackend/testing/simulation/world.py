"""Starts the lives of a scenario one after the other, lets them overlap, and asks one more at the end."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import anyio

from statebackend._backend.opening import open_backend
from statebackend._checkpoint.backend import StateBackend
from statebackend._state.key_groups import key_group
from statebackend._tasks import simulate_threads
from statebackend.ids import KeyGroupRange, SourceMark
from statebackend.settings import Settings
from statebackend.testing import invariants
from statebackend.testing.crash_store import Write
from statebackend.testing.simulation.job import JOB, SimulatedJob
from statebackend.testing.simulation.life import PATIENCE_S, STATES, Life, Sabotage
from statebackend.testing.simulation.scenario import CALM, CALM_DISK, LifePlan, Scenario, draw_scenario
from statebackend.testing.simulation.store import LATE_S, Connection, Names, Place, Weather
from statebackend.testing.virtual_time import VirtualClock, run_virtual

HOSTS: Final = 2
HOP_S: Final = (0.0, 0.0001, 0.003)
"""How long work in a thread takes."""


class BrokenError(AssertionError):
    """A seed has shown something that must not be. `trace` is what happened, `__cause__` what was wrong."""

    def __init__(self, seed: int, trace: Sequence[str], cause: BaseException) -> None:
        super().__init__(
            f"seed {seed}: {type(cause).__name__}: {cause}\n"
            f"replay: STATEBACKEND_SEED={seed} nox -s simulation\n"
            f"    or: python -m statebackend.testing.simulation --first {seed} --seeds 1 --trace"
        )
        self.seed: Final = seed
        self.trace: Final = trace


@dataclass(frozen=True)
class Run:
    """What one seed has come to. `trace` has a line for each event, in order: sorted, it is always the same."""

    seed: int
    commits: int
    attempts: int
    seconds: float
    trace: Sequence[str]


def simulate(seed: int, *, sabotage: Sabotage | None = None) -> Run:
    """Run one seed. Raises `BrokenError` where an invariant does not hold, or where the backend hangs."""
    world = _World(seed, Sabotage() if sabotage is None else sabotage)
    with world.job.judging():  # a deadlock, a task left over, a bug in here
        run_virtual(world.run)()
    if (failure := world.job.failure) is not None:
        raise BrokenError(seed, world.trace(), failure) from failure
    return world.result()


class _Host:
    """A machine: its disk outlives its processes, and one of them at a time may write there."""

    def __init__(self, name: str, settings: Settings, job: SimulatedJob) -> None:
        self.disk: Final = Place(name, watch=self._watch)
        self.owner: Life | None = None
        self._limit = settings.local_bytes_max
        self._job = job

    @property
    def locked(self) -> bool:
        """Whether a process that is alive owns the disk."""
        return self.owner is not None and not self.owner.ended.is_set()

    def _watch(self, write: Write) -> None:
        with self._job.judging():
            invariants.assert_budget_is_kept(write, self.disk.objects, self._limit)


class _World:
    """One run."""

    def __init__(self, seed: int, sabotage: Sabotage) -> None:
        self.seed: Final = seed
        self.sabotage: Final = sabotage
        self._chance = Random(f"{seed} world")  # noqa: S311  # to be replayed
        self._scenario: Final[Scenario] = draw_scenario(Random(f"{seed} scenario"))  # noqa: S311  # as above
        self.job: Final = SimulatedJob(late=self._scenario.weather.late)
        self.settings: Final = self._scenario.settings
        self._names = Names()
        self._hosts = [_Host(f"disk{number}", self.settings, self.job) for number in range(HOSTS)]
        self._events: list[tuple[float, str]] = []
        self._now_s = 0.0

    async def run(self) -> None:
        """Every life, then the last one, then the judgement."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_loop_error)
        hop_s = self._chance.choice(HOP_S)
        simulate_threads(loop, lambda: anyio.sleep(hop_s))
        self._clock = VirtualClock()
        async with anyio.create_task_group() as self._tasks:
            lives = [await self._begin(plan) for plan in self._scenario.lives]
            for life in lives:
                await self._await_end(life)
            await anyio.sleep(LATE_S)  # for what the dead have sent
        if self.job.failure is None:
            await self._clear_up()
            self.job.check_end()

    def tell(self, text: str) -> None:
        """Something for the trace."""
        self._now_s = self._clock.monotonic()
        self._events.append((self._now_s, text))

    def trace(self) -> Sequence[str]:
        """What happened, in the order in which it did."""
        return [f"{seconds:12.6f}  {text}" for seconds, text in self._events]

    def result(self) -> Run:
        """What it came to."""
        return Run(self.seed, len(self.job.commits), len(self.job.attempts), self._now_s, self.trace())

    # ------------------------------------------------------------------------------------------------- the lives

    async def _begin(self, plan: LifePlan) -> Life:
        """Start a life; return when the next one is to be started."""
        self._damage_disks()
        host = self._free_host(plan)
        label = f"life{plan.number}"
        local = None if host is None else (host.disk, self._connect(host.disk, self._scenario.disk, label))
        primary = self._connect(self.job.primary, self._scenario.weather, label)
        life = Life(self, plan, primary=primary, local=local, clock=self._clock)
        if host is not None:
            host.owner = life
        self._tasks.start_soon(life.run)
        if plan.overlap_s is None:
            await self._await_end(life)
        else:
            with anyio.move_on_after(plan.overlap_s):
                await life.ended.wait()
        return life

    async def _await_end(self, life: Life) -> None:
        with anyio.move_on_after(PATIENCE_S):
            await life.ended.wait()
        if not life.ended.is_set():
            self.job.fail(TimeoutError(f"life {life.plan.number} does not end"))
            self._tasks.cancel_scope.cancel()

    def _free_host(self, plan: LifePlan) -> _Host | None:
        """The host of the plan, or another one where a zombie holds its lock; none where zombies hold all."""
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

    async def _arrive_late(self, place: Place, delay_s: float, write: Write) -> None:
        await anyio.sleep(delay_s)
        self.tell(f"late {place.name} {write.operation} {self._names(write.key)}: {place.apply(write)}")

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
        """In calm weather the job can be opened, read in parts, committed and left, and nothing is missing."""
        self.tell("the weather clears up")
        expected = self.job.contents_at(self.job.newest)
        whole = KeyGroupRange(0, self.settings.max_parallelism - 1)
        with self.job.judging(), anyio.fail_after(PATIENCE_S):
            async with self._open_calm(whole, self._hosts[0]) as backend:
                self._judge_whole(backend, expected, whole)
                invariants.assert_same_history([each async for each in backend.history()], self.job.commits)
                attempt = self.job.attempt(backend.next_checkpoint_id, expected)
                info = await backend.checkpoint(attempt.checkpoint_id, source=SourceMark(JOB, attempt.number))
                self.job.acknowledge(attempt, info)
            for part in _parts(whole):
                async with self._open_calm(part, None) as backend:
                    self._judge_whole(backend, expected, part)

    def _open_calm(self, key_groups: KeyGroupRange, host: _Host | None) -> AbstractAsyncContextManager[StateBackend]:
        return open_backend(
            self.settings,
            key_groups=key_groups,
            store=self._connect(self.job.primary, CALM, f"last {key_groups}"),
            local_stores=None if host is None else [self._connect(host.disk, CALM_DISK, "last")],
            clock=self._clock,
        )

    def _judge_whole(self, backend: StateBackend, expected: invariants.Contents, part: KeyGroupRange) -> None:
        found = {(name, key): value for name in STATES for key, value in backend.value_state(name, str).items()}
        groups = self.settings.max_parallelism
        owned = {place: value for place, value in expected.items() if key_group(place[1], groups) in part}
        invariants.assert_same_contents(found, owned, f"the last state of {part}")

    def _on_loop_error(self, _: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        error = context.get("exception")
        self.job.fail(error if isinstance(error, Exception) else RuntimeError(str(context.get("message"))))


def _parts(whole: KeyGroupRange) -> Sequence[KeyGroupRange]:
    """Two halves, where there are two groups."""
    middle = whole.last // 2
    return [KeyGroupRange(0, middle), KeyGroupRange(middle + 1, whole.last)] if whole.last > 0 else []


def _flipped(data: bytes, chance: Random) -> bytes:
    if not data:
        return data
    flipped = bytearray(data)
    flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(flipped)
