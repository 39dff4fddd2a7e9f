"""Spark's state for Python functions, beside ours and Spark's aggregation: the rows and keys of `spark.large`.

    python -m benchmarks spark.python_apis --sizes keys=10000,batches=3       one size, in a minute

All have file-system based checkpoint files, state in RocksDB with its changelog, as many partitions as there are cores,
workers that are kept, and all rows of a partition in one batch of Arrow. Nobody puts out rows: the totals are what is
asked for. Spark's functions use numpy where they get frames, positions where they get rows, and ask for a state once.

Envelope. 50,000 rows by Zipf's law have 8,600, 27,000 and 39,000 distinct keys of 10,000, 100,000 and 1,000,000. In
`transformWithState` a key is three requests to the JVM over a socket (which key, get, update), each waited for: 60 to
100 µs, and as much for the group of rows: 0.3 ms, by two processes that share two cores with the JVM that answers:
8 s for 27,000 keys. In `applyInPandasWithState` the state comes and goes with the rows, but each key is a slice of a
frame: 0.2 ms, 4 s. Columns take 0.15 s and a value state 0.3 s: they are asked once for all keys. Ours key by key is a
Python call and dictionaries of rows, 8 µs a key and 1 µs a row: 0.4 s. So columns should be 20 times as fast as
`applyInPandasWithState` and 40 times as fast as `transformWithState`, a value state 10 and 20 times, key by key 8
and 15 times. With 1,000,000 keys there is no reason for another ratio.

Their first batch has all keys: 0.2 to 0.3 ms each, so five minutes for 1,000,000, and most of an hour for 10,000,000,
which are therefore not measured by default.

Seen beside, on a machine with other work: 39,000 groups of rows cost 38 s of CPU in `applyInPandasWithState`, 1 ms
each, four fifths of it in the workers, which is three times what was expected. `transformWithStateInPandas` is left
out: its query took 258 s there, and the same with rows 127 s.
"""

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.contest import Line, Report, ratio
from benchmarks.spark.contestants import (
    BASED,
    ROCKSDB,
    by_key,
    by_table,
    has_transform_with_state,
    native,
    pandas_with_state,
    with_state_by_rows,
)
from benchmarks.spark.workload import Contestant, Workload, open_session
from benchmarks.totals import Traffic

SIZES: Final = (10_000, 100_000)
PANDAS: Final = "applyInPandasWithState"
ROWS: Final = "transformWithState"
EXPECTED: Final[Sequence[tuple[str, Mapping[str, float]]]] = (
    ("columns", {PANDAS: 20, ROWS: 40}),
    ("value state", {PANDAS: 10, ROWS: 20}),
    ("value state, key by key", {PANDAS: 8, ROWS: 15}),
)
"""How many times as fast as each."""
NOT_MEASURED: Final = 2
"""All keys, and one more batch: they take seconds, so that little else is to be warmed."""


def run(report: Report, *, keys: int = 0, rows: int = 50_000, batches: int = 3, rounds: int = 1) -> None:
    """Of 10,000 and 100,000 keys, or of `keys`. Four minutes."""
    with tempfile.TemporaryDirectory() as name, open_session(Path(name)) as spark:
        contestants = _contestants(report)
        warming = Workload(spark, Path(name), Traffic(1000), min(rows, 2000), batches=4)
        for each, contestant in contestants.items():
            warming.measure(each, contestant)
        for count in (keys,) if keys else SIZES:
            traffic = Traffic(count, zipf=True)
            workload = Workload(spark, Path(name), traffic, rows, batches, not_measured=NOT_MEASURED)
            times_ms = report.contest(
                "a batch on Spark, Python APIs",
                "ms",
                {each: partial(workload.measure, each, contestant) for each, contestant in contestants.items()},
                rounds=rounds,
                keys=count,
            )
            for ours, expected in EXPECTED:
                for under in [each for each in expected if each in times_ms]:
                    speed = ratio(times_ms[under], times_ms[ours])
                    report.add(
                        Line(
                            f"{workload}: {ours} over {under}",
                            f"at least {expected[under]:g}x",
                            speed.median,
                            "x",
                            expected[under],
                            at_least=True,
                            detail=f"{speed}; {times_ms[ours]} ms a batch beside {times_ms[under]}",
                        )
                    )


def _contestants(report: Report) -> Mapping[str, Contestant]:
    """Ours, Spark's aggregation, and those APIs for which this environment has the packages."""
    found = {
        "columns": by_table("columns", BASED),
        "value state": by_table("heap", BASED),
        "value state, key by key": by_key(BASED),
        "Spark, RocksDB": native({**ROCKSDB, **BASED}),
        PANDAS: pandas_with_state(),
    }
    if has_transform_with_state(report):
        found[ROWS] = with_state_by_rows()
    return found
