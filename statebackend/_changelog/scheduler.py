"""Batches the change sets of many writers into segments and has them uploaded.

The first change set that waits arms the persist delay; reaching the size threshold sends at once; what comes meanwhile
shares the segment. Only the retry layer decides that an upload failed. Every attempt writes under a fresh name. Whoever
waits is told how it ended, also when the backend ends first.
"""

import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from statebackend._changelog.ledger import UploadedChangeSet
from statebackend._changelog.limiter import ByteLimiter
from statebackend._changelog.ownership import Ownership
from statebackend._changelog.segment_upload import Attempt, SegmentSender
from statebackend._codec.records import ChangeSet
from statebackend._codec.segment import EncodedSegment
from statebackend._observers import Observers
from statebackend._retry import Race
from statebackend._threads import WorkerThreads
from statebackend.abc import Clock, Observer, StateChangeUploader, UploadedSegment
from statebackend.errors import BackendClosedError
from statebackend.ids import ChangeSetHandle
from statebackend.settings import MiB, Settings

_log = logging.getLogger(__name__)


class _Waiting:
    """Change sets of one call, on their way; `done` is set when there are results, or an error."""

    __slots__ = ("abandoned", "change_sets", "count", "done", "error", "results", "size_bytes")

    def __init__(self, change_sets: Sequence[ChangeSet]) -> None:
        self.change_sets = change_sets  # until they are encoded
        self.count = len(change_sets)
        self.size_bytes = sum(change_set.size_bytes for change_set in change_sets)
        self.done = anyio.Event()
        self.results: Sequence[UploadedChangeSet] = ()
        self.error: Exception | None = None
        self.abandoned = False

    def end(self, results: Sequence[UploadedChangeSet] = (), error: Exception | None = None) -> None:
        """Tell the call how it ended. Only the first time counts."""
        if not self.done.is_set():
            self.results, self.error = results, error
            self.done.set()


