"""The page "How it is proven": its text is written by hand, the tables in it are those of the records.

<!-- proof: explore -->        from here to
<!-- end -->                   here stands what `docs/explanation/proof/explore.json` says
"""

import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Final

from tests.proof.record import ProofRecord, read_record
from tests.simulation.coverage import Coverage

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "how-it-is-proven.md"
RECORDS = ROOT / "docs" / "explanation" / "proof"

LONG_TABLE: Final = 12
"""Rows. A longer table is in the record alone."""
RAREST: Final = 8
"""So many of the events that fewest runs had are named."""

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
        *_table(name, record),
        *(f"\n{note}" for note in record.notes),
        *([f"\n{_weather(name, record)}"] if record.met else []),
        "<!-- end -->",
    ]
    return "\n".join(lines) + "\n"


def _table(name: str, record: ProofRecord) -> Sequence[str]:
    if (rows := len(record.table)) <= LONG_TABLE:
        return record.lines()
    return [f"[The record](proof/{name}.json) has its {rows:,} rows."]


def _weather(name: str, record: ProofRecord) -> str:
    """The events of a simulation in a sentence: how many pairs have met, and which events were rare."""
    found = Coverage(record.met)
    counts = {event: count for event, count, *_ in found.rows()}
    pairs = list(combinations(counts, 2))
    met = sum(found.have_met(*pair) for pair in pairs)
    rarest = ", ".join(f"{event} {counts[event]:,}" for event in sorted(counts, key=counts.__getitem__)[:RAREST])
    return (
        f"Of {len(pairs):,} pairs of {len(counts)} events {met:,} have met in a run. The rarest events, by "
        f"the runs that had them: {rarest}. [The record](proof/{name}.json) counts each pair."
    )


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
