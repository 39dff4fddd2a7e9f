"""Speed and memory of restores. Each file measures one thing, and says first what it expects."""

from benchmarks.contest import Report
from benchmarks.restore import decoding, distance, memory, readers


def run(report: Report) -> None:
    """All of it; about two minutes."""
    for part in (decoding, distance, readers, memory):
        part.run(report)
