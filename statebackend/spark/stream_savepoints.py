"""Savepoints and a stream: those asked for while it runs take the next commit, and it may start from one.

SavepointRequests   asked for by any thread, made behind the commit of a batch
StartFromSavepoint      the savepoint that a sink was given to start from
"""

import logging
import threading
from concurrent.futures import Future
from typing import Final

from statebackend._log.names import check_savepoint_name
from statebackend._log.savepoint_markers import SavepointInfo
from statebackend._upkeep.savepoints import find_start, record_start
from statebackend.abc import ObjectStore
from statebackend.errors import BackendClosedError, SavepointExistsError, StateBackendError
from statebackend.ids import CheckpointId, Epoch, SourceMark
from statebackend.settings import Settings
from statebackend.spark.execution import OpenedJob
from statebackend.spark.replay import OnRewind, starts_at_savepoint

_logger = logging.getLogger(__name__)


class SavepointRequests:
    """Savepoints that wait for a commit. Pickles without them."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._waiting: dict[str, Future[SavepointInfo]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, name: str) -> Future[SavepointInfo]:
        """Ask for a savepoint. Raises `InputError` for an impossible name, `SavepointExistsError` for a waiting one."""
        asked = Future[SavepointInfo]()
        with self._lock:
            if self._waiting.setdefault(check_savepoint_name(name), asked) is not asked:
                raise SavepointExistsError("a savepoint of that name is asked for already: use another name", name=name)
        return asked

    async def make(self, job: OpenedJob) -> None:
        """Make what waits, of the commit that the job is at. What cannot be made is told, and the batch stands.

        A cancelled call fails the savepoint that it was making. Those behind it wait for the next batch.
        """
        while (request := self._take()) is not None:
            name, asked = request
            if not asked.set_running_or_notify_cancel():
                continue
            try:
                made = await job.savepoint(name)
            except StateBackendError as error:
                _logger.warning("the savepoint %s was not made: %s", name, error)
                asked.set_exception(error)
            except BaseException as error:
                stopped = BackendClosedError("stopped while making the savepoint: look if it is there", name=name)
                stopped.__cause__ = error
                asked.set_exception(stopped)
                raise
            else:
                _logger.info("savepoint %s: checkpoint=%d source=%s", name, made.checkpoint_id, made.source)
                asked.set_result(made)

    def _take(self) -> tuple[str, Future[SavepointInfo]] | None:
        with self._lock:
            name = next(iter(self._waiting), None)
            return None if name is None else (name, self._waiting.pop(name))

    def __reduce__(self) -> tuple[type["SavepointRequests"], tuple[()]]:
        return SavepointRequests, ()


class StartFromSavepoint:
    """Starts the runs of a query from the savepoint `name` until one of them has committed. Does nothing without one.

    `store` is the job's primary, if it is not that of the settings. Raises `InputError` for an impossible name.
    """

    def __init__(self, name: str | None, settings: Settings, store: ObjectStore | None, on_rewind: OnRewind) -> None:
        self._name = None if name is None else check_savepoint_name(name)
        self._settings = settings
        self._store = store
        self._on_rewind: OnRewind = on_rewind
        self.is_due = False
        """True if the run has started from it and committed nothing yet."""

    async def checkpoint(self, delivered: SourceMark) -> CheckpointId | None:
        """The checkpoint to open for the first batch of a run, `None` for the newest. Claims nothing.

        Raises as `starts_at_savepoint` and `find_start`.
        """
        self.is_due = False
        if self._name is None:
            return None
        start = await find_start(self._settings, self._name, store=self._store)
        if not starts_at_savepoint(delivered, start, on_rewind=self._on_rewind):
            return None
        _logger.info("starting from savepoint %s with batch %d: %s", self._name, delivered.batch_id, start.kept)
        self.is_due = True
        return start.kept.checkpoint_id

    async def record(self, epoch: Epoch) -> None:
        """Record that `epoch` goes on from there. Called before the first commit. Raises as `record_start`."""
        assert self._name is not None, "nothing was started from"
        await record_start(self._settings, self._name, epoch, store=self._store)
        self.is_due = False
