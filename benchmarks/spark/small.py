"""Batches of 200 rows, over batches that do nothing: what a batch costs however small it is.

Envelope. In the driver it is one Spark action of 10 to 12 ms, a fold, and a checkpoint of two synced files and a
commit: 22 ms. On executors it is a plan, a job of two stages and a commit: 60 ms.
"""

import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.contest import Line, Report
from benchmarks.spark.contestants import BASED, by_table, nothing, on_executors
from benchmarks.spark.workload import Workload, open_session
from benchmarks.totals import Traffic

ROWS: Final = 200


def run(report: Report, *, keys: int = 100_000, batches: int = 32, rounds: int = 3) -> None:
    """Milliseconds more than nothing, in the driver and on executors. A minute."""
    with tempfile.TemporaryDirectory() as name, open_session(Path(name)) as spark:
        workload = Workload(spark, Path(name), Traffic(keys, zipf=True), ROWS, batches)
        each = {
            "driver": by_table("heap", BASED),
            "executors": on_executors("heap", BASED),
            "nothing": nothing(BASED),
        }
        for which, contestant in each.items():
            workload.measure(which, contestant)
        times_ms = report.contest(
            "a small batch on Spark",
            "ms",
            {which: partial(workload.measure, which, contestant) for which, contestant in each.items()},
            rounds=rounds,
            keys=keys,
        )
    for which, limit_ms in (("driver", 22.0), ("executors", 60.0)):
        both = zip(times_ms[which].figures, times_ms["nothing"].figures, strict=True)
        more_ms = [ours - empty for ours, empty in both]
        report.add(
            Line(
                f"{ROWS} rows a batch, {which}, over an empty batch",
                f"at most {limit_ms:g} ms more",
                statistics.median(more_ms),
                "ms",
                limit_ms,
                detail=f"{min(more_ms):.1f} to {max(more_ms):.1f} ms; {times_ms[which]} beside {times_ms['nothing']}",
            )
        )
