"""One process that works on the job: it opens it, changes state, makes checkpoints, and ends in one of many ways."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Final

import anyio

from statebackend._backend.coordinating import open_coordinator
from statebackend._backend.opening import open_backend
from statebackend._checkpoint.backend import StateBackend
from statebackend._codec.commit import Commit
from statebackend._following.follower import follow
from statebackend._log.coordinator import CheckpointCoordinator
from statebackend._processing.runner import ProcessorRunner
from statebackend._ranges.range_owners import open_range_owners
from statebackend.abc import CheckpointInfo
from statebackend.errors import (
    BackendClosedError,
    CheckpointNotFoundError,
    SavepointExistsError,
    SavepointNotFoundError,
    StateBackendError,
    StoreAccessError,
    StoreUnavailableError,
    UploadError,
)
from statebackend.ids import Epoch, Key, SourceMark
from statebackend.testing.kits.cancellation import TURNS, How, cancelled, turns
from tests import invariants
from tests.simulation.beside.heirs import JudgedFollower
from tests.simulation.gauges import ledger_of
from tests.simulation.job import JOB, ROOT
from tests.simulation.judged import OPENING_S, PATIENCE_S, JudgedLife
from tests.simulation.owners import RangesAtWork, savepoints_of
from tests.simulation.scenario import SAVEPOINTS, HeirPlan
from tests.simulation.states import STATES, change, draw_changes, expect, states_of
from tests.simulation.timed import (
    TimedBatch,
    assert_fired_once,
    assert_time,
    next_batch,
    put_out,
)

QUIET: Final = 0.6
"""The chance that a batch in ranges has timed rows alone."""
CANCELLED: Final = 0.1
"""The chance that the commit of a batch in ranges is cancelled."""

Committing = Callable[[int, SourceMark, str | None], Awaitable[CheckpointInfo | Commit]]
"""Makes a checkpoint under an id, with its source, and perhaps with a savepoint's name."""


def made_by(backend: StateBackend) -> Committing:
    """Checkpoints of a backend that commits by itself."""
    return lambda checkpoint_id, source, savepoint: backend.checkpoint(
        checkpoint_id, source=source, savepoint=savepoint
    )


