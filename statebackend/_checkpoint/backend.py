"""The backend that users hold: the states it declares, and the checkpoints that make them durable.

One checkpoint, in the order of the calls:

    drain the states into the changelog -> persist, or take inline -> register the local copies -> hold -> commit
    -> confirm -> begin bases

Up to the commit everything can be cancelled and nothing is lost; from there on it runs to its end.
"""

from collections import Counter
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import anyio
import msgspec

from statebackend._changelog.changelog_writer import ChangelogWriter
from statebackend._checkpoint.materialization.base_writer import BaseWriter
from statebackend._checkpoint.rescale import range_of
from statebackend._checkpoint.snapshots import InlineEncoder, Snapshots
from statebackend._checkpoint.spending import Spending
from statebackend._log.coordinator import CheckpointCoordinator, Committed
from statebackend._log.names import check_checkpoint_id, check_savepoint_name, entry_key
from statebackend._log.outbox import JobOutbox, Output, Staged, check_source
from statebackend._log.savepoint_markers import SavepointInfo
from statebackend._observers import telling_fenced
from statebackend._state.declarations import StateDeclarations
from statebackend._state.declared import KeyedStates
from statebackend._state.time.job_clock import NOT_BEGUN
from statebackend._state.time.timers import DueTimer
from statebackend._tasks import HomeLoop, finish
from statebackend.abc import Buffer, CheckpointInfo, Clock, Observer, RestoreReport
from statebackend.errors import (
    BackendClosedError,
    CheckpointExistsError,
    InputError,
    StoreAccessError,
    StoreUnavailableError,
)
from statebackend.ids import (
    CheckpointId,
    ClockKind,
    CommitSummary,
    Epoch,
    KeyGroupRange,
    SnapshotResult,
    SourceMark,
    StagedOutput,
)


