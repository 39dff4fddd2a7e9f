"""The cost of a batch on our side of Spark: tables of 50,000 rows merged into a state, then a checkpoint; CPU time.

    python -m benchmarks processing --sizes keys=2000,rows=1000,batches=4     in seconds

Envelope. Some 39,000 of 100,000 keys come in a table. Grouping them in Arrow, and making Python objects of what comes
out, is necessary for any totals in Python: 20 ms, and a plain dictionary of objects adds 10. A value state reads and
writes each key, encoded and proved (1.5 µs), and makes it durable (0.5 µs: a change in columns, its group, zstd): four
times as much as a dictionary that is lost with the process. Columns make no objects: a third of the dictionary's time.

CPU time of the process: the checkpoint encodes and compresses in threads of its own.
"""

import statistics
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from benchmarks.contest import Line, Report, ratio
from benchmarks.jobs import directory, open_job
from benchmarks.totals import Traffic, ValueTotals, answer, check

EXPECTED: Final = {"heap": 5.0, "columns": 1.0}


def run(report: Report, *, keys: int = 100_000, rows: int = 50_000, batches: int = 10, rounds: int = 5) -> None:
    """The batch and its checkpoint, over the same in a plain dictionary; and both parts. A minute."""
    traffic = Traffic(keys)
    tables = [traffic.rows(number, rows) for number in range(batches)]
    expected = answer(tables)
    parts: dict[str, list[tuple[float, float]]] = {kind: [] for kind in EXPECTED}
    samples = report.contest(
        "CPU of a batch",
        "ms",
        {kind: partial(_ours, kind, tables, expected, found) for kind, found in parts.items()}
        | {"dictionary": partial(_in_dictionary, tables, expected)},
        rounds=rounds,
        keys=keys,
    )
    for kind, found in parts.items():
        overhead = ratio(samples[kind], samples["dictionary"])
        merged, committed = (statistics.median(figures) for figures in zip(*found, strict=True))
        report.add(
            Line(
                f"CPU of a batch of {rows:,} rows and its checkpoint, {kind}, over the same in a plain dictionary",
                f"at most {EXPECTED[kind]:g}x",
                overhead.median,
                "x",
                EXPECTED[kind],
                detail=f"ms: {samples[kind]}, dictionary {samples['dictionary']}; ratio {overhead}; "
                f"merge {merged:.1f} ms, checkpoint {committed:.1f} ms",
            )
        )


class _Dictionary(dict[str, Any]):
    """A dictionary in the place of a state."""

    def value_state(self, name: str, type_: type) -> "_Dictionary":
        return self

    def get_many(self, keys: Sequence[str], default: object = None) -> list[Any]:
        return [self.get(key, default) for key in keys]

    def put_many(self, keys: Sequence[str], totals: Sequence[Any]) -> None:
        self.update(zip(keys, totals, strict=True))


def _ours(kind: str, tables: Sequence[Any], expected: Any, parts: list[tuple[float, float]]) -> float:
    found: list[tuple[float, float]] = []
    with directory() as folder, open_job(folder, kind, materialize_interval_s=0) as job:
        for table in tables:
            begun = time.process_time()
            job.totals.merge(table)
            between = time.process_time()
            job.checkpoint()
            found.append(((between - begun) * 1000, (time.process_time() - between) * 1000))
        check(kind, job.totals.table(), expected)
    parts += found
    return statistics.median(merged + committed for merged, committed in found)


def _in_dictionary(tables: Sequence[Any], expected: Any) -> float:
    totals, spent = ValueTotals(_Dictionary()), list[float]()
    for table in tables:
        begun = time.process_time()
        totals.merge(table)
        spent.append((time.process_time() - begun) * 1000)
    check("dictionary", totals.table(), expected)
    return statistics.median(spent)
