"""A job in its primary: where it stands, how it is claimed, who commits to it and who sweeps it."""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

import anyio
import msgspec
from anyio.abc import TaskGroup

from statebackend._codec.commit import Claim, Commit
from statebackend._log.coordinator import CheckpointCoordinator
from statebackend._log.fresh_names import new_names, new_stamp
from statebackend._log.names import check_checkpoint_id
from statebackend._log.outbox import JobOutbox
from statebackend._log.reader import LogEnd, LogReader, pass_over
from statebackend._log.savepoints import Savepoints
from statebackend._log.spares import Spare, Spares
from statebackend._log.sweeping.sweep import AT_ONCE_EVERY, MIN_AGE_S, Sweep, sweep_every
from statebackend._log.writer import LogWriter
from statebackend._retry import RetryPolicy
from statebackend._threads import WorkerThreads
from statebackend._version import __version__
from statebackend.abc import Capability, Clock, ObjectStore, Observer, RestoreReport
from statebackend.errors import (
    CheckpointNotFoundError,
    CorruptCommitError,
    DataError,
    FencedError,
    InputError,
    MissingObjectError,
    SettingsError,
)
from statebackend.ids import CheckpointId, Epoch
from statebackend.settings import Settings
from statebackend.uploaders.local_copies import CopyWriter

_log = logging.getLogger(__name__)

CLAIM_ATTEMPTS_MAX: Final = 16
"""Each failure is another writer who opened the job, or committed, in that very moment."""

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


