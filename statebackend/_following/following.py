"""Keeps a state at the newest commit of its job: looks, reads what was added, applies it; or reads a commit anew."""

import logging
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import Final

import anyio
import anyio.lowlevel
import msgspec

from statebackend._checkpoint.chain import added_by
from statebackend._codec.commit import Claim, Commit, Entry
from statebackend._following.followed_state import StateAtCommit, open_followed
from statebackend._following.log_steps import ANSWER_S, LogSteps, in_time
from statebackend._following.pins import pinned
from statebackend._following.position import FollowedSoFar, FollowerPosition, KnownMoment
from statebackend._log.position import FoundCommit, Position
from statebackend._upkeep.job_primary import JobPrimary
from statebackend.abc import Clock, ObjectStore, Observer, RestoreReport
from statebackend.errors import FencedError, InputError, MissingObjectError, StateBackendError
from statebackend.ids import Epoch, KeyGroupRange

_logger = logging.getLogger(__name__)

WAITED_EVERY_S: Final = 0.1
"""The pause between two looks while somebody waits for a commit."""
PAUSES_MAX: Final = 32
"""How many times as long the pause may get, where the newest commit cannot be read: each time it reads a lot."""
PATIENCE_MAX: Final = 5
"""How many times the time to read the changes of a commit is doubled, where they did not come in time."""
SWEPT_MAX: Final = 5
"""Times that a newest commit may be swept while it is read, before that is a problem to be told."""


