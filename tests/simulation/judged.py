"""Judges all that a life is told: the commit it opens, the outcome of each attempt, and how it leaves."""

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final, Protocol

import anyio

from statebackend._codec.commit import Commit
from statebackend.abc import CheckpointInfo, ObjectStore, RestoreReport, StateChangeUploader
from statebackend.errors import (
    BackendClosedError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    FencedError,
    MissingObjectError,
    OutcomeUnknownError,
    SavepointExistsError,
    SavepointNotFoundError,
    StateBackendError,
    StoreAccessError,
    StoreUnavailableError,
    UploadError,
)
from statebackend.ids import CommitSummary, Key
from statebackend.settings import Settings
from statebackend.testing.virtual_time import VirtualClock
from tests import invariants
from tests.simulation.gauges import Gauges
from tests.simulation.job import ROOT, CheckpointCall, Outcome, SimulatedJob
from tests.simulation.scenario import DISK_CALL_MAX_S, LifePlan
from tests.simulation.store import Connection, Place
from tests.simulation.timed import (
    JobTime,
    TimePlan,
    open_runner,
)

PATIENCE_S: Final = 2000.0
"""A call that takes longer never ends: the retries, timeouts and grace periods of all uploads in turn take less."""
OPENING_S: Final = 40.0
"""A life gives up reading after this long: a restore waits for its store without a bound."""
REMOVAL_S: Final = 1.0
"""An uploader's clean-up takes at most this long: `statebackend.uploaders.primary.REMOVE_TIMEOUT_S`."""


class Sabotage:
    """Makes a backend wrong, to test the simulation: override a method to wrap its stores."""

    def store(self, store: ObjectStore) -> ObjectStore:
        """Return the backend's primary."""
        return store

    def uploader(self) -> Callable[[ObjectStore, ObjectStore | None], StateChangeUploader] | None:
        """Return the backend's uploader, `None` for its own."""
        return None


class Surroundings(Protocol):
    """The part of the world that a life sees."""

    @property
    def seed(self) -> int: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def job(self) -> SimulatedJob: ...
    @property
    def savepoints(self) -> float: ...
    @property
    def timing(self) -> TimePlan | None: ...
    @property
    def sabotage(self) -> Sabotage: ...

    def tell(self, text: str) -> None:
        """Add a line to the trace."""
        ...


