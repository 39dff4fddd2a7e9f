"""Followers: how soon they answer of a commit, how fast, under what load over HTTP, and how long a takeover takes.

    python -m benchmarks following                a quarter of an hour
    python -m benchmarks following --quick        under two minutes, with fewer keys
    python -m benchmarks following.serving        the load over HTTP alone

The job runs in a process of its own, `job.py`, so two cores are needed; the service needs uvicorn and starlette.
"""

from benchmarks.contest import Report


def run(report: Report) -> None:
    """All parts. A quarter of an hour."""
    from benchmarks.following import commits, promotion, reads, serving  # noqa: PLC0415  # its processes need none

    for part in (reads, commits, promotion, serving):
        part.run(report)