class Life(JudgedLife):
    """One process. `ended` is set when all of it has ended, or when it crashed."""

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
        asked: dict[str, Any]
        if self._job.named(self.plan.savepoint):
            asked = {"savepoint": self.plan.savepoint}
        else:
            base = self._base = self._chance.choice(commits) if self.plan.branches and commits else None
            asked = {"checkpoint_id": None if base is None else base.checkpoint_id}
        asked |= {"store": self._world.sabotage.store(self._primary), "clock": self._clock}
        if self.plan.heir is not None and commits:
            await self._inherit(opening, self.plan.heir)
            return
        if self.plan.parts:
            await self._open_in_ranges(opening, newest, asked)
            return
        backend: StateBackend
        async with open_backend(
            self._world.settings,
            key_groups=None,
            local_stores=None if self._local is None else [self._local[1]],
            uploader=self._world.sabotage.uploader(),
            observer=self._gauges,
            **asked,
        ) as backend:
            opening.deadline = math.inf
            await self._work_with(backend, newest, asked)

    async def _work_with(self, backend: StateBackend, newest: int, asked: Mapping[str, Any]) -> None:
        self._gauges.watch(ledger_of(backend))
        try:
            self._judge_opened(backend.newest, newest, asked)
            self._judge_restored(backend.restored, backend.newest)
            await self._begin(backend.epoch)
            await self._work(backend)
        finally:
            self._leaving_since = self._clock.monotonic()
            self._tell("leaves")

    async def _inherit(self, opening: anyio.CancelScope, plan: HeirPlan) -> None:
        """Follow the job, then take it over. Where that fails, the follower goes on, and tries once more."""
        world = self._world
        async with follow(
            world.settings,
            every_s=plan.every_s,
            store=world.sabotage.store(self._primary),
            clock=self._clock,
            observer=self._gauges,
        ) as follower:
            opening.deadline = math.inf
            followed = JudgedFollower(
                follower, self._job, world.settings, world.timing, clock=self._clock, tell=self._tell
            )
            for _ in range(plan.reads):
                await anyio.sleep(plan.pause_s)
                followed.judge_answer()
            followed.tell()
            opening.deadline = anyio.current_time() + OPENING_S
            newest = self._job.newest
            try:
                backend = await follower.promote(uploader=world.sabotage.uploader())
            except (StoreUnavailableError, StoreAccessError) as error:
                self._tell(f"cannot take over: {type(error).__name__}")
                self._primary.in_doubt.clear()
                await anyio.sleep(plan.pause_s)
                followed.judge_answer()
                newest = self._job.newest
                backend = await follower.promote(uploader=world.sabotage.uploader())
            opening.deadline = math.inf
            self._tell("takes over")
            await self._work_with(backend, newest, {})

    async def _open_in_ranges(self, opening: anyio.CancelScope, newest: int, asked: Mapping[str, Any]) -> None:
        store, settings = self._world.sabotage.store(self._primary), self._world.settings
        async with (
            open_coordinator(settings, **asked) as coordinator,
            open_range_owners(store=store, uploader=self._world.sabotage.uploader(), clock=self._clock) as process,
        ):
            opening.deadline = math.inf
            self._judge_opened(None if coordinator.base is None else coordinator.base.summary, newest, asked)
            await self._begin(coordinator.epoch)
            names = STATES[: self._chance.choice((1, 2, 3))]
            work = RangesAtWork(
                settings, coordinator, process, self._runner, parts=self.plan.parts, names=names, tell=self._tell
            )
            self._tell(f"works in {self.plan.parts} ranges")
            for _ in range(self.plan.batches):
                await anyio.sleep(self._chance.choice((0.0, 0.001, 0.02)))
                if not await self._batch_in_ranges(work):
                    break
            self._tell("leaves")

    async def _begin(self, epoch: Epoch) -> None:
        """Record that it goes on from its savepoint, as a sink does."""
        self._epoch = epoch
        if self.plan.savepoint is not None and self._job.named(self.plan.savepoint):
            with (
                suppress(StoreUnavailableError, StoreAccessError, SavepointNotFoundError),
                anyio.move_on_after(OPENING_S),
            ):
                await savepoints_of(self._primary, self._world.settings).begin(self.plan.savepoint, epoch)
            self._primary.in_doubt.clear()

    # ------------------------------------------------------------------------------------------------ what it does

    async def _work(self, backend: StateBackend) -> None:
        names = STATES[: self._chance.choice((1, 2, 3))]  # a state that is not declared must survive, too
        states = states_of(backend, names)
        with self._job.judging():
            found = {(name, key): value for name, state in states.items() for key, value in state.items()}
            expected = {place: value for place, value in self._contents.items() if place[0] in names}
            invariants.assert_same_contents(found, expected, "the restored state")
            if self._timing is not None:
                groups = self._world.settings.max_parallelism
                assert_time(backend, self._contents, self._time, self._timing, groups)
        for _ in range(self.plan.batches):
            self._writes += 1
            changes = draw_changes(self._chance, names, f"{self.plan.number}.{self._writes}")
            with self._job.judging():
                change(states, self._contents, changes)
            if self._runner is not None and backend.is_usable:
                self._process(backend, self._runner)
            await anyio.sleep(self._chance.choice((0.0, 0.001, 0.02)))
            if not await self._checkpoint_somehow(backend):
                return
            await self._name_it(backend)

    def _process(self, backend: StateBackend, runner: ProcessorRunner) -> None:
        """Process the next batch of timed rows, with all that is due by then."""
        batch = self._next_batch(self._contents)
        backend.advance_clock(batch.to_s, batch.kind)
        found = put_out(runner(batch.table, batch.time.batch, backend))
        self._time = batch.time
        with self._job.judging():
            assert_fired_once(found, batch.expected, batch.time.batch)

    def _next_batch(self, contents: dict[tuple[str, Key], object]) -> TimedBatch:
        assert self._timing is not None
        wall_s = self._clock.time() + self._ticking.choice((0.0, 0.0, 0.0, -50.0, 40.0))  # a wall clock may go back
        batch = next_batch(self._timing, self._world.seed, contents, self._time, wall_s)
        self._tell(batch.story(self._time, contents))
        if not self._job.is_new(batch.time.batch):
            self._tell(f"batch {batch.time.batch} comes again")
        return batch

    async def _batch_in_ranges(self, work: RangesAtWork) -> bool:
        """One batch of the ranges; true if the life may continue."""
        self._writes += 1
        changes = draw_changes(self._chance, work.names, f"{self.plan.number}.{self._writes}")
        if self._ticking.random() < QUIET:
            changes = ()  # or no range would ever be idle
        contents, batch = dict(self._contents), None
        expect(contents, changes)
        if self._timing is not None:
            batch = self._next_batch(contents)
        try:
            with anyio.fail_after(OPENING_S):
                contributions, found = await work.contribute(changes, batch, self._chance)
        except (UploadError, StoreUnavailableError, StoreAccessError, TimeoutError) as error:
            self._tell(f"a range fails: {type(error).__name__}")
            return False
        if batch is not None:
            with self._job.judging():
                assert_fired_once(found, batch.expected, batch.time.batch)
        before, after = (self._contents, self._time), self._time if batch is None else batch.time
        self._contents, self._time = contents, after

        async def commit(checkpoint_id: int, source: SourceMark, savepoint: str | None) -> Commit:
            return await work.commit(contributions, checkpoint_id, source, savepoint, batch)

        checkpoint_id = work.coordinator.next_checkpoint_id
        if self._cancelling.random() < CANCELLED:
            goes_on = await self._commit_cancelled(work.coordinator, commit)
        else:
            goes_on = await self._checkpoint(commit, checkpoint_id)
        if work.coordinator.next_checkpoint_id == checkpoint_id:  # not committed: what the ranges did is forgotten
            self._contents, self._time = before
            return goes_on
        return await self._name_it(work.coordinator)

    async def _commit_cancelled(self, coordinator: CheckpointCoordinator, commit: Committing) -> bool:
        """Cancel a commit. True if the life may continue: if the weather had no part in what came of it."""
        key = ROOT + coordinator.next_key
        ends_s = self._clock.monotonic() + self._world.settings.commit_timeout_s
        results = await self._cancelled(
            lambda: self._checkpoint(commit, coordinator.next_checkpoint_id), self._cancelling
        )
        in_time = self._clock.monotonic() < ends_s  # a difference is rounded otherwise than the bound
        if results == [False] or not in_time or key in self._primary.troubled or self._attempt is None:
            return False
        self._judge_finished(self._attempt, -1 if coordinator.newest is None else coordinator.newest.sequence)
        return True

    async def _name_it(self, backend: StateBackend | CheckpointCoordinator) -> bool:
        """Perhaps make the commit that it stands on a savepoint, as `savepoint` of a sink does behind its commit."""
        if backend.newest is None or self._naming.random() >= self._world.savepoints / 2:
            return True
        name, sequence = self._naming.choice(SAVEPOINTS), backend.newest.sequence
        self._tell(f"gives commit {sequence} the name {name}")
        dropped = self._job.drops(name)
        try:
            with anyio.fail_after(OPENING_S):
                info = await backend.savepoint(name)
        except (
            SavepointExistsError,
            StoreUnavailableError,
            StoreAccessError,
            BackendClosedError,
            TimeoutError,
        ) as error:
            self._tell(f"{name} is not given: {type(error).__name__}")
        except CheckpointNotFoundError:
            with self._job.judging():
                assert self._job.commit_at(sequence) not in self._job.retained, "a retained commit cannot be named"
        else:
            if self._primary.alive:
                self._tell(f"commit {sequence} has the name {name}")
                self._job.acknowledge_name(name, sequence, info.sequence, dropped_before=dropped)
        self._primary.in_doubt.clear()
        return True

    async def _checkpoint_somehow(self, backend: StateBackend) -> bool:
        """Make one checkpoint or two, perhaps cancelled. Return true if the life may continue with the next batch."""
        checkpoint_id = backend.next_checkpoint_id + self._chance.choice((0, 0, 0, 5))
        match self._chance.choices(("plain", "cancelled", "two", "old"), (50, 30, 12, 8))[0]:
            case "cancelled":
                return await self._checkpoint_cancelled(backend, checkpoint_id)
            case "two":
                return await self._checkpoint_twice(backend, checkpoint_id)
            case "old" if checkpoint_id > 0:
                return await self._checkpoint(made_by(backend), min(checkpoint_id, backend.next_checkpoint_id) - 1)
            case _:
                return await self._checkpoint(made_by(backend), checkpoint_id)

    async def _checkpoint_cancelled(self, backend: StateBackend, checkpoint_id: int) -> bool:
        results = await self._cancelled(lambda: self._checkpoint(made_by(backend), checkpoint_id), self._chance)
        return results[0] if results else self._chance.random() < 0.8

    async def _cancelled(self, call: Callable[[], Awaitable[bool]], chance: Random) -> list[bool]:
        """Cancel it at some moment; what it returned, if it did."""
        how: How = chance.choice(("scope", "task"))
        count = chance.choice(TURNS)
        seconds = chance.expovariate(1.0) * chance.choice((0.001, 0.02, 0.5))
        by_turns = chance.random() < 0.3
        return await cancelled(
            call, how=how, after=lambda: turns(count) if by_turns else anyio.sleep(seconds), patience_s=PATIENCE_S
        )

    async def _checkpoint_twice(self, backend: StateBackend, checkpoint_id: int) -> bool:
        results: list[bool] = []

        async def one(id_: int, *, is_cancelled: bool = False) -> None:
            results.append(
                await self._checkpoint_cancelled(backend, id_)
                if is_cancelled
                else await self._checkpoint(made_by(backend), id_)
            )

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(one, checkpoint_id, is_cancelled=self._chance.choice((False, True))))
            tasks.start_soon(one, checkpoint_id + 1)
        return all(results)

    async def _checkpoint(self, commit: Committing, checkpoint_id: int) -> bool:
        attempt = self._attempt = self._job.attempt(checkpoint_id, self._contents, self._time)
        name = self._naming.choice(SAVEPOINTS) if self._naming.random() < self._world.savepoints else None
        self._tell(f"attempt {attempt.number} at checkpoint {checkpoint_id}, savepoint {name}")
        try:
            info = await commit(checkpoint_id, SourceMark(JOB, attempt.number), name)
        except StateBackendError as error:
            return self._judge_failed(attempt, error, savepoint=name)
        except asyncio.CancelledError:
            self._decide(attempt, "cancelled")
            raise
        self._tell(f"attempt {attempt.number} acknowledged")
        self._primary.in_doubt.clear()
        self._job.acknowledge(attempt, info)
        if isinstance(info, CheckpointInfo):
            self._judge_local(info)
        return True
