"""Key by key: `process`, over Spark's state APIs for Python, and over its aggregation in the JVM.

Envelope. Every row becomes a Python dictionary, and a function is called for every key: 150 ms more than a table at a
time, which is about as fast as Spark's aggregation. Spark's own APIs ask the JVM for each key over a socket, or make a
frame of each: 2 to 6 thousand rows/s, a twentieth of that.
"""

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from benchmarks.contest import Line, Report, ratio
from benchmarks.spark.contestants import (
    ROCKSDB,
    by_key,
    has_transform_with_state,
    native,
    pandas_with_state,
    with_state_by_pandas,
    with_state_by_rows,
)
from benchmarks.spark.workload import Contestant, Workload, open_session
from benchmarks.totals import Traffic

PROCESS, NATIVE = "process", "Spark's aggregation"


def run(report: Report, *, keys: int = 20_000, rows: int = 10_000, batches: int = 5, rounds: int = 3) -> None:
    """Speed of `process` over that of each. Ten minutes."""
    with tempfile.TemporaryDirectory() as name, open_session(Path(name)) as spark:
        workload = Workload(spark, Path(name), Traffic(keys), rows, batches)
        each = {PROCESS: by_key(), NATIVE: native(ROCKSDB), **_slow()}
        times_ms = report.contest(
            "a batch on Spark, Python APIs",
            "ms",
            {which: partial(workload.measure, which, contestant) for which, contestant in each.items()},
            rounds=rounds,
            keys=keys,
        )
    for under, sample in times_ms.items():
        if under != PROCESS:
            expected, speed = 1.0 if under == NATIVE else 10.0, ratio(sample, times_ms[PROCESS])
            report.add(
                Line(
                    f"{workload}: {PROCESS} over {under}",
                    f"at least {expected:g}x",
                    speed.median,
                    "x",
                    expected,
                    at_least=True,
                    detail=f"{speed}; {times_ms[PROCESS]} ms a batch beside {sample}",
                )
            )


def _slow() -> Mapping[str, Contestant]:
    """Spark's state APIs for Python, those for which this environment has the packages."""
    found = {"applyInPandasWithState": pandas_with_state()}
    if not has_transform_with_state():
        return found
    return found | {
        "transformWithState": with_state_by_rows(),
        "transformWithStateInPandas": with_state_by_pandas(),
    }
