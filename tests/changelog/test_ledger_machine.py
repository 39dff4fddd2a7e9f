"""The ledger against a model that keeps everything for ever and counts by hand."""

from dataclasses import dataclass, field
from enum import Enum

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from statebackend._changelog.ledger import CHANGE_OVERHEAD_BYTES, Ledger, Persist, UploadedChangeSet
from statebackend._codec.records import ChangeSet, Operation, StateChange
from statebackend.errors import BackendClosedError, InputError, UploadError
from statebackend.ids import ChangeSetHandle, Handle, KeyGroupRange, SequenceNumber

CLOSE_SETS_MIN = 8


KEY = "key"


class Place(Enum):
    SEALED = "sealed"
    IN_FLIGHT = "in flight"
    UPLOADED = "uploaded"
    FAILED = "failed"
    GONE = "gone"


@dataclass
class ModelSet:
    """A change set of the model: what is in it, and where it is."""

    data: list[bytes]
    place: Place = Place.SEALED


@dataclass(eq=False)
class ModelPersist:
    """A request of the model beside the real one."""

    real: Persist
    missing: set[int]
    error: type[Exception] | None = None
    waiting: bool = True


@dataclass
class Model:
    """What the ledger should know."""

    open: list[bytes] = field(default_factory=list)
    sets: list[ModelSet] = field(default_factory=list)
    failed: set[int] = field(default_factory=set)
    requests: list[ModelPersist] = field(default_factory=list)
    lowest: int = 0
    end: int | None = None

    def seal(self) -> None:
        if self.open:
            self.sets.append(ModelSet(self.open))
            self.open = []

    def take(self, from_: int) -> list[int]:
        taken = [n for n, each in enumerate(self.sets) if n >= from_ and each.place is Place.SEALED]
        for number in taken:
            self.sets[number].place = Place.IN_FLIGHT
        return taken

    def expected_error(self, from_: int) -> type[Exception] | None:
        if self.end is not None:
            return BackendClosedError
        if any(number >= from_ for number in self.failed):
            return UploadError
        return InputError if from_ < self.lowest or from_ > len(self.sets) else None

    def wants(self, number: int) -> bool:
        return number >= self.lowest and (self.end is None or number < self.end)

    def awaits(self, number: int) -> bool:
        return any(each.waiting and each.real.from_ <= number < each.real.to for each in self.requests)