class Machinery(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that every backend runs on, opened and at one commit. `restored` is `None` if nothing was read."""

    states: KeyedStates
    writer: ChangelogWriter
    base_writer: BaseWriter
    snapshots: Snapshots
    coordinator: CheckpointCoordinator
    epoch: Epoch
    restored: RestoreReport | None


class KeyedBackend(StateDeclarations):
    """The base of all backends: it declares states, knows the commit that it stands on, and can be closed.

    Declaring a state raises `BackendClosedError` once the backend has failed or is closed.
    """

    def __init__(self, machinery: Machinery) -> None:
        self.restored: Final = machinery.restored
        self._epoch: Final = machinery.epoch
        self._states = machinery.states
        self._writer = machinery.writer
        self._base_writer = machinery.base_writer
        self._snapshots = machinery.snapshots
        self._coordinator = machinery.coordinator
        self._checkpointing = anyio.Lock()  # one checkpoint or snapshot at a time
        self._home = HomeLoop()
        self._failure: Exception | None = None
        self._closed = False
        self._is_wanted = True

    @property
    def is_usable(self) -> bool:
        """True unless it has failed or is closed."""
        return self._failure is None and not self._closed

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups this backend owns."""
        return self._states.key_groups

    @property
    def newest(self) -> CommitSummary | None:
        """The commit that the state stands on, `None` before the first one. For an owner: the one it was opened on."""
        return None if self._coordinator.base is None else self._coordinator.base.summary

    @property
    def epoch(self) -> Epoch:
        """The epoch that opening began; each later opening of the job gets a larger one.

        For an owner, and for a backend opened to read: the epoch it was opened in.
        """
        return self._epoch

    @property
    def next_checkpoint_id(self) -> CheckpointId:
        """The smallest id that the next checkpoint may have."""
        return max(self._coordinator.next_checkpoint_id, CheckpointId(self._snapshots.newest + 1))

    @property
    def clock_s(self) -> float | None:
        """The job's clock, in seconds; `None` before it has begun. A time-to-live and timers go by it."""
        return None if (mark := self._states.clock.mark) is None else mark.now_s

    @property
    def clock_before_s(self) -> float | None:
        """The clock before it was last moved: rows that are older are late; `None` before it had begun."""
        return None if (before_s := self._states.clock.before_s) == NOT_BEGUN else before_s

    @property
    def clock_has_moved(self) -> bool:
        """True if `advance_clock` was called since the state was opened."""
        return self._states.clock.has_moved

    def advance_clock(self, to_s: float, kind: ClockKind = "event") -> None:
        """Move the job's clock to `to_s` seconds: once for a batch, before its changes. It never goes back.

        The next commit has it; a backend that is opened there goes on from it. A sink with `event_time` or `clock` does
        this itself. `kind`: "event" for a time of the rows, "processing" for one of the batch. Raises `InputError` for
        what is no time, and if the job went by a clock of the other kind before.
        """
        self._check_usable()
        self._states.clock.move(to_s, kind)

    @property
    def has_due_timers(self) -> bool:
        """True if `due_timers` has any. Raises as that."""
        self._check_usable()
        return self._states.job_timers.any_due

    def due_timers(self) -> Iterator[DueTimer]:
        """Take the timers that are due at the job's clock, earliest first: of all declared timers of its kind.

        Each is deleted before it is returned. One that is registered meanwhile comes too if it is due; but none comes
        twice: registered again for the time that it came at, it stays for the next call, if nobody deletes it. Raises
        `InputError` if the job has no clock, and if all timers are declared for another kind of clock.
        """
        self._check_usable()
        return self._states.job_timers.take_due()

    @property
    def fell_back(self) -> bool:
        """True before the first checkpoint if `fall_back_to_older` has opened an older one: batches may be missing."""
        return self._coordinator.fell_back

    @property
    def outbox(self) -> JobOutbox:
        """Stages the rows that a batch puts out, and holds what is still to be published."""
        return self._coordinator.outbox

    def begin_due_bases(self) -> None:
        """Begin to write bases if they are due now that the backend is opened. Its first checkpoint waits for them."""
        if self.newest is not None and self.restored is not None:
            self._base_writer.begin_at_opening(
                self._snapshots.committed, self.newest.checkpoint_id, restored_s=self.restored.seconds
            )

    @property
    def uncommitted(self) -> list[str]:
        """The names of the states with changes since the last checkpoint. Empty once it is closed, or has failed."""
        return self._states.changed() if self.is_usable and self._is_wanted else []

    def abandon(self) -> None:
        """Note that nobody wants the changes since the last checkpoint: leaving the backend says nothing of them."""
        self._is_wanted = False

    async def close(self) -> None:
        """Stop what runs in the background, and delete uploads that no checkpoint needs. Closing twice is fine.

        Uncommitted changes are forgotten.
        """
        if not self._closed:
            self._closed = True
            self._states.retire()
            self._base_writer.close()
            await self._writer.truncate_and_close(self._snapshots.to)
            await self._base_writer.wait_closed()
            if self._failure is None:
                await self._coordinator.write_hint()

    def forget(self) -> None:
        """Drop the states of a closed backend from memory; using one raises `BackendClosedError`. Twice is fine.

        For a caller that cannot know who still refers to the backend, such as the traceback of an error.
        """
        assert self._closed, "a backend that still drains its states"
        self._states.forget()

    async def _contribute(
        self, checkpoint_id: int, inline: InlineEncoder | None = None
    ) -> tuple[SnapshotResult, Sequence[bytes]]:
        """A snapshot for others to commit, and the frames of it that `inline` took. Holds `_checkpointing`."""
        self._check_usable()  # here and not earlier: what held the lock before may have failed
        if check_checkpoint_id(checkpoint_id) < self.next_checkpoint_id:
            raise CheckpointExistsError("checkpoint ids grow: use a larger one", checkpoint_id=checkpoint_id)
        with self._failing():
            return await self._snapshots.take(CheckpointId(checkpoint_id), inline=inline)

    def _declaring(self) -> KeyedStates:
        self._check_usable()
        return self._states

    @contextmanager
    def _failing(self) -> Generator[None, None, None]:
        """An error in here that is not the caller's ends the use of this backend."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            self._failure = error
            raise

    def _check_usable(self) -> None:
        self._home.check()
        if self._failure is not None:
            raise BackendClosedError("the backend has failed: open a new one") from self._failure
        if self._closed:
            raise BackendClosedError("the backend is closed: open a new one")


class StateBackend(KeyedBackend):
    """The keyed state of a whole job, and the checkpoints that make it durable. Made by `open_backend`.

    State is read and written synchronously, by one thread at a time, not while a checkpoint runs. The coroutines are
    called on the loop. After an error of `checkpoint` other than `InputError` the backend cannot be used any more: its
    memory may be ahead of what is committed, so open a new one and replay.
    """

    def __init__(
        self, machinery: Machinery, *, inline: InlineEncoder, spending: Spending, clock: Clock, observer: Observer
    ) -> None:
        super().__init__(machinery)
        self._inline = inline
        self._spending = spending
        self._clock = clock
        self._observer = observer

    async def checkpoint(
        self,
        checkpoint_id: int,
        *,
        source: SourceMark | None = None,
        savepoint: str | None = None,
        output: Output | None = None,
    ) -> CheckpointInfo:
        """Make every change so far durable and commit it under `checkpoint_id`. An unchanged state commits as well.

        Returns when the commit object exists in the primary: from then on a restore sees all of it, before nothing.
        With `savepoint` it is kept under that name until the savepoint is dropped; both come to exist in the same
        moment. `output`: the rows that the batch of `source` put out, to be published afterwards: `take_output`.

        Raises `SavepointExistsError` if the name is taken, `CheckpointExistsError` for an id that is not larger than
        every committed one (nothing has changed, the backend stays usable), `UploadError` or its
        `MaterializationError`, `StoreFullError` (nothing is committed: make room first), `FencedError` or
        `OutcomeUnknownError` (open a new backend), and `InputError` if opened with `read_only`, or on another loop.

        Takes up to `persist_delay_max_s` longer where `put_budget_usd_month` asks for it. Cancelled before its commit
        is sent, a checkpoint has committed nothing and lost nothing: the next one holds its changes. Cancelled later,
        it finishes first.
        """
        self._home.check_loop()
        async with self._checkpointing:
            self._check_usable()  # here and not earlier: the checkpoint before, waited for above, may have failed
            begun, requests = self._clock.monotonic(), self._spending.requests
            self._coordinator.check(CheckpointId(checkpoint_id))
            if savepoint is not None:
                check_savepoint_name(savepoint)
            if output is not None:
                check_source(output, source)
            with self._failing():
                self._base_writer.check()
                staged = None if output is None else await self.outbox.stage(output)
                snapshot, inline = await self._snapshots.take(
                    CheckpointId(checkpoint_id), inline=self._inline, own_key=self._coordinator.next_key
                )
                await self._hold(requests, snapshot.checkpoint_id)
                committed, changes = await finish(self._commit, snapshot, inline, source, savepoint, staged)
                if output is not None:
                    self.outbox.keep_at_hand(committed.commit.outbox[-1], output)
            spent = self._spending.since(requests)
            info = CheckpointInfo(
                checkpoint_id=committed.commit.checkpoint_id,
                sequence=committed.commit.sequence,
                changes=changes,
                primary_bytes=snapshot.primary_bytes + committed.size_bytes + (staged.uploaded_bytes if staged else 0),
                local_bytes=snapshot.local_bytes + (committed.size_bytes if committed.local else 0),
                requests=spent.requests.total(),
                seconds=self._clock.monotonic() - begun,
                local=self._snapshots.is_local(committed.commit.segments()),
                requests_by_kind=dict(spent.requests),
                usd=spent.usd,
                usd_month=spent.usd_month,
                persist_delay_s=spent.persist_delay_s,
            )
            self._spending.tell()
            self._observer.checkpoint_committed(info)
            return info

    async def savepoint(self, name: str) -> SavepointInfo:
        """Keep the commit that the state stands on under this name. As `CheckpointCoordinator.savepoint`.

        Raises `InputError` if the backend was opened with `read_only`.
        """
        self._home.check_loop()
        self._check_usable()
        if not self._coordinator.can_commit:
            raise InputError("opened for reading: it writes no savepoint. `statebackend.savepoint` does", name=name)
        return await self._coordinator.savepoint(name)

    async def take_output(self) -> tuple[StagedOutput, tuple[Buffer, ...]] | None:
        """The oldest output that is committed and not known to be published. As `CheckpointCoordinator.take_output`."""
        self._check_usable()
        return await self._coordinator.take_output()

    def published(self, output: StagedOutput) -> None:
        """Record that `output` has reached its destination: no later commit names it."""
        self._coordinator.published(output)

    async def history(self) -> AsyncIterator[CommitSummary]:
        """The commit that the state stands on, its parent, and so on to the job's first, or the oldest retained."""
        async for summary in self._coordinator.history():
            yield summary

    async def _hold(self, requests: Counter[str], checkpoint_id: CheckpointId) -> None:
        """Wait for as long as the budget asks. If cancelled, the checkpoint is given up; the next one has its bases."""
        try:
            await self._spending.hold(requests)
        except BaseException:
            self._snapshots.withdraw(checkpoint_id)
            raise

    async def _commit(
        self,
        snapshot: SnapshotResult,
        inline: Sequence[bytes],
        source: SourceMark | None,
        savepoint: str | None,
        staged: Staged | None,
    ) -> tuple[Committed, int]:
        """Commit the snapshot and stand on it; the commit, and how many changes are new in it.

        Runs within `finish`: cancelled halfway, it would leave a commit that this backend does not stand on.
        """
        changes = self._snapshots.pending(snapshot.checkpoint_id).changes
        with self._failing(), telling_fenced(self._observer):
            try:
                committed = await self._coordinator.commit(
                    snapshot.checkpoint_id,
                    [snapshot],
                    source,
                    savepoint,
                    inline=inline,
                    staged=staged,
                    clock=self._states.clock.mark,
                )
            except (StoreAccessError, StoreUnavailableError):
                # Refused, and read back as not there; or never sent, because the savepoint marker could not be written.
                await self._snapshots.reset(snapshot.checkpoint_id)
                raise
            except InputError:  # nothing was written: the next checkpoint has it all
                await self._snapshots.abort(snapshot.checkpoint_id)
                raise
        if not committed.local:
            self._snapshots.not_local(entry_key(committed.commit.sequence))
        state = range_of(committed.commit, self.key_groups)
        await self._snapshots.complete(snapshot.checkpoint_id, state)
        self._base_writer.begin_if_due(state, committed.commit.checkpoint_id)
        return committed, changes
