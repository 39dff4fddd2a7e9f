"""Where every change of one writer is: open, sealed, in flight, uploaded, or gone. Pure: it decides, `writer` does.

    append -> open set -> seal -> sealed -> persist -> in flight -> succeed -> uploaded -> truncate -> gone
                                                           └-> fail -> gone, remembered by its number only

A change set is in exactly one of these places. Ranges are `from` inclusive, `to` exclusive. Failed and truncated change
sets are not kept: a failed range fails again at once when asked for, because its owner has to replay.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import msgspec

from statebackend._codec.records import ChangeSet, StateChange, change_set
from statebackend.errors import BackendClosedError, InputError, UploadError
from statebackend.ids import ChangeSetHandle, Key, SequenceNumber

CHANGE_OVERHEAD_BYTES: Final = 16
"""Added to a change's key and data for what surrounds them in a segment; an estimate, for thresholds only."""


_SIZED: Final = frozenset({str, bytes})


class UploadedChangeSet(msgspec.Struct, frozen=True):
    """A durable change set: where it is in the primary, and whether a complete local copy exists."""

    handle: ChangeSetHandle
    local: bool


class Persist(msgspec.Struct, eq=False):
    """A request to make a range durable. Done when it has every change set of the range, or an error.

    It holds its own results: truncating the log meanwhile takes nothing from it. Each request is itself: two of one
    range are not equal, for one may be given up while the other waits.
    """

    from_: SequenceNumber
    to: SequenceNumber
    found: dict[SequenceNumber, UploadedChangeSet]
    error: Exception | None = None

    @property
    def done(self) -> bool:
        """Whether there is something to report."""
        return self.error is not None or len(self.found) == self.to - self.from_

    def result(self) -> Sequence[UploadedChangeSet]:
        """Every change set of the range in order. Raises the error, if there is one."""
        if self.error is not None:
            raise self.error
        return [self.found[number] for number in sorted(self.found)]

    def covers(self, number: SequenceNumber) -> bool:
        """Whether the change set of that number lies in the range."""
        return self.from_ <= number < self.to

    def offer(self, uploaded: UploadedChangeSet) -> None:
        """Keep a change set that lies in the range."""
        if self.covers(uploaded.handle.sequence_number):
            self.found[uploaded.handle.sequence_number] = uploaded


