"""Counts, over many seeds, which events have happened in how many runs, and which of them have met.

Weather that never came proves nothing. An event is a line of the trace; the processes of a run are told by its first
word. Two events meet in a run if both are in it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Final

EVENTS: Final[Mapping[str, str]] = {
    "crash": r"life\d+ crashes$",
    "cancelled": r"life\d+ cancelled by",
    "zombie fenced": r"attempt \d+: FencedError",
    "outcome unknown": r"attempt \d+: OutcomeUnknownError",
    "answer lost": r" primary \w+ .*: loses answer",
    "hang": r" primary \w+ .*: hangs",
    "late request": r"^late primary ",
    "torn copy": r"disk\d .*torn",
    "bases": r"^bases of \d+ key groups are written",
    "night": r"^a night passes",
    "sweep beside": r"^sweep\d+: [1-9]\d* of ",
    "sweep at opening": r"life\d+ primary put simulated/swept/\d+: done",
    "entry damaged": r"is damaged, disk",
    "entry gone": r"is gone, disk",
    "entry not proved": r"is (damaged|gone), .* proved: False",
    "entry proved": r"is (damaged|gone), .* proved: True",
    "savepoint with commit": r"savepoint (blue|green)$",
    "savepoint of running job": r"life\d+ commit \d+ has the name",
    "savepoint from outside": r"^keep\d+: commit \d+ has the name",
    "savepoint refused": r"is not given: ",
    "start from savepoint": r"life\d+ starts from savepoint",
    "older commit opened": r"life\d+ goes back to commit",
    "clock moves": r"life\d+ batch \d+ moves the clock",
    "clock stands": r"life\d+ batch \d+ leaves the clock",
    "late row": r"life\d+ batch \d+ .* [1-9]\d* late",
    "timer fires": r"life\d+ batch \d+ .* [1-9]\d* timers",
    "batch comes again": r"life\d+ batch \d+ comes again",
    "value expired": r"life\d+ .* [1-9]\d* have expired",
    "ranges at work": r"life\d+ works in [2-9] ranges",
    "idle range woken": r"life\d+ wakes [1-9]\d* idle ranges",
    "range fails": r"life\d+ a range fails",
    "read": r"^reader\d+ reads \w+ of checkpoint",
    "read swept": r"^reader\d+ reads \w+: CheckpointNotFoundError",
    "read fails": r"^reader\d+ reads \w+: Store\w+Error",
}
"""The name of an event, and the pattern of its lines, without their times."""

_PATTERNS: Final = {name: re.compile(pattern, re.MULTILINE) for name, pattern in EVENTS.items()}


class Coverage:
    """The events of many runs, counted. Add those of several processes with `update`."""

    def __init__(self) -> None:
        self.runs = 0
        self.events: Counter[str] = Counter()
        self.pairs: Counter[tuple[str, str]] = Counter()
        self.first: dict[str, int] = {}
        """The smallest seed with each event."""

    def note(self, seed: int, trace: Iterable[str]) -> None:
        """Count the events of a run, by its trace."""
        lines = "\n".join(line.strip().partition("  ")[2] for line in trace)
        found = [name for name, pattern in _PATTERNS.items() if pattern.search(lines)]
        self.runs += 1
        self.events.update(found)
        self.pairs.update(combinations(found, 2))
        for name in found:
            self.first.setdefault(name, seed)

    def update(self, other: "Coverage") -> None:
        """Add the runs of another one, of larger seeds."""
        self.runs += other.runs
        self.events.update(other.events)
        self.pairs.update(other.pairs)
        self.first = other.first | self.first

    def table(self) -> Sequence[str]:
        """Lines of text: each event, its share of the runs, its first seed, and the events that it has never met."""
        lines = [f"{'event':<26} {'runs':>7} {'share':>7} {'first':>6}  has never met"]
        for name in EVENTS:
            count = self.events[name]
            never = [other for other in EVENTS if other != name and not self._met(name, other)]
            told = "EVERYTHING: it never happened" if not count else ", ".join(never) or "-"
            share = count / max(1, self.runs)
            lines.append(f"{name:<26} {count:>7,} {share:>7.1%} {self.first.get(name, '-')!s:>6}  {told}")
        return lines

    def _met(self, one: str, other: str) -> bool:
        return bool(self.pairs[one, other] or self.pairs[other, one])
