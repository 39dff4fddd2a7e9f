"""The backend that users hold: the states that it declares, and the checkpoints that make them durable.

One checkpoint, in the order of the calls:

    drain the states into the changelog -> persist, or take inline -> register the local copies -> hold -> commit
    -> confirm -> begin bases

Up to the commit everything can be cancelled and nothing is lost; from there on it runs to its end.
"""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Final

import anyio
import msgspec
from msgspec import UNSET

from statebackend._changelog.writer import ChangelogWriter
from statebackend._checkpoint.base_writer import BaseWriter
from statebackend._checkpoint.declaring import DeclaresStates
from statebackend._checkpoint.rescale import range_of
from statebackend._checkpoint.snapshots import InlineEncoder, Pending, Snapshots
from statebackend._checkpoint.spending import Spending
from statebackend._local.removal import LocalRetention
from statebackend._log.coordinator import CheckpointCoordinator, Committed
from statebackend._log.names import check_savepoint_name, entry_key
from statebackend._log.outbox import JobOutbox, Output, Staged, check_source
from statebackend._state.declared import KeyedStates
from statebackend._tasks import finish
from statebackend.abc import Buffer, CheckpointInfo, Clock, Observer, RestoreReport
from statebackend.errors import CheckpointExistsError, InputError, StoreAccessError, StoreUnavailableError
from statebackend.ids import (
    CheckpointId,
    CommitSummary,
    Epoch,
    KeyGroupRange,
    SnapshotResult,
    SourceMark,
    StagedOutput,
)


