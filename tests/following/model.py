"""A job that commits, goes back, is rewritten and swept, and a follower beside it; and what must hold of its answers.

Everything is drawn from one seed and runs on virtual time. `Course.judge` is called whenever a read could come in
between: before each piece of changes that a follower applies, and after each step of the course.
"""

import operator
import random
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, cast
from unittest.mock import patch

import anyio
import pyarrow as pa
from anyio.abc import TaskStatus

import statebackend as sb
from statebackend._following import columns, log_steps, tables
from statebackend._following.following import Following
from statebackend.errors import FencedError
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fail, FaultyStore
from statebackend.testing.virtual_time import VirtualClock
from tests.aggregates import Mean
from tests.rewrite.jobs import settings_of

KEYS: Final = tuple(f"k{number}" for number in range(12))
EVERY_S: Final = 5.0
FINISHED_S: Final = 60.0
"""After so many seconds without a commit or a fault a follower has to be at the newest one, and to know it."""

Contents = Mapping[str, Mapping[Any, Any]]


def declared(states: Any, *, with_late: bool) -> dict[str, Any]:
    """The states of the job, declared in a backend or in a follower. `late` is declared later than the others."""
    found = {
        "value": states.value_state("value", int),
        "list": states.list_state("list", int),
        "map": states.map_state("map", int, int),
        "total": states.reducing_state("total", int, operator.add),
        "mean": states.aggregating_state("mean", Mean()),
        "timers": states.timers("timers"),
        "columns": states.columnar_state("columns", pa.schema({"sum": pa.int64()}), key=pa.string()),
    }
    return found | ({"late": states.value_state("late", str)} if with_late else {})


def contents(states: Mapping[str, Any]) -> Contents:
    """All that can be read, in plain values."""
    columns = states["columns"].to_arrow()
    pairs = zip(columns["key"].to_pylist(), columns["sum"].to_pylist(), strict=True)
    rows = {key: {"sum": number} for key, number in pairs}
    assert {key: states["columns"][key] for key in KEYS if states["columns"].get(key)} == rows, "one by one"
    return {"columns": rows} | {
        name: {
            key: state.registered(key)
            if name == "timers"
            else list(state[key])
            if name == "list"
            else dict(state[key])
            if name == "map"
            else state[key]
            for key in state
        }
        for name, state in states.items()
        if name != "columns"
    }


def write(states: Mapping[str, Any], chance: random.Random) -> None:
    """Change some keys of each state."""
    for name, state in states.items():
        for key in chance.sample(KEYS, chance.randrange(len(KEYS))):
            number, is_removed = chance.randrange(100), chance.random() < 0.2
            if name == "timers":
                state.delete(key, next(iter(state.registered(key)), 0)) if is_removed else state.register(key, number)
            elif is_removed:
                if key in state:
                    del state[key]
            elif name == "list":
                state[key].append(number)
            elif name == "map":
                state[key][number % 4] = number
            elif name in ("total", "mean"):
                state.add(key, number)
            elif name == "columns":
                state[key] = {"sum": number}
            else:
                state[key] = str(number) if name == "late" else number


