"""The ledger against a model that keeps everything for ever and counts by hand."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from statebackend._changelog.ledger import Ledger, Persist, UploadedChangeSet
from statebackend._changelog.segment_upload import frame_of
from statebackend._codec.change_sets.keyed_changes import CHANGE_OVERHEAD_BYTES
from statebackend._codec.segment import SealedSet, decode_change_set
from statebackend.errors import BackendClosedError, InputError, UploadError
from statebackend.ids import ChangeSetHandle, CheckpointId, Handle, KeyGroupRange, SequenceNumber
from tests.changelog.fakes import change
from tests.changes import rows_of

CLOSE_SETS_MIN = 8


KEY = "key"
CHECKPOINTS = st.integers(1, 4).map(CheckpointId)


class Place(Enum):
    SEALED = "sealed"
    INLINE = "inline"
    IN_FLIGHT = "in flight"
    UPLOADED = "uploaded"
    CONFIRMED = "confirmed"
    FAILED = "failed"
    GONE = "gone"


@dataclass
class ModelSet:
    """A change set of the model: what is in it, and where it is."""

    data: list[bytes]
    place: Place = Place.SEALED
    size_bytes: int = 0


@dataclass(eq=False)
class ModelPersist:
    """A request of the model beside the real one."""

    real: Persist
    missing: set[int]
    checkpoint: int | None
    error: type[Exception] | None = None
    waiting: bool = True

    @property
    def holds(self) -> bool:
        """Whether its range is kept for it."""
        return self.waiting or (self.checkpoint is not None and self.error is None)

    def covers(self, number: int) -> bool:
        return self.real.from_ <= number < self.real.to


@dataclass
class Model:
    """What the ledger should know."""

    open: list[bytes] = field(default_factory=list)
    sets: list[ModelSet] = field(default_factory=list)
    failed: set[int] = field(default_factory=set)
    requests: list[ModelPersist] = field(default_factory=list)
    lowest: int = 0
    inline_to: int = 0
    end: int | None = None

    def seal(self) -> None:
        if self.open:
            self.sets.append(ModelSet(self.open, size_bytes=sum(map(size_of, self.open))))
            self.open = []

    def numbers(self, *places: Place) -> list[int]:
        return [number for number, each in enumerate(self.sets) if each.place in places]

    def take(self, from_: int) -> list[int]:
        taken = [number for number in self.numbers(Place.SEALED, Place.INLINE) if number >= from_]
        self.put(taken, Place.IN_FLIGHT)
        return taken

    def put(self, numbers: Iterable[int], place: Place) -> None:
        for number in numbers:
            self.sets[number].place = place

    def expected_error(self, from_: int) -> type[Exception] | None:
        if self.end is not None:
            return BackendClosedError
        if any(number >= from_ for number in self.failed):
            return UploadError
        return InputError if from_ < max(self.lowest, self.inline_to) or from_ > len(self.sets) else None

    def in_log(self, number: int) -> bool:
        return number >= self.lowest and self.end is None

    def holds(self, number: int) -> bool:
        """Whether somebody waits for it, or a checkpoint holds it that may still be committed."""
        within = self.end is None or number < self.end
        return within and any(each.holds and each.covers(number) for each in self.requests)

    def drop_unwanted(self) -> list[int]:
        uploaded = self.numbers(Place.UPLOADED)
        dropped = [number for number in uploaded if not self.in_log(number) and not self.holds(number)]
        self.put(dropped, Place.GONE)
        return dropped


class LedgerMachine(RuleBasedStateMachine):
    """Any order of events that a writer can cause."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger("log")
        self.model = Model()
        self.batches: list[list[int]] = []  # handed out for upload, not ended yet
        self.handed: dict[int, SealedSet] = {}
        self.released: list[int] = []
        self.confirmed: set[int] = set()  # a commit has them, for good

    # -------------------------------------------------------------------------------------------------------- events

    @rule(data=st.binary(max_size=20))
    def append(self, data: bytes) -> None:
        self.ledger.append(change(data, key=KEY))
        if self.model.end is None:
            self.model.open.append(data)

    @rule(sets=st.integers(1, 3))
    def fill(self, sets: int) -> None:
        for _ in range(sets):
            self.append(b"x")
            self.next_sequence_number()

    @rule()
    def next_sequence_number(self) -> None:
        self.model.seal()
        assert self.ledger.seal() == len(self.model.sets)

    @rule()
    def take_open(self) -> None:
        number = len(self.model.sets)
        self.model.seal()
        self.upload(self.ledger.take_open(), self.model.take(number))

    @rule(data=st.data(), checkpoint=st.one_of(st.none(), CHECKPOINTS))
    def persist(self, data: st.DataObject, checkpoint: CheckpointId | None) -> None:
        asked = [each.real.from_ for each in self.model.requests if each.waiting]
        again = bool(asked) and data.draw(st.booleans())
        from_ = data.draw(st.sampled_from(asked)) if again else self.draw_number(data, beyond=1)
        if (expected := self.model.expected_error(from_)) is not None:
            with pytest.raises(expected):
                self.ledger.persist(from_, checkpoint)
            return
        request, to_upload = self.ledger.persist(from_, checkpoint)
        self.model.seal()
        taken = self.model.take(from_)
        assert (request.from_, request.to) == (from_, len(self.model.sets))
        missing = set(range(from_, request.to)) - set(self.model.numbers(Place.UPLOADED, Place.CONFIRMED))
        assert request.done == (not missing)
        self.model.requests.append(ModelPersist(request, missing, checkpoint, waiting=bool(missing)))
        self.upload(to_upload, taken)

    @rule(data=st.data(), bytes_max=st.sampled_from([0, 30, 100, 10_000]))
    def take_inline(self, data: st.DataObject, bytes_max: int) -> None:
        from_ = self.draw_number(data, beyond=1)
        if (expected := self.model.expected_error(from_)) is not None:
            with pytest.raises(expected):
                self.ledger.take_inline(from_, bytes_max)
            return
        taken = self.ledger.take_inline(from_, bytes_max)
        sets = self.model.sets[from_:]
        here = all(each.place in {Place.SEALED, Place.INLINE} for each in sets)
        size_bytes = sum(each.size_bytes for each in sets) + sum(map(size_of, self.model.open))
        if not here or size_bytes > bytes_max:
            assert taken is None
            return
        self.model.seal()
        assert taken is not None
        self.check_content(taken, list(range(from_, len(self.model.sets))))
        self.model.put(range(from_, len(self.model.sets)), Place.INLINE)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        numbers = self.draw_batch(data)
        unwanted = self.ledger.succeed([uploaded(number) for number in numbers])
        self.model.put(numbers, Place.UPLOADED)
        for request in self.model.requests:
            request.missing.difference_update(numbers)
        self.settle_requests()
        self.release(unwanted)

    @precondition(lambda self: self.batches and not self.ledger.is_awaited)
    @rule(data=st.data(), encoded=st.booleans())
    def take_back(self, data: st.DataObject, encoded: bool) -> None:
        numbers = self.draw_batch(data)
        assert self.ledger.in_flight == len(numbers) + sum(map(len, self.batches))
        taken = [frame_of(self.handed[number], "none") if encoded else self.handed[number] for number in numbers]
        self.ledger.take_back(taken)
        for each in taken:
            number = each.sequence_number
            self.model.sets[number].place = Place.SEALED if self.model.in_log(number) else Place.GONE
            self.model.sets[number].size_bytes = each.size_bytes

    @precondition(lambda self: self.handed)
    @rule(data=st.data())
    def keep_frames(self, data: st.DataObject) -> None:
        """Also of change sets that are not inline any more: those stay what they are."""
        handed = data.draw(st.lists(st.sampled_from(list(self.handed.values())), unique_by=id))
        frames = [frame_of(each, "none") for each in handed]
        self.ledger.encoded(frames)
        for frame in frames:
            if self.model.sets[frame.sequence_number].place is Place.INLINE:
                self.model.sets[frame.sequence_number].size_bytes = frame.size_bytes

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        numbers = self.draw_batch(data)
        unwanted = self.ledger.fail([SequenceNumber(number) for number in numbers], OSError())
        self.model.put(numbers, Place.FAILED)
        self.model.failed.update(filter(self.model.in_log, numbers))
        for request in self.model.requests:
            if request.waiting and any(map(request.covers, numbers)):
                request.error = UploadError
        self.settle_requests()
        self.release(unwanted)

    @rule(data=st.data(), checkpoint=CHECKPOINTS)
    def confirm(self, data: st.DataObject, checkpoint: CheckpointId) -> None:
        from_, to = sorted((self.draw_number(data), self.draw_number(data)))
        confirmed = self.ledger.confirm(from_, to, checkpoint)
        own = [each for each in self.model.requests if each.holds and each.checkpoint == checkpoint]
        covered = [
            number
            for number in self.model.numbers(Place.UPLOADED)
            if from_ <= number < to or any(each.covers(number) for each in own)
        ]
        assert sorted(each.handle.sequence_number for each in confirmed) == covered
        self.confirmed.update(covered)
        self.model.put(filter(self.model.in_log, covered), Place.CONFIRMED)
        self.model.put((number for number in covered if not self.model.in_log(number)), Place.GONE)
        for number in self.model.numbers(Place.INLINE):
            if from_ <= number < to:
                self.model.sets[number].place = Place.GONE
                self.model.inline_to = max(self.model.inline_to, number + 1)
        for request in self.model.requests:
            within = not request.waiting and from_ <= request.real.from_ and request.real.to <= to
            if request.checkpoint == checkpoint or within:
                request.checkpoint = None

    @rule(data=st.data(), checkpoint=CHECKPOINTS)
    def reset(self, data: st.DataObject, checkpoint: CheckpointId) -> None:
        from_, to = sorted((self.draw_number(data), self.draw_number(data)))
        unwanted = self.ledger.reset(from_, to, checkpoint)
        inline = self.model.numbers(Place.INLINE)
        self.model.put((number for number in inline if from_ <= number < to), Place.SEALED)
        for request in self.model.requests:
            if request.checkpoint == checkpoint:
                request.checkpoint = None
        self.release(unwanted)

    @rule(checkpoint=CHECKPOINTS)
    def subsume(self, checkpoint: CheckpointId) -> None:
        unwanted = self.ledger.subsume(checkpoint)
        for request in self.model.requests:
            if request.checkpoint is not None and request.checkpoint <= checkpoint:
                request.checkpoint = None
        self.release(unwanted)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        to = self.draw_number(data)
        unwanted = self.ledger.truncate(to)
        self.model.lowest = max(self.model.lowest, to)
        forgotten = self.model.numbers(Place.SEALED, Place.INLINE, Place.CONFIRMED)
        self.model.put((number for number in forgotten if number < to), Place.GONE)
        self.release(unwanted)

    @precondition(lambda self: self.model.requests)
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.model.requests))
        unwanted = self.ledger.abandon(request.real)
        self.model.requests.remove(request)
        self.release(unwanted)

    @precondition(lambda self: len(self.model.sets) >= CLOSE_SETS_MIN)  # there is life after it, but little
    @rule(data=st.data(), bounded=st.booleans())
    def close(self, data: st.DataObject, bounded: bool) -> None:
        from_ = self.draw_number(data) if bounded else None
        unwanted = self.ledger.close(from_)
        if self.model.end is not None:
            assert unwanted == ()
            return
        self.model.end, self.model.open = len(self.model.sets) if from_ is None else from_, []
        self.model.put(self.model.numbers(Place.SEALED, Place.INLINE, Place.CONFIRMED), Place.GONE)
        for request in self.model.requests:
            if request.waiting:
                request.error = BackendClosedError
        self.settle_requests()
        self.release(unwanted)

    # ---------------------------------------------------------------------------------------------------- what holds

    @invariant()
    def the_ledger_is_sound(self) -> None:
        self.ledger.check_invariants()

    @invariant()
    def it_is_where_the_model_is(self) -> None:
        def numbers(place: Place) -> set[int]:
            return set(self.model.numbers(place))

        assert self.ledger.open_bytes == sum(map(size_of, self.model.open))
        assert self.ledger._next == len(self.model.sets)
        assert set(self.ledger._sealed) == numbers(Place.SEALED)
        assert self.ledger._in_flight == numbers(Place.IN_FLIGHT)
        assert set(self.ledger._inline) == numbers(Place.INLINE)
        assert {*self.ledger._uploaded, *self.ledger._detached} == numbers(Place.UPLOADED)
        assert set(self.ledger._confirmed) == numbers(Place.CONFIRMED)
        waiting = {id(each.real) for each in self.model.requests if each.waiting}
        assert {id(each) for each in self.ledger._waiting} == waiting

    @invariant()
    def every_request_is_as_far_as_the_model_s(self) -> None:
        for request in self.model.requests:
            assert request.real.done == (not request.waiting)
            if request.waiting:
                continue
            if request.error is not None:
                with pytest.raises(request.error):
                    request.real.result()
            else:
                found = [each.handle.sequence_number for each in request.real.result()]
                assert found == list(range(request.real.from_, request.real.to))

    @invariant()
    def nothing_is_released_twice_nor_what_a_commit_has(self) -> None:
        assert len(set(self.released)) == len(self.released)
        assert self.confirmed.isdisjoint(self.released)

    # --------------------------------------------------------------------------------------------------------- steps

    def upload(self, change_sets: Sequence[SealedSet], expected: list[int]) -> None:
        """The ledger hands out change sets: those the model expects, with what was appended to them."""
        self.check_content(change_sets, expected)
        if expected:
            self.batches.append(expected)

    def check_content(self, change_sets: Sequence[SealedSet], expected: list[int]) -> None:
        assert [each.sequence_number for each in change_sets] == expected
        for each in change_sets:
            self.handed[each.sequence_number] = each
            head, payload, _ = frame_of(each, "none")
            _, changes = decode_change_set(head + payload, "", 0)
            assert [row.data for row in rows_of(changes)] == self.model.sets[each.sequence_number].data

    def release(self, unwanted: Sequence[UploadedChangeSet]) -> None:
        """The ledger lets go of change sets: those that nobody holds any more, and no other."""
        expected = self.model.drop_unwanted()
        assert [each.handle.sequence_number for each in unwanted] == expected
        self.released += expected

    def settle_requests(self) -> None:
        for request in self.model.requests:
            if request.error is not None or not request.missing:
                request.waiting = False

    def draw_number(self, data: st.DataObject, *, beyond: int = 0) -> SequenceNumber:
        """Mostly one of the newest: the old ones are truncated sooner or later."""
        end = len(self.model.sets)
        back = data.draw(st.one_of(st.integers(-beyond, min(3, end)), st.integers(-beyond, end)))
        return SequenceNumber(end - back)

    def draw_batch(self, data: st.DataObject) -> list[int]:
        return self.batches.pop(data.draw(st.integers(0, len(self.batches) - 1)))


def size_of(data: bytes) -> int:
    """What a change of `KEY` counts as."""
    return len(KEY) + len(data) + CHANGE_OVERHEAD_BYTES


def uploaded(number: int) -> UploadedChangeSet:
    segment = Handle(f"segment-{number}", 0, 100, 0)
    handle = ChangeSetHandle(segment, "log", SequenceNumber(number), 8, 50, KeyGroupRange(0, 0), 1)
    return UploadedChangeSet(handle, local=True)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
