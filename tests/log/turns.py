"""Whole backends on one store whose requests happen one at a time, in an order that somebody chooses.

    race = await run_race([2, 1], choose)          two drivers: each opens the job; one commits twice, the other once

Each request waits for its turn. `choose(n)` says which of n things happens next: the request of one of the drivers, in
their order, or, while deaths are left, the end of one of them, before its request or after it.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel

import statebackend as sb
from statebackend._codec.commit import Commit, Entry, decode_entry
from statebackend._tasks import simulate_threads
from statebackend.abc import Body
from statebackend.errors import FencedError, StateBackendError
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fault, FaultyStore, invariants
from statebackend.testing.virtual_time import run_virtual, settle
from tests.knobs import settings_with

JOB = "raced"
SETTINGS = settings_with(
    job=JOB, primary="memory://unused", persist_delay_s=0.0, upload__retry_delay_s=0.0, max_parallelism=1
)

Choose = Callable[[int], int]


class DeadError(StateBackendError):
    """The process of this driver has ended."""


class WatchedStore(MemoryStore):
    """The log as it grows, judged entry by entry, and whatever was deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Entry] = []
        self.deleted: list[str] = []
        self.wrong: list[AssertionError] = []

    async def put_if_absent(self, key: str, body: Body) -> None:
        await super().put_if_absent(key, body)
        entry = decode_entry(b"".join(body), key, job=JOB)
        try:
            invariants.assert_entry_follows(entry, self.log)
        except AssertionError as error:
            self.wrong.append(error)
        self.log.append(entry)

    async def delete(self, key: str) -> None:
        self.deleted.append(key)
        await super().delete(key)


@dataclass(kw_only=True, eq=False)
class Driver(Fault):
    """One process, what it was told, and the fault by which its store lets it wait for its turn."""

    commits: int
    epoch: int = 0
    acknowledged: list[int] = field(default_factory=list[int])
    fenced: bool = False
    dead: bool = False
    done: bool = False
    turn: anyio.Event | None = None

    async def strike(self) -> None:
        if not self.dead:
            self.turn = anyio.Event()
            with anyio.CancelScope(shield=True):
                await self.turn.wait()
        if self.dead:
            raise DeadError("killed")

    def go(self) -> None:
        """Let its request happen."""
        assert self.turn is not None
        self.turn, turn = None, self.turn
        turn.set()


@dataclass(kw_only=True, eq=False)
class _LastBreath(Fault):
    """The request has happened, and nobody lives to hear of it."""

    driver: Driver
    moment: str = "after"  # type: ignore[assignment]
    due: bool = False

    async def strike(self) -> None:
        if self.due:
            self.driver.dead = True
            raise DeadError("killed")


@dataclass
class Race:
    """What came of it."""

    store: WatchedStore
    drivers: Sequence[Driver]

    @property
    def commits(self) -> Sequence[Commit]:
        return invariants.commits_of(self.store.log)


async def run_race(commits: Sequence[int], choose: Choose, *, deaths: int = 0, keys: str = "*") -> Race:
    """Run one driver for each number of commits, until all have ended. Requests for other `keys` wait for nobody.

    On a loop in virtual time, which sees when everybody waits. Work in threads is done on the loop.
    """
    simulate_threads(asyncio.get_running_loop(), anyio.lowlevel.checkpoint)
    race = Race(WatchedStore(), [Driver(commits=count, key=keys) for count in commits])
    breaths = [_LastBreath(driver=driver) for driver in race.drivers]
    async with anyio.create_task_group() as tasks:
        for driver, breath in zip(race.drivers, breaths, strict=True):
            tasks.start_soon(_drive, driver, FaultyStore(race.store, [driver, breath]))
        while True:
            await settle()
            waiting = [number for number, driver in enumerate(race.drivers) if driver.turn is not None]
            if not waiting:
                break
            how, which = divmod(choose(len(waiting) * (3 if deaths else 1)), len(waiting))
            driver = race.drivers[waiting[which]]
            driver.dead = how == 1
            breaths[waiting[which]].due = how == 2
            deaths -= how > 0
            driver.go()
    assert all(driver.done for driver in race.drivers)
    return race


def run_chosen(commits: Sequence[int], choose: Choose, *, deaths: int = 0, keys: str = "*") -> Race:
    """As `run_race`, from a test that has no loop."""
    races: list[Race] = []

    async def run() -> None:
        races.append(await run_race(commits, choose, deaths=deaths, keys=keys))

    run_virtual(run)()
    return races[0]


async def _drive(driver: Driver, store: FaultyStore) -> None:
    try:
        async with sb.open_backend(SETTINGS, store=store) as backend:
            driver.epoch = backend.epoch
            for _ in range(driver.commits):
                info = await backend.checkpoint(backend.next_checkpoint_id)
                driver.acknowledged.append(info.sequence)
    except FencedError:
        driver.fenced = True
    except DeadError:
        pass
    driver.done = True


class Schedule:
    """One sequence of choices: those of `prefix`, and the first there is from then on."""

    def __init__(self, prefix: Sequence[int]) -> None:
        self._prefix = prefix
        self._made: list[tuple[int, int]] = []

    def __call__(self, width: int) -> int:
        choice = self._prefix[len(self._made)] if len(self._made) < len(self._prefix) else 0
        self._made.append((choice, width))
        return choice

    def next(self) -> "Schedule | None":
        """The one that follows, depth first, once this one has been used up."""
        made = list(self._made)
        while made and made[-1][0] + 1 == made[-1][1]:
            made.pop()
        return Schedule([*(choice for choice, _ in made[:-1]), made[-1][0] + 1]) if made else None
