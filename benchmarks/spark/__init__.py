"""Keyed state in a stream, ours beside Spark's: rows per second, the cost of a small batch, and the time to restart.

Envelope. Two cores, one file of 50,000 rows per batch. Spark's aggregation shuffles, and then reads and writes each key
of the batch in RocksDB: first 64 to 92 thousand rows/s were measured, later 98 to 116, with 100,000 keys. A table at a
time, we group in Arrow (20 ms), read and write 40,000 to 49,000 keys of a dictionary at one to two microseconds each
(100 ms), and commit (100 ms): about a quarter of a second, twice Spark's speed. On executors, rows are shuffled and
sent to a Python process, which costs as much as our work, and two tasks share it: one and a half times Spark's speed.
Key by key, every row becomes a Python dictionary, and a function is called for every key, which adds 150 ms. Spark's
Python state APIs ask the JVM for each key over a socket, or make a frame of each: 2 to 6 thousand rows/s.

With 200 rows per batch, our part in the driver is one Spark action (12 ms), a commit and a segment: at most 30 ms more
than an empty function. On executors it is a job of two stages: at most 120 ms.

After SIGKILL, the driver reads its changelog back, and executors do so in their first task. Spark opens RocksDB and
reads its changelog. We should not take longer.

We measure a whole query, from start to end, after a short one of each that does not count. The Python state APIs get
fewer files, since only rows per second matter. After a kill we measure from the start of the query to the end of its
first batch, in a new process, because a restart has a cold JVM.
"""

import functools
import importlib.util
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.contest import Line, Report, Sample, contest, ratio
from benchmarks.spark.contestants import (
    Contestant,
    by_key,
    by_table,
    by_table_on_executors,
    nothing,
    pandas_with_state,
    sparks_own,
    with_state_by_pandas,
    with_state_by_rows,
)
from benchmarks.spark.restarts import RESTARTED, seconds_to_first_batch
from benchmarks.spark.workload import Workload, open_session

QUICK: Mapping[str, Contestant] = {
    "process_table": by_table,
    "process_table on executors": by_table_on_executors,
    "process": by_key,
    "Spark's aggregation": sparks_own,
}
SLOW: Mapping[str, Contestant] = {
    "applyInPandasWithState": pandas_with_state,
    "transformWithState": with_state_by_rows,
    "transformWithStateInPandas": with_state_by_pandas,
}
SMALL_ROWS = 200


def run(
    report: Report, *, files: int = 40, rows: int = 50_000, slow_files: int = 2, keys: int = 0, rounds: int = 3
) -> None:
    """Measure large batches, of 100,000 and 1,000,000 keys or of `keys`; then small ones, then kills. Half an hour."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with open_session(folder) as spark:
            for count in (keys,) if keys else (100_000, 1_000_000):
                quick = Workload(spark, folder, files=files, rows=rows, keys=count)
                _large(report, quick, Workload(spark, folder, files=slow_files, rows=rows, keys=count), rounds)
            _small(report, Workload(spark, folder, files=files, rows=SMALL_ROWS, keys=keys or 100_000), rounds)
        _killed(report, folder, files=max(files // 4, 4), rows=rows, keys=keys or 100_000, rounds=rounds)


def _slow() -> Mapping[str, Contestant]:
    """Spark's state APIs for Python, those for which this environment has the packages."""
    if any(importlib.util.find_spec(name) is None for name in ("google", "google.protobuf")):  # the first decides
        print("  NOT MEASURED: transformWithState, which needs protobuf (extra `connect`)")
        return {"applyInPandasWithState": pandas_with_state}
    return SLOW


def _large(report: Report, workload: Workload, few: Workload, rounds: int) -> None:
    slow = _slow()
    for contestant in QUICK.values():
        few.measure(contestant)
    contestants = {name: _rows_per_s(workload, contestant) for name, contestant in QUICK.items()}
    contestants |= {name: _rows_per_s(few, contestant) for name, contestant in slow.items()}
    rows_per_s = contest(contestants, rounds=rounds)
    sparks = "Spark's aggregation"
    fastest = max(slow, key=lambda name: rows_per_s[name].median)
    _compare(report, workload, rows_per_s, over="process_table", under=sparks, expected=2.0)
    _compare(report, workload, rows_per_s, over="process_table on executors", under=sparks, expected=1.5)
    _compare(report, workload, rows_per_s, over="process", under=sparks, expected=1.0)
    _compare(report, workload, rows_per_s, over="process", under=fastest, expected=10.0)


def _compare(
    report: Report, workload: Workload, rows_per_s: Mapping[str, Sample], *, over: str, under: str, expected: float
) -> None:
    found = ratio(rows_per_s[over], rows_per_s[under])
    figures = ", ".join(f"{name} {sample.median:,.0f} rows/s" for name, sample in rows_per_s.items())
    report.add(
        Line(
            f"{workload.keys:,} keys, {workload.rows:,} rows a batch: {over} over {under}",
            f"at least {expected:g}x",
            found.median,
            "x",
            expected,
            at_least=True,
            detail=f"{found}; {figures}",
        )
    )


def _small(report: Report, workload: Workload, rounds: int) -> None:
    contestants = {"driver": by_table, "executors": by_table_on_executors, "nothing": nothing}
    for contestant in contestants.values():
        workload.measure(contestant)
    times_s = contest({name: _seconds(workload, each) for name, each in contestants.items()}, rounds=rounds)
    for name, limit_ms in (("driver", 30.0), ("executors", 120.0)):
        more_ms = [
            (ours - empty) / workload.files * 1000
            for ours, empty in zip(times_s[name].figures, times_s["nothing"].figures, strict=True)
        ]
        report.add(
            Line(
                f"{SMALL_ROWS} rows a batch: process_table, {name}, over an empty foreachBatch",
                f"at most {limit_ms:g} ms a batch more",
                statistics.median(more_ms),
                "ms",
                limit_ms,
                detail=f"{min(more_ms):.1f} to {max(more_ms):.1f} ms",
            )
        )


def _killed(report: Report, folder: Path, *, files: int, rows: int, keys: int, rounds: int) -> None:
    def restart(name: str) -> float:
        place = folder / "killed"
        try:
            return seconds_to_first_batch(name, place, files=files, rows=rows, keys=keys)
        finally:
            shutil.rmtree(place / "work", ignore_errors=True)

    (folder / "killed").mkdir()
    times_s = contest({name: functools.partial(restart, name) for name in RESTARTED}, rounds=rounds)
    for name in ("driver", "executors"):
        found = ratio(times_s[name], times_s["spark"])
        report.add(
            Line(
                f"{keys:,} keys, killed after {files // 2 + 1} batches: the first batch, {name}, beside Spark's own",
                "at most 1x",
                found.median,
                "x",
                1.0,
                detail=f"{found}; " + ", ".join(f"{each} {sample} s" for each, sample in times_s.items()),
            )
        )


def _rows_per_s(workload: Workload, contestant: Contestant) -> Callable[[], float]:
    return lambda: workload.files * workload.rows / workload.measure(contestant)


def _seconds(workload: Workload, contestant: Contestant) -> Callable[[], float]:
    return lambda: workload.measure(contestant)
