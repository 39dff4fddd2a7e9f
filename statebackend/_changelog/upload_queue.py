"""The requests that wait to be sent, and the moment at which they are.

The first one starts the persist delay, during which others join it. Reaching the size threshold sends the queue at
once, and so does the moment from which no writer could join it any more. While nobody waits for anything in it, because
its writers are about to bring more, it gathers beyond the delay.
"""

import math
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from statebackend._changelog.requests import Request
from statebackend.abc import Clock, Observer


class UploadQueue:
    """The queue of one scheduler: `send` is started in `tasks` with all of it, `refuse` called if these end before."""

    def __init__(
        self,
        send: Callable[[list[Request]], Coroutine[Any, Any, None]],
        refuse: Callable[[list[Request]], None],
        *,
        delay_s: float,
        budget_wait_s: Callable[[], float],
        size_threshold_bytes: int,
        tasks: TaskGroup,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._send: Final = send
        self._refuse: Final = refuse
        self._delay_s = delay_s
        self._budget_wait_s = budget_wait_s
        self._size_threshold_bytes = size_threshold_bytes
        self._tasks = tasks
        self._clock = clock
        self._observer = observer
        self._queue: list[Request] = []
        self._queued_of = Counter[Callable[[], bool] | None]()  # by writer, of whom there are few, of requests many
        self._queued_bytes = 0
        self._timer: anyio.CancelScope | None = None  # while something is queued
        self._due_s = 0.0  # when it goes off; never, while the queue gathers
        self._since_s = 0.0  # when the queue began
        self._hurrying = 0  # bases that wait for room
        self._writers: list[Callable[[], bool]] = []

    def register(self, may_join: Callable[[], bool]) -> None:
        """Expect a writer, until `unregister`. `may_join`: if it could still add to what is queued.

        While no writer is registered, it is not known if any may come, and the persist delay is always kept.
        """
        self._writers.append(may_join)

    def unregister(self, may_join: Callable[[], bool]) -> None:
        """This writer will not come any more. Doing so again changes nothing."""
        if may_join in self._writers:
            self._writers.remove(may_join)
            self.hurry()

    def hurry(self) -> None:
        """Send what is queued without the rest of its persist delay, if no writer could join it any more.

        To be called when a writer begins to wait for what it has uploaded before.
        """
        if self._timer is not None:
            self._set_timer()

    @property
    def gathers(self) -> bool:
        """True if something is queued and nobody waits for it."""
        return self._timer is not None and self._due_s == math.inf

    def of(self, may_join: Callable[[], bool]) -> Sequence[Request]:
        """The requests of one writer, in order."""
        return [request for request in self._queue if request.may_join == may_join]

    def __contains__(self, request: object) -> bool:
        """True if the request was not sent yet."""
        return request in self._queue

    @contextmanager
    def not_gathering(self) -> Generator[None, None, None]:
        """Let the queue wait no longer than its delay meanwhile: somebody needs the room that it takes."""
        self._hurrying += 1
        try:
            yield
        finally:
            self._hurrying -= 1

    def put(self, request: Request) -> None:
        """Add a request. Raises anyio's `RuntimeError` if `tasks` have ended."""
        if not self._queue:
            self._since_s = self._clock.monotonic()
        self._queue.append(request)
        self._queued_of[request.may_join] += 1
        self._queued_bytes += request.size_bytes
        self._observer.queue_changed(len(self._queue))
        if self._queued_bytes >= self._size_threshold_bytes:
            self._flush()
        else:
            self._set_timer()

    def remove(self, request: Request) -> None:
        """Take a request out again."""
        self._queue.remove(request)
        self._queued_of -= Counter([request.may_join])
        self._queued_bytes -= request.size_bytes
        self._observer.queue_changed(len(self._queue))
        if not self._queue:
            self._disarm()

    def _set_timer(self) -> None:
        """Let the queue be sent when it is due, at once if it is. Nothing changes if that is already so."""
        now_s, due_s = self._clock.monotonic(), math.inf
        if not all(map(self._gathers, self._queued_of)):
            is_complete = bool(self._writers) and not any(may_join() for may_join in self._writers)
            due_s = max(self._since_s + (0 if is_complete else self._delay_s), now_s + self._budget_wait_s())
        if self._timer is not None and due_s >= self._due_s:
            return
        self._disarm()
        if due_s <= now_s:
            self._flush()
            return
        timer = anyio.CancelScope()
        self._tasks.start_soon(self._flush_later, timer, due_s - now_s)
        self._timer, self._due_s = timer, due_s

    def _gathers(self, may_join: Callable[[], bool] | None) -> bool:
        """True if nobody waits for what this writer has queued, and it is about to bring more."""
        return may_join in self._writers and may_join is not None and may_join() and not self._hurrying

    async def _flush_later(self, timer: anyio.CancelScope, delay_s: float) -> None:
        try:
            with timer:
                await (anyio.sleep_forever() if delay_s == math.inf else anyio.sleep(delay_s))
        except BaseException:  # `tasks` are ending: nothing else would wake the queued calls
            if self._timer is timer:
                self._refuse_all()
            raise
        if self._timer is timer:  # it may have been disarmed in the turn in which it went off
            self._flush()

    def _flush(self) -> None:
        assert self._queue, "an empty segment"  # FLINK-31139: a timer is armed only while something is queued
        self._tasks.start_soon(self._send, self._queue)
        self._taken()
        self._disarm()
        self._observer.queue_changed(0)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse_all(self) -> None:
        batch, self._timer = self._taken(), None
        self._observer.queue_changed(0)
        self._refuse(batch)

    def _taken(self) -> list[Request]:
        taken, self._queue, self._queued_bytes = self._queue, [], 0
        self._queued_of.clear()
        return taken
