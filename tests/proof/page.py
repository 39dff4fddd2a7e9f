"""The page "How it is proven": its text is written by hand, the tables in it are those of the records.

<!-- proof: explore -->        from here to
<!-- end -->                   here stands what `docs/explanation/proof/explore.json` says
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.proof.record import ProofRecord, read_record, table_of
from tests.simulation.coverage import Coverage

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "how-it-is-proven.md"
RECORDS = ROOT / "docs" / "explanation" / "proof"

LONG_TABLE: Final = 20
"""Rows. A longer table is folded."""

_TABLE = re.compile(r"<!-- proof: ([a-z-]+) -->\n(.*?)<!-- end -->\n", re.DOTALL)


def records() -> dict[str, ProofRecord]:
    """Every record there is, by its name."""
    return {path.stem: read_record(path) for path in sorted(RECORDS.glob("*.json"))}


def shown(text: str) -> list[str]:
    """The names of the records that the page shows, in its order."""
    return [match[1] for match in _TABLE.finditer(text)]


def generated(text: str, found: dict[str, ProofRecord]) -> str:
    """The page with the tables of these records in it. Raises `KeyError` for one that is shown and not there."""
    return _TABLE.sub(lambda match: _block(match[1], found[match[1]]), text)


def _block(name: str, record: ProofRecord) -> str:
    violations = "nothing was violated" if not record.broken else f"**{record.broken} violations**"
    lines = [
        f"<!-- proof: {name} -->",
        f"`{record.command}`, on {record.run_on} at `{record.commit}`: {_time(record.seconds)}, {violations}.",
        "",
        *_folded(record.lines(), "rows"),
        *(f"\n{note}" for note in record.notes),
        *(["", *_weather(record)] if record.met else []),
        "<!-- end -->",
    ]
    return "\n".join(lines) + "\n"


def _weather(record: ProofRecord) -> Sequence[str]:
    rows = [(name, count, f"{share:.1%}", never) for name, count, share, never in Coverage(record.met).rows()]
    table = table_of(("event", "runs that had it", "share", "events that it has never met in a run"), rows)
    return _folded(table, "events, and which of them have met")


def _folded(table: Sequence[str], what: str) -> Sequence[str]:
    """The lines of a table; a long one is shown to those who ask for it."""
    rows = len(table) - 2
    if rows <= LONG_TABLE:
        return table
    return ["<details>", f"<summary>{rows:,} {what}</summary>", "", *table, "", "</details>"]


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
