"""Builds the next commit from what the owners of the key groups contribute. For one job, one process does this."""

import math
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import anyio
import msgspec

from statebackend._codec.commit import Commit, EncodedEntry, encode_entry
from statebackend._log.fresh_names import new_stamp
from statebackend._log.log_writer import LogWriter
from statebackend._log.marks import marks_after
from statebackend._log.names import check_checkpoint_id, entry_key
from statebackend._log.outbox import JobOutbox, Staged, check_source
from statebackend._log.savepoint_markers import SavepointInfo, Savepoints
from statebackend._tasks import HomeProcess, finish
from statebackend.abc import Buffer
from statebackend.errors import BackendClosedError, CheckpointExistsError, InputError, OutcomeUnknownError
from statebackend.ids import (
    CheckpointId,
    ClockMark,
    CommitSummary,
    Epoch,
    KeyGroupRange,
    Lifetime,
    SnapshotResult,
    SourceMark,
    StagedOutput,
    StateDescriptor,
    cover_all,
)
from statebackend.settings import MiB
from statebackend.uploaders.local_copies import CopyWriter

RECENT_MAX: Final = 32
RECENT_BYTES_MAX: Final = 64 * MiB
"""So many commits, of so many bytes together, stay at hand: change sets that they carry are merged without a read."""


class Committed(msgspec.Struct, frozen=True):
    """A commit as a reader of it gets it, the size of its object, and whether that has a local copy."""

    commit: Commit
    size_bytes: int
    local: bool