class LedgerMachine(RuleBasedStateMachine):
    """Any order of events that a writer can cause."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger("log")
        self.model = Model()
        self.batches: list[list[int]] = []  # handed out for upload, not ended yet
        self.released: list[int] = []

    # -------------------------------------------------------------------------------------------------------- events

    @rule(data=st.binary(max_size=20))
    def append(self, data: bytes) -> None:
        self.ledger.append(StateChange(0, Operation.SET, 0, KEY, data))
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

    @rule(data=st.data())
    def persist(self, data: st.DataObject) -> None:
        asked = [each.real.from_ for each in self.model.requests if each.waiting]
        again = bool(asked) and data.draw(st.booleans())
        from_ = data.draw(st.sampled_from(asked)) if again else self.draw_number(data, beyond=1)
        if (expected := self.model.expected_error(from_)) is not None:
            with pytest.raises(expected):
                self.ledger.persist(from_)
            return
        request, to_upload = self.ledger.persist(from_)
        self.model.seal()
        taken = self.model.take(from_)
        assert (request.from_, request.to) == (from_, len(self.model.sets))
        missing = {n for n in range(from_, request.to) if self.model.sets[n].place is not Place.UPLOADED}
        assert request.done == (not missing)
        self.model.requests.append(ModelPersist(request, missing, waiting=bool(missing)))
        self.upload(to_upload, taken)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        numbers = self.draw_batch(data)
        unwanted = self.ledger.succeed([uploaded(number) for number in numbers])
        expected = []
        for number in numbers:
            for request in self.model.requests:
                request.missing.discard(number)
            wanted = self.model.wants(number)
            self.model.sets[number].place = Place.UPLOADED if wanted else Place.GONE
            if not wanted and not self.model.awaits(number):
                expected.append(number)
        self.settle_requests()
        self.release(unwanted, expected)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        numbers = self.draw_batch(data)
        self.ledger.fail([SequenceNumber(number) for number in numbers], OSError())
        for number in numbers:
            self.model.sets[number].place = Place.FAILED
            if self.model.wants(number):
                self.model.failed.add(number)
            for request in self.model.requests:
                if request.waiting and request.real.from_ <= number < request.real.to:
                    request.error = UploadError
        self.settle_requests()

    @rule(data=st.data(), confirm=st.booleans())
    def truncate(self, data: st.DataObject, confirm: bool) -> None:
        to = self.draw_number(data)
        gone = self.ledger.confirm(to) if confirm else self.ledger.truncate(to)
        self.model.lowest = max(self.model.lowest, to)
        dropped = []
        for number, each in enumerate(self.model.sets[:to]):
            if each.place is Place.UPLOADED:
                dropped.append(number)
            if each.place in {Place.UPLOADED, Place.SEALED}:
                each.place = Place.GONE
        if confirm:
            assert [each.handle.sequence_number for each in gone] == dropped
        else:
            self.release(gone, [number for number in dropped if not self.model.awaits(number)])

    @precondition(lambda self: self.model.requests)
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.model.requests))
        self.ledger.abandon(request.real)
        self.model.requests.remove(request)

    @precondition(lambda self: len(self.model.sets) >= CLOSE_SETS_MIN)  # there is life after it, but little
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        from_ = self.draw_number(data)
        unwanted = self.ledger.close(from_)
        if self.model.end is not None:
            assert unwanted == ()
            return
        self.model.end, self.model.open = from_, []
        expected = []
        for number, each in enumerate(self.model.sets):
            if each.place is Place.UPLOADED and number >= from_:
                expected.append(number)
                each.place = Place.GONE
            if each.place is Place.SEALED:
                each.place = Place.GONE
        for request in self.model.requests:
            if request.waiting:
                request.error = BackendClosedError
        self.settle_requests()
        self.release(unwanted, expected)

    # ---------------------------------------------------------------------------------------------------- what holds

    @invariant()
    def the_ledger_is_sound(self) -> None:
        self.ledger.check_invariants()

    @invariant()
    def it_is_where_the_model_is(self) -> None:
        def numbers(place: Place) -> set[int]:
            return {number for number, each in enumerate(self.model.sets) if each.place is place}

        assert self.ledger.open_bytes == sum(len(KEY) + len(data) + CHANGE_OVERHEAD_BYTES for data in self.model.open)
        assert self.ledger._next == len(self.model.sets)
        assert set(self.ledger._sealed) == numbers(Place.SEALED)
        assert self.ledger._in_flight == numbers(Place.IN_FLIGHT)
        assert set(self.ledger._uploaded) == numbers(Place.UPLOADED)
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
    def nothing_is_released_twice(self) -> None:
        assert len(set(self.released)) == len(self.released)

    # --------------------------------------------------------------------------------------------------------- steps

    def upload(self, change_sets: list[ChangeSet], expected: list[int]) -> None:
        """The ledger hands out change sets: those the model expects, with what was appended to them."""
        assert [each.sequence_number for each in change_sets] == expected
        for each in change_sets:
            assert [change.data for change in each.changes] == self.model.sets[each.sequence_number].data
        if expected:
            self.batches.append(expected)

    def release(self, unwanted: list[UploadedChangeSet], expected: list[int]) -> None:
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


def uploaded(number: int) -> UploadedChangeSet:
    segment = Handle(f"segment-{number}", 0, 100, 0)
    handle = ChangeSetHandle(segment, "log", SequenceNumber(number), 8, 50, KeyGroupRange(0, 0), 1)
    return UploadedChangeSet(handle, local=True)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
