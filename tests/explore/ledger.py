"""The ledger of one writer's changes as a model: every order of calls that its writer and its owner can make.

Released change sets are deleted, so what is asked for again must never have been released; and one that nothing knows
any more must have been released, or a commit must own it: otherwise its bytes stay for ever.
"""

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from statebackend._changelog.ledger import Ledger, UploadedChangeSet
from statebackend.errors import BackendClosedError, InputError, UploadError
from statebackend.ids import ChangeSetHandle, CheckpointId, Handle, KeyGroupRange, SequenceNumber
from tests.explore.search import BrokenError

RELEASED = "no change set is deleted that something still wants"
LEAKED = "no uploaded change set is forgotten"

SETS_MAX: Final = 3
CHECKPOINTS: Final = (CheckpointId(1), CheckpointId(2))
_CLOSED_OR_ASKED_TOO_LATE = (BackendClosedError, InputError, UploadError)


class _Change:
    """Stands for changes: the ledger asks for their size only."""

    size_bytes = 1


class LedgerState(NamedTuple):
    """Where everything is, in numbers; `moment` finds the ledger."""

    places: tuple[Any, ...]
    released: frozenset[int]
    owned: frozenset[int]


class LedgerModel:
    """A model for `visit`."""

    def __init__(self) -> None:
        self._ledgers: dict[LedgerState, Ledger] = {}

    def begin(self) -> LedgerState:
        return self._state(Ledger("0-1"), frozenset(), frozenset())

    def rest(self, state: LedgerState) -> tuple[Hashable, int]:
        return state, 0

    def told(self, step: Hashable) -> str:
        return str(step)

    def steps(self, state: LedgerState) -> Iterator[tuple[Hashable, LedgerState]]:
        for step, call in self._calls(self._ledgers[state]):
            ledger = copy.deepcopy(self._ledgers[state])
            try:
                released, owned = call(ledger)
            except _CLOSED_OR_ASKED_TOO_LATE:
                continue
            yield step, self._judged(ledger, state, {*_numbers(released)}, {*_numbers(owned)}, step)

    def _calls(self, ledger: Ledger) -> Iterator[tuple[Hashable, Callable[[Ledger], Any]]]:
        end = ledger._next
        if end < SETS_MAX:
            yield "append", lambda each: (_append(each), ((), ()))[-1]
        for number in sorted(ledger._in_flight):
            yield ("succeed", number), lambda each, n=number: (each.succeed([_uploaded(n)]), ())
            yield ("fail", number), lambda each, n=number: (each.fail([n], OSError("made so")), ())
        for begin in range(ledger._lowest, end + 1):
            yield ("persist", begin), lambda each, b=begin: (each.persist(SequenceNumber(b)), ((), ()))[-1]
            yield ("truncate", begin), lambda each, b=begin: (each.truncate(SequenceNumber(b)), ())
            yield ("take inline", begin), lambda each, b=begin: (each.take_inline(SequenceNumber(b), 99), ((), ()))[-1]
            for number in CHECKPOINTS:
                at = (SequenceNumber(begin), end, number)
                yield ("persist", begin, number), lambda each, a=at: (each.persist(a[0], a[2]), ((), ()))[-1]
                yield ("confirm", begin, number), lambda each, a=at: ((), each.confirm(*a))
                yield ("reset", begin, number), lambda each, a=at: (each.reset(*a), ())
        for number in CHECKPOINTS:
            yield ("subsume", number), lambda each, n=number: (each.subsume(n), ())
        for place in range(len(ledger._waiting)):
            yield ("abandon", place), lambda each, p=place: (each.abandon(each._waiting[p]), ())
        yield "close", lambda each: (each.close(), ())

    def _judged(
        self, ledger: Ledger, before: LedgerState, released: set[int], owned: set[int], step: Hashable
    ) -> LedgerState:
        try:
            ledger.check_invariants()
        except AssertionError as error:
            raise BrokenError(RELEASED, str(error), step) from error
        gone, kept = before.released | released, before.owned | owned
        for number in released:
            if number in before.released | before.owned:
                raise BrokenError(RELEASED, f"{number} is deleted, and was deleted before or is a commit's", step)
            if any(request.covers(SequenceNumber(number)) for request in (*ledger._waiting, *ledger._undecided)):
                raise BrokenError(RELEASED, f"{number} is deleted, and a checkpoint wants it", step)
            if number >= ledger._lowest and ledger._end is None:
                raise BrokenError(RELEASED, f"{number} is deleted, and the log has it", step)
        known = {*ledger._uploaded, *ledger._detached, *ledger._confirmed}
        was_there = {*self._ledgers[before]._uploaded, *self._ledgers[before]._detached}
        if lost := was_there - known - gone - kept:
            raise BrokenError(LEAKED, f"{sorted(lost)} were uploaded, and nothing knows them", step)
        return self._state(ledger, gone, kept)

    def _state(self, ledger: Ledger, released: frozenset[int], owned: frozenset[int]) -> LedgerState:
        requests = [
            tuple(
                sorted((each.from_, each.to, each.checkpoint_id or 0, each.done, each.error is None) for each in found)
            )
            for found in (ledger._waiting, ledger._undecided)
        ]
        places = (
            *(tuple(sorted(place)) for place in (ledger._sealed, ledger._inline, ledger._in_flight, ledger._uploaded)),
            *(tuple(sorted(place)) for place in (ledger._detached, ledger._confirmed)),
            ledger._next, ledger._lowest, ledger._inline_to, ledger._end, ledger._failed and ledger._failed[0],
            *requests,
        )  # fmt: skip
        state = LedgerState(places, released, owned)
        self._ledgers.setdefault(state, ledger)
        return state


def _append(ledger: Ledger) -> None:
    """A change, in a change set of its own, which is not encoded."""
    ledger.append(_Change())  # type: ignore[arg-type]
    if ledger._open:
        number = ledger._next
        ledger._open, ledger.open_bytes, ledger._next = [], 0, SequenceNumber(number + 1)
        ledger._sealed[number] = _Sealed(number)  # type: ignore[assignment]


class _Sealed(NamedTuple):
    sequence_number: SequenceNumber
    size_bytes: int = 1


def _uploaded(number: int) -> UploadedChangeSet:
    segment = Handle(f"segments/{number}", 0, 1, 0)
    handle = ChangeSetHandle(segment, "0-1", SequenceNumber(number), 0, 1, KeyGroupRange(0, 1), 1)
    return UploadedChangeSet(handle, local=False)


def _numbers(found: Iterable[UploadedChangeSet]) -> Iterator[int]:
    return (each.handle.sequence_number for each in found)
