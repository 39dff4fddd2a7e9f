"""One owner's snapshots: its contributions to checkpoints, and what becomes of them.

    take -> complete                    a commit holds the snapshot: the owner continues from it
         -> abort, or reset             no commit ever will: the next snapshot has it all

A snapshot is complete: it holds all that is committed and all changes since, or the bases that stand for them. Several
may be pending; what is in one is in each later one, until its checkpoint has an outcome.
"""

import itertools
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from statebackend._changelog.changelog_writer import ChangelogWriter
from statebackend._changelog.ledger import UploadedChangeSet
from statebackend._changelog.segment_upload import INLINE_ENCODE_BYTES_MAX
from statebackend._checkpoint.lineage import extended
from statebackend._checkpoint.materialization.base_writer import BaseWriter
from statebackend._checkpoint.materialization.bases import Bases, with_bases
from statebackend._codec.change_sets.changes import Changes, ChangeSet
from statebackend._codec.commit import IN_HERE, carried
from statebackend._codec.segment import EncodedFrame, SealedSet, frame_of
from statebackend._local.removal import LocalRetention
from statebackend._state.declared import KeyedStates
from statebackend._threads import WorkerThreads
from statebackend.abc import RestoreReport
from statebackend.errors import InputError
from statebackend.ids import (
    ChangeSetHandle,
    CheckpointId,
    Epoch,
    RangeState,
    RestoreSource,
    SequenceNumber,
    SnapshotResult,
)
from statebackend.settings import Compression

SHARE_MIN: Final = 0.25
SHARE_DECAY: Final = 0.98
CAUTION: Final = 1.5
"""Change sets that compress to less than `SHARE_MIN` are not expected. After a failure, which costs the encoding, the
expected share is `CAUTION` times what was found, and falls by `SHARE_DECAY` a checkpoint: the next try is 20 later."""


class InlineFrames(msgspec.Struct, frozen=True):
    """Change sets encoded for a commit to carry, and the handles that say where in it they lie."""

    frames: Sequence[bytes]
    handles: tuple[ChangeSetHandle, ...]


class InlineEncoder:
    """Takes small checkpoints out of the changelog for their commit to carry: its one PUT is then all they cost.

    Takes at most `bytes_max` encoded bytes; 0: nothing. Only encoding tells how many there are. So it tries, where the
    share of their size that change sets took before leaves hope; after a failure it is careful for some checkpoints.
    """

    def __init__(self, *, bytes_max: int, compression: Compression, threads: WorkerThreads) -> None:
        self._bytes_max: Final = bytes_max
        self._compression: Compression = compression
        self._threads = threads
        self._share = SHARE_MIN  # of the estimated size, that the encoded bytes are expected to take

    async def take(self, writer: ChangelogWriter, from_: SequenceNumber) -> InlineFrames | None:
        """Everything from `from_` on, if it is small and none of it is uploaded or being uploaded; otherwise `None`.

        It stays in the log until `ChangelogWriter.confirm`. Raises as `ChangelogWriter.persist`. A cancelled call
        leaves nothing behind.
        """
        sealed = await writer.take_inline(from_, int(self._bytes_max / self._share))
        if not sealed:
            self._share = max(SHARE_MIN, self._share * SHARE_DECAY)
            return None if sealed is None else InlineFrames((), ())
        frames = await self._encode(sealed)
        encoded_bytes = sum(frame.size_bytes for frame in frames)
        share = encoded_bytes / sum(each.size_bytes for each in sealed)
        if encoded_bytes > self._bytes_max:
            self._share = min(1.0, share * CAUTION)
            writer.encoded(frames)
            return None
        self._share = min(1.0, max(SHARE_MIN, share))
        return InlineFrames(*carried(frames))

    async def _encode(self, sealed: Sequence[SealedSet]) -> Sequence[EncodedFrame]:
        def encode() -> Sequence[EncodedFrame]:
            return [frame_of(each, self._compression) for each in sealed]

        to_encode = sum(each.size_bytes for each in sealed if isinstance(each, ChangeSet))
        return encode() if to_encode <= INLINE_ENCODE_BYTES_MAX else await self._threads.cpu(encode)


class Pending(msgspec.Struct, frozen=True):
    """A snapshot whose checkpoint has no outcome yet. `changes`: the number of changes that are new in it."""

    to: SequenceNumber
    snapshot: SnapshotResult
    changes: int
    bases: Bases | None


