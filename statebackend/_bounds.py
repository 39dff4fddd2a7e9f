"""Bounds of a number, written beside its type: `Annotated[int, Bound(...)]`. Settings look there when they are made."""

import math
from collections.abc import Callable
from typing import Annotated, Any, get_args

import msgspec


class Bound(msgspec.Struct, frozen=True):
    """What must hold of a number, and the sentence where it does not, with `{name}` for what the number is called."""

    holds: Callable[[float], bool]
    sentence: str


def at_least(least: int) -> Bound:
    """`least` or more."""
    return Bound(lambda number: number >= least, f"{{name}} must be at least {least}")


def at_most(most: int, sentence: str) -> Bound:
    """`most` or less; the sentence ends with that number."""
    return Bound(lambda number: number <= most, f"{sentence} {most}")


def within(first: int, last: int) -> Bound:
    """Both ends included."""
    return Bound(lambda number: first <= number <= last, f"{{name}} must lie within {first} and {last}")


# A wait without an end is how a stream hangs for ever: infinity is refused, and so is what is no number.
Pause = Annotated[float, Bound(lambda number: 0 <= number < math.inf, "{name} must be finite and not negative")]
"""Seconds that may be none at all."""
Deadline = Annotated[float, Bound(lambda number: 0 < number < math.inf, "{name} must be finite and positive")]
"""Seconds of which there must be some: none would be to give up before it began."""
Rate = Deadline
"""So many times a second."""
Price = Pause
"""US dollars."""
Ratio = Pause
"""So many times as large."""
Amount = Annotated[int, Bound(lambda number: number >= 0, "{name} must not be negative")]
"""Bytes or things, or none."""
Count = Annotated[int, at_least(1)]
"""Things of which there must be one: a bound of none would wait for ever."""


def broken(kind: Any, number: Any, name: str) -> str | None:
    """The sentence of the first bound beside the type `kind` that does not hold of `number`. `None`: all hold."""
    for bound in get_args(kind)[1:]:
        if isinstance(bound, Bound) and not bound.holds(number):
            return bound.sentence.format(name=name)
    return None