class StateBackend(DeclaresStates):
    """Keyed state, and the checkpoints that make it durable. Made by `open_backend`.

    State is read and written synchronously, by one thread at a time, not while a checkpoint runs. The coroutines are
    called on the loop. After an error of `checkpoint` other than `InputError` the backend is done for: what is in
    memory may be ahead of what is committed; open a new one and replay.
    """

    def __init__(
        self,
        states: KeyedStates,
        writer: ChangelogWriter,
        coordinator: CheckpointCoordinator,
        spending: Spending,
        *,
        epoch: Epoch,
        inline: InlineEncoder,
        base_writer: BaseWriter,
        retention: LocalRetention | None,
        restored: RestoreReport | None,
        clock: Clock,
        observer: Observer,
        history: bytes = b"",
    ) -> None:
        """`history`: of the state that it begins with, where the log's name is that of no other log."""
        super().__init__(states)
        self.restored: Final = restored
        self._epoch: Final = epoch
        self._writer = writer
        self._coordinator = coordinator
        self._spending = spending
        self._inline = inline
        self._clock = clock
        self._observer = observer
        self._base_writer = base_writer
        self._snapshots = Snapshots(
            states,
            writer,
            base_writer,
            retention,
            epoch=epoch,
            committed=msgspec.structs.replace(range_of(coordinator.base, states.key_groups), history=history or UNSET),
            restored=restored,
        )
        self._checkpointing = anyio.Lock()

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups this backend owns."""
        return self._states.key_groups

    @property
    def changed(self) -> frozenset[int]:
        """The key groups that have changed since their last base."""
        return self._base_writer.changed

    @property
    def base_failures(self) -> int:
        """Times in a row that bases could not be written."""
        return self._base_writer.failures

    @property
    def newest(self) -> CommitSummary | None:
        """The commit that the state stands on, `None` before the first one."""
        return None if self._coordinator.base is None else self._coordinator.base.summary

    @property
    def epoch(self) -> Epoch:
        """The epoch that opening has begun: who opens the job after this has a larger one.

        Of a part of the key groups, and opened to read: the epoch that it was opened in.
        """
        return self._epoch

    @property
    def next_checkpoint_id(self) -> CheckpointId:
        """The smallest id that the next checkpoint may have."""
        return self._coordinator.next_checkpoint_id

    @property
    def outbox(self) -> JobOutbox:
        """Where the rows that a batch puts out are staged, and what is to be published."""
        return self._coordinator.outbox

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
        With `savepoint` it is kept under that name until that is dropped; the two come to exist in the same moment.
        `output`: the rows that the batch of `source` has put out, to be published after this: `take_output`.
        Raises `SavepointExistsError` where the name is taken, `CheckpointExistsError` for an id that is not larger than
        every committed one (nothing has changed, go on), `UploadError` or its `MaterializationError`, `FencedError` or
        `OutcomeUnknownError` (open a new backend).

        Takes up to `persist_delay_max_s` longer where `put_budget_usd_month` wants it. Cancelled before its commit is
        sent, a checkpoint has committed nothing and lost nothing: the next one holds its changes. Cancelled later, it
        finishes first.
        """
        async with self._checkpointing:
            self._check_usable()  # here: the one before, for which this one has waited, may have failed
            begun, requests = self._clock.monotonic(), self._spending.requests
            self._coordinator.check(CheckpointId(checkpoint_id))
            if savepoint is not None:
                check_savepoint_name(savepoint)
            if output is not None:
                check_source(output, source)
            with self._failing():
                self._base_writer.check()
                staged = None if output is None else await self.outbox.stage(output)
                snapshot, inline = await self._snapshot(CheckpointId(checkpoint_id), inline=self._inline)
                await self._hold(requests, snapshot.checkpoint_id)
                committed, changes = await finish(self._commit, snapshot, inline, source, savepoint, staged)
                if output is not None and source is not None:
                    self.outbox.keep_at_hand(source, output)
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

    async def take_output(self) -> tuple[StagedOutput, tuple[Buffer, ...]] | None:
        """The oldest output that is committed and not known to be published. As `CheckpointCoordinator.take_output`."""
        self._check_usable()
        return await self._coordinator.take_output()

    def published(self, output: StagedOutput) -> None:
        """It is where it was to go: no commit from the next one on names it."""
        self._coordinator.published(output)

    async def snapshot(self, checkpoint_id: int) -> SnapshotResult:
        """Make every change so far durable, for a `CheckpointCoordinator` to commit it with those of the other owners.

        What becomes of the checkpoint is told by one of the three methods below; until then the changes are in the
        next snapshot, too. Bases that are due are begun here, and are in a later one. Ids grow. Raises
        `CheckpointExistsError`, and `UploadError` or its `MaterializationError` (open a new backend). Cancelled, it has
        lost nothing: the next one holds its changes.
        """
        self._check_usable()
        with self._failing():
            self._base_writer.check()
        return (await self._contribute(checkpoint_id, begin=True))[0]

    async def begin_bases(self) -> None:
        """Begin to write bases of the commit that this stands on, before anything is changed. `contribute` waits."""
        checkpoint_id = CheckpointId(0) if self.newest is None else self.newest.checkpoint_id
        await self._base_writer.begin_if_due(self._snapshots.committed, checkpoint_id, due=True)

    async def contribute(self, checkpoint_id: int) -> tuple[SnapshotResult, Sequence[bytes]]:
        """As `snapshot`, but what is small is not uploaded: it is in these frames, for the commit to carry them.

        Bases that were begun are in it when this returns, or could not be written.
        """
        await self._base_writer.settled()
        return await self._contribute(checkpoint_id, inline=self._inline)

    async def _contribute(
        self, checkpoint_id: int, *, inline: InlineEncoder | None = None, begin: bool = False
    ) -> tuple[SnapshotResult, Sequence[bytes]]:
        """`begin`: then begin bases of it, if they are due."""
        async with self._checkpointing:
            self._check_usable()  # as in `checkpoint`
            if checkpoint_id <= self._snapshots.newest or checkpoint_id < self.next_checkpoint_id:
                raise CheckpointExistsError("checkpoint ids grow: use a larger one", checkpoint_id=checkpoint_id)
            with self._failing():
                contribution = await self._snapshot(CheckpointId(checkpoint_id), inline=inline)
                if begin:
                    snapshot, _ = contribution
                    await self._base_writer.begin_if_due(snapshot.state, snapshot.checkpoint_id)
                return contribution

    async def notify_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is committed. What only older ones used is not needed any more, here and in the local copy.

        Waits for a snapshot that is being made. Raises `InputError` where there is no snapshot of it that is still
        open. A cancelled call has been heard.
        """
        await finish(self._notify_complete, checkpoint_id)

    async def notify_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint will never be committed: its changes go with the next one. Raises as `notify_complete`."""
        await finish(self._notify_aborted, checkpoint_id)

    async def notify_subsumed(self, checkpoint_id: int) -> None:
        """No checkpoint up to this one is to be restored any more. Also right for one that is not known."""
        self._check_usable()
        await self._writer.subsume(CheckpointId(checkpoint_id))

    async def _notify_complete(self, checkpoint_id: int) -> None:
        async with self._checkpointing:  # a snapshot goes on from where its owner stood when it was begun
            snapshot = self._pending(checkpoint_id).snapshot
            await self._snapshots.complete(snapshot.checkpoint_id, snapshot.state)

    async def _notify_aborted(self, checkpoint_id: int) -> None:
        async with self._checkpointing:
            await self._snapshots.abort(self._pending(checkpoint_id).snapshot.checkpoint_id)

    async def history(self) -> AsyncIterator[CommitSummary]:
        """The commit that the state stands on, its parent, and so on to the job's first, or the oldest retained."""
        async for summary in self._coordinator.history():
            yield summary

    async def close(self) -> None:
        """Let go of what no checkpoint needs. Uncommitted changes are forgotten; closing twice is fine."""
        if not self._closed:
            self._closed = True
            self._base_writer.close()
            await self._writer.truncate_and_close(self._snapshots.to)
            await self._base_writer.wait_closed()
            if self._failure is None:
                await self._coordinator.write_hint()

    async def _snapshot(
        self, checkpoint_id: CheckpointId, *, inline: InlineEncoder | None = None
    ) -> tuple[SnapshotResult, Sequence[bytes]]:
        own_key = self._coordinator.next_key if self._coordinator.can_commit else None
        return await self._snapshots.take(checkpoint_id, inline=inline, own_key=own_key)

    async def _hold(self, requests: Counter[str], checkpoint_id: CheckpointId) -> None:
        """Wait as the budget wants it. Cancelled, the checkpoint comes to nothing, and its bases go to the next one."""
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
        """Commit the snapshot and stand on it; say how many changes are new. Not to be cut in two: within `finish`."""
        changes = self._snapshots.pending(snapshot.checkpoint_id).changes
        with self._failing():
            try:
                committed = await self._coordinator.commit(
                    snapshot.checkpoint_id, [snapshot], source, savepoint, inline=inline, staged=staged
                )
            except (StoreAccessError, StoreUnavailableError):  # refused, and read back; or not sent, for want of a mark
                await self._snapshots.reset(snapshot.checkpoint_id)
                raise
            except InputError:  # nothing was written: the next checkpoint has it all
                await self._snapshots.abort(snapshot.checkpoint_id)
                raise
        if not committed.local:
            self._snapshots.not_local(entry_key(committed.commit.sequence))
        state = range_of(committed.commit, self.key_groups)
        await self._snapshots.complete(snapshot.checkpoint_id, state)
        await self._base_writer.begin_if_due(state, committed.commit.checkpoint_id)
        return committed, changes

    def _pending(self, checkpoint_id: int) -> Pending:
        self._check_usable()
        return self._snapshots.pending(checkpoint_id)