class JudgedLife:
    """A process, what it expects, and the judgement of all that it is told. A crashed one is not judged."""

    def __init__(
        self,
        world: Surroundings,
        plan: LifePlan,
        *,
        primary: Connection,
        local: tuple[Place, Connection] | None,
        clock: VirtualClock,
    ) -> None:
        self.plan: Final = plan
        self.ended: Final = anyio.Event()
        self._world = world
        self._job = world.job
        self._primary = primary
        self._local = local
        self._clock = clock
        self._chance = Random(f"{world.seed} life {plan.number}")  # to be replayed
        self._naming = Random(f"{world.seed} savepoints {plan.number}")  # as above
        self._base: Commit | None = None  # the older commit that it asks for
        self._gauges = Gauges(world.job, world.settings, world.tell)
        self._scope = anyio.CancelScope()
        self._task: asyncio.Task[Any] | None = None
        self._ticking = Random(f"{world.seed} ticks {plan.number}")  # as above
        self._cancelling = Random(f"{world.seed} cancels {plan.number}")  # as above
        self._timing = None if plan.is_timeless else world.timing
        self._runner = None if self._timing is None else open_runner(self._timing)
        self._time = JobTime()
        self._contents: dict[tuple[str, Key], object] = {}
        self._leaving_since: float | None = None
        self._writes = 0
        self._epoch = 0
        self._attempt: CheckpointCall | None = None  # the last

    def _judge_opened(self, found: CommitSummary | None, newest: int, asked: Mapping[str, Any]) -> None:
        sequence = None if found is None else found.sequence
        self._tell(f"opened on commit {sequence}")
        self._primary.in_doubt.clear()  # claims are not counted: nothing depends on those that failed
        with self._job.judging():
            if (name := asked.get("savepoint")) is not None:
                self._tell(f"starts from savepoint {name}")
                assert sequence in self._job.named(name), f"savepoint {name} opened on {sequence}"
            elif self._base is None:
                invariants.assert_newest_of_its_time(sequence, newest_at_begin=newest, newest_at_end=self._job.newest)
            else:
                self._tell(f"goes back to commit {sequence}")
                assert sequence == self._base.sequence, f"asked for {self._base.sequence}, opened on {sequence}"
            self._contents = dict(self._job.contents_at(-1 if sequence is None else sequence))
            self._time = self._job.time_at(-1 if sequence is None else sequence)

    def _judge_restored(self, restored: RestoreReport | None, newest: CommitSummary | None) -> None:
        with self._job.judging():
            at = None if restored is None else restored.sequence
            assert at == (None if newest is None else newest.sequence), f"restored {at} instead of {newest}"

    # ------------------------------------------------------------------------------------------------ what is judged

    def _judge_failed(self, attempt: CheckpointCall, error: StateBackendError, *, savepoint: str | None) -> bool:
        """Return true if the life may continue: only if its call has changed nothing.

        That is so if it was wrong; and if the marker of a savepoint could not be written, of which a coordinator, that
        has no state of its own, knows that it has not committed.
        """
        self._tell(f"attempt {attempt.number}: {type(error).__name__}")
        is_unmarked = savepoint is not None and isinstance(error, (SavepointExistsError, StoreUnavailableError))
        failed = (CheckpointExistsError, UploadError, FencedError, BackendClosedError, StoreAccessError)
        if isinstance(error, StoreAccessError):
            self._primary.in_doubt.clear()  # refused, and read back
        if isinstance(error, OutcomeUnknownError):
            self._decide(attempt, "unknown")
        elif is_unmarked or isinstance(error, failed):
            self._decide(attempt, "failed")
        else:
            self._judge_error(error)
        if isinstance(error, FencedError):
            self._judge_fenced()
        return isinstance(error, (CheckpointExistsError, SavepointExistsError)) or (is_unmarked and self.plan.parts > 0)

    def _judge_fenced(self) -> None:
        """A life is fenced by another one only, which has begun a newer epoch."""
        with self._job.judging():
            newest = self._job.log[-1].epoch
            assert newest > self._epoch or not self._primary.alive, f"fenced in epoch {self._epoch}, by {newest}"

    def _judge_overtaken(self, error: FencedError) -> None:
        """An heir is refused only if another one has committed behind its claim."""
        self._tell("is overtaken")
        with self._job.judging():
            behind = error.facts.get("sequence")
            assert isinstance(behind, int), f"fenced without a reason: {error}"
            assert self._job.newest > behind, f"fenced, and nobody has committed behind {behind}"

    def _judge_finished(self, attempt: CheckpointCall, stands_on: int) -> None:
        """A call of `commit` that was cancelled has ended: either nothing was committed, or who committed stands on it.

        Not judged where the weather kept the answer from it.
        """
        with self._job.judging():
            is_judged = self._primary.alive and attempt.sequence is not None
            assert not is_judged or stands_on == attempt.sequence, (
                f"attempt {attempt.number} is committed at {attempt.sequence}, and its coordinator is on {stands_on}"
            )

    def _decide(self, attempt: CheckpointCall, outcome: Outcome) -> None:
        if self._primary.alive:
            self._tell(f"attempt {attempt.number} {outcome}, its commit is {attempt.sequence}")
            self._job.decide(attempt, outcome)

    def _judge_error(self, error: StateBackendError) -> None:
        """Opening may raise a store's errors as they are; it must raise no error that is not documented."""
        if self.plan.heir is not None and self._gauges.ledger is None and isinstance(error, FencedError):
            self._judge_overtaken(error)
            return
        told: tuple[type[StateBackendError], ...] = (StoreUnavailableError, StoreAccessError)
        if self._base is not None and self._base not in self._job.retained:
            told = (*told, CheckpointNotFoundError, MissingObjectError)  # it was swept
        if self.plan.savepoint in self._job.dropped:
            told = (*told, SavepointNotFoundError, CheckpointNotFoundError, MissingObjectError)
        if self._primary.alive and not (self._gauges.ledger is None and isinstance(error, told)):
            self._job.fail(error)

    def _judge_local(self, info: CheckpointInfo) -> None:
        with self._job.judging():
            if info.local:
                assert self._local is not None, "called local, but there is no local copy"
                commit = self._job.commit_at(info.sequence)
                invariants.assert_local_copy_is_complete(commit, self._local[0].objects, self._job.objects)

    def _judge_leaving(self) -> None:
        if self._leaving_since is None:
            return
        with self._job.judging():
            invariants.assert_nothing_in_flight(self._gauges.in_flight_bytes, self._gauges.waiting)
            if self._primary.alive:
                bound_s = 2 * self._world.settings.close_timeout_s + REMOVAL_S
                bound_s += 0.0 if self._local is None else 3 * DISK_CALL_MAX_S
                leaving_s = self._clock.monotonic() - self._leaving_since
                invariants.assert_left_in_time(leaving_s, bound_s)
                self._judge_left_over(leaving_s)

    def _judge_left_over(self, leaving_s: float) -> None:
        """Check for garbage, except after a store that carries out requests late, or without time to clean up.

        And except for a life that was fenced or got no answer: it deletes nothing that a commit may point into.
        """
        in_time = leaving_s < self._world.settings.close_timeout_s
        if in_time and not self._primary.late and not self._primary.in_doubt:
            stored = self._primary.stored - self._primary.removed_in_vain  # requested, and refused: left to a sweep
            invariants.assert_nothing_is_left_over([key.removeprefix(ROOT) for key in stored], self._job.commits)

    def _tell(self, text: str) -> None:
        self._world.tell(f"life{self.plan.number} {text}")
