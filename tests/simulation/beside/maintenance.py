"""Sweeps, and savepoints that are made and dropped from outside, each by a process of its own."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import anyio

from statebackend._backend.stores import threads_of
from statebackend._backend.sweeping import open_sweep
from statebackend._log.sweeping.log_sweep import Sweep
from statebackend._upkeep.savepoints import savepoint
from statebackend.abc import ObjectStore
from statebackend.errors import (
    CheckpointNotFoundError,
    MissingObjectError,
    SavepointExistsError,
    SavepointNotFoundError,
    StoreAccessError,
    StoreUnavailableError,
)
from statebackend.objectstore.scoped import ScopedStore
from statebackend.settings import Settings
from statebackend.testing.virtual_time import VirtualClock
from tests.simulation.job import ROOT, SimulatedJob
from tests.simulation.owners import savepoints_of
from tests.simulation.scenario import KeepPlan, SweepPlan

GIVES_UP_S: Final = 2000.0
"""Some requests are never answered."""


class Maintenance:
    """The work that people do on the job from a command line. `connect`: the primary, as a new process reaches it."""

    def __init__(
        self,
        job: SimulatedJob,
        settings: Settings,
        *,
        connect: Callable[[str], ObjectStore],
        clock: VirtualClock,
        tell: Callable[[str], None],
    ) -> None:
        self.sweeping = 0
        """How many sweeps are under way."""
        self._job = job
        self._settings = settings
        self._connect = connect
        self._clock = clock
        self._tell = tell

    async def sweep(self, number: int, plan: SweepPlan) -> None:
        """Perhaps drop a savepoint, then sweep, as far as the weather and the time allow."""
        await anyio.sleep(plan.after_s)
        self.sweeping += 1
        try:
            await self._sweep_now(number, plan)
        finally:
            self.sweeping -= 1

    async def _sweep_now(self, number: int, plan: SweepPlan) -> None:
        primary = self._connect(f"sweep{number}")
        with self._job.judging(), anyio.move_on_after(plan.lasts_s):
            try:
                if plan.drops is not None:
                    with self._job.dropping(plan.drops), suppress(SavepointNotFoundError):
                        await savepoints_of(primary, self._settings).drop(plan.drops)
                report = await self.open_sweep(primary, min_age_s=plan.min_age_s).run(dry_run=False)
            except (
                StoreUnavailableError,
                StoreAccessError,
                MissingObjectError,
            ) as error:  # the last: another sweep is running
                self._tell(f"sweep{number}: {type(error).__name__}")
            else:
                self._tell(f"sweep{number}: {len(report.deleted)} of {len(report.garbage)} deleted, {report.stopped}")

    async def keep(self, number: int, plan: KeepPlan) -> None:
        """Give a commit that exists a name, as somebody does from a command line."""
        await anyio.sleep(plan.after_s)
        commits = self._job.retained
        if not commits:
            return
        commit = commits[int(plan.place * len(commits))]
        primary = self._connect(f"keep{number}")
        dropped = self._job.drops(plan.name)
        with self._job.judging(), anyio.move_on_after(GIVES_UP_S):
            try:
                info = await savepoint(self._settings, plan.name, checkpoint_id=commit.checkpoint_id, store=primary)
            except (StoreUnavailableError, StoreAccessError, SavepointExistsError) as error:
                self._tell(f"keep{number}: {plan.name} is not given: {type(error).__name__}")
            except (CheckpointNotFoundError, MissingObjectError) as error:
                self._tell(f"keep{number}: {plan.name} is not given: {type(error).__name__}")
                if commit.sequence >= self._job.floor:
                    raise
            else:
                self._tell(f"keep{number}: commit {commit.sequence} has the name {plan.name}")
                self._job.acknowledge_name(plan.name, commit.sequence, info.sequence, dropped_before=dropped)

    def open_sweep(self, primary: ObjectStore, *, min_age_s: float) -> Sweep:
        """A sweep of all that is older."""
        store = ScopedStore(primary, ROOT)
        return open_sweep(store, self._settings, threads_of(self._settings), clock=self._clock, min_age_s=min_age_s)
