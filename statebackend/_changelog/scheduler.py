"""Batches the change sets of many writers into segments and has them uploaded.

`UploadQueue` decides when they are sent; while they gather there, they are encoded. Only the race of upload attempts
decides that an upload failed. Each attempt writes under a fresh name. Each waiting call learns how its upload ended,
also when the backend ends first.
"""

import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Final, TypeVar

import anyio
from anyio.abc import TaskGroup

from statebackend._changelog.ledger import UploadedChangeSet
from statebackend._changelog.limiter import ByteLimiter
from statebackend._changelog.ownership import Ownership
from statebackend._changelog.requests import EarlyFrames, Request, end_all, results_of
from statebackend._changelog.segment_upload import INLINE_ENCODE_BYTES_MAX, SegmentSender, UploadAttempt
from statebackend._changelog.upload_queue import UploadQueue
from statebackend._codec.segment import EncodedFrame, EncodedSegment, FrameEntry, SealedSet
from statebackend._retry import Race
from statebackend.abc import Clock, Observer, UploadedSegment
from statebackend.errors import BackendClosedError
from statebackend.settings import MiB

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class UploadScheduler:
    """One per process, shared by its writers. Uploads run in `tasks` and end with it.

    Bytes in flight are those queued, being encoded and being uploaded, until no upload attempt holds them any more.
    """

    def __init__(
        self,
        sender: SegmentSender,
        *,
        files: SegmentSender,
        persist_delay_s: float,
        budget_wait_s: Callable[[], float],
        persist_size_threshold_bytes: int,
        in_flight_bytes_max: int,
        discard_concurrency_max: int,
        close_timeout_s: float,
        tasks: TaskGroup,
        clock: Clock,
        observer: Observer,
    ) -> None:
        """`files` sends for `upload_file`. `budget_wait_s`: how long what is sent has to wait, in company or not."""
        self._sender = sender
        self._files = files
        self._close_timeout_s = close_timeout_s
        self._discards_max = discard_concurrency_max
        self._discards = anyio.Semaphore(discard_concurrency_max)  # of all calls together
        self._tasks = tasks
        self._clock = clock
        self._observer = observer
        self._room = ByteLimiter(in_flight_bytes_max)
        self._ownership = Ownership()
        self.queue: Final = UploadQueue(
            self._send,
            self._refuse,
            delay_s=persist_delay_s,
            budget_wait_s=budget_wait_s,
            size_threshold_bytes=persist_size_threshold_bytes,
            tasks=tasks,
            clock=clock,
            observer=observer,
        )

    @property
    def in_flight_bytes(self) -> int:
        """Bytes in flight, including those of upload attempts that lost but still run."""
        return self._room.held_bytes

    @property
    def has_room(self) -> bool:
        """True if `upload` would not wait for room."""
        return self._room.has_room

    async def room(self) -> None:
        """Wait until fewer than `in_flight_bytes_max` are in flight. A cancelled call leaves nothing behind."""
        with self._waiting_for_room():
            await self._room.room()

    async def upload(
        self, change_sets: Sequence[SealedSet], may_join: Callable[[], bool] | None = None
    ) -> Sequence[UploadedChangeSet]:
        """Make change sets of one writer durable; results in the same order. Waits while too much is in flight.

        `may_join`: as registered by the writer. While it is true, this call may wait beyond the persist delay. Returns
        nothing if the writer took its change sets back.
        Raises the error of the last upload attempt, or `BackendClosedError` if `tasks` end first. After a cancelled
        call, change sets not sent yet are never sent; those sent are uploaded with their segment, and then released.
        """
        if not change_sets:
            return ()
        request = Request(change_sets, may_join)
        del change_sets  # so that they can be freed as they are encoded
        try:
            with self._waiting_for_room():
                await self._room.acquire(request.size_bytes)
        finally:
            self._observer.in_flight_changed(self.in_flight_bytes)
        try:
            self._enqueue(request)
            await request.done.wait()
        except BaseException:
            self._abandon(request)
            raise
        if request.error is not None:
            raise request.error
        return request.results

    async def encoded_early(self, may_join: Callable[[], bool]) -> None:
        """Wait until nothing of this writer is being encoded in the queue. A cancelled call changes nothing."""
        for request in self.queue.of(may_join):
            if request.early is not None:
                await request.early.ended.wait()

    def take_back(self, may_join: Callable[[], bool], count: int, bytes_max: int) -> Sequence[SealedSet]:
        """Take the change sets of this writer out of the queue, as frames if they are encoded, and return them.

        None of them unless there are `count`, estimated at no more than `bytes_max`, and none is being encoded.
        """
        own = self.queue.of(may_join)
        small = sum(request.count for request in own) == count and sum(each.size_bytes for each in own) <= bytes_max
        if not small or any(request.is_encoding for request in own):
            return ()
        for request in own:
            self.queue.remove(request)
        self._free(own)
        return [each for request in own for each in request.take_back()]

    async def upload_alone(
        self, change_sets: list[SealedSet], pause: Callable[[], None] | None = None
    ) -> UploadedSegment:
        """Make a segment of these change sets and no others durable, with low priority. The caller owns the segment.

        The list is emptied. The call waits while others need the room (`ByteLimiter.acquire_spare`), and an upload
        attempt may take `upload.timeout_s` for each MiB. `pause` is called before each change set is encoded. Raises
        the error of the last attempt, or of `pause`. A cancelled call removes what it has stored.
        """
        uploaded, _ = await self.upload_listed(change_sets, pause)
        return uploaded

    async def upload_listed(
        self, change_sets: list[SealedSet], pause: Callable[[], None] | None = None
    ) -> tuple[UploadedSegment, Sequence[FrameEntry]]:
        """As `upload_alone`; also say where in the segment each change set lies."""
        size_bytes = sum(change_set.size_bytes for change_set in change_sets)
        return await self._upload_spare(self._sender, size_bytes, lambda: self._sender.encode(change_sets, pause))

    async def upload_file(self, size_bytes: int, read: Callable[[], bytes]) -> UploadedSegment:
        """Make the bytes that `read` returns durable, in the same way. They are read when there is room for them."""
        uploaded, _ = await self._upload_spare(self._files, size_bytes, lambda: self._files.read(read))
        return uploaded

    async def _upload_spare(
        self, sender: SegmentSender, size_bytes: int, encode: Callable[[], Awaitable[EncodedSegment]]
    ) -> tuple[UploadedSegment, Sequence[FrameEntry]]:
        await self._spare_room(size_bytes)
        ended: anyio.Event | None = None  # of the race: attempts that lost hold the bytes until then
        try:
            self._observer.in_flight_changed(self.in_flight_bytes)
            encoded = await encode()
            race = sender.race(encoded, patience=max(1.0, encoded.size_bytes / MiB))
            ended = race.ended
            return await self._decide(race, lambda uploaded: uploaded), encoded.entries
        finally:
            self._tasks.start_soon(self._give_back, size_bytes, ended)

    async def _spare_room(self, size_bytes: int) -> None:
        """As `ByteLimiter.acquire_spare`. What the queue gathers is sent for it: nothing else need end it."""
        with self.queue.not_gathering():
            if not self._room.has_spare(size_bytes):
                self.queue.hurry()
            await self._room.acquire_spare(size_bytes)

    def discard(self, segments: Sequence[UploadedSegment]) -> anyio.Event:
        """Begin to delete segments stored by `upload_alone` or `upload_file`. The event is set when they are gone.

        An error is only logged.
        """
        done = anyio.Event()
        self._tasks.start_soon(self._discard_all, segments, done)
        return done

    async def _decide(self, race: Race[UploadAttempt], take: Callable[[UploadedSegment], T]) -> T:
        """Return what `take` makes of the winner's segment. Raises its error, or that of the last upload attempt.

        Observers are told in either case: an upload whose segment cannot be taken has failed.
        """
        try:
            won, number = await race.run()
            taken = take(won.uploaded)
        except Exception:
            self._observer.upload_decided(attempt=None, attempts=race.attempts)
            raise
        self._observer.upload_decided(attempt=number, attempts=race.attempts)
        self._observer.segment_uploaded(won.segment, won.uploaded, attempt=number, seconds=won.seconds)
        return taken

    async def _give_back(self, size_bytes: int, ended: anyio.Event | None) -> None:
        """Release these bytes once no upload attempt holds them."""
        try:
            if ended is not None:
                await ended.wait()
        finally:
            self._room.release(size_bytes)
            self._observer.in_flight_changed(self.in_flight_bytes)

    def confirm(self, change_sets: Iterable[UploadedChangeSet]) -> None:
        """A committed checkpoint owns the segments of these change sets from now on."""
        self._ownership.confirm(change_sets)

    async def release(self, change_sets: Iterable[UploadedChangeSet]) -> None:
        """These change sets are not needed. Delete the segments that are unused then; an error is only logged.

        Returns when they are gone. After a cancelled call the deletion continues in `tasks`.
        """
        unused = self._ownership.release(change_sets)
        if unused:
            await self.discard(unused).wait()

    @contextmanager
    def _waiting_for_room(self) -> Generator[None, None, None]:
        """Tell the observer how long this block waited for room, also if it was cancelled."""
        if self._room.has_room:
            yield
            return
        begun = self._clock.monotonic()
        try:
            yield
        finally:
            self._observer.waited_for_room(self._clock.monotonic() - begun)

    def _free(self, batch: Iterable[Request]) -> None:
        """Release the bytes of these requests, and admit the next ones."""
        self._room.release(sum(request.size_bytes for request in batch))
        self._observer.in_flight_changed(self.in_flight_bytes)

    def _enqueue(self, request: Request) -> None:
        """Queue a request, and encode it early if nobody waits for it."""
        try:
            self.queue.put(request)
            if self.queue.gathers and request.size_bytes > INLINE_ENCODE_BYTES_MAX:
                request.early = EarlyFrames(self._sender.encode_frames)
                self._tasks.start_soon(request.early.run, list(request.take()))
        except RuntimeError as error:  # anyio: the task group has ended
            raise BackendClosedError("the backend has ended: nothing can be uploaded any more") from error

    def _refuse(self, batch: list[Request]) -> None:
        self._free(batch)
        end_all(batch, BackendClosedError("the backend ended before the changes were sent"))

    def _abandon(self, request: Request) -> None:
        """The call was cancelled, or could not be queued."""
        request.abandoned = True  # if it was sent, `_hand_out` releases its results
        if request in self.queue:
            self.queue.remove(request)
            self._free([request])
        elif request.results:  # done and cancelled in the same turn of the loop: no caller has the results
            self._tasks.start_soon(self.release, request.results)

    async def _send(self, batch: list[Request]) -> None:
        """Upload a batch and tell its calls. Its bytes are in flight until no upload attempt holds them."""
        try:
            await self._upload_batch(batch)
        except BaseException:
            end_all(batch, BackendClosedError("the backend ended before the changes were durable"))
            raise
        finally:
            self._free(batch)

    async def _upload_batch(self, batch: list[Request]) -> None:
        try:
            encoded = await self._encode(batch)
        except Exception as error:  # noqa: BLE001  # handed to every caller of `upload` in this batch
            end_all(batch, error)
            return
        self._observer.batch_sent(uploads=len(batch), change_sets=len(encoded.entries), size_bytes=encoded.size_bytes)
        race = self._sender.race(encoded)
        try:
            unwanted = await self._decide(race, partial(self._hand_out, batch, encoded))
        except Exception as error:  # noqa: BLE001  # as above
            end_all(batch, error)
        else:
            await self.release(unwanted)
        await race.ended.wait()  # until then attempts that lost hold the bytes

    async def _encode(self, batch: Sequence[Request]) -> EncodedSegment:
        late = [request for request in batch if request.early is None]
        change_sets = [each for request in late for each in request.take()]  # emptied as they are encoded
        if len(late) == len(batch):
            return await self._sender.encode(change_sets)
        encoded = iter(await self._sender.encode_frames(change_sets))
        frames: list[EncodedFrame] = []
        for request in batch:
            early = request.early
            frames += islice(encoded, request.count) if early is None else await early.frames()
        return await self._sender.joined(frames)

    def _hand_out(
        self, batch: list[Request], encoded: EncodedSegment, uploaded: UploadedSegment
    ) -> Sequence[UploadedChangeSet]:
        """Give each call its results. Returns those of cancelled calls, for this caller to release."""
        self._ownership.start(uploaded, [(entry.log_id, entry.sequence_number) for entry in encoded.entries])
        unwanted: list[UploadedChangeSet] = []
        results = iter(results_of(encoded, uploaded))
        for request in batch:
            own = [next(results) for _ in range(request.count)]
            if request.abandoned:
                unwanted += own
            request.end(own)
        return unwanted

    async def _discard_all(self, unused: Sequence[UploadedSegment], done: anyio.Event) -> None:
        """Delete these segments, which nothing else refers to. When `tasks` end, `close_timeout_s` are left for it."""
        remaining = list(reversed(unused))
        try:
            await self._discard_each(remaining)
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(self._close_timeout_s, shield=True):
                await self._discard_each(remaining)
            for uploaded in remaining:
                _logger.warning("the backend ended before an unused segment was deleted: key=%s", uploaded.primary.key)
            raise
        finally:
            done.set()

    async def _discard_each(self, remaining: list[UploadedSegment]) -> None:
        """Delete them, the last one first, and take from the list what is begun: that is shielded, and ends."""

        async def discard_some() -> None:
            while remaining:
                async with self._discards:  # a cancellation gets in here
                    if remaining:
                        await self._sender.discard(remaining.pop())

        async with anyio.create_task_group() as tasks:
            for _ in range(min(len(remaining), self._discards_max)):
                tasks.start_soon(discard_some)
