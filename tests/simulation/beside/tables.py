"""The table of a seed that mirrors write to, in memory, what is drawn of it, and the way of one process to it.

It keeps the contract of a target, and no more: a step is taken as a whole, or, by a log that cannot, its rows first and
its number last; the number of a step that it has is refused. Requests to it fail, lose their answers, never come back,
or are carried out late because their process is dead.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

import anyio

from statebackend._codec.commit import Commit
from statebackend._log.mirror_steps import Form
from statebackend._mirroring.target import (
    BEGIN,
    GONE,
    MirrorMark,
    MirrorRows,
    MirrorTable,
    MirrorTarget,
    partition_of,
)
from statebackend.errors import StoreUnavailableError
from statebackend.testing.crash_store import CrashedError
from tests import invariants
from tests.simulation.beside.readers import shown, shown_key
from tests.simulation.job import SimulatedJob
from tests.simulation.scenario import CALM, NIGHT_S, Scenario
from tests.simulation.states import COLUMNS, STATES
from tests.simulation.store import Weather
from tests.simulation.timed import TIMED_STATES, TTL_S

T = TypeVar("T")


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


class TableTarget(MirrorTarget):
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
