"""How fast changes become durable, and what that costs. Each file measures one thing and says first what it expects."""

from benchmarks.changelog import batching, copies, memory, reading, writing
from benchmarks.contest import Report


def run(report: Report) -> None:
    """All of it; about a minute."""
    for part in (writing, copies, batching, reading, memory):
        part.run(report)
