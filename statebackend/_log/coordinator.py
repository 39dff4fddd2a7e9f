"""Builds the next commit from what the owners of the key groups contribute. Of one job, one process does this."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import msgspec

from statebackend._codec.commit import Claim, Commit, EncodedEntry, encode_entry
from statebackend._log.commits import CommitLog
from statebackend._log.names import entry_key
from statebackend._log.outbox import Outbox, Staged, check_source
from statebackend._log.savepoints import Savepoints
from statebackend._tasks import finish
from statebackend.abc import Buffer, Clock
from statebackend.errors import BackendClosedError, CheckpointExistsError, InputError, OutcomeUnknownError
from statebackend.ids import (
    CheckpointId,
    CommitSequence,
    CommitSummary,
    Epoch,
    KeyGroupRange,
    SnapshotResult,
    SourceMark,
    StagedOutput,
    StateDescriptor,
)
from statebackend.settings import Settings
from statebackend.uploaders.local_copies import CopyWriter


class Committed(msgspec.Struct, frozen=True):
    """A commit as whoever reads it gets it, the size of its object, and whether there is a local copy of that."""

    commit: Commit
    size_bytes: int
    local: bool


class CommittedBase(msgspec.Struct, frozen=True):
    """A commit as it is handed to the owners of parts: where it lies, and its bytes; none where they are to be read."""

    key: str
    body: bytes = b""


class CheckpointCoordinator:
    """Stands on a commit and appends the next one.

    `newest` is the job's newest commit, `base` the one that the state was restored from. They differ after a restore of
    an older checkpoint, and the next commit then begins a branch: its parent is `base`, its id is above that of
    `newest`. It follows `claim`, by which this writer has opened the job; without one nothing can be committed.

    `copies` writes a copy of each commit object beside it: what a commit carries inline is then local, too.
    """

    def __init__(
        self,
        log: CommitLog,
        settings: Settings,
        *,
        newest: Commit | None,
        base: Commit | None,
        claim: Claim | None,
        savepoints: Savepoints,
        outbox: Outbox,
        clock: Clock,
        new_stamp: Callable[[], str],
        release: str,
        copies: CopyWriter | None = None,
        base_body: bytes = b"",
    ) -> None:
        """`base_body`: the bytes of `base`, where they are at hand."""
        self.base = base
        self._base_body = base_body
        self.outbox: Final = outbox
        self._newest = newest
        self._last: Claim | Commit | None = claim  # our own last entry
        self._is_closed = False
        self._log = log
        self._savepoints = savepoints
        self._job: Final = settings.job
        self._max_parallelism: Final = settings.max_parallelism
        self._clock = clock
        self._new_stamp = new_stamp
        self._release = release
        self._copies = copies

    @property
    def epoch(self) -> Epoch:
        """Of the claim; 0 without one."""
        return Epoch(0) if self._last is None else self._last.epoch

    @property
    def can_commit(self) -> bool:
        """Whether there is a claim."""
        return self._last is not None

    @property
    def newest(self) -> CommitSummary | None:
        """The job's newest commit, `None` before the first."""
        return None if self._newest is None else self._newest.summary

    async def history(self) -> AsyncIterator[CommitSummary]:
        """The commit that the state stands on, its parent, and so on to the job's first, or the oldest retained."""
        if self.base is not None:
            async for commit in self._log.ancestors(self.base):
                yield commit.summary

    def committed(self, body_bytes_max: int) -> CommittedBase | None:
        """The commit that the state stands on, `None` before the first; its bytes, if they are no more than that."""
        if self.base is None:
            return None
        body = self._base_body
        return CommittedBase(entry_key(self.base.sequence), body if len(body) <= body_bytes_max else b"")

    @property
    def next_key(self) -> str:
        """Where the next commit will lie, for who has a claim."""
        assert self._last is not None
        return entry_key(self._last.sequence + 1)

    @property
    def next_checkpoint_id(self) -> CheckpointId:
        """The smallest id that the next checkpoint may have."""
        return CheckpointId(0 if self._newest is None else self._newest.checkpoint_id + 1)

    def close(self) -> None:
        """The claim is left: nothing is committed or published by it any more, whoever has not come to that yet."""
        self._is_closed = True

    def check(self, checkpoint_id: CheckpointId) -> None:
        """Raise `CheckpointExistsError` unless `checkpoint_id` may be the next one.

        Raises `BackendClosedError` once it is closed, `InputError` without a claim.
        """
        self._check_open()
        if self._last is None:
            raise InputError(
                "opened to read, or for a part of the key groups: it cannot commit", checkpoint_id=checkpoint_id
            )
        if checkpoint_id < self.next_checkpoint_id:
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
    ) -> Committed:
        """Commit one checkpoint from the snapshots of every owner. It exists when this returns: `notify_complete` them.

        With `savepoint` it is kept under that name. Raises `CheckpointExistsError`, `SavepointExistsError`, or
        `InputError` for snapshots that do not cover every key group once, are of another checkpoint or epoch, or
        disagree on a state, or `BackendClosedError`: nothing was committed, `notify_aborted` them. Raises
        `FencedError`, or `OutcomeUnknownError`: close, and open the job again. A cancelled call finishes first.

        `inline`: frames for the commit to carry; handles of the snapshots into them are those of `encode_inline`.
        `staged`: the rows that the batch of `source` put out, which this makes an output to be published: see
        `take_output`. What is pending already the commit names as well.
        """
        self.check(CheckpointId(checkpoint_id))
        assert self._last is not None
        ordered = sorted(snapshots, key=lambda snapshot: snapshot.state.key_groups)
        _check_coverage([snapshot.state.key_groups for snapshot in ordered], self._max_parallelism)
        _check_equal("another checkpoint", checkpoint_id, [snapshot.checkpoint_id for snapshot in ordered])
        _check_equal("another epoch: open its owner again", self.epoch, [snapshot.epoch for snapshot in ordered])
        commit = Commit(
            job=self._job,
            sequence=CommitSequence(self._last.sequence + 1),
            checkpoint_id=CheckpointId(checkpoint_id),
            epoch=self._last.epoch,
            parent=None if self.base is None else self.base.sequence,
            stamp=self._new_stamp(),
            max_parallelism=self._max_parallelism,
            ranges=tuple(snapshot.state for snapshot in ordered),
            states=_merged(ordered),
            source=source,
            committed_at_s=self._clock.time(),
            release=self._release,
            outbox=(*self.outbox.pending, *_own_output(staged, source, sum(map(len, inline)))),
        )
        carried = inline if staged is None else (*inline, *staged.inline)
        committed = await finish(self._create, encode_entry(commit, self.next_key, carried), savepoint)
        if staged is not None and source is not None:
            self.outbox.keep_at_hand(source, staged)
        return committed

    async def take_output(self) -> tuple[StagedOutput, tuple[Buffer, ...]] | None:
        """The oldest output that is committed and not known to be published, with its Arrow IPC streams; or `None`.

        To be published before anything newer is put out, and then told of by `published`; whoever has published it
        before has published the same bytes. Looks who owns the job first. Raises `FencedError`, `BackendClosedError`,
        `InputError` without a claim, and as `Outbox.read`.
        """
        self._check_open()
        if not self.outbox.pending:
            return None
        if self._last is None:
            raise InputError("opened to read, or for a part of the key groups: it cannot publish")
        await self._log.check_epoch(self._last)
        output = self.outbox.pending[0]
        return output, await self.outbox.read(output)

    def published(self, output: StagedOutput) -> None:
        """It is where it was to go: no commit from the next one on names it."""
        self.outbox.published(output)

    def _check_open(self) -> None:
        if self._is_closed:
            raise BackendClosedError("the job was left: open it again", job=self._job)

    async def _create(self, encoded: EncodedEntry[Commit], savepoint: str | None) -> Committed:
        """Create the commit, with a local copy beside it, and stand on it."""
        if savepoint is not None:
            await self._savepoints.mark(savepoint, encoded.entry)
        local = await self._create_copied(encoded.entry, encoded.body)
        self._newest = self.base = self._last = encoded.entry
        self._base_body = encoded.body
        self.outbox.committed(encoded.entry.outbox)
        return Committed(encoded.entry, len(encoded.body), local)

    async def _create_copied(self, commit: Commit, body: bytes) -> bool:
        if self._copies is None:
            await self._log.create(commit, body)
            return False
        copy = self._copies.start(self.next_key, (body,))
        try:
            await self._log.create(commit, body)
        except OutcomeUnknownError:  # it may be there: then a restore needs what the copy holds
            copy.keep()
            copy.give_up("nobody knows whether the commit was made")
            raise
        except BaseException:
            copy.give_up("the commit was not made")
            raise
        return await self._copies.settle(self.next_key, copy)


