"""The cost of state beside a bare dictionary. Each file measures one thing, and says first what it expects."""

from benchmarks.contest import Report
from benchmarks.state import access, collector, keys, memory, rocks, snapshot, views


def run(report: Report) -> None:
    """All of it; about three minutes."""
    for part in (access, keys, views, memory, snapshot, collector, rocks):
        part.run(report)
