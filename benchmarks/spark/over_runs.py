"""Batches of 50,000 rows over 20,000,000 keys by Zipf's law: columns over runs beside Spark's aggregation in RocksDB.

    python -m benchmarks spark.over_runs                                       a quarter of an hour
    python -m benchmarks spark.over_runs --sizes keys=200000,batches=6,rounds=1

Set `TMPDIR` to a directory on a disk, with 20 GB. All keys come first, a million a batch, which is not measured.

Envelope. With 1,000,000 keys Spark takes 280 ms and columns in memory 100, of which 90 are Spark's and collecting the
rows. Over runs a batch of as many rows is to take 1.5 times what it takes in memory, so 110; and RocksDB reads more
levels for each key than with a twentieth of the keys: 2.5 times.
"""

import dataclasses
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.contest import Line, Report, ratio
from benchmarks.spark.contestants import BASED, ROCKSDB, by_table, native
from benchmarks.spark.workload import NOT_MEASURED, Workload, open_session
from benchmarks.totals import Traffic

FIRST: Final = 1_000_000
"""Keys in each of the first batches."""
WANTED: Final = 2.5


class _InPieces(Workload):
    """All keys come in several batches: Spark collects none that is larger than its driver takes."""

    def _tables(self) -> Sequence[Any]:
        every, *others = super()._tables()
        return [*(every.slice(at, FIRST) for at in range(0, len(every), FIRST)), *others]


def run(report: Report, *, keys: int = 20_000_000, rows: int = 50_000, batches: int = 20, rounds: int = 2) -> None:
    """The contest, in turns; the totals of ours are checked."""
    contestants = {
        "columns over runs": by_table("columns", BASED, table="runs"),
        "Spark, RocksDB": dataclasses.replace(native({**ROCKSDB, **BASED}), totals=None),
    }
    with tempfile.TemporaryDirectory() as name, open_session(Path(name)) as spark:
        first = -(-keys // FIRST) + NOT_MEASURED - 1
        warming = Workload(spark, Path(name), Traffic(1000), rows, batches)
        for each, contestant in contestants.items():
            warming.measure(each, contestant)
        workload = _InPieces(spark, Path(name), Traffic(keys, zipf=True), rows, batches, not_measured=first)
        times_ms = report.contest(
            "a batch on Spark over runs",
            "ms",
            {each: partial(workload.measure, each, contestant) for each, contestant in contestants.items()},
            rounds=rounds,
            keys=keys,
            zipf=True,
        )
        ours, theirs = times_ms.values()
        speed = ratio(theirs, ours)
        detail = f"{speed}; {ours} ms a batch beside {theirs}"
        what = f"{workload}: columns over runs over Spark, RocksDB"
        report.add(Line(what, f"at least {WANTED:g}x", speed.median, "x", WANTED, at_least=True, detail=detail))