def _own_output(staged: Staged | None, source: SourceMark | None, offset: int) -> tuple[StagedOutput, ...]:
    """What the commit's own batch put out, where `offset` bytes come before it among what the commit carries."""
    if staged is None:
        return ()
    return (StagedOutput(check_source(staged, source), staged.rows, staged.schema, staged.after(offset)),)


def _check_equal(what: str, expected: int, found: Sequence[int]) -> None:
    if any(each != expected for each in found):
        raise InputError(f"a snapshot is of {what}", expected=expected, found=found)


def _merged(snapshots: Sequence[SnapshotResult]) -> tuple[StateDescriptor, ...]:
    """The states of every owner. Their numbers mean the same everywhere, or the changes could not be told apart."""
    states = {descriptor.state_id: descriptor for snapshot in snapshots for descriptor in snapshot.states}
    for snapshot in snapshots:
        for descriptor in snapshot.states:
            if states[descriptor.state_id] != descriptor:
                raise InputError(
                    "owners have declared different states, or in another order",
                    one=states[descriptor.state_id],
                    other=descriptor,
                )
    if len({descriptor.name for descriptor in states.values()}) != len(states):
        raise InputError("owners have declared the same states in another order", states=sorted(states.items()))
    return tuple(states[state_id] for state_id in sorted(states))


def _check_coverage(ranges: Sequence[KeyGroupRange], max_parallelism: int) -> None:
    """Every key group exactly once: a gap would lose state silently, an overlap would apply it twice."""
    expected = 0
    for key_groups in ranges:
        if key_groups.first != expected:
            break
        expected = key_groups.last + 1
    if expected != max_parallelism:
        raise InputError(
            "the snapshots must cover every key group once",
            ranges=[str(key_groups) for key_groups in ranges],
            max_parallelism=max_parallelism,
        )
