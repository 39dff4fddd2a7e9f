"""What each benchmark has measured, commit by commit: a line for every claim of every whole run, and tables of them.

`benchmarks/results/history.jsonl` only grows. The tables show the newest runs of each claim beside one another. A time
depends on the machine and on what else it did, a ratio of contestants that took turns does not: so ratios come first.
`python -m benchmarks page` makes the page of the site of them, and a test fails if it says anything else.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.results import DIRECTORY, RATIOS, Result

FILE: Final = DIRECTORY / "history.jsonl"
PAGE: Final = Path(__file__).parents[1] / "docs" / "explanation" / "performance-history.md"
RUNS_SHOWN: Final = 5

_PAGE: Final = """# How fast it was

Every claim of [the performance page](performance.md), and what it was in the last {runs_shown} runs of its benchmark,
with the day and the commit of each; what missed the expectation is **bold**. An empty cell: that run did not measure
the claim. Ratios of contestants that took turns come first. The other figures are those of a machine and a day, so only
large steps in them mean anything.

{tables}
`nox -s bench` adds to `benchmarks/results/history.jsonl`, `nox -s bench -- page` makes this page of it.
"""


class Entry(msgspec.Struct, frozen=True):
    """One claim in one run."""

    begun: str
    commit: str
    processor: str
    benchmark: str
    claim: str
    measured: float
    unit: str
    expected: str
    verdict: str


def entries_of(result: Result) -> Iterator[Entry]:
    """The lines that a run adds."""
    for line in result.lines:
        yield Entry(
            begun=result.begun,
            commit=result.commit,
            processor=result.machine.get("processor", ""),
            benchmark=result.benchmark,
            claim=line.claim,
            measured=line.measured,
            unit=line.unit,
            expected=line.expected,
            verdict=line.verdict,
        )


def append(result: Result, file: Path) -> None:
    """Add a run to the end of the file."""
    with file.open("ab") as history:
        history.writelines(msgspec.json.encode(entry) + b"\n" for entry in entries_of(result))


def load(file: Path) -> list[Entry]:
    """All entries, oldest first. Raises `msgspec.MsgspecError` if a line is none."""
    entries = [msgspec.json.decode(line, type=Entry) for line in file.read_bytes().splitlines()]
    return sorted(entries, key=lambda entry: entry.begun)


def tables(entries: Iterable[Entry]) -> str:
    """A table for each benchmark, in Markdown, with a column for each of its newest runs."""
    by_benchmark = sorted(entries, key=lambda entry: (entry.benchmark, entry.begun))
    parts = list[str]()
    for benchmark, of_it in groupby(by_benchmark, key=lambda entry: entry.benchmark):
        parts.append(f"## {benchmark}\n\n" + "\n".join(_table(list(of_it))) + "\n")
    return "\n".join(parts)


def page(entries: Iterable[Entry]) -> str:
    """The text of the page."""
    return _PAGE.format(runs_shown=RUNS_SHOWN, tables=tables(entries))


def _table(entries: Sequence[Entry]) -> Iterator[str]:
    runs = sorted({(entry.begun, entry.commit) for entry in entries})[-RUNS_SHOWN:]
    yield "| Claim | Expected | " + " | ".join(f"{begun[:10]}, `{commit}`" for begun, commit in runs) + " |"
    yield "| --- " * (len(runs) + 2) + "|"
    measured = {(entry.claim, entry.begun, entry.commit): entry for entry in entries}
    newest = {entry.claim: entry for entry in entries if (entry.begun, entry.commit) in runs}
    for claim, last in sorted(newest.items(), key=lambda pair: (pair[1].unit not in RATIOS, pair[0])):
        found = [measured.get((claim, *run)) for run in runs]
        cells = ["" if entry is None else _cell(entry) for entry in found]
        yield "| " + " | ".join([claim.replace("|", "\\|"), last.expected.replace("|", "\\|"), *cells]) + " |"


def _cell(entry: Entry) -> str:
    figure = f"{entry.measured:.3g} {entry.unit}".strip()
    return f"**{figure}**" if entry.verdict == "missed" else figure
