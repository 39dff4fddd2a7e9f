"""A job in its primary as a writer has it: how it is claimed, and who commits to it."""

import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from statebackend._log.coordinator import CheckpointCoordinator
from statebackend._log.fresh_names import new_names, new_stamp
from statebackend._log.log_reader import LogReader
from statebackend._log.log_writer import LogWriter
from statebackend._log.outbox import JobOutbox
from statebackend._log.position import Position, Positions, check_asked
from statebackend._log.savepoint_markers import Savepoints
from statebackend._log.spares import OpenCopies
from statebackend._retry import RetryPolicy
from statebackend._threads import WorkerThreads
from statebackend._version import __version__
from statebackend.abc import Clock, ObjectStore, Observer, RestoreReport
from statebackend.errors import DataError, FencedError
from statebackend.settings import Settings
from statebackend.uploaders.local_copies import CopyWriter

CLAIM_ATTEMPTS_MAX: Final = 16
"""Each failure is another writer who opened the job, or committed, in that very moment."""

_logger = logging.getLogger(__name__)


class Job:
    """The job in `primary`, which is confined to it, to be written as of its newest checkpoint, or of another one.

    `any_parallelism`: accept any `max_parallelism` of it, to commit it with another one. `copies` and `unrestorable`:
    as for `Positions`.
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
        at_s: float | None = None,
        any_parallelism: bool = False,
        copies: OpenCopies | None = None,
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
        self._positions = Positions(
            primary,
            self.log,
            max_parallelism=None if any_parallelism else settings.max_parallelism,
            fall_back_to_older=settings.fall_back_to_older,
            copies=copies,
            unrestorable=unrestorable,
            timeout_s=settings.commit_timeout_s,
        )
        self._primary = primary
        self._settings = settings
        self._threads = threads
        self._asked = checkpoint_id, savepoint, at_s

    @property
    def savepoints(self) -> Savepoints:
        """The savepoints of the job."""
        return self._positions.savepoints

    async def look(self) -> Position:
        """The position of the job now, for a claim to go behind. Raises as `Positions.look`."""
        checkpoint_id, savepoint, at_s = self._asked
        check_asked(checkpoint_id, savepoint, at_s)
        end = await self._writer.find_end()
        return await self._positions.behind(end, checkpoint_id=checkpoint_id, savepoint=savepoint, at_s=at_s)

    async def claim(self, position: Position) -> Position:
        """Claim the job, and say where it was then: nothing is committed between that position and the claim."""
        for _ in range(CLAIM_ATTEMPTS_MAX):
            if position.spare is not None:  # before anything points into it; and nobody else repairs it then
                await self._positions.spares.put_back(position.spare)
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
            savepoints=self._positions.savepoints,
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
        _logger.info("opened: job=%s checkpoint=%s epoch=%d seconds=%.3f", settings.job, base, position.epoch, seconds)
        return
    _logger.info(
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
