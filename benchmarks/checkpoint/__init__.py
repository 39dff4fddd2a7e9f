"""How long a checkpoint takes, on a disk and on a distant store. Each file says first what it expects."""

from benchmarks.checkpoint import disk, growth
from benchmarks.contest import Report


def run(report: Report) -> None:
    """All of it; about four minutes."""
    for part in (disk, growth):
        part.run(report)
