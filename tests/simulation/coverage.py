"""Counts, over many seeds, which events have happened in how many runs, and which of them have met.

Weather that never came proves nothing. An event is a line of the trace; the processes of a run are told by its first
word. Two events meet in a run if both are in it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    "request minutes late": r"^late primary .*, by \d{3,} s: ",
    "torn copy": r"disk\d .*torn",
    "bases": r"^bases of \d+ key groups are written",
    "night": r"^a night passes",
    "sweep beside": r"^sweep\d+: [1-9]\d* of ",
    "kept by age": r"^[1-9]\d* commits are kept below the floor",
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
    "commits followed": r"life\d+ has followed [1-9]",
    "follower jumps": r"life\d+ jumps to commit",
    "taken over": r"life\d+ takes over$",
    "taken over at the second try": r"life\d+ cannot take over: ",
    "feed followed": r"^follower\d+ follows \w+ to \d+: [1-9]",
    "feed taken back": r"^follower\d+ follows .*: RewindError",
    "feed swept": r"^follower\d+ follows .*: CheckpointNotFoundError",
    "mirror takes a step": r"^the table takes step \d+",
    "mirror caught up": r"^mirror\d+ has caught up",
    "mirror killed": r"^mirror\d+ is killed",
    "mirror starts anew": r"^mirror\d+ begins anew: (?!it is new)",
    "mirror takes back": r"^the table takes something back",
    "mirror late": r"^a late request reaches the table|^the table has \d+, and refuses",
}
"""The name of an event, and the pattern of its lines, without their times."""

_PATTERNS: Final = {name: re.compile(pattern, re.MULTILINE) for name, pattern in EVENTS.items()}


RUNS: Final = "runs"
NEVER: Final = "EVERYTHING: it never happened"


class Coverage:
    """The events of many runs, counted: in how many each has happened, and in how many each two of them have met.

    `met` says it all, for a record: by the name of an event, by two of them as "one + other", and by "runs".
    """

    def __init__(self, met: Mapping[str, int] | None = None) -> None:
        self.met: Final = Counter[str](met or {})
        self.first: Final = dict[str, int]()
        """The smallest seed with each event, of those that were noted here."""

    def note(self, seed: int, trace: Iterable[str]) -> None:
        """Count the events of a run, by its trace."""
        lines = "\n".join(line.strip().partition("  ")[2] for line in trace)
        found = [name for name, pattern in _PATTERNS.items() if pattern.search(lines)]
        self.met.update([RUNS, *found, *(f"{one} + {other}" for one, other in combinations(found, 2))])
        for name in found:
            self.first.setdefault(name, seed)

    def update(self, other: "Coverage") -> None:
        """Add the runs of another one, of larger seeds."""
        self.met.update(other.met)
        for name, seed in other.first.items():
            self.first.setdefault(name, seed)

    def rows(self) -> Iterator[tuple[str, int, float, str]]:
        """Each event, the number of runs and the share of them that had it, and the events that it has never met."""
        for name in EVENTS:
            count = self.met[name]
            never = [other for other in EVENTS if other != name and not self.have_met(name, other)]
            yield name, count, count / max(1, self.met[RUNS]), (", ".join(never) or "-") if count else NEVER

    def table(self) -> Sequence[str]:
        """Lines of text: the rows, and the first seed with each event."""
        lines = [f"{'event':<26} {'runs':>7} {'share':>7} {'first':>6}  has never met"]
        for name, count, share, never in self.rows():
            lines.append(f"{name:<26} {count:>7,} {share:>7.1%} {self.first.get(name, '-')!s:>6}  {never}")
        return lines

    def have_met(self, one: str, other: str) -> bool:
        """True if a run had both events."""
        return bool(self.met[f"{one} + {other}"] or self.met[f"{other} + {one}"])
