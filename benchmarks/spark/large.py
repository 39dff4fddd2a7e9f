"""Batches of 50,000 rows, over Spark's own aggregation, with both of its stores of state and both of checkpoint files.

Envelope. Two cores. Of a batch of the driver, Spark's logs and plans take 100 ms with its default checkpoint files and
40 with file-system based ones. To collect the rows takes 40 to 50. A columnar state merges them in 10 and commits in 5:
150 or 100 ms in all. A value state makes objects of 30,000 keys and values and takes 50 ms more. Spark's aggregation
shuffles, reads and writes each key in RocksDB, and writes files for each of two partitions: 250 to 300 ms, growing with
the keys. So columns should be 1.9 times as fast with 100,000 keys and 2.4 times with 1,000,000 by default, and 2.6 and
2.8 times if both have file-system based files, which is 0.88 of what a batch takes that only collects its rows. A value
state should be 1.9 and 2.2 times as fast as Spark. On executors the rows are shuffled and sent to Python processes,
which costs as much as their work: 1.6 times with columns.

Spark's default store keeps the state in memory and is the faster one while that is small. It is a contestant too.

All of them run on few keys first, for twice as many batches as are measured. After only four such batches columns, who
came first, took 383 ms with 100,000 keys, and 210 with 1,000,000 some rounds later. Code that the JVM had still to
compile would explain that; it was not shown.
"""

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.contest import Line, Report, Sample, ratio
from benchmarks.spark.contestants import BASED, IN_MEMORY, ROCKSDB, by_table, native, on_executors, only_collected
from benchmarks.spark.workload import Contestant, Workload, open_session
from benchmarks.totals import Traffic

MANY: Final = 1_000_000
DEFAULT: Final = ", default files"
CLAIMS: Final[Sequence[tuple[str, str, float, float]]] = (
    (f"columns{DEFAULT}", f"Spark, RocksDB{DEFAULT}", 1.9, 2.4),
    (f"columns{DEFAULT}", f"Spark, in memory{DEFAULT}", 1.9, 2.4),
    ("columns", "Spark, RocksDB", 2.6, 2.8),
    ("columns", "Spark, in memory", 2.6, 2.8),
    ("columns", "rows only collected", 0.88, 0.88),
    ("value state", "Spark, RocksDB", 1.9, 2.2),
    ("value state", "Spark, in memory", 1.9, 2.2),
    ("columns on executors", "Spark, RocksDB", 1.6, 1.6),
    ("value state on executors", "Spark, RocksDB", 1.25, 1.25),
)
"""Whose speed over whose should be how much with 100,000 keys, and with many."""
UNIFORM: Final = ("columns", "value state", "Spark, RocksDB")
"""Who runs on keys that are equally frequent, too."""


def run(report: Report, *, keys: int = 0, rows: int = 50_000, batches: int = 12, rounds: int = 3) -> None:
    """Of 100,000 and 1,000,000 keys or of `keys`, by Zipf's law and uniform. Twelve minutes."""
    with tempfile.TemporaryDirectory() as name, open_session(Path(name)) as spark:
        all_ = _contestants()
        few = {each: all_[each] for each in UNIFORM}
        warming = Workload(spark, Path(name), Traffic(1000), rows, batches=2 * batches)
        for each, contestant in all_.items():
            warming.measure(each, contestant)
        for zipf, measured in ((True, all_), (False, few)):
            for count in (keys,) if keys else (100_000, MANY):
                workload = Workload(spark, Path(name), Traffic(count, zipf=zipf), rows, batches)
                times_ms = report.contest(
                    "a batch on Spark",
                    "ms",
                    {each: partial(workload.measure, each, contestant) for each, contestant in measured.items()},
                    rounds=rounds,
                    keys=count,
                    zipf=zipf,
                )
                _report(report, workload, times_ms)


def _contestants() -> Mapping[str, Contestant]:
    return {
        f"columns{DEFAULT}": by_table("columns"),
        f"Spark, RocksDB{DEFAULT}": native(ROCKSDB),
        f"Spark, in memory{DEFAULT}": native(IN_MEMORY),
        "columns": by_table("columns", BASED),
        "columns on executors": on_executors("columns", BASED),
        "value state": by_table("heap", BASED),
        "value state on executors": on_executors("heap", BASED),
        "Spark, RocksDB": native({**ROCKSDB, **BASED}),
        "Spark, in memory": native({**IN_MEMORY, **BASED}),
        "rows only collected": only_collected(BASED),
    }


def _report(report: Report, workload: Workload, times_ms: Mapping[str, Sample]) -> None:
    traffic = workload.traffic
    print(f"  {workload}, ms a batch: " + ", ".join(f"{name} {sample}" for name, sample in times_ms.items()))
    for over, under, some, many in CLAIMS:
        if over in times_ms and under in times_ms:
            expected, speed = many if traffic.keys >= MANY else some, ratio(times_ms[under], times_ms[over])
            report.add(
                Line(
                    f"{workload}: {over} over {under}",
                    f"at least {expected:g}x",
                    speed.median,
                    "x",
                    expected,
                    at_least=True,
                    detail=f"{speed}; {times_ms[over]} ms a batch beside {times_ms[under]}",
                )
            )
