"""Builds the next commit from what the owners of the key groups contribute. Of one job, one process does this."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from statebackend._checkpoint.commits import CommitLog, commit_key
from statebackend._codec.commit import Claim, Commit, RangeState, StateDescriptor, encode_entry
from statebackend.abc import Clock
from statebackend.errors import CheckpointExistsError, InputError, OutcomeUnknownError
from statebackend.ids import CheckpointId, CommitSequence, Epoch, KeyGroupRange, SnapshotResult, SourceMark
from statebackend.settings import Settings
from statebackend.uploaders.local_copies import CopyWriter


class Committed(msgspec.Struct, frozen=True):
    """A commit as whoever reads it gets it, the size of its object, and whether there is a local copy of that."""

    commit: Commit
    size_bytes: int
    local: bool


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
        clock: Clock,
        new_stamp: Callable[[], str],
        release: str,
        copies: CopyWriter | None = None,
    ) -> None:
        self.base = base
        self._newest = newest
        self._last: Claim | Commit | None = claim  # our own last entry
        self._log = log
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
    def next_key(self) -> str:
        """Where the next commit will lie, for who has a claim."""
        assert self._last is not None
        return commit_key(self._last.sequence + 1)

    @property
    def next_checkpoint_id(self) -> CheckpointId:
        """The smallest id that the next checkpoint may have."""
        return CheckpointId(0 if self._newest is None else self._newest.checkpoint_id + 1)

    def check(self, checkpoint_id: CheckpointId) -> None:
        """Raise `CheckpointExistsError` unless `checkpoint_id` may be the next one, `InputError` without a claim."""
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
        checkpoint_id: CheckpointId,
        snapshots: Sequence[SnapshotResult],
        states: tuple[StateDescriptor, ...],
        source: SourceMark | None,
        *,
        inline: Sequence[bytes] = (),
    ) -> Committed:
        """Commit one checkpoint from the snapshots of every owner.

        `inline`: frames that the commit is to carry; handles of the snapshots into them are those of `encode_inline`.
        Raises `CheckpointExistsError`, `InputError` for snapshots that do not cover every key group once, and as
        `CommitLog.append`; like that, it is to be called within `finish`.
        """
        self.check(checkpoint_id)
        assert self._last is not None
        ordered = sorted(snapshots, key=lambda snapshot: snapshot.key_groups)
        _check_coverage([snapshot.key_groups for snapshot in ordered], self._max_parallelism)
        commit = Commit(
            job=self._job,
            sequence=CommitSequence(self._last.sequence + 1),
            checkpoint_id=checkpoint_id,
            epoch=self._last.epoch,
            parent=None if self.base is None else self.base.sequence,
            stamp=self._new_stamp(),
            max_parallelism=self._max_parallelism,
            ranges=tuple(RangeState(snapshot.key_groups, snapshot.primary) for snapshot in ordered),
            states=states,
            source=source,
            committed_at_s=self._clock.time(),
            release=self._release,
        )
        encoded = encode_entry(commit, self.next_key, inline)
        local = await self._create(commit, self.next_key, encoded.body)
        self._newest = self.base = self._last = encoded.entry
        return Committed(encoded.entry, len(encoded.body), local)

    async def _create(self, commit: Commit, key: str, body: bytes) -> bool:
        """Create the commit and, beside it, its local copy; say whether there is one."""
        if self._copies is None:
            await self._log.create(commit, body)
            return False
        copy = self._copies.start(key, (body,))
        try:
            await self._log.create(commit, body)
        except OutcomeUnknownError:  # it may be there: then a restore needs what the copy holds
            copy.keep()
            copy.give_up("nobody knows whether the commit was made")
            raise
        except BaseException:
            copy.give_up("the commit was not made")
            raise
        return await self._copies.settle(key, copy)


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