class Snapshots:
    """The snapshots of the owner of `states`, which continues from `committed`, its part of the checkpoint `base`.

    If `committed` has a history, each snapshot extends it. `restored` says which committed files have no local copy.
    """

    def __init__(
        self,
        states: KeyedStates,
        writer: ChangelogWriter,
        base_writer: BaseWriter,
        retention: LocalRetention | None,
        *,
        epoch: Epoch,
        base: CheckpointId | None,
        committed: RangeState,
        restored: RestoreReport | None,
    ) -> None:
        self.committed = committed
        self._base = base
        self._states = states
        self._time = StillTime(states)
        self._writer = writer
        self._base_writer = base_writer
        self._retention = retention
        self._epoch: Final = epoch
        self._source = _source(restored)  # until a commit tells
        self._only_primary = _not_local(restored)  # keys of files without a local copy
        self._changes: Iterator[Changes] = iter(())  # drained from the states and not logged yet
        self._committed_to = SequenceNumber(0)  # everything below is in `committed`
        self._to = SequenceNumber(0)
        self._pending: dict[CheckpointId, Pending] = {}

    @property
    def to(self) -> SequenceNumber:
        """The end of the last snapshot: a commit may hold what lies below."""
        return self._to

    @property
    def newest(self) -> int:
        """The newest checkpoint that is committed or waits for its outcome, -1 if there is none."""
        return max(self._pending, default=-1 if self._base is None else self._base)

    def pending(self, checkpoint_id: int) -> Pending:
        """The snapshot of a checkpoint. Raises `InputError` if there is none, or the checkpoint has an outcome."""
        if (found := self._pending.get(CheckpointId(checkpoint_id))) is None:
            raise InputError("no snapshot of that checkpoint waits for its outcome", checkpoint_id=checkpoint_id)
        return found

    def is_local(self, keys: Collection[str]) -> bool:
        """True if each of these objects has a local copy."""
        return self._retention is not None and self._only_primary.isdisjoint(keys)

    def not_local(self, key: str) -> None:
        """Record that the object has no local copy."""
        self._only_primary.add(key)

    def now_local(self, key: str) -> None:
        """Record that the object has a local copy after all."""
        self._only_primary.discard(key)

    async def take(
        self, checkpoint_id: CheckpointId, *, inline: InlineEncoder | None = None, own_key: str | None = None
    ) -> tuple[SnapshotResult, Sequence[bytes]]:
        """Make everything up to now durable; or, if `inline` takes it, return it in frames for the commit to carry.

        `own_key`: where the commit will lie, if it gets a local copy too. Raises as `ChangelogWriter.persist`. A
        cancelled call has lost nothing: the next one has it all.
        """
        self._time.look()
        await self._drain()
        operator, next_timer_s = self._states.operator_report(), self._states.job_timers.next_s()
        sizes = self._states.state_sizes()
        to = self._writer.next_sequence_number()
        taken = None if inline is None else await inline.take(self._writer, self._committed_to)
        uploaded: Sequence[UploadedChangeSet] = ()
        if taken is None:
            uploaded = await self._writer.persist(self._committed_to, checkpoint_id)
        handles = tuple(each.handle for each in uploaded) if taken is None else taken.handles
        primary_bytes, local_bytes = _stored_bytes(uploaded)
        self._only_primary.update(each.handle.segment.key for each in uploaded if not each.local)
        if self._states.runs.is_full:  # the sooner a commit has the runs, the sooner rows can leave the memory
            await self._base_writer.settled()
        await self._base_writer.settled_for_first()
        bases = self._base_writer.ready()
        committed = self.committed
        state = msgspec.structs.replace(
            committed,
            changelog=(*committed.changelog, *handles),
            operator=operator,
            history=extended(committed.history, handles) if committed.history else UNSET,
            next_timer_s=next_timer_s,
            sizes=sizes,
            restored=self._source,
        )
        state = self._with_new_bases(state, bases)
        segments = state.segments() - {IN_HERE.key}
        snapshot = SnapshotResult(
            checkpoint_id=checkpoint_id,
            state=state,
            local=self.is_local(segments),
            primary_bytes=primary_bytes,
            local_bytes=local_bytes,
            epoch=self._epoch,
            states=self._states.descriptors,
            base=self._base,
            pending=tuple(self._pending),
            clock=self._states.clock.mark,
        )
        self._to = to
        self._pending[checkpoint_id] = Pending(to, snapshot, sum(handle.records for handle in handles), bases)
        if self._retention is not None:
            self._retention.register(segments if own_key is None else segments | {own_key}, checkpoint_id)
        return snapshot, () if taken is None else taken.frames

    async def complete(self, checkpoint_id: CheckpointId, state: RangeState) -> None:
        """The checkpoint is committed: continue from it. `state` is what its commit holds."""
        pending = self._pending[checkpoint_id]
        self._writer.confirm(self._committed_to, pending.to, checkpoint_id)
        self._base_writer.confirmed(pending.bases)
        self.committed, self._committed_to, self._base = state, pending.to, checkpoint_id
        self._source = UNSET
        self._only_primary &= state.segments()
        self._pending = {newer: each for newer, each in self._pending.items() if newer > checkpoint_id}
        if self._retention is not None:
            self._retention.confirm(checkpoint_id)
        await self._writer.truncate(pending.to)  # the next commit lists the handles of this one, not the log's

    async def abort(self, checkpoint_id: CheckpointId) -> None:
        """The checkpoint will not be committed: the next one has it all."""
        if self._retention is not None:
            self._retention.abort(checkpoint_id)
        await self.reset(checkpoint_id)

    async def reset(self, checkpoint_id: CheckpointId) -> None:
        """As `abort`, but local copies stay: the commit may exist after all, and then a restore needs them."""
        pending = self.withdraw(checkpoint_id)
        await self._writer.reset(self._committed_to, pending.to, checkpoint_id)

    def withdraw(self, checkpoint_id: CheckpointId) -> Pending:
        """The checkpoint will not be committed: its bases go to the next one. Everything else stays in the log."""
        pending = self._pending.pop(checkpoint_id)
        # Another snapshot may hold the same bases, and may yet be committed.
        if all(other.bases is not pending.bases for other in self._pending.values()):
            self._base_writer.refused(pending.bases)
        return pending

    async def _drain(self) -> None:
        """Hand all changes to the changelog, as fast as the store takes them. The next call resumes a cancelled one."""
        self._changes = itertools.chain(self._changes, self._states.drain())
        for changes in self._changes:
            self._base_writer.note(changes)
            self._writer.append(changes)
            await self._writer.room()

    def _with_new_bases(self, state: RangeState, bases: Bases | None) -> RangeState:
        if bases is None:
            return state
        if bases.rocksdb is not None:  # files that it shares may have had no copy before
            self._only_primary.difference_update(file.handle.key for file in bases.rocksdb.files)
        self._only_primary.update(bases.only_primary)
        return with_bases(state, bases)


