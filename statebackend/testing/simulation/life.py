"""One process that works on the job: it opens it, changes state, makes checkpoints, and ends in one of many ways."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from random import Random
from typing import Any, Final, Protocol

import anyio

from statebackend._backend.opening import open_backend
from statebackend._changelog.ledger import Ledger
from statebackend._checkpoint.backend import StateBackend
from statebackend._codec.commit import Commit
from statebackend.abc import CheckpointInfo, ObjectStore, Observer, StateChangeUploader
from statebackend.errors import (
    BackendClosedError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    FencedError,
    MissingObjectError,
    OutcomeUnknownError,
    SavepointExistsError,
    StateBackendError,
    StoreAccessError,
    StoreUnavailableError,
    UploadError,
)
from statebackend.ids import Key, SourceMark
from statebackend.settings import Settings
from statebackend.testing import invariants
from statebackend.testing.cancellation import TURNS, How, cancelled, turns
from statebackend.testing.simulation.job import JOB, ROOT, CheckpointCall, Outcome, SimulatedJob
from statebackend.testing.simulation.scenario import DISK_CALL_MAX_S, SAVEPOINTS, LifePlan
from statebackend.testing.simulation.states import STATES, key_in, states_of, value_in
from statebackend.testing.simulation.store import Connection, Place
from statebackend.testing.virtual_time import VirtualClock

KEYS: Final[Sequence[Key]] = ("a", "", 7, -1, b"k", ("a", 7))
VALUE_CHARACTERS_MAX: Final = 400
DIRTY_BYTES_MAX: Final = 40 * len(KEYS) * len(STATES) * (VALUE_CHARACTERS_MAX + 100)
"""More than one upload can hold: all that a life of many batches leaves unsent if every checkpoint is cancelled."""
PATIENCE_S: Final = 2000.0
"""A call that takes longer never ends: the retries, timeouts and grace periods of all uploads in turn take less."""
OPENING_S: Final = 40.0
"""A life gives up opening after this long: a restore waits for its store without a bound."""
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
    def sabotage(self) -> Sabotage: ...

    def tell(self, text: str) -> None:
        """Add a line to the trace."""
        ...


class Life:
    """One process. `ended` is set when all of it has ended, or when it crashed; a crashed one is not judged."""

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
        self._chance = Random(f"{world.seed} life {plan.number}")  # noqa: S311  # to be replayed
        self._naming = Random(f"{world.seed} savepoints {plan.number}")  # noqa: S311  # as above
        self._base: Commit | None = None
        self._gauges = _Gauges(world)
        self._scope = anyio.CancelScope()
        self._task: asyncio.Task[Any] | None = None
        self._contents: dict[tuple[str, Key], object] = {}
        self._leaving_since: float | None = None
        self._writes = 0

    async def run(self) -> None:
        """Live until some end."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._end)
                tasks.start_soon(self._live, tasks.cancel_scope)  # in a task of its own, for asyncio to cancel
        except Exception as error:  # noqa: BLE001  # judged by those who read the trace
            self._job.fail(error)
        finally:
            self._tell("ended")
            self.ended.set()

    def crash(self) -> None:
        """Crash: from now on nothing that it does reaches a store."""
        self._tell("crashes")
        self._primary.die()
        if self._local is not None:
            self._local[1].die()
        self._scope.cancel()
        self.ended.set()

    # ------------------------------------------------------------------------------------------------ how it ends

    async def _end(self) -> None:
        if self.plan.ending == "leaves":
            return
        await anyio.sleep(self.plan.ends_after_s)
        if self.plan.ending == "crashes":
            self.crash()
            return
        self._tell(self.plan.ending)
        if self.plan.ending == "cancelled by scope":
            self._scope.cancel()
            return
        assert self._task is not None
        self._task.cancel()
        if self.plan.ending == "cancelled by task twice":
            await turns(self._chance.choice(TURNS))
            self._task.cancel()

    # ----------------------------------------------------------------------------------------------- how it begins

    async def _live(self, everything: anyio.CancelScope) -> None:
        self._task = asyncio.current_task()
        try:
            with self._scope, anyio.CancelScope(deadline=anyio.current_time() + OPENING_S) as opening:
                await self._open(opening)
        except StateBackendError as error:
            self._judge_error(error)
        finally:
            everything.cancel()
            self._judge_leaving()

    async def _open(self, opening: anyio.CancelScope) -> None:
        newest, commits = self._job.newest, self._job.commits
        base = self._base = self._chance.choice(commits) if self.plan.branches and commits else None
        async with open_backend(
            self._world.settings,
            checkpoint_id=None if base is None else base.checkpoint_id,
            store=self._world.sabotage.store(self._primary),
            local_stores=None if self._local is None else [self._local[1]],
            uploader=self._world.sabotage.uploader(),
            clock=self._clock,
            observer=self._gauges,
        ) as backend:
            opening.deadline = math.inf
            self._gauges.ledger = ledger_of(backend)
            try:
                self._judge_opened(backend, newest, base)
                await self._work(backend)
            finally:
                self._leaving_since = self._clock.monotonic()
                self._tell("leaves")

    def _judge_opened(self, backend: StateBackend, newest: int, base: Commit | None) -> None:
        sequence = None if backend.newest is None else backend.newest.sequence
        self._tell(f"opened on commit {sequence}")
        self._primary.in_doubt.clear()  # claims are not counted: nothing depends on those that failed
        with self._job.judging():
            if base is None:
                invariants.assert_newest_of_its_time(sequence, newest_at_begin=newest, newest_at_end=self._job.newest)
            else:
                assert sequence == base.sequence, f"asked for commit {base.sequence}, opened on {sequence}"
            assert (None if backend.restored is None else backend.restored.sequence) == sequence, "restored another one"
            self._contents = dict(self._job.contents_at(-1 if sequence is None else sequence))

    # ------------------------------------------------------------------------------------------------ what it does

    async def _work(self, backend: StateBackend) -> None:
        names = STATES[: self._chance.choice((1, 2, 3))]  # a state that is not declared must survive, too
        states = states_of(backend, names)
        with self._job.judging():
            found = {(name, key): value for name, state in states.items() for key, value in state.items()}
            expected = {place: value for place, value in self._contents.items() if place[0] in names}
            invariants.assert_same_contents(found, expected, "the restored state")
        for _ in range(self.plan.batches):
            for _ in range(self._chance.choice((0, 1, 3, 8))):
                self._change(states, self._chance.choice(names), self._chance.choice(KEYS))
            await anyio.sleep(self._chance.choice((0.0, 0.001, 0.02)))
            if not await self._checkpoint_somehow(backend):
                return

    def _change(self, states: Mapping[str, MutableMapping[Key, Any]], name: str, key: Key) -> None:
        self._writes += 1
        key = key_in(name, key)
        if self._chance.random() < 0.25:
            found, expected = states[name].pop(key, None), self._contents.pop((name, key), None)
            with self._job.judging():
                assert found == expected, f"{name}[{key!r}] was {found!r} instead of {expected!r}"
        else:
            padding = "x" * self._chance.choice((0, 0, 20, VALUE_CHARACTERS_MAX))
            value = value_in(name, f"{self.plan.number}.{self._writes}{padding}")
            states[name][key] = self._contents[name, key] = value

    async def _checkpoint_somehow(self, backend: StateBackend) -> bool:
        """Make one checkpoint or two, perhaps cancelled. Return true if the life may continue with the next batch."""
        checkpoint_id = backend.next_checkpoint_id + self._chance.choice((0, 0, 0, 5))
        match self._chance.choices(("plain", "cancelled", "two", "old"), (50, 30, 12, 8))[0]:
            case "cancelled":
                return await self._checkpoint_cancelled(backend, checkpoint_id)
            case "two":
                return await self._checkpoint_twice(backend, checkpoint_id)
            case "old" if checkpoint_id > 0:
                return await self._checkpoint(backend, min(checkpoint_id, backend.next_checkpoint_id) - 1)
            case _:
                return await self._checkpoint(backend, checkpoint_id)

    async def _checkpoint_cancelled(self, backend: StateBackend, checkpoint_id: int) -> bool:
        how: How = self._chance.choice(("scope", "task"))
        count = self._chance.choice(TURNS)
        seconds = self._chance.expovariate(1.0) * self._chance.choice((0.001, 0.02, 0.5))
        by_turns = self._chance.random() < 0.3
        results = await cancelled(
            lambda: self._checkpoint(backend, checkpoint_id),
            how=how,
            after=lambda: turns(count) if by_turns else anyio.sleep(seconds),
            patience_s=PATIENCE_S,
        )
        return results[0] if results else self._chance.random() < 0.8

    async def _checkpoint_twice(self, backend: StateBackend, checkpoint_id: int) -> bool:
        results: list[bool] = []

        async def one(checkpoint: Callable[[StateBackend, int], Awaitable[bool]], id_: int) -> None:
            results.append(await checkpoint(backend, id_))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one, self._chance.choice((self._checkpoint, self._checkpoint_cancelled)), checkpoint_id)
            tasks.start_soon(one, self._checkpoint, checkpoint_id + 1)
        return all(results)

    async def _checkpoint(self, backend: StateBackend, checkpoint_id: int) -> bool:
        attempt = self._job.attempt(checkpoint_id, self._contents)
        name = self._naming.choice(SAVEPOINTS) if self._naming.random() < self._world.savepoints else None
        self._tell(f"attempt {attempt.number} at checkpoint {checkpoint_id}, savepoint {name}")
        try:
            info = await backend.checkpoint(checkpoint_id, source=SourceMark(JOB, attempt.number), savepoint=name)
        except StateBackendError as error:
            return self._judge_failed(attempt, error, savepoint=name)
        except asyncio.CancelledError:
            self._decide(attempt, "cancelled")
            raise
        self._tell(f"attempt {attempt.number} acknowledged")
        self._primary.in_doubt.clear()
        self._job.acknowledge(attempt, info)
        self._judge_local(info)
        return True

    # ------------------------------------------------------------------------------------------------ what is judged

    def _judge_failed(self, attempt: CheckpointCall, error: StateBackendError, *, savepoint: str | None) -> bool:
        """Return true if the life may continue: only if its call was wrong and has changed nothing."""
        self._tell(f"attempt {attempt.number}: {type(error).__name__}")
        if isinstance(error, StoreAccessError):
            self._primary.in_doubt.clear()  # refused, and read back
        if isinstance(error, OutcomeUnknownError):
            self._decide(attempt, "unknown")
        elif isinstance(error, (CheckpointExistsError, UploadError, FencedError, BackendClosedError, StoreAccessError)):
            self._decide(attempt, "failed")
        elif savepoint is not None and isinstance(error, (SavepointExistsError, StoreUnavailableError)):
            self._decide(attempt, "failed")  # for the savepoint marker
        else:
            self._judge_error(error)
        return isinstance(error, (CheckpointExistsError, SavepointExistsError))

    def _decide(self, attempt: CheckpointCall, outcome: Outcome) -> None:
        if self._primary.alive:
            self._tell(f"attempt {attempt.number} {outcome}, its commit is {attempt.sequence}")
            self._job.decide(attempt, outcome)

    def _judge_error(self, error: StateBackendError) -> None:
        """Opening may raise a store's errors as they are; it must raise no error that is not documented."""
        told: tuple[type[StateBackendError], ...] = (StoreUnavailableError, StoreAccessError)
        if self._base is not None and self._base not in self._job.retained:
            told = (*told, CheckpointNotFoundError, MissingObjectError)  # it was swept
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
                invariants.assert_left_in_time(self._clock.monotonic() - self._leaving_since, bound_s)
                self._judge_left_over()

    def _judge_left_over(self) -> None:
        """Check for garbage, except after a store that carries out requests late, or without time to clean up.

        And except for a life that was fenced or got no answer: it deletes nothing that a commit may point into.
        """
        assert self._leaving_since is not None
        in_time = self._clock.monotonic() - self._leaving_since < self._world.settings.close_timeout_s
        if in_time and not self._primary.late and not self._primary.in_doubt:
            stored = self._primary.stored - self._primary.removed_in_vain  # requested, and refused: left to a sweep
            invariants.assert_nothing_is_left_over([key.removeprefix(ROOT) for key in stored], self._job.commits)

    def _tell(self, text: str) -> None:
        self._world.tell(f"life{self.plan.number} {text}")


