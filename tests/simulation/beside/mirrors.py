"""Processes that mirror a state into a table, beside the lives and the sweeps of a simulated job.

The table is in memory. It keeps the contract of a target, and no more: a step is taken as a whole, or, by a log that
cannot, its rows first and its number last; the number of a step that it has is refused. Requests to it fail, lose their
answers, never come back, or are carried out late because their process is dead. Each process is killed at some moment,
and several may be at work at once, all of one mirror.

After each step the table must hold what the commit holds that it leads to: so a late one never undoes a newer one.
Whoever has caught up has the newest commit of its time. When the weather clears up, the table comes to equal the state.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

import anyio

from statebackend._codec.commit import Commit
from statebackend._log.mirror_steps import Form
from statebackend._mirroring.keeping_up import open_mirroring
from statebackend._mirroring.mirroring import Mirroring
from statebackend._mirroring.mirrors import Mirror
from statebackend._mirroring.target import (
    BEGIN,
    GONE,
    MirrorMark,
    MirrorRows,
    MirrorTable,
    MirrorTarget,
    partition_of,
)
from statebackend.abc import Observer
from statebackend.errors import (
    CheckpointNotFoundError,
    CorruptCommitError,
    InputError,
    MissingObjectError,
    StateBackendError,
    StoreAccessError,
    StoreUnavailableError,
)
from statebackend.settings import Settings
from statebackend.testing.crash_store import CrashedError
from statebackend.testing.virtual_time import VirtualClock
from tests import invariants
from tests.simulation.beside.readers import shown, shown_key
from tests.simulation.job import SimulatedJob
from tests.simulation.scenario import CALM, NIGHT_S, Scenario
from tests.simulation.states import COLUMNS, STATES
from tests.simulation.store import Connection, Weather
from tests.simulation.timed import TIMED_STATES, TTL_S

T = TypeVar("T")

EMPTIED: Final = "the table was emptied"
"""How a mirror begins to say that: it never is."""
SWEPT: Final = ("a sweep was faster", "it fell behind what is kept")


@dataclass(frozen=True, kw_only=True)
class ProcessPlan:
    """One process: when it begins, how often it looks, when it is killed, and the weather around it."""

    after_s: float
    looks: int
    pause_s: float
    killed_after_s: float
    weather: Weather
    is_opened_often: bool
    """It is opened for each look, as from a command line."""


@dataclass(frozen=True, kw_only=True)
class TablePlan:
    """The table of a seed, and the processes that mirror into it, by the number of the life beside which they start."""

    state: str
    form: Form
    partitions: int | None
    is_atomic: bool
    hold_s: float
    processes: Mapping[int, ProcessPlan]


def draw_table(chance: Random, scenario: Scenario) -> TablePlan | None:
    """Draw a table for a third of the seeds."""
    if chance.random() < 0.67:
        return None
    form: Form = chance.choice(("table", "log", "log"))
    return TablePlan(
        state=chance.choice((*STATES, STATES[0], STATES[0], *TIMED_STATES)),
        form=form,
        partitions=chance.choice((None, 1, 3)) if form == "table" else None,
        is_atomic=form == "table" or chance.random() < 0.6,
        hold_s=chance.choice((0.0, 0.0, NIGHT_S * 10)),
        processes={life.number: _draw_process(chance, scenario.weather) for life in scenario.lives},
    )


def draw_rollbacks(chance: Random, scenario: Scenario) -> Scenario:
    """Draw more lives that go back to an older commit, which a table has to follow."""
    lives = tuple(
        replace(life, branches=life.branches or (life.heir is None and chance.random() < 0.4))
        for life in scenario.lives
    )
    return replace(scenario, lives=lives)


def _draw_process(chance: Random, weather: Weather) -> ProcessPlan:
    turn_s = 0.001 + weather.latency_s
    return ProcessPlan(
        after_s=chance.expovariate(1.0) * turn_s * chance.choice((1, 10, 100)),
        looks=chance.choice((3, 10, 30)),
        pause_s=chance.choice((turn_s, 10 * turn_s, 100 * turn_s, NIGHT_S / 20)),
        killed_after_s=chance.choice((turn_s * chance.expovariate(1.0) * 300, NIGHT_S, NIGHT_S)),
        weather=chance.choice((weather, weather, CALM)),
        is_opened_often=chance.random() < 0.5,
    )


class _Step(NamedTuple):
    """A step as the table is given it."""

    mirror_id: str
    number: int
    checkpoint_id: int
    is_whole: bool
    partitions: Sequence[int] | None
    rows: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, rows: MirrorRows) -> "_Step":
        found = [row for batch in rows.batches() for row in batch.to_pylist()]
        return cls(rows.mirror_id, rows.number, rows.checkpoint_id, rows.is_whole, rows.partitions, found)


class SimulatedTable:
    """The table, which outlives all processes that write to it, and the judge of what it holds."""

    def __init__(self, plan: TablePlan, job: SimulatedJob, tell: Callable[[str], None]) -> None:
        self.plan: Final = plan
        self.mark = MirrorMark(is_empty=True)
        self.checkpoint_id = -1
        """Of the newest step that it has."""
        self._job = job
        self._tell = tell
        self._rows: dict[Any, Mapping[str, Any]] = {}  # of a table, by key
        self._log: list[Mapping[str, Any]] = []

    def has(self, number: int) -> bool:
        """True if it has that step, or a later one."""
        return self.mark.number is not None and self.mark.number >= number

    def take(self, step: _Step) -> None:
        """Take the rows and the number at once, unless it has them."""
        if not self.has(step.number):
            self.take_rows(step)
            self.take_number(step)
        else:
            self._tell(f"the table has {self.mark.number}, and refuses step {step.number}")

    def take_rows(self, step: _Step) -> None:
        """Take the rows alone."""
        self.mark = MirrorMark(self.mark.mirror_id, self.mark.number)
        if self.plan.form == "log":
            self._log += step.rows
            return
        if step.is_whole:
            self._rows.clear()
        elif step.partitions is not None:
            assert self.plan.partitions is not None
            for key, row in list(self._rows.items()):
                if partition_of(row["key_group"], self.plan.partitions) in step.partitions:
                    del self._rows[key]
        for row in sorted(step.rows, key=lambda row: int(row["checkpoint_id"])):
            if row["op"] in GONE:
                self._rows.pop(row["key"], None)
            else:
                self._rows[row["key"]] = row

    def take_number(self, step: _Step) -> None:
        """Take the number, unless it has a later one, and judge what it holds by then."""
        if self.has(step.number):
            return
        self.mark, self.checkpoint_id = MirrorMark(step.mirror_id, step.number), step.checkpoint_id
        commit = next(each for each in self._job.commits if each.checkpoint_id == step.checkpoint_id)
        self._tell(f"the table takes step {step.number} to commit {commit.sequence}, {len(step.rows)} rows")
        if any(row["op"].startswith("undo") for row in step.rows):
            self._tell("the table takes something back")
        with self._job.judging():
            self.judge_step(commit)

    def judge_step(self, commit: Commit) -> None:
        """It holds what the commit holds, and a log has no change twice. What has expired may be there or not."""
        state, contents = self.plan.state, self._job.contents_at(commit.sequence)
        living = invariants.living(contents, self._job.time_at(commit.sequence).now_s, TTL_S)
        found = self._values()
        for what, chosen in (("lacks", living), ("may not have", contents)):
            values = {
                shown_key(key, state): shown(value, state)
                for (name, key), value in chosen.items()
                if name == state and value != ()
            }
            one, other = (values, found) if what == "lacks" else (found, values)
            wrong = {key: value for key, value in one.items() if key not in other or other[key] != value}
            assert not wrong, f"as of commit {commit.sequence} the table of {state} {what} {wrong}"
        if self.plan.is_atomic and self.plan.form == "log":
            count = Counter((row["generation"], row["op"], row["checkpoint_id"], row["key"]) for row in self._log)
            assert not count or max(count.values()) == 1, f"the log of {state} has a row twice: {count.most_common(1)}"

    def _values(self) -> Mapping[Any, Any]:
        column = "text" if self.plan.state == COLUMNS else "value"
        if self.plan.form == "table":
            return {key: row[column] for key, row in self._rows.items()}
        newest = max((row["generation"] for row in self._log if row["op"] == BEGIN), default=-1)
        found: dict[Any, Mapping[str, Any]] = {}
        for row in sorted(self._log, key=lambda row: int(row["checkpoint_id"])):
            if row["generation"] == newest and row["op"] != BEGIN:
                found[row["key"]] = row
        return {key: row[column] for key, row in found.items() if row["op"] not in GONE}


class _Target(MirrorTarget):
    """One process's way to the table."""

    def __init__(
        self,
        table: SimulatedTable,
        weather: Weather,
        chance: Random,
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.forms = (table.plan.form,)
        self.partitions = table.plan.partitions
        self._table = table
        self._weather = weather
        self._chance = chance
        self._later = later
        self._under_way: Callable[[], None] | None = None
        self._dead = anyio.Event()

    @property
    def place(self) -> str:
        return "a simulated table"

    def die(self) -> None:
        """What is on its way takes effect later, or not at all."""
        if not self._dead.is_set():
            self._dead.set()
            self._abandon()

    async def find(self) -> MirrorMark:
        return await self._ask(lambda: self._table.mark)

    async def fit(self, table: MirrorTable) -> None:
        await self._ask(lambda: None)

    async def write(self, rows: MirrorRows) -> None:
        step = _Step.of(rows)
        if self._table.plan.is_atomic:
            await self._ask(lambda: self._table.take(step), changes=True)
        elif not await self._ask(lambda: self._table.has(step.number)):
            await self._ask(lambda: self._table.take_rows(step), changes=True)
            await self._ask(lambda: self._table.take_number(step), changes=True)

    async def _ask(self, effect: Callable[[], T], *, changes: bool = False) -> T:
        trouble = self._weather.trouble("put" if changes else "get", self._chance.random())

        def carry_out() -> None:
            effect()

        self._under_way = carry_out if changes else None
        await self._travel(hangs=trouble == "hangs")
        if trouble in ("fails", "refuses"):
            if self._weather.late:
                self._abandon()
            raise StoreUnavailableError("the simulated table does not answer")
        self._under_way = None
        result = effect()
        await self._travel(hangs=trouble == "hangs after")
        if trouble == "loses answer":
            raise StoreUnavailableError("the simulated table's answer is lost")
        return result

    async def _travel(self, *, hangs: bool) -> None:
        if hangs:
            await self._dead.wait()
        await anyio.sleep(self._weather.latency_s * self._chance.expovariate(1.0))
        if self._dead.is_set():
            raise CrashedError("this process has crashed")

    def _abandon(self) -> None:
        effect, self._under_way = self._under_way, None
        if effect is not None and self._chance.random() < 0.7:
            self._later(self._chance.uniform(0, self._weather.late_max_s), effect)


class Mirrors:
    """The table of a seed, and its processes. `connect`: the primary, as a new process reaches it in that weather."""

    def __init__(
        self,
        plan: TablePlan,
        job: SimulatedJob,
        settings: Settings,
        *,
        seed: int,
        connect: Callable[[Weather, str], Connection],
        begin: Callable[..., object],
        tell: Callable[[str], None],
    ) -> None:
        self.plan: Final = plan
        self._job = job
        self._settings = settings
        self._seed = seed
        self._connect = connect
        self._begin = begin
        self._tell = tell
        self._table = SimulatedTable(plan, job, tell)

    async def run(self, number: int) -> None:
        """Run the process that starts beside that life, if there is one."""
        if (plan := self.plan.processes.get(number)) is None:
            return
        await anyio.sleep(plan.after_s)
        process = _Process(
            self._table,
            self._job,
            self._settings,
            plan,
            primary=self._connect(plan.weather, f"mirror{number}"),
            chance=Random(f"{self._seed} mirror {number}"),  # to be replayed
            later=self._carry_out_later,
            tell=lambda text: self._tell(f"mirror{number} {text}"),
        )
        with self._job.judging():
            await process.run()

    async def end(self) -> None:
        """In calm weather the table comes to equal the state."""
        plan = ProcessPlan(after_s=0, looks=1, pause_s=0, killed_after_s=NIGHT_S, weather=CALM, is_opened_often=False)
        process = _Process(
            self._table,
            self._job,
            self._settings,
            plan,
            primary=self._connect(CALM, "mirror"),
            chance=Random("calm"),
            later=self._carry_out_later,
            tell=lambda text: self._tell(f"the last mirror {text}"),
        )
        await process.run()
        newest = self._job.commit_at(self._job.newest)
        if self.plan.state in {each.name for each in newest.states}:
            self._table.judge_step(newest)

    def _carry_out_later(self, delay_s: float, effect: Callable[[], None]) -> None:
        async def carry_out() -> None:
            await anyio.sleep(delay_s)
            self._tell("a late request reaches the table")
            effect()

        self._begin(carry_out)


class _Process(Observer):
    """One process that mirrors, and the judge of what it says. One that was killed is not judged."""

    def __init__(
        self,
        table: SimulatedTable,
        job: SimulatedJob,
        settings: Settings,
        plan: ProcessPlan,
        *,
        primary: Connection,
        chance: Random,
        later: Callable[[float, Callable[[], None]], object],
        tell: Callable[[str], None],
    ) -> None:
        self._table = table
        self._job = job
        self._plan = plan
        self._primary = primary
        self._target = _Target(table, plan.weather, chance, later)
        self._tell = tell
        mirror = Mirror(
            table.plan.state,
            to=self._target,
            name="simulated",
            key_as_json=table.plan.state != COLUMNS,
            hold_s=table.plan.hold_s,
        )
        self._opening = lambda: open_mirroring(settings, mirror, store=primary, clock=VirtualClock(), observer=self)

    async def run(self) -> None:
        """Look again and again, until it is killed."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._kill, tasks.cancel_scope)
            looks = self._plan.looks
            while looks:
                async with self._opening() as mirroring:
                    is_sound = True
                    while looks and is_sound:  # after an error it is opened again
                        looks -= 1
                        is_sound = await self._look(mirroring) and not self._plan.is_opened_often
                        await anyio.sleep(self._plan.pause_s)
            tasks.cancel_scope.cancel()

    async def _kill(self, everything: anyio.CancelScope) -> None:
        await anyio.sleep(self._plan.killed_after_s)
        self._tell("is killed")
        self._primary.die()
        self._target.die()
        everything.cancel()

    async def _look(self, mirroring: Mirroring) -> bool:
        """True if nothing was wrong."""
        floor, begun = self._job.floor, self._job.newest
        try:
            await mirroring.catch_up()
        except StateBackendError as error:
            if self._primary.alive:
                self._tell(f"is refused: {type(error).__name__}")
                self.judge_refused(error, floor=floor, begun=begun)
            return False
        self.judge_caught_up(mirroring.report.checkpoint_id, begun=begun)
        return True

    def mirrored(self, name: str, *, commits: int, rows: int, seconds: float, anew: str | None) -> None:
        if anew is not None:
            self._tell(f"begins anew: {anew}")
            with self._job.judging():
                self.judge_anew(anew)

    def judge_anew(self, reason: str) -> None:
        """It starts from the whole state for a reason that is true."""
        assert not reason.startswith(EMPTIED), f"it is said that {reason}, and it was not"
        assert reason not in SWEPT or self._job.floor > 0, f"it is said that {reason}, and nothing was swept"

    def judge_caught_up(self, checkpoint_id: int | None, *, begun: int) -> None:
        """The table has the newest commit of its time, or another process has taken it further."""
        if checkpoint_id is None:
            return  # the state has no key yet
        commit = next(each for each in self._job.commits if each.checkpoint_id == checkpoint_id)
        self._tell(f"has caught up with commit {commit.sequence}")
        invariants.assert_newest_of_its_time(commit.sequence, newest_at_begin=begun, newest_at_end=self._job.newest)
        if self._table.checkpoint_id <= checkpoint_id:
            self._table.judge_step(commit)

    def judge_refused(self, error: StateBackendError, *, floor: int, begun: int) -> None:
        """An error has a reason: the weather, a sweep, a damaged commit, or a state that is not there."""
        job, state = self._job, self._table.plan.state
        if isinstance(error, (StoreUnavailableError, StoreAccessError)):
            return
        if isinstance(error, (CheckpointNotFoundError, MissingObjectError, CorruptCommitError)):
            assert job.floor > floor or job.was_damaged, f"the mirror is refused without a reason: {error}"
        elif isinstance(error, InputError):
            candidates = [commit for commit in job.commits if commit.sequence >= begun]
            is_named = all(state in {each.name for each in commit.states} for commit in candidates)
            assert begun < 0 or not is_named, f"mirroring {state} is refused without a reason: {error}"
        else:
            raise error
