"""One log of changes: appended in memory, made durable on request.

A thin shell round the `Ledger`: it starts the uploads the ledger asks for, tells it how they ended, and wakes whoever
waits. The upload belongs to the log, not to the caller: cancelling `persist` loses nothing and uploads nothing twice.
"""

from collections.abc import Sequence
from typing import Final

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from statebackend._changelog.ledger import Ledger, UploadedChangeSet, size_of
from statebackend._changelog.scheduler import UploadScheduler
from statebackend._codec.records import ChangeSet, StateChange
from statebackend.errors import BackendClosedError
from statebackend.ids import SequenceNumber


class ChangelogWriter:
    """The writer of one log. All calls come from the loop; none of them overlaps `append`."""

    def __init__(
        self, log_id: str, scheduler: UploadScheduler, *, tasks: TaskGroup, preemptive_persist_threshold_bytes: int
    ) -> None:
        self.log_id: Final = log_id
        self._ledger = Ledger(log_id)
        self._scheduler = scheduler
        self._tasks = tasks
        self._threshold_bytes = preemptive_persist_threshold_bytes
        self._progress = anyio.Event()

    def append(self, change: StateChange) -> None:
        """Add a change in memory. A full open set is sealed, and its upload begins, before anybody asks.

        Never waits, and never fails for what became of earlier changes. Who appends much awaits `room` now and then.
        """
        self._ledger.append(change)
        if self._ledger.open_bytes >= self._threshold_bytes:
            self._submit(self._ledger.take_open())

    def extend(self, changes: Sequence[StateChange]) -> None:
        """As `append` of each, in bulk where no threshold is near."""
        size_bytes = sum(map(size_of, changes))
        if self._ledger.open_bytes + size_bytes < self._threshold_bytes:
            self._ledger.extend(changes, size_bytes)
        else:
            for change in changes:
                self.append(change)

    async def room(self) -> None:
        """Wait until less is in flight than the limit: where the pressure of a slow store reaches who appends.

        A cancelled call leaves nothing behind.
        """
        await anyio.lowlevel.checkpoint()  # uploads that `append` has begun are counted from their first step on
        await self._scheduler.room()

    def next_sequence_number(self) -> SequenceNumber:
        """Seal what is open: everything appended so far lies below the returned number."""
        return self._ledger.seal()

    async def persist(self, from_: SequenceNumber) -> Sequence[UploadedChangeSet]:
        """Wait until every change from `from_` up to now is durable in the primary; their handles, in order.

        Raises `UploadError` if one of them could not be uploaded; it is not tried again. After a cancelled call the
        uploads go on, and the next call for the range finds them.
        """
        request, to_upload = self._ledger.persist(from_)
        try:
            self._submit(to_upload)
            del to_upload  # the changes go as soon as they are encoded, and not when they are durable
            while not request.done:
                await self._progress.wait()
        finally:
            self._ledger.abandon(request)
        return request.result()

    def confirm(self, to: SequenceNumber) -> None:
        """A commit holds the handles of everything below `to` and owns their segments: the log may forget it."""
        self._scheduler.confirm(self._ledger.confirm(to))

    async def truncate(self, to: SequenceNumber) -> None:
        """Forget everything below `to`; segments of it that nobody confirmed or waits for are deleted.

        After a cancelled call it is forgotten just the same, and the deletion goes on.
        """
        await self._scheduler.release(self._ledger.truncate(to))

    async def truncate_and_close(self, from_: SequenceNumber) -> None:
        """Close: what was uploaded from `from_` on is deleted, and whoever waits gets `BackendClosedError`.

        `from_` is the end of the last checkpoint that was begun: what lies below may still be committed. Closing again
        changes nothing. After a cancelled call the log is closed, and the deletion goes on.
        """
        unwanted = self._ledger.close(from_)
        self._wake()
        await self._scheduler.release(unwanted)

    def _submit(self, change_sets: Sequence[ChangeSet]) -> None:
        if change_sets:
            self._tasks.start_soon(self._upload, change_sets)

    async def _upload(self, change_sets: Sequence[ChangeSet]) -> None:
        numbers = [change_set.sequence_number for change_set in change_sets]
        upload = self._scheduler.upload(change_sets)
        del change_sets  # as in `persist`
        try:
            results = await upload
        except Exception as error:  # noqa: BLE001  # kept by the ledger for whoever asks for the range
            self._fail(numbers, error)
        except BaseException:
            self._fail(numbers, BackendClosedError("the backend ended before the changes were durable"))
            raise
        else:
            unwanted = self._ledger.succeed(results)
            self._wake()
            await self._scheduler.release(unwanted)

    def _fail(self, numbers: Sequence[SequenceNumber], error: Exception) -> None:
        self._ledger.fail(numbers, error)
        self._wake()

    def _wake(self) -> None:
        self._progress.set()
        self._progress = anyio.Event()
