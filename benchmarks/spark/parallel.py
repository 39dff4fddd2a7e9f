"""Rows a second from end to end, by parallelism: ours, Spark's aggregation, and Spark without any state.

Envelope. Two cores, which Spark's plans and logs, the shuffle and all Python processes share. One range on executors
pays for the shuffle and has nothing beside it; two should reach 1.3 times its rate, not 2, since what is in front of
them is the same. In the driver there is one process, whatever the parallelism: 50,000 rows in 100 to 150 ms are 330,000
to 500,000 rows a second. A batch that does nothing is what Spark itself takes.

Why two ranges are not faster than one, in CPU of a batch: with one range 310 ms in the JVM, 43 in the Python worker and
15 in the driver, so 270 ms keep 1.4 cores busy. Of the JVM's, 32 ms are the task that reads and 32 that which gets the
rows; the rest plans, compiles and writes Spark's files. So half of some 75 ms is what a second range can save, and it
adds 45: a task, a worker, a segment and its part of the commit.
"""

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.contest import Line, Report, Sample, ratio
from benchmarks.spark.contestants import BASED, ROCKSDB, by_table, native, nothing, only_collected
from benchmarks.spark.workload import Contestant, Workload, open_session
from benchmarks.totals import Traffic

PARALLELISM: Final = (1, 2)
GAIN: Final = 1.3
EMPTY: Final = "Spark alone, a batch that does nothing"


def run(report: Report, *, keys: int = 100_000, rows: int = 50_000, batches: int = 12, rounds: int = 3) -> None:
    """Rows a second of each. Three minutes."""
    contestants = _contestants()
    with tempfile.TemporaryDirectory() as name, open_session(Path(name)) as spark:
        warming = Workload(spark, Path(name), Traffic(1000), rows, batches)
        for each, contestant in contestants.items():
            warming.measure(each, contestant)
        workload = Workload(spark, Path(name), Traffic(keys, zipf=True), rows, batches)
        times_ms = report.contest(
            "a batch by parallelism",
            "ms",
            {each: partial(workload.measure, each, contestant) for each, contestant in contestants.items()},
            rounds=rounds,
            keys=keys,
        )
    rates = {each: Sample([rows / ms * 1000 for ms in sample.figures]) for each, sample in times_ms.items()}
    report.keep("rows a second", "rows/s", rates, keys=keys)
    gain = ratio(rates[_executors(2)], rates[_executors(1)])
    report.add(
        Line(
            f"{workload}: two ranges on executors over one",
            f"at least {GAIN:g}x",
            gain.median,
            "x",
            GAIN,
            at_least=True,
            detail="; ".join(f"{each} {sample.median:,.0f} rows/s" for each, sample in rates.items()),
        )
    )


def _contestants() -> Mapping[str, Contestant]:
    found = {"columns in the driver": by_table("columns", BASED)}
    for number in PARALLELISM:
        found[_executors(number)] = by_table("columns", BASED, execution="executors", parallelism=number)
        found[f"Spark's aggregation, partitions: {number}"] = native(
            {**ROCKSDB, **BASED, "spark.sql.shuffle.partitions": str(number)}
        )
    return found | {"rows only collected": only_collected(BASED), EMPTY: nothing(BASED)}


def _executors(ranges: int) -> str:
    return f"columns on executors, ranges: {ranges}"