class UploadScheduler:
    """One per process, shared by its writers. Uploads run in `tasks` and end with it."""

    def __init__(
        self,
        uploader: StateChangeUploader,
        settings: Settings,
        *,
        threads: WorkerThreads,
        tasks: TaskGroup,
        clock: Clock,
        observer: Observer,
        new_name: Callable[[], str],
        persist_delay_s: Callable[[], float] | None = None,
        files: StateChangeUploader | None = None,
    ) -> None:
        """`persist_delay_s`: asked each time the delay begins, instead of the setting.

        `files` uploads what `upload_file` is given: it has a local copy of its own, or none.
        """
        observer = Observers(observer)

        def sender_by(uploader: StateChangeUploader) -> SegmentSender:
            return SegmentSender(
                uploader, settings, threads=threads, tasks=tasks, clock=clock, observer=observer, new_name=new_name
            )

        self._sender = sender_by(uploader)
        self._files = self._sender if files is None else sender_by(files)
        self._delay_s = persist_delay_s or (lambda: settings.persist_delay_s)
        self._size_threshold_bytes = settings.persist_size_threshold_bytes
        self._close_timeout_s = settings.close_timeout_s
        self._tasks = tasks
        self._clock = clock
        self._observer = observer
        self._room = ByteLimiter(settings.in_flight_bytes_max)
        self._ownership = Ownership()
        self._queue: list[_Waiting] = []
        self._queued_bytes = 0
        self._timer: anyio.CancelScope | None = None

    @property
    def in_flight_bytes(self) -> int:
        """Bytes queued or being uploaded, those of attempts that have lost but still run among them."""
        return self._room.held_bytes

    @property
    def has_room(self) -> bool:
        """Whether `upload` would not have to wait for room: what `room` waits for."""
        return self._room.has_room

    async def room(self) -> None:
        """Wait until less than `in_flight_bytes_max` is in flight. A cancelled call leaves nothing behind."""
        with self._waiting_for_room():
            await self._room.room()

    async def upload(self, change_sets: Sequence[ChangeSet]) -> Sequence[UploadedChangeSet]:
        """Make change sets of one writer durable; results in the same order. Waits while too much is in flight.

        Raises the error of the last attempt, or `BackendClosedError` where `tasks` ended first. After a cancelled call
        what was not sent yet never is; what was goes on for the others in its segment, and is then released.
        """
        if not change_sets:
            return ()
        waiting = _Waiting(change_sets)
        del change_sets  # so that they can go when they are encoded
        try:
            with self._waiting_for_room():
                await self._room.acquire(waiting.size_bytes)
        finally:
            self._observer.in_flight_changed(self.in_flight_bytes)
        try:
            self._enqueue(waiting)
            await waiting.done.wait()
        except BaseException:
            self._abandon(waiting)
            raise
        if waiting.error is not None:
            raise waiting.error
        return waiting.results

    async def upload_alone(
        self, change_sets: list[ChangeSet], pause: Callable[[], None] | None = None
    ) -> UploadedSegment:
        """Make a segment of these and no others durable, without haste. It is the caller's; the list is emptied.

        It waits while others need the room (`ByteLimiter.acquire_spare`), and an attempt is given `upload.timeout_s`
        for each MiB. `pause` is called before each change set is encoded. Raises the error of the last attempt, or of
        `pause`. A cancelled call removes what it has stored.
        """
        size_bytes = sum(change_set.size_bytes for change_set in change_sets)
        return await self._upload_spare(self._sender, size_bytes, lambda: self._sender.encode(change_sets, pause))

    async def upload_file(self, size_bytes: int, read: Callable[[], bytes]) -> UploadedSegment:
        """Make what `read` reads durable, as it is, in the same way. It is read when there is room for its bytes."""
        return await self._upload_spare(self._files, size_bytes, lambda: self._files.read(read))

    async def _upload_spare(
        self, sender: SegmentSender, size_bytes: int, encode: Callable[[], Awaitable[EncodedSegment]]
    ) -> UploadedSegment:
        await self._room.acquire_spare(size_bytes)
        ended: anyio.Event | None = None
        try:
            self._observer.in_flight_changed(self.in_flight_bytes)
            encoded = await encode()
            race = sender.race(encoded, patience=max(1.0, encoded.size_bytes / MiB))
            ended = race.ended
            won = await self._decide(race)
        finally:
            self._tasks.start_soon(self._give_back, size_bytes, ended)
        return won.uploaded

    def discard(self, segments: Sequence[UploadedSegment]) -> anyio.Event:
        """Begin to delete what `upload_alone` or `upload_file` has stored. The event says that it is gone.

        An error is logged only.
        """
        done = anyio.Event()
        self._tasks.start_soon(self._discard_all, segments, done)
        return done

    async def _decide(self, race: Race[Attempt]) -> Attempt:
        """The attempt that wins. Raises the error of the last one. Observers are told in either case."""
        try:
            won, number = await race.run()
        except Exception:
            self._observer.upload_decided(attempt=None, attempts=race.attempts)
            raise
        self._observer.upload_decided(attempt=number, attempts=race.attempts)
        self._observer.segment_uploaded(won.segment, won.uploaded, attempt=number, seconds=won.seconds)
        return won

    async def _give_back(self, size_bytes: int, ended: anyio.Event | None) -> None:
        """These bytes are not held any more, as soon as no attempt holds them."""
        try:
            if ended is not None:
                await ended.wait()
        finally:
            self._room.release(size_bytes)
            self._observer.in_flight_changed(self.in_flight_bytes)

    def confirm(self, change_sets: Iterable[UploadedChangeSet]) -> None:
        """A committed checkpoint owns these change sets' segments from now on."""
        self._ownership.confirm(change_sets)

    async def release(self, change_sets: Iterable[UploadedChangeSet]) -> None:
        """These change sets are not needed. Segments that nobody needs are deleted; an error is logged only.

        Returns when they are gone. After a cancelled call the deletion goes on in `tasks`.
        """
        unused = self._ownership.release(change_sets)
        if unused:
            await self.discard(unused).wait()

    @contextmanager
    def _waiting_for_room(self) -> Generator[None, None, None]:
        """Whoever waits in here is told of, also when it waits in vain."""
        if self._room.has_room:
            yield
            return
        begun = self._clock.monotonic()
        try:
            yield
        finally:
            self._observer.waited_for_room(self._clock.monotonic() - begun)

    def _free(self, batch: Iterable[_Waiting]) -> None:
        """These hold no bytes any more. Whoever is next is admitted."""
        self._room.release(sum(waiting.size_bytes for waiting in batch))
        self._observer.in_flight_changed(self.in_flight_bytes)

    def _enqueue(self, waiting: _Waiting) -> None:
        self._queue.append(waiting)
        self._queued_bytes += waiting.size_bytes
        self._observer.queue_changed(len(self._queue))
        try:
            if self._queued_bytes >= self._size_threshold_bytes:
                self._flush()
            elif self._timer is None:
                self._arm(self._delay_s())
        except RuntimeError as error:  # anyio's word for a task group that has ended
            raise BackendClosedError("the backend has ended: nothing can be uploaded any more") from error

    def _arm(self, delay_s: float) -> None:
        if delay_s == 0:
            self._flush()
            return
        timer = anyio.CancelScope()
        self._tasks.start_soon(self._flush_later, timer, delay_s)
        self._timer = timer

    def _abandon(self, waiting: _Waiting) -> None:
        """The call was cancelled, or could not even be queued."""
        waiting.abandoned = True
        if waiting in self._queue:
            self._queue.remove(waiting)
            self._queued_bytes -= waiting.size_bytes
            self._free([waiting])
            self._observer.queue_changed(len(self._queue))
            if not self._queue:
                self._disarm()
        elif waiting.results:  # done and cancelled at once
            self._tasks.start_soon(self.release, waiting.results)

    async def _flush_later(self, timer: anyio.CancelScope, delay_s: float) -> None:
        try:
            with timer:
                await anyio.sleep(delay_s)
        except BaseException:  # `tasks` are ending
            if self._timer is timer:
                self._refuse_queue()
            raise
        if self._timer is timer:  # and not one that was disarmed as it went off
            self._flush()

    def _flush(self) -> None:
        assert self._queue, "an empty segment"  # FLINK-31139; nothing waits: no timer is armed
        self._tasks.start_soon(self._send, self._queue)
        self._queue, self._queued_bytes = [], 0
        self._disarm()
        self._observer.queue_changed(0)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse_queue(self) -> None:
        batch, self._queue, self._queued_bytes, self._timer = self._queue, [], 0, None
        self._free(batch)
        self._observer.queue_changed(0)
        _end(batch, BackendClosedError("the backend ended before the changes were sent"))

    async def _send(self, batch: list[_Waiting]) -> None:
        """Upload a batch and tell its calls. Its bytes are in flight until no attempt holds them any more."""
        try:
            await self._upload_batch(batch)
        except BaseException:
            _end(batch, BackendClosedError("the backend ended before the changes were durable"))
            raise
        finally:
            self._free(batch)

    async def _upload_batch(self, batch: list[_Waiting]) -> None:
        change_sets = [each for waiting in batch for each in waiting.change_sets]
        for waiting in batch:
            waiting.change_sets = ()
        try:
            encoded = await self._sender.encode(change_sets)
        except Exception as error:  # noqa: BLE001  # handed to every caller of `upload` in this batch
            _end(batch, error)
            return
        self._observer.batch_sent(uploads=len(batch), change_sets=len(encoded.entries), size_bytes=encoded.size_bytes)
        race = self._sender.race(encoded)
        try:
            won, number = await race.run()
            unwanted = self._hand_out(batch, encoded, won.uploaded)
        except Exception as error:  # noqa: BLE001  # as above
            _end(batch, error)
            self._observer.upload_decided(attempt=None, attempts=race.attempts)
        else:
            self._observer.upload_decided(attempt=number, attempts=race.attempts)
            self._observer.segment_uploaded(won.segment, won.uploaded, attempt=number, seconds=won.seconds)
            await self.release(unwanted)
        await race.ended.wait()

    def _hand_out(
        self, batch: list[_Waiting], encoded: EncodedSegment, uploaded: UploadedSegment
    ) -> Sequence[UploadedChangeSet]:
        """Give each call its results. Returns those whose call was cancelled: nobody will ever release them."""
        self._ownership.start(uploaded, [(entry.log_id, entry.sequence_number) for entry in encoded.entries])
        unwanted: list[UploadedChangeSet] = []
        results = iter(_results(encoded, uploaded))
        for waiting in batch:
            own = [next(results) for _ in range(waiting.count)]
            if waiting.abandoned:
                unwanted += own
            waiting.end(own)
        return unwanted

    async def _discard_all(self, unused: Sequence[UploadedSegment], done: anyio.Event) -> None:
        """Nobody else knows of these: an end of `tasks` cuts it short only after `close_timeout_s`."""
        remaining = list(reversed(unused))
        try:
            await self._discard_each(remaining)
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(self._close_timeout_s, shield=True):
                await self._discard_each(remaining)
            for uploaded in remaining:
                _log.warning("the backend ended before an unused segment was deleted: key=%s", uploaded.primary.key)
            raise
        finally:
            done.set()

    async def _discard_each(self, remaining: list[UploadedSegment]) -> None:
        while remaining:
            await anyio.lowlevel.checkpoint()  # each removal is shielded: their sum must not be
            await self._sender.discard(remaining.pop())


def _end(batch: Iterable[_Waiting], error: Exception) -> None:
    for waiting in batch:
        waiting.end(error=error)


def _results(encoded: EncodedSegment, uploaded: UploadedSegment) -> Iterable[UploadedChangeSet]:
    for entry in encoded.entries:
        handle = ChangeSetHandle(
            segment=uploaded.primary,
            log_id=entry.log_id,
            sequence_number=entry.sequence_number,
            offset=entry.offset,
            length=entry.length,
            key_groups=entry.key_groups,
            records=entry.records,
        )
        yield UploadedChangeSet(handle, uploaded.local is not None)