class _Gauges(Observer):
    """Observes the bytes of a backend, and checks its ledger each time."""

    def __init__(self, world: Surroundings) -> None:
        self.in_flight_bytes = 0
        self.waiting = 0
        self.ledger: Ledger | None = None
        self._world = world

    def in_flight_changed(self, in_flight_bytes: int) -> None:
        self.in_flight_bytes = in_flight_bytes
        with self._world.job.judging():
            invariants.assert_in_flight_is_bounded(in_flight_bytes, self._world.settings, DIRTY_BYTES_MAX)
        self._check_ledger()

    def queue_changed(self, waiting: int) -> None:
        self.waiting = waiting
        self._check_ledger()

    def materialization_begun(self, key_groups: int) -> None:
        self._world.tell(f"bases of {key_groups} key groups are being written")

    def materialized(self, *, key_groups: int, segments: int, size_bytes: int, seconds: float) -> None:
        self._world.tell(f"bases of {key_groups} key groups are written, in {segments} segments")

    def materialization_failed(self, error: Exception, *, failures: int) -> None:
        self._world.tell(f"bases failed to be written, {failures}. time: {type(error).__name__}")

    def checkpoint_committed(self, info: CheckpointInfo) -> None:
        self._check_ledger()

    def _check_ledger(self) -> None:
        with self._world.job.judging():
            if self.ledger is not None:
                self.ledger.check_invariants()


def ledger_of(backend: StateBackend) -> Ledger:
    """The ledger of a backend's one writer: the only private access."""
    return backend._writer._ledger  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # nobody else has a use for it
