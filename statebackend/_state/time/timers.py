"""Timers: the times at which keys are due, on the job's clock or another one that the caller goes by."""

import heapq
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from statebackend._codec.change_sets.changes import KeyGroups
from statebackend._codec.change_sets.keyed_changes import SET, KeyedChanges, of_cells
from statebackend._state.bulk_arguments import Arrow, as_list, check_as_many, keys_as_list
from statebackend._state.kinds.every_kind import KeyedState, SetChanges
from statebackend._state.time.job_clock import NOT_BEGUN, JobClock
from statebackend._state.values import Values
from statebackend._tables.heap import ValueTable
from statebackend._tables.key_groups import OwnedKeys
from statebackend.errors import InputError
from statebackend.ids import ClockKind, Key

KIND: Final = "timers"

_EXACT_INT_MAX: Final = 1 << 53
_STALE_MAX: Final = 64
_RANKS: Final = {int: 0, str: 1, bytes: 2}
_TUPLE_RANK: Final = 3

_Queued = tuple[float, int, Any]
"""A time, and the key in a form that can be ordered: its rank, then itself or, for a tuple, its ranked parts."""


class DueTimer(NamedTuple):
    """A timer that was due: its time, its key, and the name of the timers that it belonged to."""

    at: float
    key: Key
    name: str


