"""Whole backends on one store whose requests happen one at a time, in an order that somebody chooses.

    race = await run_race([2, 1], choose)          two drivers: each opens the job; one commits twice, the other once

Each request waits for its turn. `choose(n)` says which of n things happens next: the request of one of the drivers, in
their order, or, while deaths are left, the end of one of them, before its request or after it.

What can follow depends on what the store holds and on what each driver was answered, and on nothing else: no time
passes here, and the ids that a driver draws are its own. So `Orders` follows only one of all the ways to each state.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TypeVar
from unittest.mock import patch

import anyio
import anyio.lowlevel

import statebackend as sb
from statebackend._codec.commit import Commit, Entry, decode_entry
from statebackend._log import fresh_names
from statebackend._tasks import simulate_threads
from statebackend.abc import Body, ObjectInfo
from statebackend.errors import FencedError, StateBackendError, StoreError
from statebackend.objectstore import MemoryStore
from statebackend.objectstore.scoped import ScopedStore
from statebackend.testing import Fault, FaultyStore
from statebackend.testing.virtual_time import run_virtual, settle
from tests import invariants
from tests.knobs import settings_with
from tests.log.swept import HandClock

JOB = "raced"
SETTINGS = settings_with(
    job=JOB, primary="memory://unused", persist_delay_s=0.0, upload__retry_delay_s=0.0, max_parallelism=1
)

Choose = Callable[[int], int]
T = TypeVar("T")

_ids: ContextVar[Callable[[], str]] = ContextVar("_ids")
"""Draws the ids of the driver that runs."""


class DeadError(StateBackendError):
    """The process of this driver has ended."""


class WatchedStore(MemoryStore):
    """The log as it grows, judged entry by entry, and whatever was deleted."""

    def __init__(self) -> None:
        super().__init__(clock=HandClock())
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

    def content(self) -> Hashable:
        """What it holds and has deleted."""
        return tuple(sorted((key, body) for key, (body, _) in self._objects.items())), tuple(self.deleted)


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
    answers: int = 0
    """A hash of all its requests so far, and of what it was answered."""

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

    def state(self) -> Hashable:
        """Where it stands. Of one that has ended only the outcome is left."""
        answers = None if self.dead or self.done else self.answers
        return self.epoch, tuple(self.acknowledged), self.fenced, self.dead, answers


class _Answering(ScopedStore):
    """Notes what a driver was answered."""

    def __init__(self, store: sb.ObjectStore, driver: Driver) -> None:
        super().__init__(store, "")
        self._driver = driver

    async def put(self, key: str, body: Body) -> None:
        await self._noted("put", key, super().put(key, body))

    async def put_if_absent(self, key: str, body: Body) -> None:
        await self._noted("put_if_absent", key, super().put_if_absent(key, body))

    async def get(self, key: str) -> bytes:
        return await self._noted("get", key, super().get(key))

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        return await self._noted("get_range", key, super().get_range(key, offset, length))

    async def head(self, key: str) -> ObjectInfo | None:
        return await self._noted("head", key, super().head(key))

    async def delete(self, key: str) -> None:
        await self._noted("delete", key, super().delete(key))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        found = [info async for info in super().list(prefix)]
        self._note("list", prefix, tuple(found))
        for info in found:
            yield info

    async def _noted(self, operation: str, key: str, answer: Awaitable[T]) -> T:
        try:
            value = await answer
        except StoreError as error:
            self._note(operation, key, type(error))
            raise
        self._note(operation, key, value)
        return value

    def _note(self, *answered: Hashable) -> None:
        self._driver.answers = hash((self._driver.answers, answered))


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


async def run_race(
    commits: Sequence[int],
    choose: Choose,
    *,
    deaths: int = 0,
    keys: str = "*",
    is_known: Callable[[Hashable], bool] = lambda _: False,
) -> Race:
    """Run one driver for each number of commits, until all have ended. Requests for other `keys` wait for nobody.

    At a state that `is_known` all are killed. On a loop in virtual time, which sees when everybody waits. Work in
    threads is done on the loop.
    """
    simulate_threads(asyncio.get_running_loop(), anyio.lowlevel.checkpoint)
    race = Race(WatchedStore(), [Driver(commits=count, key=keys) for count in commits])
    breaths = [_LastBreath(driver=driver) for driver in race.drivers]
    ids = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=_ids.get()()), token_urlsafe=lambda _: _ids.get()()[:16])
    with patch.multiple(fresh_names, uuid=ids, secrets=ids):
        async with anyio.create_task_group() as tasks:
            for driver, breath in zip(race.drivers, breaths, strict=True):
                store = FaultyStore(_Answering(race.store, driver), [driver, breath])
                tasks.start_soon(_drive, driver, store, race.drivers.index(driver))
            while True:
                await settle()
                waiting = [number for number, driver in enumerate(race.drivers) if driver.turn is not None]
                if is_known((race.store.content(), tuple(driver.state() for driver in race.drivers), deaths)):
                    for number in waiting:
                        race.drivers[number].dead = True
                        race.drivers[number].go()
                    await settle()
                    break
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


async def _drive(driver: Driver, store: FaultyStore, number: int) -> None:
    drawn = itertools.count()
    _ids.set(lambda: f"{number}{next(drawn):x}".rjust(32, "0"))
    try:
        async with sb.open_backend(SETTINGS, store=store, clock=HandClock()) as backend:
            driver.epoch = backend.epoch
            for _ in range(driver.commits):
                info = await backend.checkpoint(backend.next_checkpoint_id)
                driver.acknowledged.append(info.sequence)
    except FencedError:
        driver.fenced = True
    except DeadError:
        pass
    driver.done = True


class Orders:
    """Every order of what can happen, depth first. One that comes to where another has been is left there."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._made: list[tuple[int, int]] = []
        self._path: list[Hashable] = []
        self._leads: dict[Hashable, dict[int, Hashable]] = {}

    def choose(self, width: int) -> int:
        """The next choice of this order: as it begins, and the first there is from then on."""
        choice = self._begins[len(self._made)] if len(self._made) < len(self._begins) else 0
        self._made.append((choice, width))
        return choice

    def is_known(self, state: Hashable) -> bool:
        """Note that this order comes to `state`, and tell if another one has been there."""
        known = state in self._leads and len(self._made) >= len(self._begins)
        if self._path:
            self._leads[self._path[-1]][self._made[-1][0]] = state
        self._leads.setdefault(state, {})
        self._path.append(state)
        return known

    def next(self) -> bool:
        """Begin the order that follows this one, which has been used up. False if there is none."""
        while self._made and self._made[-1][0] + 1 == self._made[-1][1]:
            self._made.pop()
        self._begins = [choice for choice, _ in self._made]
        self._made, self._path = [], []
        if self._begins:
            self._begins[-1] += 1
        return bool(self._begins)

    def count(self) -> int:
        """How many orders there are, those that were left included."""
        counts: dict[Hashable, int] = {}

        def from_there(state: Hashable) -> int:
            if state not in counts:
                counts[state] = sum(map(from_there, self._leads[state].values())) or 1
            return counts[state]

        return from_there(next(iter(self._leads)))
