"""What a clock by event time costs a batch: the time of its largest row must be known before any row is processed.

    python -m benchmarks spark.clock --sizes rows=50000

Envelope. A processor in the driver has the rows at hand: a pass over an array, nothing of a batch. A function and the
executors get no rows before, so Spark is asked in a job of its own, which reads the batch another time: for a small
one a plan and two stages, 25 ms; for 50,000 rows from one file of Parquet 10 ms more.
"""

import statistics
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.contest import Line, Report
from benchmarks.spark.contestants import BASED, by_function, by_table, on_executors
from benchmarks.spark.workload import Contestant, Workload, open_session
from benchmarks.totals import Traffic

EVENT_TIME: Final[Mapping[str, Any]] = {"event_time": "at", "lateness_s": 60, "late": "keep"}
EXPECTED_MS: Final = {"driver": 2.0, "function": 35.0, "executors": 35.0}


def run(report: Report, *, keys: int = 10_000, rows: int = 200, batches: int = 24, rounds: int = 3) -> None:
    """Milliseconds more than without a clock. Two minutes."""
    contestants: dict[str, Contestant] = {}
    for which, make in (
        ("driver", partial(by_table, "heap", BASED)),
        ("function", partial(by_function, BASED)),
        ("executors", partial(on_executors, "heap", BASED)),
    ):
        contestants |= {which: make(), f"{which}, event time": make(**EVENT_TIME)}
    with tempfile.TemporaryDirectory() as name, open_session(Path(name)) as spark:
        workload = Workload(spark, Path(name), Traffic(keys, zipf=True), rows, batches)
        times_ms = report.contest(
            "a batch with a clock",
            "ms",
            {each: partial(workload.measure, each, contestant) for each, contestant in contestants.items()},
            rounds=rounds,
            keys=keys,
            rows=rows,
        )
    for which, limit_ms in EXPECTED_MS.items():
        with_clock, without = times_ms[f"{which}, event time"], times_ms[which]
        more_ms = [clocked - plain for clocked, plain in zip(with_clock.figures, without.figures, strict=True)]
        report.add(
            Line(
                f"{rows} rows a batch, {which}: event time, over no clock",
                f"at most {limit_ms:g} ms more",
                statistics.median(more_ms),
                "ms",
                limit_ms,
                detail=f"{min(more_ms):.1f} to {max(more_ms):.1f} ms; {with_clock} beside {without}",
            )
        )
