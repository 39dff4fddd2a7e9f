"""Visits every state that a model can come to, breadth first, until one is broken or all have been seen.

A model says where it begins and, of a state, which steps there are. A state is a hashable value, and remembered by its
64-bit hash alone: of 10^7 states, two share one with a probability of 3e-6, and then one of them is not visited.
"""

import time
from array import array
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


class BrokenError(AssertionError):
    """A step leads into a state that must not be. `step`: its label."""

    def __init__(self, invariant: str, complaint: str, step: Hashable) -> None:
        super().__init__(f"{invariant}: {complaint}")
        self.invariant = invariant
        self.step = step


class Model(Protocol[S]):
    """What can happen."""

    def begin(self) -> S:
        """The first state."""
        ...

    def steps(self, state: S) -> Iterator[tuple[Hashable, S]]:
        """Each step from that state, by a label, and where it leads to. Raises `BrokenError`."""
        ...

    def told(self, step: Hashable) -> str:
        """A label, for people."""
        ...


@dataclass
class Visit:
    """What was seen. `depth`: steps from the beginning to the farthest state, on the shortest way."""

    states: int = 0
    steps: int = 0
    depth: int = 0
    seconds: float = 0.0
    complete: bool = False
    """Every state was visited; otherwise the search was ended by its bound, or by what is broken."""
    broken: BrokenError | None = None
    trace: Sequence[str] = ()
    """How to come to what is broken: the shortest way."""


def visit(model: Model[S], *, states_max: int) -> Visit:
    """Visit the states of the model, at most about so many."""
    begun, seen = time.monotonic(), Visit()
    first = model.begin()
    places: dict[int, int] = {hash(first): 0}
    parents, labels = array("q", [-1]), list[Hashable]([None])
    level, numbers = [first], [0]
    try:
        while level and len(places) < states_max:
            following: list[S] = []
            following_numbers: list[int] = []
            for state, number in zip(level, numbers, strict=True):
                for step, reached in model.steps(state):
                    seen.steps += 1
                    key = hash(reached)
                    if key not in places:
                        places[key] = len(parents)
                        following_numbers.append(len(parents))
                        following.append(reached)
                        parents.append(number)
                        labels.append(step)
            level, numbers = following, following_numbers
            seen.depth += bool(level)
        seen.complete = not level
    except BrokenError as error:
        seen.broken = error
        seen.trace = [*_trace(model, parents, labels, number), f"{model.told(error.step)}   <- {error}"]
    seen.states, seen.seconds = len(places), time.monotonic() - begun
    return seen


def _trace(model: Model[S], parents: Sequence[int], labels: Sequence[Hashable], number: int) -> list[str]:
    steps: list[str] = []
    while number > 0:
        steps.append(model.told(labels[number]))
        number = parents[number]
    return steps[::-1]