class Following:
    """The state of a job, kept at its newest commit by `run`. `key_groups`: only these, `None` for all there are."""

    def __init__(
        self,
        primary: JobPrimary,
        *,
        key_groups: KeyGroupRange | None,
        every_s: float,
        pin: bool,
        outer_store: ObjectStore | None,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self.primary: Final = primary
        self.outer_store: Final = outer_store
        self.clock: Final = clock
        self.observer: Final = observer
        self.progress: Final = FollowedSoFar()
        self.problem: Exception | None = None
        self.state: StateAtCommit
        self.restored: RestoreReport
        self._key_groups = key_groups
        self._claimed = Epoch(0)  # by the last claim that was read
        self._every_s = every_s
        self._pin = pin
        self._steps = LogSteps(primary, clock)
        self._opened: AbstractAsyncContextManager[tuple[StateAtCommit, RestoreReport]] | None = None
        self._fresh: KnownMoment | None = None
        self._anew: str | None = None  # why the newest commit has to be read anew
        self._stepping = anyio.Lock()
        self._running = anyio.CancelScope()
        self._failures = 0  # looks in a row that have failed
        self._waiting = 0
        self._holds = 0
        self._released = anyio.Event()
        self._moved = anyio.Event()
        self._look_now = anyio.Event()

    @property
    def is_whole(self) -> bool:
        """True if all key groups of the job are followed."""
        return len(self.state.key_groups) == self.state.commit.max_parallelism

    @property
    def is_held(self) -> bool:
        """True while somebody reads at one commit."""
        return self._holds > 0

    @property
    def staleness_s(self) -> float:
        """Seconds since a look succeeded and found nothing newer than what is applied."""
        return float("inf") if self._fresh is None else self._fresh.since_s()

    @property
    def position(self) -> FollowerPosition:
        """Where it stands."""
        state = self.state
        return self.progress.position(state.commit, state.applied_at_s, fresh=self._fresh, problem=self.problem)

    async def open(self, *, wait: bool) -> None:
        """Read the newest commit. Raises `InputError` if there is none, or waits for one."""
        while not await self._read_newest():
            if not wait:
                raise InputError(
                    "the job has no checkpoint yet: wait for one with wait=True, or correct job or primary",
                    job=self.primary.settings.job,
                    primary=self.primary.settings.primary,
                )
            await anyio.sleep(self._every_s)
        report = self.restored
        _logger.info(
            "following: job=%s checkpoint=%d seconds=%.3f local=%d bytes primary=%d bytes changes=%d",
            self.primary.settings.job,
            report.checkpoint_id,
            report.seconds,
            report.bytes_local,
            report.bytes_primary,
            report.changes,
        )

    async def run(self) -> None:
        """Look for ever, `every_s` seconds after each other; at once where the last look found something."""
        with self._running:
            await self._run()

    def end(self) -> None:
        """Look no more, whatever the log has: the state may be somebody else's from now on."""
        self._running.cancel()
        self._tell_moved()

    async def _run(self) -> None:
        while True:
            found = False
            async with self._stepping:
                try:
                    found = await self.step()
                    self.problem = None
                except StateBackendError as error:
                    if str(error) != str(self.problem):
                        _logger.warning("cannot follow job %s: %s", self.primary.settings.job, error)
                    self.problem = error
            self._tell_moved()
            self.observer.follower_looked(self.staleness_s)
            self._failures = 0 if self.problem is None else self._failures + 1
            if not found:
                await self._pause()

    async def _pause(self) -> None:
        """Wait for the next look: longer where the newest commit could not be read, shorter while it is waited for."""
        every_s = self._every_s * min(2**self._failures, PAUSES_MAX) if self._anew is not None else self._every_s
        self._look_now = anyio.Event()
        with anyio.move_on_after(min(every_s, WAITED_EVERY_S) if self._waiting else every_s):
            await self._look_now.wait()

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Look at once, and then more often, as long as somebody waits."""
        self._waiting += 1
        self._look_now.set()
        try:
            yield
        finally:
            self._waiting -= 1

    async def moved(self) -> None:
        """Wait until a look has ended."""
        await self._moved.wait()

    @contextmanager
    def held(self) -> Generator[None]:
        """No commit is applied inside."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            if not self._holds:
                self._released.set()

    @asynccontextmanager
    async def stopped(self) -> AsyncGenerator[None]:
        """No look is under way inside."""
        async with self._stepping:
            yield

    def read_anew(self, reason: str) -> None:
        """Have the next look read the newest commit, whatever stands here: it cannot be brought forward any more."""
        self._anew = reason

    async def step(self) -> bool:
        """Look once, and go where that leads. True if it led somewhere. Raises `StateBackendError`s."""
        if self._anew is not None:
            return await self._jump(self._anew)
        found = await self._steps.look()
        if found.broken is not None:
            return await self._jump(found.broken)
        if found.entries:
            problem = await self._go_through(found.entries, found.bodies)
            if problem is not None:
                return await self._jump(problem)
        if found.fresh is not None:
            self._fresh = found.fresh
        return bool(found.entries)

    async def catch_up(self, commit: Commit | None) -> None:
        """Go to this commit, which is the newest and stays it: the job was claimed behind it."""
        if commit is None:
            raise MissingObjectError("the job that was followed has no commit any more: put its log back")
        jumps = 0
        while self._anew is not None or self.state.commit.stamp != commit.stamp:
            if self.state.commit.sequence > commit.sequence and self._anew is None:
                self._anew = "the job was taken back"
            jumped = self._anew is not None
            jumps += jumped
            if not await self.step():
                self._anew = "the log does not lead to the newest commit"
            if (jumped and self.state.commit.sequence > commit.sequence) or jumps > SWEPT_MAX:
                raise FencedError("another writer has opened this job: stop this one", sequence=commit.sequence)

    async def close(self) -> None:
        """Free the state."""
        with anyio.CancelScope(shield=True):
            opened, self._opened = self._opened, None
            if opened is not None:
                await opened.__aexit__(None, None, None)

    # --------------------------------------------------------------------------------------------------- going ahead

    async def _go_through(self, entries: Sequence[Entry], bodies: Mapping[str, bytes]) -> str | None:
        """Apply what these entries add. Returns a reason to read the newest commit anew instead."""
        begun = self.clock.monotonic()
        commits = [entry for entry in entries if isinstance(entry, Commit)]
        if (reason := self._contradiction(entries)) is not None:
            return reason
        if commits:
            state = self.state
            handles = await self.primary.threads.cpu(added_by, state.commit, commits, self._key_groups)
            if isinstance(handles, str):
                return handles
            try:
                patience = 2 ** min(self._failures, PATIENCE_MAX)  # it may be that there is much to read
                changes = await in_time(state.read(handles, bodies), ANSWER_S * patience)
            except MissingObjectError:
                return "a sweep was faster"
            if changes is None:
                return "more has changed than is read at once"
            self._anew = "a commit could not be applied"  # unless it is
            await state.advance(changes, commits[-1], self._may_go_on)
            self._anew = None
            count, size_bytes = sum(each.records for each in changes), sum(each.length for each in handles)
            self.progress.commits += len(commits)
            self.progress.changes += count
            self.progress.size_bytes += size_bytes
            self.observer.commits_followed(
                len(commits), changes=count, size_bytes=size_bytes, seconds=self.clock.monotonic() - begun
            )
            self._tell_moved()
            await state.free(self._may_go_on)
        self._steps.stand_at(entries[-1])
        return None

    def _contradiction(self, entries: Sequence[Entry]) -> str | None:
        """A reason why these entries do not go on from the commit that is applied: each epoch begins with its claim."""
        newest = self.state.commit
        for entry in entries:
            if isinstance(entry, Claim):
                if entry.newest != newest.sequence or entry.newest_stamp not in (newest.stamp, msgspec.UNSET):
                    return "the log was put back to an older state"
                self._claimed = entry.epoch
            elif entry.epoch not in (newest.epoch, self._claimed):
                return "the log was put back to an older state"
            else:
                newest = entry
        return None

    async def _may_go_on(self) -> None:
        """Let others run, and wait while somebody reads at one commit."""
        await anyio.lowlevel.checkpoint()
        while self._holds:
            self._released = anyio.Event()
            await self._released.wait()

    # -------------------------------------------------------------------------------------------------- reading anew

    async def _jump(self, reason: str) -> bool:
        self._anew = reason
        if not await self._read_newest():
            raise MissingObjectError("the job that was followed has no commit any more: put its log back")
        self._anew = None
        self.progress.jumps += 1
        _logger.warning(
            "follower of job %s has read checkpoint %d anew: %s",
            self.primary.settings.job,
            self.state.commit.checkpoint_id,
            reason,
        )
        self.observer.follower_jumped(reason)
        return True

    async def _read_newest(self) -> bool:
        """Read the newest commit, beside the state that there is, and take it over; false if the job has none."""
        for attempt in range(1, SWEPT_MAX + 1):
            moment = KnownMoment(self.clock)
            position = await in_time(self.primary.positions.look())
            if position.base is None or position.end is None:
                return False
            try:
                await self._take_over(position, moment)
            except MissingObjectError:
                if attempt == SWEPT_MAX:
                    raise
            else:
                return True
        raise AssertionError("it returns or raises")

    def opening(self, found: FoundCommit) -> AbstractAsyncContextManager[tuple[StateAtCommit, RestoreReport]]:
        """As `open_followed`, of what is followed."""
        return open_followed(self.primary, found, self._key_groups, self.clock)

    async def _take_over(self, position: Position, moment: KnownMoment) -> None:
        base, end = position.base, position.end
        assert base is not None
        assert end is not None
        if (spare := position.spare) is not None:
            at_hand: Mapping[str, bytes] = {spare.key: spare.body}
        else:
            at_hand = self.primary.log.take_body(base)
        opening = self.opening(FoundCommit(base, at_hand))
        async with pinned(self.primary, base) if self._pin else nullcontext():
            state, report = await opening.__aenter__()
        former, self._opened = self._opened, opening
        try:
            while self._holds:  # somebody reads the former one
                self._released = anyio.Event()
                await self._released.wait()
        finally:
            self.state, self.restored = state, report
            self._claimed = base.epoch if end.entry is None else end.entry.epoch
            self._steps.stand_behind(end, moment)
            self.problem = position.passed_over
            if position.passed_over is None:
                self._fresh = moment
            self.observer.restored(report)
            if former is not None:
                with anyio.CancelScope(shield=True):
                    await former.__aexit__(None, None, None)

    def _tell_moved(self) -> None:
        moved, self._moved = self._moved, anyio.Event()
        moved.set()