class CheckpointCoordinator:
    """Stands on a commit and appends the next one.

    `newest` is the job's newest commit, `base` the one that the state was restored from. They differ after an older
    checkpoint was restored. The next commit then begins a branch: its parent is `base`, its id is above that of
    `newest`. It goes behind the claim that `writer` has made; without a claim nothing can be committed. `base_body` has
    the bytes of `base`, or nothing if they are not at hand.

    `copies` writes a local copy of each commit object beside it, so that a restore finds the changes in it locally too.
    """

    def __init__(
        self,
        writer: LogWriter,
        *,
        max_parallelism: int,
        newest: Commit | None,
        base: Commit | None,
        savepoints: Savepoints,
        outbox: JobOutbox,
        copies: CopyWriter | None = None,
        base_body: bytes = b"",
        fell_back: bool = False,
    ) -> None:
        """`base_body`: the bytes of `base`, if they are at hand."""
        self.base = base
        self.fell_back = fell_back
        """True before the first commit if `base` is older than the newest one, which could not be had."""
        self.base_body = base_body
        self.recent: Final[dict[str, bytes]] = {}
        """The newest commits that this made, by key, oldest first, as long as a changelog lists changes in them:
        `RECENT_MAX`, `RECENT_BYTES_MAX`."""
        self.outbox: Final = outbox
        self._newest = newest
        self._is_closed = False
        self._unknown: Commit | None = None
        """The commit of which nobody knows whether it was made: whatever was appended behind it might be refused."""
        self._committing = anyio.Lock()
        self._home = HomeProcess()
        self._writer = writer
        self._savepoints = savepoints
        self._max_parallelism = max_parallelism
        self._copies = copies

    @property
    def epoch(self) -> Epoch:
        """The epoch of the claim; 0 without one."""
        return self._writer.epoch

    @property
    def can_commit(self) -> bool:
        """True if there is a claim."""
        return self._writer.last is not None

    @property
    def newest(self) -> CommitSummary | None:
        """The job's newest commit, `None` before the first."""
        return None if self._newest is None else self._newest.summary

    async def history(self) -> AsyncIterator[CommitSummary]:
        """Yield the commit that the state stands on, its parent, and so on to the first, or to the oldest retained."""
        if self.base is not None:
            async for commit in self._writer.log.branch(self.base):
                yield commit.summary

    @property
    def next_sequence(self) -> int:
        """The sequence of the next commit. Needs a claim."""
        assert self._writer.last is not None
        return self._writer.last.sequence + 1

    @property
    def next_key(self) -> str:
        """The key of the next commit. Needs a claim."""
        return entry_key(self.next_sequence)

    @property
    def next_checkpoint_id(self) -> CheckpointId:
        """The smallest id that the next checkpoint may have."""
        return CheckpointId(0 if self._newest is None else self._newest.checkpoint_id + 1)

    def close(self) -> None:
        """Commit and publish nothing more, whatever is called afterwards."""
        self._is_closed = True

    async def write_hint(self) -> None:
        """Write the hint for the last entry, so that the next search for the end begins there. Never fails."""
        await self._writer.write_hint()

    def check(self, checkpoint_id: CheckpointId) -> None:
        """Raise `CheckpointExistsError` unless `checkpoint_id` may be the next one.

        Raises `BackendClosedError` after `close`, `InputError` without a claim or for what is no checkpoint id, and
        `OutcomeUnknownError` after a commit that ended so, even if its caller was cancelled and did not see that.
        """
        self._check_open()
        if self._unknown is not None:
            raise OutcomeUnknownError(
                "an earlier commit got no answer: reopen",
                sequence=self._unknown.sequence,
                checkpoint_id=self._unknown.checkpoint_id,
            )
        if not self.can_commit:
            raise InputError(
                "opened for reading, or for a part of the key groups: it cannot commit", checkpoint_id=checkpoint_id
            )
        if check_checkpoint_id(checkpoint_id) < self.next_checkpoint_id:
            raise CheckpointExistsError(
                "checkpoint ids grow: use a larger one", checkpoint_id=checkpoint_id, smallest=self.next_checkpoint_id
            )

    async def commit(
        self,
        checkpoint_id: int,
        snapshots: Sequence[SnapshotResult],
        source: SourceMark | None = None,
        savepoint: str | None = None,
        *,
        inline: Sequence[bytes] = (),
        staged: Staged | None = None,
        clock: ClockMark | None = None,
        starts_from: Any = None,
        transformed: tuple[str, ...] = (),
    ) -> Committed:
        """Commit one checkpoint from the snapshots of every owner. When this returns it exists: `notify_complete` them.

        With `savepoint` it is kept under that name. Raises `CheckpointExistsError`, `SavepointExistsError`,
        `BackendClosedError`, or `InputError` if the snapshots do not cover every key group once, are of another
        checkpoint or epoch, continue another checkpoint than `base`, or disagree on a state: then nothing was
        committed, `notify_aborted` them. Raises `FencedError` or `OutcomeUnknownError`: then close, and open the job
        again. A call waits for the one before. A cancelled call finishes first; if it ended with one of these two, the
        next call raises it.

        `inline`: frames for the commit to carry; the snapshots' handles into them are those of `carried`.
        `clock`: the job's, by default that of `base`, which it must not go back behind, nor behind that of any owner.
        `starts_from`: where a stream has to begin that goes on from here. It is carried until the first batch.
        `transformed`: the states whose values differ from those of `base` by no change sets.
        `staged`: the output rows of the batch of `source`, which the commit makes an output to be published: see
        `take_output`. The commit also names the outputs that are pending already.
        """
        async with self._committing:
            self.check(CheckpointId(checkpoint_id))
            ordered = sorted(snapshots, key=lambda snapshot: snapshot.state.key_groups)
            check_coverage([snapshot.state.key_groups for snapshot in ordered], self._max_parallelism)
            _check_equal("another checkpoint", checkpoint_id, [snapshot.checkpoint_id for snapshot in ordered])
            # A sweep may have deleted what another epoch uploaded: it does so as soon as that epoch is over.
            _check_equal("another epoch: open its owner again", self.epoch, [snapshot.epoch for snapshot in ordered])
            _check_base(None if self.base is None else self.base.checkpoint_id, ordered)
            commit = self._writer.next_commit(
                checkpoint_id=CheckpointId(checkpoint_id),
                parent=None if self.base is None else self.base.sequence,
                max_parallelism=self._max_parallelism,
                ranges=tuple(snapshot.state for snapshot in ordered),
                states=_merged(ordered, self.base),
                source=source,
                marks=marks_after(None if self.base is None else self.base.summary, source),
                outbox=(*self.outbox.pending, *_own_output(staged, source, sum(map(len, inline)))),
                starts_from=_start_after(self.base, source, starts_from),
                transformed=transformed,
                clock=_clock_after(None if self.base is None else self.base.clock, clock, ordered),
            )
            carried = inline if staged is None else (*inline, *staged.inline)
            committed = await finish(self._create, encode_entry(commit, self.next_key, carried), savepoint)
            if staged is not None:
                self.outbox.keep_at_hand(committed.commit.outbox[-1], staged)
            return committed

    async def savepoint(self, name: str) -> SavepointInfo:
        """Keep the commit that the state stands on under this name. Fences nobody.

        Raises `InputError` if nothing is committed, for an impossible name or a store that cannot list;
        `SavepointExistsError`; `CheckpointNotFoundError` if the commit is not retained any more; or `StoreError`. A
        failed or cancelled call may have made the savepoint.
        """
        self._check_open()
        if self.base is None:
            raise InputError("nothing is committed yet that could be a savepoint", name=name)
        return await self._savepoints.keep(name, self.base, random=new_stamp())

    async def take_output(self) -> tuple[StagedOutput, tuple[Buffer, ...]] | None:
        """Return the oldest output that is committed and not known to be published, as Arrow IPC streams, or `None`.

        Publish it before anything newer, then call `published`. It may have been published before, then with the same
        bytes. Checks first that nobody else has claimed the job. Raises `FencedError`, `BackendClosedError`,
        `InputError` without a claim, and as `JobOutbox.read`.
        """
        self._check_open()
        if not self.outbox.pending:
            return None
        if not self.can_commit:
            raise InputError("opened for reading, or for a part of the key groups: it cannot publish")
        await self._writer.check_epoch()
        output = self.outbox.pending[0]
        return output, await self.outbox.read(output)

    def published(self, output: StagedOutput) -> None:
        """Note that the output was published: later commits do not name it."""
        self.outbox.published(output)

    def _check_open(self) -> None:
        self._home.check()
        if self._is_closed:
            raise BackendClosedError("the job was left: open it again", job=self._writer.log.job)

    async def _create(self, encoded: EncodedEntry[Commit], savepoint: str | None) -> Committed:
        """Create the commit, with a local copy beside it, and stand on it."""
        commit = encoded.entry
        if savepoint is not None:  # before the commit: a marker alone means nothing, a commit alone is no savepoint
            await self._savepoints.mark(savepoint, commit)
        try:
            local = await self._create_copied(commit, encoded.body)
        except OutcomeUnknownError:
            self._unknown = commit
            raise
        # No await between these: nobody sees the new base with the old outbox, or the other way round.
        self._newest = self.base = commit
        self.fell_back = False
        self.base_body = encoded.body
        self._keep_at_hand(commit, encoded.body)
        self.outbox.committed(commit.outbox)
        return Committed(commit, len(encoded.body), local)

    def _keep_at_hand(self, commit: Commit, body: bytes) -> None:
        """Make room: changes that bases, layers or merged change sets have taken in are not merged again."""
        wanted = {handle.segment.key for each in commit.ranges for handle in each.changelog}
        self.recent[entry_key(commit.sequence)] = body
        for key in [key for key in self.recent if key not in wanted]:
            del self.recent[key]
        sizes = sum(map(len, self.recent.values()))
        while len(self.recent) > RECENT_MAX or sizes > RECENT_BYTES_MAX:
            sizes -= len(self.recent.pop(next(iter(self.recent))))

    async def _create_copied(self, commit: Commit, body: bytes) -> bool:
        """Create the commit; True if it has a local copy."""
        if self._copies is None:
            await self._writer.create(commit, body)
            return False
        key = entry_key(commit.sequence)
        copy = self._copies.start(key, (body,))
        try:
            await self._writer.create(commit, body)
        except OutcomeUnknownError:  # the commit may exist: then a restore needs what the copy holds
            copy.accept()
            copy.give_up("nobody knows whether the commit was made")
            raise
        except BaseException:
            copy.give_up("the commit was not made")
            raise
        return await self._copies.settle(key, copy)