class Timers(KeyedState[bytes, Any]):
    """Timers by key. A key may have several; registering the same time twice changes nothing.

        timers = backend.timers("timeouts")
        timers.register("N14228", now + 3600)
        for at, key in timers.due(now): ...

    The caller says what time it is. `due` takes the timers that are due, earliest first, and at equal times in the
    order of their keys (int, str, bytes, tuple). Event time or processing time is declared, so that the two are not
    mixed. If that is the time of the job's clock, `due_timers` of the backend takes them, a sink calls `on_timer`
    with them, and none may be registered for a time before the clock's in the batch before.

    `in`, `len` and iteration are about the keys that have a timer. A drain logs all times of each touched key, which is
    cheap with a few timers per key, but not with thousands.
    """

    __slots__ = ("_clock", "_count", "_find_many", "_kind", "_passed_over", "_queue", "were_taken")

    def __init__(self, name: str, table: ValueTable, keys: OwnedKeys) -> None:
        super().__init__(name, table, keys)
        self._find_many = table.find_many
        self._values = Values(bytes)
        self._queue: list[_Queued] | None = None  # made when first needed; may contain deleted timers
        self._passed_over = set[_Queued]()  # by `take_due`; not in the queue meanwhile
        self._count = 0  # number of timers, once the queue is made
        self._kind: ClockKind | None = None
        self._clock = JobClock()
        self.were_taken = False
        """True once `due` or `take_due` was asked for those that are due."""

    def declare(self, kind: ClockKind, clock: JobClock) -> None:
        """Apply a declaration. `clock`: the job's, which these timers go by if it is of their kind."""
        self._kind, self._clock = kind, clock

    @property
    def go_by_job_clock(self) -> bool:
        """True if the job has a clock, and it is of the kind that these timers were declared with."""
        return self._kind is not None and self._kind == self._clock.kind

    def register(self, key: Key, at: float) -> None:
        """Make the key due at this time, in the unit that `due` is called with, such as seconds.

        Raises `InputError` for a time that the job's clock had passed when the batch before was committed.
        """
        self._register(key, self._checked(at))

    def register_many(self, keys: Iterable[Key] | Arrow, at: Iterable[float] | Arrow) -> None:
        """Make each key due at the time at the same index. All of them, or none."""
        keys, times = keys_as_list(keys), list(map(self._checked, as_list(at)))
        check_as_many(keys, times)
        self._check_many(keys)
        for key, time in zip(keys, times, strict=True):
            self._register(key, time)

    def setting(self, entries: Sequence[float | Iterable[float]]) -> SetChanges:
        """As `KeyedState.setting`. An entry is the time of a key, or its times."""
        times = [sorted(set(map(self._checked, [each] if isinstance(each, float | int) else each))) for each in entries]
        data = [struct.pack(f"<{len(own)}d", *own) for own in times if own]
        return SetChanges(SET * len(data), data, list(map(bool, times)))

    def delete(self, key: Key, at: float) -> None:
        """Delete one timer; fine if there is none."""
        self._delete(key, _time(at))

    def registered(self, key: Key) -> tuple[float, ...]:
        """The key's times, in ascending order."""
        return _times(self._find(key) or b"")

    def next_at(self) -> float | None:
        """The earliest time of all keys, `None` without a timer."""
        self._look_again()
        return self._next_at()

    def due(self, now: float) -> Iterator[tuple[float, Key]]:
        """Take the timers up to and including `now` one by one; each is deleted before it is returned.

        A timer registered meanwhile comes too if it is due, a timer deleted meanwhile does not. A caller that stops
        early leaves the other timers for the next call.
        """
        end, self.were_taken = _time(now), True
        while (at := self.next_at()) is not None and at <= end:
            yield at, self._take_first(at)

    @staticmethod
    def take_due(many: Sequence["Timers"], now: float) -> Iterator[DueTimer]:
        """Take the timers of all of `many` that are due at `now`: by time, then in the order of `many`, then by key.

        One that is registered meanwhile comes too, but none comes twice: registered again for the time that it came at,
        it stays for the next call. Meanwhile it is a timer like any other, which the caller may delete.
        """
        for each in many:
            each.were_taken = True
            each._look_again()  # noqa: SLF001
        taken = set[DueTimer]()
        while now != NOT_BEGUN:
            next_of = [(at, place) for place, each in enumerate(many) if (at := each._next_at()) is not None]  # noqa: SLF001
            if not next_of or (first := min(next_of))[0] > now:
                break
            at, timers = first[0], many[first[1]]
            timer = DueTimer(at, _key_of(timers._queued()[0]), timers.name)  # noqa: SLF001
            if timer in taken:
                timers._pass_over_first()  # noqa: SLF001
            else:
                taken.add(timer)
                timers._take_first(at)  # noqa: SLF001
                yield timer

    def _next_at(self) -> float | None:
        """The earliest time of those that were not passed over. That timer is the first of the queue then."""
        queue = self._queued()
        while queue and not self._has(queue[0]):
            heapq.heappop(queue)
        return queue[0][0] if queue else None

    def _pass_over_first(self) -> None:
        """Leave the first timer for the next look at all of them. It stays registered, so it may be deleted."""
        self._passed_over.add(heapq.heappop(self._queued()))

    def _look_again(self) -> None:
        queue = self._queued()
        for passed_over in self._passed_over:
            heapq.heappush(queue, passed_over)
        self._passed_over.clear()

    def _take_first(self, at: float) -> Key:
        """Delete the first timer, whose time is `at`, and return its key."""
        key = _key_of(heapq.heappop(self._queued()))
        self._delete(key, at)
        return key

    def _checked(self, at: object) -> float:
        time = _time(at)
        if time < self._clock.before_s and self.go_by_job_clock:
            raise InputError(
                "a timer before the clock: register it for clock_before_s at the earliest, such as max(at, clock_s)",
                timers=self.name,
                at=time,
                clock_before_s=self._clock.before_s,
            )
        return time

    def _register(self, key: Key, at: float) -> None:
        times = _times(self._find(key) or b"")
        if at not in times:
            self._store(key, (*times, at))
            self._count += 1
            if self._queue is not None:
                heapq.heappush(self._queue, _queued(at, key))

    def _delete(self, key: Key, at: float) -> None:
        times = _times(self._find(key) or b"")
        if at in times:
            self._store(key, tuple(time for time in times if time != at))
            self._count -= 1
            if self._queue is not None and len(self._queue) > 2 * self._count + _STALE_MAX:
                self._queue = None

    def _store(self, key: Key, times: tuple[float, ...]) -> None:
        self._touch(key)
        if times:
            self._entries[key] = struct.pack(f"<{len(times)}d", *sorted(times))
        else:
            del self._entries[key]

    def _queued(self) -> list[_Queued]:
        if self._queue is None:
            self._queue = [_queued(at, key) for key, cell in self._entries.items() for at in _times(cell)]
            heapq.heapify(self._queue)
            self._passed_over.clear()
            self._count = len(self._queue)
        return self._queue

    def _has(self, queued: _Queued) -> bool:
        return queued[0] in _times(self._entries.get(_key_of(queued), b""))

    def _is_live(self, entry: bytes, now: float) -> bool:
        return True

    def _remove(self, key: Key) -> None:
        for at in _times(self._entries[key]):
            self._delete(key, at)

    def _expire(self, key: Key, now: float) -> None:
        """Timers have no time-to-live."""

    def _logged(self, state_id: int, groups: KeyGroups, keys: list[Key], found: list[object]) -> Iterator[KeyedChanges]:
        yield of_cells(state_id, groups, keys, self._find_many(keys, keep=False))


def _time(at: object) -> float:
    if type(at) is float and math.isfinite(at):
        return at
    if type(at) is int and abs(at) <= _EXACT_INT_MAX:
        return float(at)
    raise InputError("a timer's time must be a finite float, or an int that a float holds exactly", at=repr(at)[:40])


def _times(cell: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(cell) // 8}d", cell)


def _queued(at: float, key: Key) -> _Queued:
    return (at, *_ranked(key))


def _ranked(key: Key) -> tuple[int, Any]:
    if isinstance(key, tuple):
        return _TUPLE_RANK, tuple(map(_ranked, key))
    return _RANKS[type(key)], key


def _key_of(queued: _Queued) -> Key:
    return _unranked(queued[1:])


def _unranked(ranked: tuple[int, Any]) -> Key:
    rank, found = ranked
    return tuple(map(_unranked, found)) if rank == _TUPLE_RANK else found
