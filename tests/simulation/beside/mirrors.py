"""Processes that mirror a state into a table, beside the lives and the sweeps of a simulated job.

Each process is killed at some moment, and several may be at work at once, all of one mirror.

After each step the table must hold what the commit holds that it leads to: so a late one never undoes a newer one.
One that has caught up has the newest commit of its time. When the weather clears up, the table equals the state.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from random import Random
from typing import Final

import anyio

from statebackend._mirroring.keeping_up import open_mirroring
from statebackend._mirroring.mirroring import Mirroring
from statebackend._mirroring.mirrors import Mirror
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
from statebackend.testing.virtual_time import VirtualClock
from tests import invariants
from tests.simulation.beside.tables import ProcessPlan, SimulatedTable, TablePlan, TableTarget
from tests.simulation.job import SimulatedJob
from tests.simulation.scenario import CALM, NIGHT_S
from tests.simulation.states import COLUMNS
from tests.simulation.store import Connection, Weather

EMPTIED: Final = "the table was emptied"
"""How a mirror begins to say that: it never is."""
SWEPT: Final = ("a sweep was faster", "it fell behind what is kept")


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
        self._target = TableTarget(table, plan.weather, chance, later)
        self._tell = tell
        mirror = Mirror(
            table.plan.state,
            to=self._target,
            name="simulated",
            key_as_json=table.plan.state != COLUMNS,
            hold_s=table.plan.hold_s,
        )
        self._opening: Callable[[], AbstractAsyncContextManager[Mirroring]] = partial(
            open_mirroring, settings, mirror, store=primary, clock=VirtualClock(), observer=self
        )

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