def _own_output(staged: Staged | None, source: SourceMark | None, offset: int) -> tuple[StagedOutput, ...]:
    """The output of the commit's own batch. `offset`: inline bytes of the commit that come before it."""
    if staged is None:
        return ()
    return (StagedOutput(check_source(staged, source), staged.rows, staged.schema, staged.after(offset)),)


def _clock_after(
    before: ClockMark | None, clock: ClockMark | None, snapshots: Sequence[SnapshotResult]
) -> ClockMark | None:
    """The clock of the next commit. A commit that is made without one keeps the one that there was."""
    if clock is not None and before is not None and _is_behind(clock, before):
        raise InputError("a job's clock never goes back, and stays of its kind", before=before, clock=clock)
    for owned in (snapshot.clock for snapshot in snapshots):
        if owned is not None and _is_behind(clock or before, owned):
            raise InputError(
                "an owner has moved its clock further than the commit would have it: pass that as `clock`",
                owner=owned,
                clock=clock,
            )
    return clock or before


def _start_after(base: Commit | None, source: SourceMark | None, starts_from: Any) -> Any:
    """The start that the next commit names: none once a batch was taken, else that of the commit before."""
    if starts_from is not None or source is not None or base is None:
        return starts_from
    return base.starts_from


def _is_behind(clock: ClockMark | None, other: ClockMark) -> bool:
    return clock is None or clock.kind != other.kind or clock.now_s < other.now_s


