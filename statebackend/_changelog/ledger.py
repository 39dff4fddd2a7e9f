"""Keeps track of where every change of one writer is. Pure: it decides, `writer` carries out.

    append -> open -> seal -> sealed -> persist -> in flight -> succeed -> uploaded -> confirm -> confirmed -> gone
                               │  ^ ^                 │  └-> fail -> gone, remembered by its number only
                               │  │ └-----------------┘ take back
                               v  │ reset, or asked for again
                              inline -> confirm -> gone

A change set is in exactly one of these places. Ranges are `from` inclusive, `to` exclusive. An uploaded change set is
wanted by the log, until it is truncated because a base covers it, and by every checkpoint that asked for it, until that
is confirmed, reset or subsumed. When nothing wants it any more it is returned to the caller to be deleted. So uploads
are deleted up to the lower of what bases cover and what undecided checkpoints need, in whichever order these are told.

Failed and truncated change sets are forgotten. A failed range fails again at once when it is asked for, because its
owner has to replay. Change sets that a confirmed checkpoint holds inline are forgotten too: only its commit knows where
they are.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from statebackend._codec.change_sets.changes import Changes, change_set
from statebackend._codec.segment import EncodedFrame, SealedSet
from statebackend.errors import BackendClosedError, InputError, StoreFullError, UploadError
from statebackend.ids import ChangeSetHandle, CheckpointId, SequenceNumber

T = TypeVar("T")


class UploadedChangeSet(msgspec.Struct, frozen=True):
    """A durable change set: where it lies in the primary, and whether there is a complete local copy."""

    handle: ChangeSetHandle
    local: bool


class Persist(msgspec.Struct, eq=False):
    """A request to make a range durable. Done when it has found every change set of the range, or an error.

    Compared by identity: of two requests for the same range one may be abandoned while the other waits. With a
    checkpoint id the range stays wanted for that checkpoint, also when the request is done.
    """

    from_: SequenceNumber
    to: SequenceNumber
    checkpoint_id: CheckpointId | None
    found: dict[SequenceNumber, UploadedChangeSet]
    error: Exception | None = None

    @property
    def done(self) -> bool:
        """True if there is a result or an error."""
        return self.error is not None or len(self.found) == self.to - self.from_

    def result(self) -> Sequence[UploadedChangeSet]:
        """Return every change set of the range, in order. Raises the error, if there is one."""
        if self.error is not None:
            raise self.error
        return [self.found[number] for number in sorted(self.found)]

    def covers(self, number: SequenceNumber) -> bool:
        """True if the change set of that number lies in the range."""
        return self.from_ <= number < self.to

    def lies_within(self, from_: SequenceNumber, to: SequenceNumber) -> bool:
        """True if the request is done and its range lies within `from_` to `to`."""
        return self.done and from_ <= self.from_ and self.to <= to

    def offer(self, uploaded: UploadedChangeSet) -> None:
        """Take a change set, if it lies in the range."""
        if self.covers(uploaded.handle.sequence_number):
            self.found[uploaded.handle.sequence_number] = uploaded


class Ledger:
    """The state of one writer's log. Methods are events; they return what is to be done."""

    def __init__(self, log_id: str) -> None:
        self.log_id: Final = log_id
        self.open_bytes = 0
        self._open: list[Changes] = []
        self._next = SequenceNumber(0)  # the open set will get this number
        self._lowest = SequenceNumber(0)  # everything below is truncated
        self._inline_to = SequenceNumber(0)  # below it, something lies in a commit and nowhere else
        self._end: SequenceNumber | None = None  # closed: nothing from here on is wanted
        self._sealed: dict[SequenceNumber, SealedSet] = {}
        self._inline: dict[SequenceNumber, SealedSet] = {}  # handed out, for a commit to carry
        self._in_flight: set[SequenceNumber] = set()
        self._uploaded: dict[SequenceNumber, UploadedChangeSet] = {}
        self._detached: dict[SequenceNumber, UploadedChangeSet] = {}  # out of the log, but a request wants them
        self._confirmed: dict[SequenceNumber, UploadedChangeSet] = {}  # a commit owns their segments
        self._failed: tuple[SequenceNumber, Exception] | None = None
        self._waiting: list[Persist] = []
        self._undecided: list[Persist] = []  # of checkpoints that are not confirmed, reset or subsumed yet

    @property
    def is_awaited(self) -> bool:
        """True if a request waits for its results."""
        return bool(self._waiting)

    @property
    def in_flight(self) -> int:
        """Number of change sets in flight."""
        return len(self._in_flight)

    def append(self, changes: Changes) -> None:
        """Add changes to the open set. The sequence number stays. After `close` they are dropped.

        They are dropped, not refused: a cancelled task that still writes state must not fail for that (FLINK-30729).
        """
        if self._end is None:
            self._open.append(changes)
            self.open_bytes += changes.size_bytes

    def seal(self) -> SequenceNumber:
        """Close the open set, unless it is empty, and return the number of the next one."""
        if self._open:
            self._sealed[self._next] = change_set(self.log_id, self._next, self._open)
            self._open, self.open_bytes = [], 0
            self._next = SequenceNumber(self._next + 1)
        return self._next

    def take_open(self) -> Sequence[SealedSet]:
        """Seal the open set and return it, now in flight: the caller uploads it before it is asked for.

        Sets sealed earlier stay where they are: they may never be asked for.
        """
        number = self._next
        self.seal()
        return self._take(number)

    def take_inline(self, from_: SequenceNumber, bytes_max: int) -> Sequence[SealedSet] | None:
        """Return every change set from `from_` on, sealed and in order, if all are here and small; otherwise `None`.

        Here: neither uploaded nor in flight. Small: at most `bytes_max` together, by their estimates, or by the bytes
        of their frames. They stay, to be returned again or uploaded, until `confirm` says that a commit holds them.
        Raises as `persist` does.
        """
        self._check(from_)
        here = [self._sealed.get(number) or self._inline.get(number) for number in _numbers(from_, self._next)]
        size_bytes = self.open_bytes + sum(each.size_bytes for each in here if each is not None)
        if None in here or size_bytes > bytes_max:
            return None  # before the open set is sealed: `persist` decides what to do with it
        self.seal()
        for number in _numbers(from_, self._next):
            if number in self._sealed:
                self._inline[number] = self._sealed.pop(number)
        return [self._inline[number] for number in _numbers(from_, self._next)]

    def take_back(self, sealed: Iterable[SealedSet]) -> None:
        """Change sets in flight were not sent: they are sealed again. Called only while nobody waits for them.

        Those that were truncated, or are in a log that was closed, are forgotten.
        """
        assert not self._waiting, "a request would wait for nothing in flight"
        for each in sealed:
            self._in_flight.remove(each.sequence_number)
            if self._is_in_log(each.sequence_number):
                self._sealed[each.sequence_number] = each

    def encoded(self, frames: Iterable[EncodedFrame]) -> None:
        """Keep the frames of change sets that `take_inline` returned in their place, for an upload after all."""
        self._inline.update({frame.sequence_number: frame for frame in frames if frame.sequence_number in self._inline})

    def persist(
        self, from_: SequenceNumber, checkpoint_id: CheckpointId | None = None
    ) -> tuple[Persist, Sequence[SealedSet]]:
        """Ask for everything from `from_` on; return the request to wait for, and the change sets to upload now.

        What is uploaded or in flight already is not uploaded again. With a checkpoint id the range is wanted until the
        checkpoint is confirmed, reset or subsumed, or the request abandoned. Raises `UploadError` at once for a range
        that failed before, `InputError` for one that is truncated, only in a commit, or not appended yet.
        """
        self._check(from_)
        self.seal()
        taken = self._take(from_)
        request = Persist(from_, self._next, checkpoint_id, {})
        for uploaded in (*self._confirmed.values(), *self._uploaded.values()):
            request.offer(uploaded)  # what is in flight is offered by `succeed`
        if not request.done:
            self._waiting.append(request)
        if checkpoint_id is not None:
            self._undecided.append(request)
        return request, taken

    def abandon(self, request: Persist) -> Sequence[UploadedChangeSet]:
        """The request has no caller any more. Its uploads continue, and the next request can use them.

        Returns what only this request wanted: the caller releases it.
        """
        self._waiting = [each for each in self._waiting if each is not request]
        self._undecided = [each for each in self._undecided if each is not request]
        return self._drop_unwanted()

    def succeed(self, results: Iterable[UploadedChangeSet]) -> Sequence[UploadedChangeSet]:
        """Change sets in flight are durable. Returns those that nothing wants any more: the caller releases them."""
        for result in results:
            number = result.handle.sequence_number
            self._in_flight.remove(number)
            # It may have been truncated, or the log closed, while it was in flight.
            (self._uploaded if self._is_in_log(number) else self._detached)[number] = result
            for request in self._waiting:
                request.offer(result)
        self._forget_done()
        return self._drop_unwanted()

    def fail(self, numbers: Collection[SequenceNumber], error: Exception) -> Sequence[UploadedChangeSet]:
        """Change sets in flight could not be made durable: exactly the requests that cover one of them fail.

        Returns what only those requests wanted: the caller releases it.
        """
        self._in_flight.difference_update(numbers)
        highest = max(numbers)
        for request in self._waiting:
            if any(request.covers(number) for number in numbers):
                request.error = _upload_error(highest, error)
        self._forget_done()
        # The highest number is enough to remember: every request reaches up to the newest change.
        if self._is_in_log(highest) and (self._failed is None or self._failed[0] < highest):
            self._failed = (highest, error)
        return self._drop_unwanted()

    def confirm(
        self, from_: SequenceNumber, to: SequenceNumber, checkpoint_id: CheckpointId
    ) -> Sequence[UploadedChangeSet]:
        """The checkpoint is committed. Returns what is uploaded of its range: its commit owns that now.

        Its range is everything requested for it, and `from_` to `to`. The change sets stay until they are truncated, so
        that a later checkpoint can ask for them again; only those taken inline are forgotten. Change sets missing from
        the result were truncated before, which is normal, or are in flight for another checkpoint.
        """
        self._check_range(from_, to)
        own = [Persist(from_, to, None, {}), *self._of(checkpoint_id)]
        self._undecided = [each for each in self._undecided if each not in own and not each.lies_within(from_, to)]
        inline = [number for number in self._inline if from_ <= number < to]
        for number in inline:
            del self._inline[number]
            self._inline_to = max(self._inline_to, SequenceNumber(number + 1))
        confirmed = _pop(self._uploaded, own)
        self._confirmed |= confirmed
        return [*_pop(self._detached, own).values(), *confirmed.values()]

    def reset(
        self, from_: SequenceNumber, to: SequenceNumber, checkpoint_id: CheckpointId
    ) -> Sequence[UploadedChangeSet]:
        """The checkpoint will not be committed. What it uploaded or took inline stays for the next one.

        Returns what was truncated meanwhile and only this checkpoint wanted: the caller releases it.
        """
        self._check_range(from_, to)
        for number in [number for number in self._inline if from_ <= number < to]:
            self._sealed[number] = self._inline.pop(number)
        self._undecided = [each for each in self._undecided if each.checkpoint_id != checkpoint_id]
        return self._drop_unwanted()

    def subsume(self, checkpoint_id: CheckpointId) -> Sequence[UploadedChangeSet]:
        """A newer checkpoint has replaced this one and all before it: they want nothing any more.

        Returns what was truncated and only they wanted: the caller releases it. The checkpoint may be unknown, or one
        whose outcome was never told.
        """
        self._undecided = [
            each for each in self._undecided if each.checkpoint_id is None or each.checkpoint_id > checkpoint_id
        ]
        return self._drop_unwanted()

    def truncate(self, to: SequenceNumber) -> Sequence[UploadedChangeSet]:
        """No future checkpoint asks for anything below `to`: a base covers it, or a commit that the next one builds on.

        Returns what was uploaded of it and nothing else wants: the caller releases it. What a waiting request or an
        undecided checkpoint wants is returned later.
        """
        self._check_range(self._lowest, max(self._lowest, to))
        self._lowest = max(self._lowest, to)
        for sets in (self._sealed, self._inline):
            _pop_below(sets, self._lowest)
        _pop_below(self._confirmed, self._lowest)
        self._detached |= _pop_below(self._uploaded, self._lowest)
        return self._drop_unwanted()

    def close(self, from_: SequenceNumber | None = None) -> Sequence[UploadedChangeSet]:
        """From now on only change sets below `from_` that a checkpoint wants are wanted. Waiting requests fail.

        Returns everything else that was uploaded: the caller releases it. An undecided checkpoint may still be
        committed, so what it wants stays until it is confirmed, reset or subsumed. Without `from_` there is no upper
        bound. Closing again changes nothing.
        """
        if self._end is not None:
            return ()
        self._end = self._next if from_ is None else from_
        self._open, self.open_bytes = [], 0
        for place in (self._sealed, self._inline, self._confirmed):
            place.clear()
        self._detached |= _pop_below(self._uploaded, self._next)
        for request in self._waiting:
            request.error = BackendClosedError("the changelog was closed before the changes were durable")
        self._forget_done()
        return self._drop_unwanted()

    def check_invariants(self) -> None:
        """Assert that each change set is in one place, below the next number, and there for a reason.

        And that each request waits for change sets in flight.
        """
        in_log = [set(place) for place in (self._sealed, self._inline, self._uploaded, self._confirmed)]
        places = [*in_log, set(self._detached), self._in_flight]
        everywhere = set[SequenceNumber]().union(*places)
        assert len(everywhere) == sum(map(len, places)), "a change set in two places"
        assert all(number < self._next for number in everywhere), "a change set from the future"
        assert all(all(map(self._is_in_log, place)) for place in in_log), "truncated or closed, and in the log"
        assert not any(map(self._is_in_log, self._detached)), "in the log, and detached from it"
        assert all(map(self._is_wanted, self._detached)), "detached, and wanted by nothing"
        assert self.open_bytes == sum(each.size_bytes for each in self._open), "bytes of the open set miscounted"
        assert self._end is None or not (self._open or any(in_log) or self._waiting), "closed, and not empty"
        assert not any(request.done for request in self._waiting), "a finished request still waits"
        assert all(self._reachable(request) for request in self._waiting), "a request waits for nothing in flight"
        assert all(request.error is None for request in self._undecided), "a failed request is remembered"

    def _take(self, from_: SequenceNumber) -> Sequence[SealedSet]:
        here = self._sealed | self._inline
        taken = [here[number] for number in sorted(here) if number >= from_]
        for each in taken:
            self._sealed.pop(each.sequence_number, None)
            self._inline.pop(each.sequence_number, None)
        self._in_flight.update(each.sequence_number for each in taken)
        return taken

    def _of(self, checkpoint_id: CheckpointId) -> Sequence[Persist]:
        return [each for each in self._undecided if each.checkpoint_id == checkpoint_id]

    def _is_in_log(self, number: SequenceNumber) -> bool:
        return number >= self._lowest and self._end is None

    def _is_wanted(self, number: SequenceNumber) -> bool:
        if self._end is not None and number >= self._end:
            return False
        return any(request.covers(number) for request in (*self._waiting, *self._undecided))

    def _drop_unwanted(self) -> Sequence[UploadedChangeSet]:
        unwanted = sorted(number for number in self._detached if not self._is_wanted(number))
        return [self._detached.pop(number) for number in unwanted]

    def _reachable(self, request: Persist) -> bool:
        missing = set(range(request.from_, request.to)) - set(request.found)
        return missing <= self._in_flight

    def _check(self, from_: SequenceNumber) -> None:
        if self._end is not None:
            raise BackendClosedError("the changelog is closed")
        if self._failed is not None and self._failed[0] >= from_:
            raise _upload_error(*self._failed)
        if self._lowest > from_:
            raise InputError("the range begins below what is truncated", from_=from_, lowest=self._lowest)
        if self._inline_to > from_:
            raise InputError("the range begins in what only a commit holds", from_=from_, inline_to=self._inline_to)
        self._check_range(from_, self._next)

    def _check_range(self, from_: SequenceNumber, to: SequenceNumber) -> None:
        if not from_ <= to <= self._next:
            raise InputError("not a range of the appended changes", from_=from_, to=to, next=self._next)

    def _forget_done(self) -> None:
        self._waiting = [request for request in self._waiting if not request.done]
        self._undecided = [request for request in self._undecided if request.error is None]


def _numbers(from_: SequenceNumber, to: SequenceNumber) -> Iterable[SequenceNumber]:
    return map(SequenceNumber, range(from_, to))


def _pop_below(place: dict[SequenceNumber, T], to: SequenceNumber) -> dict[SequenceNumber, T]:
    return {number: place.pop(number) for number in sorted(place) if number < to}


def _pop(place: dict[SequenceNumber, T], ranges: Sequence[Persist]) -> dict[SequenceNumber, T]:
    covered = [number for number in sorted(place) if any(each.covers(number) for each in ranges)]
    return {number: place.pop(number) for number in covered}


def _upload_error(number: SequenceNumber, cause: Exception) -> UploadError | StoreFullError:
    if isinstance(cause, StoreFullError):
        full = StoreFullError(f"{cause.message}: make room, reopen, and replay", **cause.facts)
        full.__cause__ = cause
        return full
    error = UploadError("changes could not be made durable: reopen, and replay them", sequence_number=number)
    error.__cause__ = cause
    return error