class Course:
    """One job and its follower, as the seed will have it."""

    def __init__(self, seed: int, table: str) -> None:
        self.chance: Final = random.Random(seed)
        self.clock: Final = VirtualClock()
        self.store: Final = MemoryStore(clock=self.clock)
        self.seen_through: Final = FaultyStore(self.store)
        self.settings = settings_of(
            4,
            table=table,
            job="followed",
            inline_bytes_max=self.chance.choice((0, 1 << 16)),
            checkpoints_retained=self.chance.randint(1, 4),
            materialize_handles_max=self.chance.choice((2, 4, 1000)),
            materialize_fan_in=self.chance.choice((0, 2, 4)),
        )
        self.commits: Final[dict[int, Contents]] = {}  # by sequence
        self.newest_since: Final[list[tuple[int, float]]] = []  # each commit, and when it became the newest
        self.has_late = False
        self.oldest = 0
        self.judged = 0
        self.promotions = 0
        self.jumps = 0
        self._follower: sb.StateFollower | None = None
        self._states: Mapping[str, Any] = {}

    async def run(self, steps: int) -> None:
        """Go through so many steps, and end with a promotion, or without one."""
        async with anyio.create_task_group() as self._tasks:
            backend = await self._open()
            await self._commit(backend)
            async with self._following() as follower:
                for _ in range(steps):
                    backend = await self._step(backend)
                await self._settled(follower)
                self.jumps += follower.position.jumps
                if self.chance.random() < 0.7:
                    await self._promote(follower, backend)
            await self._close()

    def judge(self) -> None:
        """What the follower answers is what the job had at exactly the commit that it names; and no answer is fresher
        than it is.
        """
        follower = self._follower
        if follower is None:
            return
        with follower.at_one_commit() as position:
            found = contents(self._states)
        wanted = self.commits[position.sequence]
        assert {**found, "late": found.get("late", {})} == {"late": {}, **wanted}, "an answer of another commit"
        assert {name: len(state) for name, state in self._states.items()} == {name: len(found[name]) for name in found}
        now_s = self.clock.monotonic()
        newer = [since for sequence, since in self.newest_since if sequence > position.sequence]
        if newer:
            assert position.staleness_s >= now_s - min(newer), "an answer that is older than it says"
        self.judged += 1

    # ---------------------------------------------------------------------------------------------------- the steps

    async def _step(self, backend: sb.StateBackend) -> sb.StateBackend:
        step = self.chance.choices(
            ("commit", "commits", "wait", "outage", "reopen", "back", "sweep", "late", "rewrite"),
            (6, 2, 6, 1, 1, 1, 1, 1, 0.5),
        )[0]
        if step in ("commit", "late"):
            self.has_late |= step == "late"
            await self._commit(backend)
        elif step == "commits":
            for _ in range(self.chance.randint(2, 24)):
                await self._commit(backend)
        elif step == "wait":
            await anyio.sleep(self.chance.choice((0.1, 1.0, 7.0, 30.0)))
        elif step == "outage":
            self.seen_through.plan = [Fail()]
            await anyio.sleep(self.chance.choice((1.0, 30.0)))
            await self._commit(backend)
            await anyio.sleep(30.0)
            self.seen_through.plan = []
        elif step == "sweep":
            await anyio.sleep(4000.0)
            await sb.sweep(self.settings, dry_run=False, min_age_s=0.0, store=self.store, clock=self.clock)
        else:
            backend = await self._opened_again(step)
        self.judge()
        return backend

    async def _opened_again(self, step: str) -> sb.StateBackend:
        await self._close()
        if step == "rewrite":
            self.settings = sb.Settings(**{**_fields(self.settings), "max_parallelism": self.chance.choice((2, 3, 8))})
            await sb.rewrite(self.settings, store=self.store, clock=self.clock)
            before = self.commits[self.newest_since[-1][0]]
            async with sb.open_backend(self.settings, store=self.store, clock=self.clock, read_only=True) as read:
                assert read.newest is not None
                self.oldest = read.newest.sequence  # an older one has another number of key groups
                self._note(self.oldest, before)
        options: dict[str, Any] = {}
        if step == "back":
            history = [each async for each in _history(self)]
            options["checkpoint_id"] = self.chance.choice(history)
        backend = await self._open(**options)
        if step == "back":
            await self._commit(backend)
        return backend

    async def _commit(self, backend: sb.StateBackend) -> None:
        states = declared(backend, with_late=self.has_late)
        write(states, self.chance)
        found = contents(states)
        # It may become visible at any moment from here on, and must be known by then.
        sequence = backend._coordinator._writer.last.sequence + 1  # type: ignore[union-attr]
        self.commits[sequence] = found
        number = backend.next_checkpoint_id
        info = await backend.checkpoint(number, source=sb.SourceMark("query", number, "run"))
        assert info.sequence == sequence
        self._note(sequence, found)

    def _note(self, sequence: int, found: Contents) -> None:
        self.commits[sequence] = found
        self.newest_since.append((sequence, self.clock.monotonic()))

    async def _settled(self, follower: sb.StateFollower) -> None:
        await anyio.sleep(FINISHED_S)
        self.judge()
        position = follower.position
        assert position.sequence == self.newest_since[-1][0], "a commit was never followed"
        assert position.staleness_s <= 2 * EVERY_S
        assert position.problem is None

    async def _promote(self, follower: sb.StateFollower, backend: sb.StateBackend) -> None:
        """Nothing is lost, nobody else commits any more, and what comes now is kept."""
        if self.chance.random() < 0.7:
            await self._commit(backend)  # which the follower has not seen yet
        self._follower = None
        heir = await follower.promote()
        states = declared(heir, with_late=self.has_late)
        assert contents(states) == self.commits[self.newest_since[-1][0]], "a promotion has lost something"
        for _ in range(self.chance.randint(1, 6)):
            await self._commit(heir)
        try:
            await backend.checkpoint(backend.next_checkpoint_id + 1000)
        except FencedError:
            pass
        else:
            raise AssertionError("the old driver was not fenced")
        async with sb.open_backend(self.settings, store=self.store, clock=self.clock, read_only=True) as read:
            wanted = self.commits[self.newest_since[-1][0]]
            assert contents(declared(read, with_late=self.has_late)) == wanted, "a commit of an heir is not whole"
        self.promotions += 1

    async def _open(self, **options: Any) -> sb.StateBackend:
        """Open the job in a task of its own, since the follower's context is left before or after it."""
        self._left, self._closed = anyio.Event(), anyio.Event()

        async def host(*, task_status: TaskStatus[sb.StateBackend]) -> None:
            async with sb.open_backend(self.settings, store=self.store, clock=self.clock, **options) as backend:
                task_status.started(backend)
                await self._left.wait()
            self._closed.set()

        return cast("sb.StateBackend", await self._tasks.start(host))

    async def _close(self) -> None:
        self._left.set()
        await self._closed.wait()

    @asynccontextmanager
    async def _following(self) -> AsyncGenerator[sb.StateFollower]:
        opening = sb.follow(self.settings, store=self.seen_through, clock=self.clock, every_s=EVERY_S)
        async with opening as follower:
            self._states = declared(follower, with_late=True)
            self._follower = follower
            with self._judging():
                yield follower
            self._follower = None

    @contextmanager
    def _judging(self) -> Generator[None]:
        may_go_on = Following._may_go_on

        async def judged(following: Following) -> None:
            self.judge()
            await may_go_on(following)

        with (
            patch.object(tables, "IN_MEMORY_AT_ONCE", 3),
            patch.object(tables, "IN_FILES_AT_ONCE", 3),
            patch.object(columns, "ROWS_AT_ONCE", 2),
            patch.object(log_steps, "ENTRIES_MAX", 8),
            patch.object(Following, "_may_go_on", judged),
        ):
            yield


async def _history(course: Course) -> AsyncGenerator[int]:
    async with sb.open_backend(course.settings, store=course.store, clock=course.clock, read_only=True) as backend:
        async for each in backend.history():
            if each.sequence in course.commits and each.sequence >= course.oldest:
                yield each.checkpoint_id
                if course.chance.random() < 0.3:
                    return


def _fields(settings: sb.Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__struct_fields__}