class Job:
    """The job in `primary`, which is confined to it, as of its newest checkpoint, `checkpoint_id` or `savepoint`.

    `any_parallelism`: accept any `max_parallelism` of it, to read it as it is or to commit it with another one.
    `copies`: local copies, where the primary has damaged or lost the newest commit. `unrestorable`: commits to pass
    over on the way to an older one, by their sequence, and why.
    """

    def __init__(
        self,
        primary: ObjectStore,
        settings: Settings,
        threads: WorkerThreads,
        *,
        clock: Clock,
        checkpoint_id: int | None = None,
        savepoint: str | None = None,
        any_parallelism: bool = False,
        copies: ObjectStore | None = None,
        unrestorable: Mapping[int, DataError] | None = None,
    ) -> None:
        self.log: Final = LogReader(primary, settings.job, threads)
        self._writer = LogWriter(
            primary,
            self.log,
            policy=RetryPolicy.of(settings.upload),
            timeout_s=_patience_s(settings),
            clock=clock,
            new_stamp=new_stamp,
            release=__version__,
        )
        self._primary = primary
        self._savepoints = Savepoints(primary, self.log, timeout_s=settings.commit_timeout_s)
        self._settings = settings
        self._threads = threads
        self._checkpoint_id = checkpoint_id
        self._savepoint = savepoint
        self._any_parallelism = any_parallelism
        self._spares = Spares(primary, self.log, copies)
        self._unrestorable: Mapping[int, DataError] = unrestorable or {}
        self._is_told = False

    async def look(self) -> Position:
        """The position of the job now. Raises `CheckpointNotFoundError` and its like, `SettingsError`, `InputError`."""
        checkpoint_id, savepoint = self._checkpoint_id, self._savepoint
        if checkpoint_id is not None:
            check_checkpoint_id(checkpoint_id)
        end = await self._writer.find_end()
        if checkpoint_id is not None and savepoint is not None:
            raise InputError(
                "give a checkpoint id or a savepoint, not both", checkpoint_id=checkpoint_id, savepoint=savepoint
            )
        spare: Spare | None = None
        passed_over: DataError | None = None
        if checkpoint_id is None and savepoint is None:
            newest, spare, passed_over = await self._newest(end)
            base, passed_over = await self._restorable(newest, passed_over)
        else:  # perhaps to go back behind damaged commits: the newest that can be read is the newest
            readable = None if end is None else await self.log.readable(end.sequence)
            if savepoint is not None:
                base = await self._savepoints.find(savepoint)
            else:
                base = await self._find(end, check_checkpoint_id(checkpoint_id))
            newest = readable or base
        if not self._any_parallelism:
            self._check_parallelism(base)
        if base is not None and passed_over is not None and not self._is_told:
            self._is_told = True
            _logger.warning(
                "opening an older checkpoint, %s: the newest cannot be read: %s", base.checkpoint_id, passed_over
            )
        return Position(end, newest, base, spare=spare, passed_over=passed_over)

    async def claim(self, position: Position) -> Position:
        """Claim the job, and say where it was then: nothing is committed between that position and the claim."""
        for _ in range(CLAIM_ATTEMPTS_MAX):
            if position.spare is not None:  # before anything points into it; and nobody else repairs it then
                await self._spares.put_back(position.spare)
                position = await self.look()
                continue
            base = None if position.base is None else position.base.sequence
            claim = await self._writer.claim(position.end, base=base)
            if claim is not None:
                if claim.base is not None:
                    # A sweep that had begun before the claim may have deleted it; from now on none does.
                    await self.look()
                return msgspec.structs.replace(position, claim=claim)
            position = await self.look()
        raise FencedError("lost the race for this job: stop all writers but one", attempts=CLAIM_ATTEMPTS_MAX)

    def coordinator(
        self,
        position: Position,
        *,
        new_name: Callable[[], str] | None = None,
        copies: CopyWriter | None = None,
        base_body: bytes = b"",
    ) -> CheckpointCoordinator:
        """Commits what comes after `position`; `copies` writes local copies of the commits.

        `new_name` makes names for what is staged, where these tell more than the epoch of the position.
        """
        return CheckpointCoordinator(
            self._writer,
            max_parallelism=self._settings.max_parallelism,
            newest=position.newest,
            base=position.base,
            savepoints=self._savepoints,
            outbox=JobOutbox(
                self._primary,
                policy=RetryPolicy.of(self._settings.upload),
                compression=self._settings.compression,
                inline_bytes_max=self._settings.inline_bytes,
                threads=self._threads,
                new_name=new_name or new_names(position.epoch),
                pending=() if position.base is None else position.base.outbox,
            ),
            copies=copies,
            base_body=base_body,
            fell_back=position.passed_over is not None,
        )

    async def _newest(self, end: LogEnd | None) -> tuple[Commit | None, Spare | None, DataError | None]:
        """The newest commit, or the local copy that is proved to be it, or an older one if the settings allow it."""
        try:
            return await self.log.newest(end), None, None
        except (CorruptCommitError, MissingObjectError) as error:
            assert end is not None
            if (spare := await self._spares.newest(end)) is not None:
                return spare.commit, spare, None
            older = await self.log.readable(end.sequence) if self._settings.fall_back_to_older else None
            if older is None:
                raise
            return older, None, error

    async def _restorable(
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
                    return await self._retained(commit), passed_over or reason
        raise reason

    async def _find(self, end: LogEnd | None, checkpoint_id: CheckpointId) -> Commit:
        """A retained commit by its id: from the part of the log that was not swept, or a savepoint."""
        try:
            return await self._retained(await self.log.find(end, checkpoint_id))
        except CheckpointNotFoundError:
            if (kept := await self._savepoints.with_id(checkpoint_id)) is not None:
                return kept
            raise

    async def _retained(self, commit: Commit) -> Commit:
        """That commit. Raises `CheckpointNotFoundError` if it lies below the sweep floor."""
        if commit.sequence >= await self._savepoints.floor():
            return commit
        raise CheckpointNotFoundError(
            "that checkpoint is not retained any more: open a newer one", checkpoint_id=commit.checkpoint_id
        )

    def _check_parallelism(self, base: Commit | None) -> None:
        """Keys would be looked for in the wrong groups. An older checkpoint may have been made with another number."""
        if base is not None and base.max_parallelism != self._settings.max_parallelism:
            raise SettingsError(
                "max_parallelism is fixed once a job has committed: use the committed value, or rewrite the job",
                max_parallelism=self._settings.max_parallelism,
                committed=base.max_parallelism,
            )


def open_sweep(
    primary: ObjectStore, settings: Settings, threads: WorkerThreads, *, clock: Clock, min_age_s: float = MIN_AGE_S
) -> Sweep:
    """A sweep of the job in `primary`, which is confined to it."""
    return Sweep(
        primary,
        LogReader(primary, settings.job, threads),
        checkpoints_retained=settings.checkpoints_retained,
        clock=clock,
        min_age_s=min_age_s,
        concurrency_max=settings.restore_concurrency_max,
    )


class SweepBeside:
    """The sweeps of an opened job in the background of `tasks`, as the settings say, if the primary can list."""

    def __init__(
        self,
        primary: ObjectStore,
        settings: Settings,
        threads: WorkerThreads,
        *,
        epoch: Epoch,
        tasks: TaskGroup,
        clock: Clock,
    ) -> None:
        """`epoch`: of the opening."""
        self._swept = anyio.Event()
        self._is_first_due = False
        if not settings.sweep_interval_s:
            return
        if Capability.LIST not in primary.capabilities:
            _log.warning(
                "job %s: the primary grows for ever, since a store that cannot list cannot be swept. sweep_interval_s=0"
                " says that this is known",
                settings.job,
            )
            return
        self._is_first_due = epoch % AT_ONCE_EVERY == 0
        sweep = open_sweep(primary, settings, threads, clock=clock)
        every = partial(sweep_every, at_once=self._is_first_due, clock=clock, swept=self._swept)
        tasks.start_soon(every, settings.sweep_interval_s, sweep)

    async def first(self) -> None:
        """Wait until a sweep that was begun at once has ended: the run may be short. The caller bounds it."""
        if self._is_first_due:
            await self._swept.wait()


def _patience_s(settings: Settings) -> float:
    """Seconds that a commit may take: to be answered, if necessary after an outage."""
    return settings.commit_timeout_s + settings.upload.primary_outage_s


def tell_passed_over(position: Position, observer: Observer) -> None:
    """Tell the observer if an older checkpoint had to do."""
    if position.passed_over is not None and position.base is not None:
        observer.older_checkpoint_opened(position.base.checkpoint_id, position.passed_over)


def tell_opened(settings: Settings, position: Position, restored: RestoreReport | None, seconds: float) -> None:
    """One line for each opening: where the job stands, and what was read to get there."""
    if restored is None:
        base = None if position.base is None else position.base.checkpoint_id
        _log.info("opened: job=%s checkpoint=%s epoch=%d seconds=%.3f", settings.job, base, position.epoch, seconds)
        return
    _log.info(
        "opened: job=%s checkpoint=%d epoch=%d seconds=%.3f local=%d files, %d bytes primary=%d files, %d bytes"
        " changes=%d repaired=%s not_repaired=%s",
        settings.job,
        restored.checkpoint_id,
        position.epoch,
        seconds,
        restored.files_local,
        restored.bytes_local,
        restored.files_primary,
        restored.bytes_primary,
        restored.changes,
        [each.name for each in restored.fallbacks if each.repaired],
        [each.name for each in restored.fallbacks if not each.repaired],
    )
