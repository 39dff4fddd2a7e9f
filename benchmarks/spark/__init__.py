"""Keyed state in a stream, ours beside Spark's: milliseconds of a batch, and the time to restart.

python -m benchmarks spark                                        large and small batches, and by cores: sixteen minutes
python -m benchmarks spark.python_apis spark.restarts             four minutes each
python -m benchmarks spark --sizes keys=3000,rows=500,batches=5,rounds=1         in seconds, to see that all is right
"""

from benchmarks.contest import Report
from benchmarks.spark import large, parallel, small


def run(report: Report, *, keys: int = 0, rows: int = 50_000, batches: int = 12, rounds: int = 3) -> None:
    """Large batches, of each kind of traffic, then small ones, and by parallelism."""
    large.run(report, keys=keys, rows=rows, batches=batches, rounds=rounds)
    small.run(report, keys=keys or 100_000, batches=3 * batches, rounds=rounds)
    parallel.run(report, keys=keys or 100_000, rows=rows, batches=batches, rounds=rounds)