def _source(restored: RestoreReport | None) -> RestoreSource | UnsetType:
    if restored is None:
        return UNSET
    return RestoreSource(
        restored.files_local,
        restored.files_primary,
        restored.bytes_local,
        restored.bytes_primary,
        round(restored.seconds, 6),
    )


def _not_local(restored: RestoreReport | None) -> set[str]:
    fallbacks = () if restored is None else restored.fallbacks
    return {fallback.name for fallback in fallbacks if not fallback.repaired}


def _stored_bytes(uploaded: Iterable[UploadedChangeSet]) -> tuple[int, int]:
    """Bytes of the segments in the primary, and of those that have a local copy."""
    segments = {each.handle.segment: each.local for each in uploaded}
    return (
        sum(segment.length for segment in segments),
        sum(segment.length for segment, local in segments.items() if local),
    )


_logger = logging.getLogger(__name__)


class StillTime:
    """Looks at the time of `states` with each snapshot, and warns once of what a slip has probably left standing:

    a clock that nothing moves, and timers that nothing takes.
    """

    def __init__(self, states: KeyedStates) -> None:
        self._states = states
        self._snapshots = 0

    def look(self) -> None:
        """Look before a snapshot. The first one says nothing of the clock: it may be for an edit by hand."""
        clock = self._states.clock
        if clock.kind is None:
            return
        self._snapshots += 1
        if self._snapshots == 2 and clock.mark is not None and not clock.has_moved:
            _logger.warning(
                "the job's clock stands at %s, where it stood when the state was opened, and time-to-live and timers "
                "go by it: call advance_clock once per batch",
                clock.now_s,
            )
        for name in self._states.job_timers.neglected():
            _tell_neglected(name)


@cache  # on executors each attempt would say it again
def _tell_neglected(name: str) -> None:
    _logger.warning(
        "timers of %r are due by the job's clock, and nothing takes them: declare them before the batch, and write "
        "on_timer, or call due_timers of the backend",
        name,
    )