class Ledger:
    """The state of one writer's log. Methods are the events; what they return is what is to be done."""

    def __init__(self, log_id: str) -> None:
        self.log_id: Final = log_id
        self.open_bytes = 0
        self._open: list[StateChange] = []
        self._next = SequenceNumber(0)  # the number the open set will get
        self._lowest = SequenceNumber(0)  # everything below is truncated
        self._end: SequenceNumber | None = None  # closed: everything from here on is unwanted
        self._sealed: dict[SequenceNumber, ChangeSet] = {}
        self._in_flight: set[SequenceNumber] = set()
        self._uploaded: dict[SequenceNumber, UploadedChangeSet] = {}
        self._failed: tuple[SequenceNumber, Exception] | None = None
        self._waiting: list[Persist] = []

    def append(self, change: StateChange) -> None:
        """Add to the open set. The sequence number does not move. After `close` the change is dropped.

        Dropped and not refused: a cancelled task that still writes state must not die of it (FLINK-30729).
        """
        if self._end is None:
            self._open.append(change)
            self.open_bytes += size_of(change)

    def extend(self, changes: Sequence[StateChange], size_bytes: int) -> None:
        """As `append` of each, whose `size_of` add up to `size_bytes`."""
        if self._end is None:
            self._open.extend(changes)
            self.open_bytes += size_bytes

    def seal(self) -> SequenceNumber:
        """Close the open set, unless it is empty, and return the number of the next one."""
        if self._open:
            self._sealed[self._next] = change_set(self.log_id, self._next, self._open, self.open_bytes)
            self._open, self.open_bytes = [], 0
            self._next = SequenceNumber(self._next + 1)
        return self._next

    def take_open(self) -> Sequence[ChangeSet]:
        """Seal the open set and return it, now in flight: the caller uploads it before anybody asks.

        Sets that were sealed before stay where they are: nobody may ever ask for them.
        """
        number = self._next
        self.seal()
        return self._take(number)

    def persist(self, from_: SequenceNumber) -> tuple[Persist, Sequence[ChangeSet]]:
        """Ask for everything from `from_` on: what to wait for, and what to upload now.

        What is uploaded or in flight already is not uploaded again. Raises `UploadError` at once for a range that
        failed before, `InputError` for one that is truncated or not appended yet.
        """
        self._check(from_)
        self.seal()
        taken = self._take(from_)
        request = Persist(from_, self._next, {})
        for uploaded in self._uploaded.values():
            request.offer(uploaded)
        if not request.done:
            self._waiting.append(request)
        return request, taken

    def abandon(self, request: Persist) -> None:
        """Nobody waits for the request any more. Its uploads go on and can be used by the next one."""
        if request in self._waiting:
            self._waiting.remove(request)

    def succeed(self, results: Iterable[UploadedChangeSet]) -> Sequence[UploadedChangeSet]:
        """Sets in flight are durable. Returns those that nobody wants any more: the caller releases them."""
        unwanted: list[UploadedChangeSet] = []
        for result in results:
            number = result.handle.sequence_number
            self._in_flight.remove(number)
            for request in self._waiting:
                request.offer(result)
            if self._is_wanted(number):
                self._uploaded[number] = result
            elif not self._is_awaited(number):
                unwanted.append(result)
        self._forget_done()
        return unwanted

    def fail(self, numbers: Collection[SequenceNumber], error: Exception) -> None:
        """Sets in flight could not be made durable: exactly the requests whose range touches them fail."""
        self._in_flight.difference_update(numbers)
        highest = max(numbers)
        for request in self._waiting:
            if any(request.covers(number) for number in numbers):
                request.error = _upload_error(highest, error)
        self._forget_done()
        if self._is_wanted(highest) and (self._failed is None or self._failed[0] < highest):
            self._failed = (highest, error)

    def truncate(self, to: SequenceNumber) -> Sequence[UploadedChangeSet]:
        """Forget everything below `to`. Returns what was uploaded of it: the caller releases it.

        What lies in the range of a waiting request is not among it: that request's caller gets its handles, and their
        segments must not be gone then. Should the request come to nothing, a sweep finds them.
        """
        return [each for each in self.confirm(to) if not self._is_awaited(each.handle.sequence_number)]

    def confirm(self, to: SequenceNumber) -> Sequence[UploadedChangeSet]:
        """Forget everything below `to`. Returns all that was uploaded of it: it belongs to a checkpoint now."""
        if to > self._next:
            raise InputError("cannot truncate beyond what was appended", to=to, next=self._next)
        self._lowest = max(self._lowest, to)
        self._sealed = {number: each for number, each in self._sealed.items() if number >= to}
        return self._drop(lambda number: number < to)

    def close(self, from_: SequenceNumber) -> Sequence[UploadedChangeSet]:
        """Nothing from `from_` on is wanted any more, and nobody is left waiting. Closing again changes nothing.

        Returns what was uploaded from `from_` on: the caller releases it. What lies below may be part of a checkpoint
        whose commit is still under way, so it is kept.
        """
        if self._end is not None:
            return ()
        self._end = from_
        self._open, self.open_bytes = [], 0
        self._sealed.clear()
        for request in self._waiting:
            request.error = BackendClosedError("the changelog was closed before the changes were durable")
        self._waiting.clear()
        return self._drop(lambda number: number >= from_)

    def check_invariants(self) -> None:
        """A change set is in exactly one place, below the next number, and not both truncated and kept.

        And whoever waits, waits for something that is under way.
        """
        places = [set(self._sealed), self._in_flight, set(self._uploaded)]
        everywhere = set[SequenceNumber]().union(*places)
        assert len(everywhere) == sum(map(len, places)), "a change set in two places"
        assert all(number < self._next for number in everywhere), "a change set from the future"
        assert all(number >= self._lowest for number in (*self._sealed, *self._uploaded)), "truncated, and kept"
        assert all(map(self._is_wanted, self._uploaded)), "kept beyond the end"
        assert self.open_bytes == sum(map(size_of, self._open)), "bytes of the open set miscounted"
        assert self._end is None or not (self._open or self._sealed or self._waiting), "closed, and not empty"
        assert not any(request.done for request in self._waiting), "a finished request still waits"
        assert all(self._reachable(request) for request in self._waiting), "a request waits for what will never come"

    def _take(self, from_: SequenceNumber) -> Sequence[ChangeSet]:
        taken = [self._sealed.pop(number) for number in sorted(self._sealed) if number >= from_]
        self._in_flight.update(each.sequence_number for each in taken)
        return taken

    def _is_wanted(self, number: SequenceNumber) -> bool:
        return number >= self._lowest and (self._end is None or number < self._end)

    def _is_awaited(self, number: SequenceNumber) -> bool:
        return any(request.covers(number) for request in self._waiting)

    def _reachable(self, request: Persist) -> bool:
        missing = set(range(request.from_, request.to)) - set(request.found)
        return missing <= self._in_flight

    def _check(self, from_: SequenceNumber) -> None:
        if self._end is not None:
            raise BackendClosedError("the changelog is closed")
        if self._failed is not None and self._failed[0] >= from_:
            raise _upload_error(*self._failed)
        if self._lowest > from_:
            raise InputError("the range begins in what was truncated", from_=from_, lowest=self._lowest)
        if from_ > self._next:
            raise InputError("the range begins beyond what was appended", from_=from_, next=self._next)

    def _forget_done(self) -> None:
        self._waiting = [request for request in self._waiting if not request.done]

    def _drop(self, unwanted: Callable[[SequenceNumber], bool]) -> Sequence[UploadedChangeSet]:
        return [self._uploaded.pop(number) for number in sorted(self._uploaded) if unwanted(number)]


def size_of(change: StateChange) -> int:
    """About how many bytes a change takes in a segment before compression; for thresholds only."""
    key = change.key
    return len(change.data) + CHANGE_OVERHEAD_BYTES + (len(key) if type(key) in _SIZED else _key_bytes(key))


def _key_bytes(key: Key) -> int:
    if isinstance(key, (str, bytes)):
        return len(key)
    return sum(map(_key_bytes, key)) if isinstance(key, tuple) else 8


def _upload_error(number: SequenceNumber, cause: Exception) -> UploadError:
    error = UploadError("changes could not be made durable: reopen, and replay them", sequence_number=number)
    error.__cause__ = cause
    return error