def _check_equal(what: str, expected: int, found: Sequence[int]) -> None:
    if any(each != expected for each in found):
        raise InputError(f"a snapshot is of {what}", expected=expected, found=found)


def _check_base(base: CheckpointId | None, snapshots: Sequence[SnapshotResult]) -> None:
    """All on our base: an owner that stands on another checkpoint contributes state that is older, or of a branch."""
    if not all(snapshot.continues(base) for snapshot in snapshots):
        raise InputError(
            "an owner stands on another checkpoint: open it again, at the coordinator's",
            checkpoint_id=base,
            found={str(snapshot.state.key_groups): snapshot.base for snapshot in snapshots},
        )


def _merged(snapshots: Sequence[SnapshotResult], base: Commit | None) -> tuple[StateDescriptor, ...]:
    """The states of every owner. A number must mean the same state everywhere: changes name their state by it."""
    states: dict[int, StateDescriptor] = {}
    lifetimes: dict[int, list[Lifetime | None]] = {}
    for descriptor in (each for snapshot in snapshots for each in snapshot.states):
        plain = msgspec.structs.replace(descriptor, lifetime=None)
        if states.setdefault(descriptor.state_id, plain) != plain:
            raise InputError(
                "owners have declared different states, or in another order",
                one=states[descriptor.state_id],
                other=plain,
            )
        lifetimes.setdefault(descriptor.state_id, []).append(descriptor.lifetime)
    if len({descriptor.name for descriptor in states.values()}) != len(states):
        raise InputError("owners have declared the same states in another order", states=sorted(states.items()))
    before = {} if base is None else {state.state_id: state.lifetime for state in base.states}
    return tuple(
        msgspec.structs.replace(states[state_id], lifetime=_lifetime(lifetimes[state_id], before.get(state_id)))
        for state_id in sorted(states)
    )


def _lifetime(found: Sequence[Lifetime | None], before: Lifetime | None) -> Lifetime | None:
    """The lifetime of a state of which each owner says one, after that of the commit before.

    An owner that has not declared the state says that of before. Owners whose time-to-live has a clock of its own read
    it one after the other: the latest counts.
    """
    changed = [each for each in found if each != before]
    if not changed:
        return before
    timed = [each for each in changed if each is not None]
    return max(
        timed, key=lambda each: -math.inf if each.untimed_since_s is None else each.untimed_since_s, default=None
    )


def check_coverage(ranges: Sequence[KeyGroupRange], max_parallelism: int) -> None:
    """Every key group exactly once: a gap would lose state silently, an overlap would apply it twice."""
    if not cover_all(ranges, max_parallelism):
        raise InputError(
            "the snapshots must cover every key group once",
            ranges=[str(key_groups) for key_groups in ranges],
            max_parallelism=max_parallelism,
        )
