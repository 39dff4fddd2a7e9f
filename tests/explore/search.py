"""Visits every state that a model can come to until one is broken or all have been seen.

A model says where it begins and, of a state, which steps there are. A state is a hashable value, and remembered by its
64-bit hash alone: of 10^7 states, two share one with a probability of 3e-6, and then one of them is not visited.

Some of a state may only say what else may still happen: how many turns have been taken of those that there are. What
can happen after many turns can happen after fewer, too. So states are visited in the order of their turns, and one
that differs in nothing else from one with fewer is left out.
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

    def rest(self, state: S) -> tuple[Hashable, int]:
        """The state but for the turns and whose turn it is, and how many were taken.

        A state can do all, with as many turns, that one can with the same rest and more of them taken.
        """
        ...

    def told(self, step: Hashable) -> str:
        """A label, for people."""
        ...


@dataclass
class Visit:
    """What was seen. `depth`: steps from the beginning to the farthest state that was visited."""

    states: int = 0
    steps: int = 0
    depth: int = 0
    seconds: float = 0.0
    complete: bool = False
    """Every state was visited; otherwise the search was ended by its bound, or by what is broken."""
    turns: int = -1
    """Whatever takes at most so many turns was visited; -1 if the bound came before that."""
    broken: BrokenError | None = None
    trace: Sequence[str] = ()
    """How to come to what is broken: with the fewest turns, and of these ways the shortest."""


def visit(model: Model[S], *, states_max: int) -> Visit:
    """Visit the states of the model, at most about so many: those with the fewest turns first, then breadth first."""
    begun, seen = time.monotonic(), Visit()
    first = model.begin()
    rest, turns = model.rest(first)
    none = turns
    fewest: dict[int, int] = {hash(rest): turns}
    places = {hash(first)}
    parents, depths, labels = array("q", [-1]), array("q", [0]), list[Hashable]([None])
    waiting: dict[int, list[tuple[S, int]]] = {turns: [(first, 0)]}
    number = 0
    try:
        while waiting and len(fewest) < states_max:
            turns = min(waiting)
            seen.turns = turns - none - 1
            level, waiting[turns] = waiting[turns], []
            for state, number in level:
                if fewest[hash(model.rest(state)[0])] < turns:
                    continue  # it was reached with fewer since
                seen.depth = max(seen.depth, depths[number])
                for step, reached in model.steps(state):
                    seen.steps += 1
                    rest, taken = model.rest(reached)
                    key, place = hash(rest), hash(reached)
                    if place in places or fewest.get(key, taken) < taken:
                        continue
                    fewest[key] = taken
                    places.add(place)
                    waiting.setdefault(taken, []).append((reached, len(parents)))
                    parents.append(number)
                    depths.append(depths[number] + 1)
                    labels.append(step)
            if not waiting[turns]:
                del waiting[turns]
        seen.complete = not waiting
    except BrokenError as error:
        seen.broken = error
        seen.trace = [*_trace(model, parents, labels, number), f"{model.told(error.step)}   <- {error}"]
    seen.states, seen.seconds = len(fewest), time.monotonic() - begun
    return seen


def _trace(model: Model[S], parents: Sequence[int], labels: Sequence[Hashable], number: int) -> list[str]:
    steps: list[str] = []
    while number > 0:
        steps.append(model.told(labels[number]))
        number = parents[number]
    return steps[::-1]
