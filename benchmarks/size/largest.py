"""Columns over runs, with 60,000,000 keys: more than memory takes.

python -m benchmarks size.largest
"""

from benchmarks.contest import Report
from benchmarks.size import measure


def run(report: Report, *, keys: int = 60_000_000, batches: int = 20, rounds: int = 2, pressed_s: int = 30) -> None:
    """Each figure."""
    measure(report, keys, batches, rounds, pressed_s)
