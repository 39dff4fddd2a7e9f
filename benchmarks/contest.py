"""Contestants side by side in one run, and what was expected of them before.

The machine may be shared and noisy, so an absolute time says little: contestants take turns, round by round, each round
in another order, and what is compared are ratios of medians, with their spread.
"""

import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

ROUNDS = 5

Verdict = Literal["kept", "missed"]


@dataclass(frozen=True)
class Sample:
    """The figures of one contestant, one for each round."""

    figures: Sequence[float]

    @property
    def median(self) -> float:
        """The middle figure."""
        return statistics.median(self.figures)

    def at(self, share: float) -> float:
        """The smallest figure that this share of all does not exceed: 0.99 of a hundred is the second largest."""
        return sorted(self.figures)[math.ceil(share * len(self.figures)) - 1]

    def __str__(self) -> str:
        return f"{self.median:.4g} ({min(self.figures):.4g} to {max(self.figures):.4g})"


@dataclass(frozen=True)
class Line:
    """One expectation, written down before the run, and what was measured."""

    claim: str
    expected: str
    measured: float
    unit: str
    limit: float
    at_least: bool = False
    detail: str = ""

    @property
    def verdict(self) -> Verdict:
        """The expectation was kept, or missed. A miss is a result, not an error."""
        kept = self.measured >= self.limit if self.at_least else self.measured <= self.limit
        return "kept" if kept else "missed"


@dataclass(frozen=True)
class Measured:
    """The figures of all contestants in one contest: what was measured, in which unit, and at which sizes."""

    what: str
    unit: str
    at: Mapping[str, float | str]
    samples: Mapping[str, Sample]


@dataclass
class Report:
    """The lines of a benchmark, printed as a table, and every figure behind them."""

    title: str
    lines: list[Line] = field(default_factory=list[Line])
    measured: list[Measured] = field(default_factory=list[Measured])
    skipped: list[str] = field(default_factory=list[str])

    def skip(self, what: str) -> None:
        """Say what is not measured and why: a server or a package that is not here is no failure."""
        self.skipped.append(what)
        print(f"  NOT MEASURED: {what}", flush=True)

    @property
    def summary(self) -> str:
        """What came out, in half a line."""
        missed = sum(line.verdict == "missed" for line in self.lines)
        parts = [f"{missed} of {len(self.lines)} expectations missed"] if self.lines else []
        return "; ".join([*parts, *(f"NOT MEASURED: {each}" for each in self.skipped)])

    def add(self, line: Line) -> None:
        """Note a line, and show it at once: a long benchmark should say where it is."""
        self.lines.append(line)
        print(f"  {line.verdict:<6}  {line.claim}: {line.measured:.3g} {line.unit}, expected {line.expected}")
        if line.detail:
            print(f"          {line.detail}")
        sys.stdout.flush()

    def contest(
        self,
        what: str,
        unit: str,
        contestants: Mapping[str, Callable[[], float]],
        *,
        rounds: int = ROUNDS,
        **at: float | str,
    ) -> Mapping[str, Sample]:
        """Let every contestant run once a round; each returns its own figure. The order rotates."""
        names = list(contestants)
        figures: dict[str, list[float]] = {name: [] for name in names}
        for round_number in range(rounds):
            turn = round_number % len(names)
            for name in names[turn:] + names[:turn]:
                _show(f"{self.title}: {what}, round {round_number + 1} of {rounds}, {name}")
                figures[name].append(contestants[name]())
        _show("")
        return self.keep(what, unit, {name: Sample(found) for name, found in figures.items()}, **at)

    def keep(self, what: str, unit: str, samples: Mapping[str, Sample], **at: float | str) -> Mapping[str, Sample]:
        """Note figures that were taken otherwise than in turns, or beside them: bytes, for example."""
        self.measured.append(Measured(what, unit, at, samples))
        return samples


def ratio(over: Sample, under: Sample) -> Sample:
    """Ratios round by round: noise that hits a whole round hits both sides of it."""
    return Sample([each / other for each, other in zip(over.figures, under.figures, strict=True)])


def _show(text: str) -> None:
    """Say where a long run is, on a terminal only: one line, written over by the next."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
