"""Writes one log of changes: appends them in memory, makes them durable on request.

A thin shell around the `Ledger`: it starts the uploads that the ledger asks for, reports their outcome to it, and wakes
the calls that wait. An upload belongs to the log, not to the caller: cancelling `persist` loses nothing and uploads
nothing twice.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, Self

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from statebackend._changelog.ledger import Ledger, UploadedChangeSet
from statebackend._changelog.scheduler import UploadScheduler
from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.segment import EncodedFrame, SealedSet
from statebackend.errors import BackendClosedError
from statebackend.ids import CheckpointId, SequenceNumber


class ChangelogWriter:
    """The writer of one log. All calls come from the loop; none overlaps `append`."""

    def __init__(
        self, log_id: str, scheduler: UploadScheduler, *, tasks: TaskGroup, preemptive_persist_threshold_bytes: int
    ) -> None:
        self.log_id: Final = log_id
        self._ledger = Ledger(log_id)
        self._scheduler = scheduler
        self._tasks = tasks
        self._threshold_bytes = preemptive_persist_threshold_bytes
        self._progress = anyio.Event()
        self._coming = 0  # uploads on their way to the scheduler's queue
        scheduler.queue.register(self._may_join)

    def append(self, changes: Changes) -> None:
        """Add changes in memory. A full open set is sealed, and its upload begins at once, not only with `persist`.

        Changes larger than a full set are cut: each set ends with the change that fills it. Others stay whole, so that
        a set is at most twice a full one: their bytes may be encoded already, and to cut those is to decode them. Never
        waits, and never raises the error of an earlier upload. A caller that appends much must also await `room`.
        """
        full_bytes = self._threshold_bytes
        whole = changes.size_bytes <= full_bytes
        for piece in (changes,) if whole else changes.cut(full_bytes, full_bytes - self._ledger.open_bytes):
            self._ledger.append(piece)
            if self._ledger.open_bytes >= full_bytes:
                self._submit(self._ledger.take_open())

    async def room(self) -> None:
        """Wait until less is in flight than the limit, so that a slow store slows its writers down.

        A cancelled call leaves nothing behind.
        """
        await anyio.lowlevel.checkpoint()  # uploads that `append` began count from their first step on
        await self._scheduler.room()

    def next_sequence_number(self) -> SequenceNumber:
        """Seal what is open: everything appended so far lies below the returned number."""
        return self._ledger.seal()

    async def persist(
        self, from_: SequenceNumber, checkpoint_id: CheckpointId | None = None
    ) -> Sequence[UploadedChangeSet]:
        """Wait until every change from `from_` up to now is durable in the primary; return the change sets in order.

        Truncating the range deletes them, but with a checkpoint id not before `confirm`, `reset` or `subsume` is called
        for it. Raises `UploadError` if a change set could not be uploaded; it is not tried again. After a cancelled
        call the uploads continue, and the next call for the range returns their results.
        """
        request, to_upload = self._ledger.persist(from_, checkpoint_id)
        try:
            self._submit(to_upload)
            del to_upload  # frees the changes as soon as they are encoded, not only when they are durable
            self._scheduler.queue.hurry()  # nothing may be on its way there: it was all uploaded before
            while not request.done:
                await self._progress.wait()
            return request.result()
        except BaseException:
            self._release_later(self._ledger.abandon(request))
            raise

    async def take_inline(self, from_: SequenceNumber, bytes_max: int) -> Sequence[SealedSet] | None:
        """Return every change set from `from_` up to now, in order, for a commit to carry; `None`: persist them.

        `None` if anything of the range is uploaded or being sent, or all of it is estimated at more than `bytes_max`.
        What an early upload has only put into the queue is taken back. The change sets stay in the log, for the next
        call of this or of `persist`, until `confirm` says that a commit holds them. Then only the commit does, and
        ranges begin behind them. Raises as `persist` does. A cancelled call leaves the log as it was.
        """
        if self._ledger.in_flight and not self._ledger.is_awaited:
            await self._scheduler.encoded_early(self._may_join)
            self._ledger.take_back(self._scheduler.take_back(self._may_join, self._ledger.in_flight, bytes_max))
        return self._ledger.take_inline(from_, bytes_max)

    def encoded(self, frames: Iterable[EncodedFrame]) -> None:
        """These are what `take_inline` returned, and too much for a commit: the next `persist` need not encode them."""
        self._ledger.encoded(frames)

    def confirm(self, from_: SequenceNumber, to: SequenceNumber, checkpoint_id: CheckpointId) -> None:
        """A commit holds the handles of what was persisted for this checkpoint, and of `from_` to `to`.

        It owns their segments from now on. The log knows them, and `persist` finds them, until `truncate`. The range
        may have been truncated before. Raises `InputError` for a range that was never appended.
        """
        self._scheduler.confirm(self._ledger.confirm(from_, to, checkpoint_id))

    async def reset(self, from_: SequenceNumber, to: SequenceNumber, checkpoint_id: CheckpointId) -> None:
        """This checkpoint will not be committed: the next one reuses what it uploaded or took inline.

        What was truncated meanwhile is deleted. A cancelled call does not stop the deletion. Raises as `confirm`.
        """
        await self._scheduler.release(self._ledger.reset(from_, to, checkpoint_id))

    async def subsume(self, checkpoint_id: CheckpointId) -> None:
        """No checkpoint up to this one will be restored: delete what is truncated and only they wanted.

        Segments that a commit owns stay. The checkpoint may be unknown here, or one without an outcome. A cancelled
        call does not stop the deletion.
        """
        await self._scheduler.release(self._ledger.subsume(checkpoint_id))

    async def truncate(self, to: SequenceNumber) -> None:
        """Forget the log below `to`, which no future checkpoint needs, and delete its segments.

        A segment stays if a commit owns it. One that a `persist` waits for, or that a checkpoint without an outcome
        wants, is deleted only once neither needs it. After a cancelled call the log has forgotten the range, and the
        deletion continues.
        """
        await self._scheduler.release(self._ledger.truncate(to))

    async def truncate_and_close(self, from_: SequenceNumber) -> None:
        """Close the log, and delete the uploads that no commit owns and no checkpoint without an outcome wants.

        Only what such a checkpoint wants below `from_` stays: it may still be committed, and `confirm`, `reset` and
        `subsume` can still be called for it. Waiting calls of `persist` raise `BackendClosedError`. Closing again
        changes nothing. After a cancelled call the log is closed, and the deletion continues.
        """
        await self._close(from_)

    async def aclose(self) -> None:
        """As `truncate_and_close`, but everything that a checkpoint without an outcome wants stays."""
        await self._close(None)

    async def _close(self, from_: SequenceNumber | None) -> None:
        unwanted = self._ledger.close(from_)
        self._wake()
        self._scheduler.queue.unregister(self._may_join)
        await self._scheduler.release(unwanted)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _submit(self, change_sets: Sequence[SealedSet]) -> None:
        if change_sets:
            self._tasks.start_soon(self._upload, change_sets)
            self._coming += 1

    async def _upload(self, change_sets: Sequence[SealedSet]) -> None:
        numbers = [change_set.sequence_number for change_set in change_sets]
        self._coming -= 1  # `upload` queues them in this very turn, unless it has to wait for room
        upload = self._scheduler.upload(change_sets, self._may_join)
        del change_sets  # as in `persist`
        try:
            results = await upload
        except Exception as error:  # noqa: BLE001  # the ledger raises it in calls that ask for the range
            await self._scheduler.release(self._fail(numbers, error))
        except BaseException:
            self._fail(numbers, BackendClosedError("the backend ended before the changes were durable"))
            raise
        else:
            unwanted = self._ledger.succeed(results)
            self._wake()
            await self._scheduler.release(unwanted)

    def _may_join(self) -> bool:
        """If this writer could still add to the segment that is sent next.

        Not while a `persist` waits: its caller appends nothing before it ends. Otherwise yes, also after a pre-emptive
        upload: nobody waits for that, and what is appended next may share its segment.
        """
        return self._coming > 0 or not self._ledger.is_awaited

    def _fail(self, numbers: Sequence[SequenceNumber], error: Exception) -> Sequence[UploadedChangeSet]:
        unwanted = self._ledger.fail(numbers, error)
        self._wake()
        return unwanted

    def _release_later(self, unwanted: Sequence[UploadedChangeSet]) -> None:
        if unwanted:
            with suppress(RuntimeError):  # anyio: the task group has ended; a sweep deletes them
                self._tasks.start_soon(self._scheduler.release, unwanted)

    def _wake(self) -> None:
        self._progress.set()
        self._progress = anyio.Event()
