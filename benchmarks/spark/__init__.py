"""Keyed state in a stream, ours beside Spark's own: rows a second, and what a small batch costs.

Envelope. Two cores, one file of 50,000 rows a batch. Spark's own aggregation shuffles, and then reads and writes each
key of the batch in RocksDB: 64 to 92 thousand rows/s were seen. With a table at a time we group in Arrow (20 ms), read
and write some 40,000 to 49,000 keys of a dictionary at one to two microseconds each (100 ms) and commit (100 ms):
about a quarter of a second, twice Spark's speed. Key by key a Python dictionary is made of every row and a function
called for every key, another 150 ms. Spark's Python state API makes a frame and a tuple of each key: 2 to 6 thousand
rows/s.

With 200 rows a batch our part is one Spark action (12 ms), a commit and a segment: at most 30 ms more than nothing.

Measured is a whole query, from its start to its end, after a short one of each that does not count.
"""

import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.contest import Line, Report, contest, ratio
from benchmarks.spark.contestants import Contestant, by_key, by_table, nothing, pandas_with_state, sparks_own
from benchmarks.spark.workload import Workload, open_session

ROUNDS = 3


def run(report: Report) -> None:
    """Large batches with few and with many keys, then small ones; some ten minutes."""
    with tempfile.TemporaryDirectory() as folder, open_session(Path(folder)) as spark:
        for keys in (100_000, 1_000_000):
            _large(report, Workload(spark, Path(folder), files=40, rows=50_000, keys=keys))
        _small(report, Workload(spark, Path(folder), files=40, rows=200, keys=100_000))


def _large(report: Report, workload: Workload) -> None:
    few = Workload(workload.spark, workload.folder, files=2, rows=workload.rows, keys=workload.keys)
    for contestant in (by_table, sparks_own, by_key):
        few.measure(contestant)
    rows_per_s = contest(
        {
            "table": _rows_per_s(workload, by_table),
            "native": _rows_per_s(workload, sparks_own),
            "keys": _rows_per_s(workload, by_key),
            "pandas": _rows_per_s(few, pandas_with_state),
        },
        rounds=ROUNDS,
    )
    detail = ", ".join(f"{name} {sample.median:,.0f} rows/s" for name, sample in rows_per_s.items())
    for over, under, expected in (("table", "native", 2.0), ("keys", "native", 1.0), ("keys", "pandas", 10.0)):
        found = ratio(rows_per_s[over], rows_per_s[under])
        report.add(
            Line(
                f"{workload.keys:,} keys, 50,000 rows a batch: {NAMES[over]} over {NAMES[under]}",
                f"at least {expected:g}x",
                found.median,
                "x",
                expected,
                at_least=True,
                detail=f"{found}; {detail}",
            )
        )


def _small(report: Report, workload: Workload) -> None:
    for contestant in (by_table, nothing):
        workload.measure(contestant)
    times_s = contest(
        {"ours": lambda: workload.measure(by_table), "nothing": lambda: workload.measure(nothing)}, rounds=ROUNDS
    )
    more_ms = [
        (ours - empty) / workload.files * 1000
        for ours, empty in zip(times_s["ours"].figures, times_s["nothing"].figures, strict=True)
    ]
    report.add(
        Line(
            "200 rows a batch: process_table over an empty foreachBatch",
            "at most 30 ms a batch more",
            statistics.median(more_ms),
            "ms",
            30.0,
            detail=f"{min(more_ms):.1f} to {max(more_ms):.1f} ms",
        )
    )


NAMES: Mapping[str, str] = {
    "table": "process_table",
    "keys": "process",
    "native": "Spark's aggregation",
    "pandas": "applyInPandasWithState",
}


def _rows_per_s(workload: Workload, contestant: Contestant) -> Callable[[], float]:
    return lambda: workload.files * workload.rows / workload.measure(contestant)
