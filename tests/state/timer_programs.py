"""Drawn programs of timers, what they do to the library, and what they do to plain dictionaries.

A program is some batches. Each moves the clock, does some deeds, and then does more of them for each timer that fires:
it registers timers, deletes them, or asks for them, before, at and after the clock, of its own key and of others.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from hypothesis import strategies as st

from statebackend.ids import Key

NAMES = ("ends", "alarms")
KEYS: tuple[Key, ...] = ("a", "b", 7, ("a", 1))
RANKS: Mapping[Key, int] = {7: 0, "a": 1, "b": 2, ("a", 1): 3}
"""At equal times they fire in this order."""


class Deed(NamedTuple):
    """One call: of which timers, of which key, and for how long after the clock of the batch before."""

    verb: str
    name: str
    key: Key
    after: int


class Batch(NamedTuple):
    """How far the clock moves, what is done before timers fire, and what is done when a timer of some key fires.

    `most`: so many timers are taken, and the others left.
    """

    step: int
    deeds: Sequence[Deed]
    on_timer: Mapping[Key, Sequence[Deed]]
    most: int = 1000


VERBS = ("register", "register", "register", "delete", "delete", "drop", "ask", "take", "registered")
DEEDS = st.lists(
    st.builds(Deed, st.sampled_from(VERBS), st.sampled_from(NAMES), st.sampled_from(KEYS), st.integers(0, 5)),
    max_size=4,
)
BATCHES = st.builds(Batch, st.integers(0, 4), DEEDS, st.dictionaries(st.sampled_from(KEYS), DEEDS), st.just(1000))
PROGRAMS = st.lists(BATCHES, min_size=1, max_size=5)

AGAIN_AND_DELETED = [
    Batch(1, [Deed("register", "ends", "a", 0), Deed("register", "alarms", "b", 1)], {
        "a": [Deed("register", "ends", "a", 0)],
        "b": [Deed("delete", "ends", "a", 0)],
    }),
    Batch(1, [], {}),
]  # fmt: skip
"""A timer that was registered again for the time at which it fired, and that a later timer deletes."""


class Fired(NamedTuple):
    """A timer that fires."""

    at: float
    key: Key
    name: str


class AnyTimers(Protocol):
    """What a program does to the timers of one name."""

    def register(self, key: Any, at: float) -> None: ...
    def delete(self, key: Any, at: float) -> None: ...
    def registered(self, key: Any) -> tuple[float, ...]: ...
    def next_at(self) -> float | None: ...
    def due(self, now: float) -> Iterable[tuple[float, Any]]: ...
    def __contains__(self, key: object) -> bool: ...
    def __delitem__(self, key: Any) -> None: ...


def do(deeds: Sequence[Deed], timers: Mapping[str, AnyTimers], before: float, told: list[object]) -> None:
    """Do what was drawn, and tell what was seen: after each deed, all that there is of its key."""
    for verb, name, key, after in deeds:
        of, at = timers[name], before + after
        match verb:
            case "register":
                of.register(key, at)
            case "delete":
                of.delete(key, at)
            case "drop" if key in of:
                del of[key]
            case "ask":
                told.append(of.next_at())
            case "take":
                told.append(list(of.due(at)))
            case _:
                pass
        told.append((name, key, of.registered(key)))


class PlainTimers:
    """Timers in a plain dictionary: the times of each key."""

    def __init__(self) -> None:
        self.times: dict[Any, set[float]] = {}

    def register(self, key: Any, at: float) -> None:
        self.times.setdefault(key, set()).add(at)

    def delete(self, key: Any, at: float) -> None:
        self.times.get(key, set()).discard(at)

    def registered(self, key: Any) -> tuple[float, ...]:
        return tuple(sorted(self.times.get(key, ())))

    def next_at(self) -> float | None:
        return min(itertools.chain(*self.times.values()), default=None)

    def due(self, now: float) -> list[tuple[float, Any]]:
        taken = sorted((at, RANKS[key], key) for key, times in self.times.items() for at in times if at <= now)
        for at, _, key in taken:
            self.delete(key, at)
        return [(at, key) for at, _, key in taken]

    def __contains__(self, key: object) -> bool:
        return bool(self.times.get(key))

    def __delitem__(self, key: Any) -> None:
        del self.times[key]


class PlainJob:
    """What a program says of itself: the clock, and the timers of both names."""

    def __init__(self) -> None:
        self.now = self.before = 0.0
        self.timers = {name: PlainTimers() for name in NAMES}

    def move(self, step: int) -> None:
        self.before, self.now = self.now, self.now + step

    def fire(self) -> Iterator[Fired]:
        """The timers that are due, in their order, each once; each is gone before it is handed out."""
        fired = set[Fired]()
        while due := [each for each in self._all() if each.at <= self.now and each not in fired]:
            first = min(due, key=lambda each: (each.at, NAMES.index(each.name), RANKS[each.key]))
            fired.add(first)
            self.timers[first.name].delete(first.key, first.at)
            yield first

    def all(self) -> dict[str, dict[Key, tuple[float, ...]]]:
        """Every timer, by name and key."""
        return {name: {key: of.registered(key) for key in KEYS if key in of} for name, of in self.timers.items()}

    def _all(self) -> Iterator[Fired]:
        return (Fired(at, key, name) for name, of in self.timers.items() for key in KEYS for at in of.registered(key))


def expected(program: Sequence[Batch]) -> Iterator[tuple[list[object], dict[str, dict[Key, tuple[float, ...]]]]]:
    """What each batch tells, and the timers after it."""
    job = PlainJob()
    for batch in program:
        told: list[object] = []
        job.move(batch.step)
        do(batch.deeds, job.timers, job.before, told)
        for timer in itertools.islice(job.fire(), batch.most):
            told.append(timer)
            do(batch.on_timer.get(timer.key, ()), job.timers, job.before, told)
        yield told, job.all()
