"""Where a job stands, asked of its log: its newest commit, and the one to read, or to restore a state from.

    end of the log -> the newest commit, or its local copy, or an older one    (the newest is asked for)
                   -> a retained commit by its id, by the name of a savepoint, or by a moment
    pin            -> the very commit that was found before, by one request

Nothing is claimed and nothing is written, so a reader asks here as a writer does, beside any number of either.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from statebackend._codec.commit import Claim, Commit
from statebackend._log.log_end import LogEnd
from statebackend._log.log_reader import LogReader, pass_over
from statebackend._log.milestones import newest_until
from statebackend._log.moments import ROUNDED_S, iso_of
from statebackend._log.names import check_checkpoint_id, entry_key
from statebackend._log.savepoint_markers import Savepoints
from statebackend._log.spares import OpenCopies, Spare, Spares
from statebackend.abc import ObjectStore
from statebackend.errors import (
    CheckpointNotFoundError,
    CorruptCommitError,
    DataError,
    InputError,
    MissingObjectError,
    SettingsError,
)
from statebackend.ids import CheckpointId, CommitSequence, CommitSummary, Epoch

_logger = logging.getLogger(__name__)


class Position(msgspec.Struct, frozen=True):
    """The position of a job: the end of its log, its newest commit, and the one that the state is to be restored from.

    `claim` is our claim, which lies behind that end; `None` if we have not claimed the job. `spare`: the local copy
    that stands for the newest commit, which cannot be read in the primary. `passed_over`: why the newest commit, or
    what it points into, cannot be had, so that `base` is an older one.
    """

    end: LogEnd | None
    newest: Commit | None
    base: Commit | None
    claim: Claim | None = None
    spare: Spare | None = None
    passed_over: DataError | None = None

    @property
    def epoch(self) -> Epoch:
        """Of our claim, or else of the newest one; 0 where there is none, or where it cannot be read."""
        if self.claim is not None:
            return self.claim.epoch
        return Epoch(0) if self.end is None or self.end.entry is None else self.end.entry.epoch

    @property
    def summary(self) -> CommitSummary | None:
        """Of `base`."""
        return None if self.base is None else self.base.summary


class Pin(msgspec.Struct, frozen=True):
    """A commit that was found: its place in the log, and its stamp. Everyone who has it reads the same state."""

    sequence: CommitSequence
    stamp: str

    @classmethod
    def of(cls, commit: Commit) -> "Pin":
        """The pin of that commit."""
        return cls(commit.sequence, commit.stamp)


class FoundCommit(NamedTuple):
    """A commit, and `at_hand` its bytes by its key if they were just read: what it carries need not be read again."""

    commit: Commit
    at_hand: Mapping[str, bytes]


class Positions:
    """Finds where a job stands, over `log`, which reads it in `store`. Claims nothing, writes nothing, may be shared.

    `max_parallelism`: that a commit must have been made with; `None` accepts any. `fall_back_to_older`: go on from an
    older commit where the newest is damaged. `copies` opens local copies, where a commit is damaged or gone in the
    primary. `unrestorable`: commits to pass over on the way to an older one, by their sequence, and why. `timeout_s`:
    as for `Savepoints`.
    """

    def __init__(
        self,
        store: ObjectStore,
        log: LogReader,
        *,
        max_parallelism: int | None = None,
        fall_back_to_older: bool = False,
        copies: OpenCopies | None = None,
        unrestorable: Mapping[int, DataError] | None = None,
        timeout_s: float = math.inf,
    ) -> None:
        self.log: Final = log
        self.savepoints: Final = Savepoints(store, log, timeout_s=timeout_s)
        self.spares: Final = Spares(store, log, copies)
        self._max_parallelism = max_parallelism
        self._fall_back_to_older = fall_back_to_older
        self._unrestorable: Mapping[int, DataError] = unrestorable or {}
        self._is_told = False

    async def look(
        self, *, checkpoint_id: int | None = None, savepoint: str | None = None, at_s: float | None = None
    ) -> Position:
        """The position now, as of the newest checkpoint, of `checkpoint_id`, of `savepoint` or of the moment `at_s`.

        Raises `CheckpointNotFoundError` and its like, `SettingsError`, `InputError`, as `LogReader.load`.
        """
        check_asked(checkpoint_id, savepoint, at_s)
        return await self.behind(await self.log.end(), checkpoint_id=checkpoint_id, savepoint=savepoint, at_s=at_s)

    async def behind(
        self,
        end: LogEnd | None,
        *,
        checkpoint_id: int | None = None,
        savepoint: str | None = None,
        at_s: float | None = None,
    ) -> Position:
        """As `look`, for a caller that has found the end of the log."""
        spare: Spare | None = None
        passed_over: DataError | None = None
        if checkpoint_id is None and savepoint is None and at_s is None:
            newest, spare, passed_over = await self.newest(end)
            base, passed_over = await self.restorable(newest, passed_over)
        else:  # perhaps to go back behind damaged commits: the newest that can be read is the newest
            readable = None if end is None else await self.log.readable(end.sequence, end=end)
            if savepoint is not None:
                base = await self.savepoints.find(savepoint)
            elif at_s is not None:
                base = await self.find_at(end, at_s)
            else:
                base = await self.find(end, check_checkpoint_id(checkpoint_id))
            newest = readable or base
        self._check_parallelism(base)
        if base is not None and passed_over is not None and not self._is_told:
            self._is_told = True
            _logger.warning(
                "opening an older checkpoint, %s: the newest cannot be read: %s", base.checkpoint_id, passed_over
            )
        return Position(end, newest, base, spare=spare, passed_over=passed_over)

    async def newest(self, end: LogEnd | None) -> tuple[Commit | None, Spare | None, DataError | None]:
        """The newest commit, or the local copy that is proved to be it, or an older one if that is allowed."""
        try:
            return await self.log.newest(end), None, None
        except (CorruptCommitError, MissingObjectError) as error:
            assert end is not None
            if (spare := await self.spares.newest(end)) is not None:
                return spare.commit, spare, None
            older = await self.log.readable(end.sequence) if self._fall_back_to_older else None
            if older is None or older.sequence < await self.savepoints.floor():  # it has what was erased since
                raise
            return older, None, error

    async def restorable(
        self, newest: Commit | None, passed_over: DataError | None
    ) -> tuple[Commit | None, DataError | None]:
        """The newest commit of the branch that may be restored, and why it is not the newest of all.

        Raises that reason where no such commit is retained.
        """
        if newest is None or newest.sequence not in self._unrestorable:
            return newest, passed_over
        reason = self._unrestorable[newest.sequence]
        async for commit in self.log.branch(newest, damaged=pass_over):
            if commit.sequence not in self._unrestorable:
                with suppress(CheckpointNotFoundError):
                    return await self.retained(commit), passed_over or reason
        raise reason

    async def find(self, end: LogEnd | None, checkpoint_id: CheckpointId) -> Commit:
        """A retained commit by its id, on any branch: from the part of the log that was not swept, or a savepoint."""
        return await self._found(end, checkpoint_id, await self.savepoints.floor())

    async def find_at(self, end: LogEnd | None, at_s: float) -> Commit:
        """The newest commit of the log that is not later than `at_s`, by the clock of its writer, on any branch.

        It is what a reader would have been given then, also where the job has gone back since. Below the sweep floor it
        is the newest milestone until then. One request for each entry after it. Raises `CheckpointNotFoundError`, which
        names the oldest commit that is kept, and the error of a damaged entry that may be the one.
        """
        floor = await self.savepoints.floor()
        oldest: Commit | None = None
        doubt: DataError | None = None  # about what lies between the oldest that was seen and the next
        for sequence in range(-1 if end is None else end.sequence, floor - 1, -1):
            assert end is not None
            try:
                if sequence == end.sequence:
                    end.check()
                entry = (end.entry if sequence == end.sequence else None) or await self.log.load(sequence)
            except MissingObjectError as error:
                doubt = doubt or error
                break
            except CorruptCommitError as error:
                doubt = doubt or error
                continue
            if isinstance(entry, Claim):
                continue
            if entry.committed_at_s <= at_s + ROUNDED_S:
                if doubt is not None:
                    raise doubt
                return entry
            oldest, doubt = entry, None
        if doubt is not None and (oldest is None or not isinstance(doubt, MissingObjectError)):
            raise doubt
        milestones = tuple((await self.savepoints.milestones())[1].values()) if floor else ()
        kept = newest_until(milestones, at_s)
        if kept is not None and (commit := await self.savepoints.commit_of(kept)) is not None:
            return commit
        first = milestones[0] if milestones else oldest
        raise CheckpointNotFoundError(
            "no commit of that time is kept: ask for a later moment, or for a savepoint",
            at=iso_of(at_s),
            oldest_at=None if first is None else iso_of(first.committed_at_s),
            oldest_checkpoint_id=None if first is None else first.checkpoint_id,
        )

    async def find_each(self, checkpoints: Sequence[int | str]) -> list[FoundCommit]:
        """The commits of these checkpoints, by their ids, and of these savepoints, by their names: to be read.

        Where no id is given, the end of the log is not looked for. Raises as `look`.
        """
        for each in checkpoints:
            if not isinstance(each, str):
                check_checkpoint_id(each)
        end, floor = None, 0
        if not all(isinstance(each, str) for each in checkpoints):
            end, floor = await self.log.end(looks_again=False), await self.savepoints.floor()
            if end is not None and end.sequence < floor:  # a sweep raises it before it deletes what may have come after
                end = await self.log.end()
        last = end.entry if end is not None and isinstance(end.entry, Commit) else None
        bodies = dict(self.log.take_body(last)) if last is not None else {}
        found: list[FoundCommit] = []
        for each in checkpoints:
            if isinstance(each, str):
                commit = await self.savepoints.find(each)
            else:
                try:
                    commit = await self._found(end, CheckpointId(each), floor)
                except CheckpointNotFoundError:  # what was taken for the end may lie before a hole
                    end = await self.log.end()
                    commit = await self._found(end, CheckpointId(each), floor)
            bodies |= self.log.take_body(commit)
            key = entry_key(commit.sequence)
            found.append(FoundCommit(commit, {key: bodies[key]} if key in bodies else {}))
        return found

    async def find_newest(self, *, at_least: int | None = None) -> FoundCommit | None:
        """The newest commit, `None` if there is none: to be read.

        `at_least`: as for `LogReader.end`. Raises as `look`.
        """
        position = await self.behind(await self.log.end(at_least=at_least))
        if position.base is None:
            return None
        if (spare := position.spare) is not None:
            return FoundCommit(spare.commit, {spare.key: spare.body})
        return FoundCommit(position.base, self.log.take_body(position.base))

    async def find_pinned(self, pin: Pin) -> FoundCommit:
        """The commit that was found before, by one request. Raises `CheckpointNotFoundError` if it was swept since."""
        try:
            commit = await self.log.load_commit(pin.sequence)
        except (CorruptCommitError, MissingObjectError) as error:
            if (spare := await self.spares.find(pin.sequence, None)) is not None and spare.commit.stamp == pin.stamp:
                return FoundCommit(spare.commit, {spare.key: spare.body})
            if isinstance(error, CorruptCommitError):
                raise
            raise _swept(pin) from error
        if commit.stamp != pin.stamp:  # a late one of a fenced writer, where the pinned one was swept
            raise _swept(pin)
        return FoundCommit(commit, self.log.take_body(commit))

    async def _found(self, end: LogEnd | None, checkpoint_id: CheckpointId, floor: int) -> Commit:
        try:
            return await self.log.find(end, checkpoint_id, floor=floor)
        except CheckpointNotFoundError:
            if (kept := await self.savepoints.with_id(checkpoint_id)) is not None:
                return kept
            raise

    async def retained(self, commit: Commit) -> Commit:
        """That commit. Raises `CheckpointNotFoundError` if it lies below the sweep floor, and is no milestone."""
        if commit.sequence >= await self.savepoints.floor() or await self.savepoints.is_milestone(commit):
            return commit
        raise CheckpointNotFoundError(
            "that checkpoint is not retained any more: open a newer one", checkpoint_id=commit.checkpoint_id
        )

    def _check_parallelism(self, base: Commit | None) -> None:
        """Keys would be looked for in the wrong groups. An older checkpoint may have been made with another number."""
        wanted = self._max_parallelism
        if base is not None and wanted is not None and base.max_parallelism != wanted:
            raise SettingsError(
                "max_parallelism is fixed once a job has committed: use the committed value, or rewrite the job",
                max_parallelism=wanted,
                committed=base.max_parallelism,
            )


def check_asked(checkpoint_id: int | None, savepoint: str | None, at: object = None) -> None:
    """Raise `InputError` for what is no checkpoint id, and for more than one of a checkpoint, a savepoint, a moment."""
    if at is not None and (checkpoint_id is not None or savepoint is not None):
        raise InputError(
            "give a moment, a checkpoint id or a savepoint, and only one of them",
            at=at,
            checkpoint_id=checkpoint_id,
            savepoint=savepoint,
        )
    if checkpoint_id is not None:
        check_checkpoint_id(checkpoint_id)
        if savepoint is not None:
            raise InputError(
                "give a checkpoint id or a savepoint, not both", checkpoint_id=checkpoint_id, savepoint=savepoint
            )


def _swept(pin: Pin) -> CheckpointNotFoundError:
    return CheckpointNotFoundError(
        "the checkpoint was swept while it was read: read a newer one, or name it by a savepoint",
        object=entry_key(pin.sequence),
    )
