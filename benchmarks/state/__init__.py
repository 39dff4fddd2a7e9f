"""The cost of state beside a bare dictionary. Each file measures one thing, and says first what it expects."""

from benchmarks.contest import Report
from benchmarks.state import access, collector, rocks, snapshot, views


def run(report: Report) -> None:
    """All of it; about two minutes."""
    for part in (access, views, snapshot, collector, rocks):
        part.run(report)
