"""The cost of a batch on our side of Spark: tables of 50,000 rows given to `process_table`, then a checkpoint.

Envelope. Some 39,000 of 100,000 keys come in a table. Grouping them in Arrow, and making Python objects of what comes
out, is necessary for any totals in Python: 20 ms, and a plain dictionary of objects adds 10. Ours reads
and writes each key, encoded and proved (1.5 µs), and makes it durable (1.2 µs: a change, its group, its bytes, zstd):
100 ms more, four times as much as a dictionary that is lost with the process. Of it the Arrow arrays' way into lists is
2 ms, so no way around that would show.

CPU time of the process: the checkpoint encodes and compresses in threads of its own.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa

import statebackend as sb
from benchmarks.contest import Line, Report, contest, ratio
from benchmarks.spark.contestants import TableTotals
from benchmarks.spark.workload import BEGIN_US

ROWS, KEYS, TABLES = 50_000, 100_000, 10


def run(report: Report) -> None:
    """The batch over the same in a plain dictionary, and its parts."""
    tables = _tables()
    parts: dict[str, list[float]] = {"process_table": [], "checkpoint": []}
    samples = contest({"ours": lambda: anyio.run(_ours, tables, parts), "dictionary": lambda: _in_dictionary(tables)})
    overhead = ratio(samples["ours"], samples["dictionary"])
    spent = ", ".join(f"{name} {statistics.median(figures) * 1000:.0f} ms" for name, figures in parts.items())
    report.add(
        Line(
            f"CPU of a batch of {ROWS:,} rows and its checkpoint, over the same in a plain dictionary",
            "at most 5x",
            overhead.median,
            "x",
            5.0,
            detail=f"seconds: ours {samples['ours']}, dictionary {samples['dictionary']}; ratio {overhead}; {spent}",
        )
    )


class _Totals:
    """A dictionary in the place of a state."""

    def __init__(self) -> None:
        self._totals: dict[str, Any] = {}

    def value_state(self, name: str, type_: type) -> "_Totals":
        return self

    def get_many(self, keys: Sequence[str], default: object) -> list[Any]:
        return [self._totals.get(key, default) for key in keys]

    def put_many(self, keys: Sequence[str], totals: Sequence[Any]) -> None:
        self._totals.update(zip(keys, totals, strict=True))


async def _ours(tables: Sequence[Any], parts: dict[str, list[float]]) -> float:
    with tempfile.TemporaryDirectory(prefix="statebackend-bench-") as folder:
        settings = sb.Settings(job="bench", primary=f"file://{Path(folder)}/primary", materialize_interval_s=0)
        async with sb.open_backend(settings) as backend:
            processing = _processing(backend)
            spent: list[float] = []
            for number, table in enumerate(tables):
                begun = time.process_time()
                processing(table)
                between = time.process_time()
                await backend.checkpoint(number)
                ended = time.process_time()
                parts["process_table"].append(between - begun)
                parts["checkpoint"].append(ended - between)
                spent.append(ended - begun)
    return statistics.median(spent)


def _in_dictionary(tables: Sequence[Any]) -> float:
    processing, spent = _processing(_Totals()), list[float]()
    for table in tables:
        begun = time.process_time()
        processing(table)
        spent.append(time.process_time() - begun)
    return statistics.median(spent)


def _processing(states: Any) -> Callable[[Any], None]:
    processor = TableTotals()
    processor.open(states)
    return lambda table: processor.process_table(table, states)


def _tables() -> Sequence[Any]:
    chance = random.Random(17)
    return [
        pa.table(
            {
                "key": [f"key-{chance.randrange(KEYS):07d}" for _ in range(ROWS)],
                "amount": [chance.randrange(1000) for _ in range(ROWS)],
                "at": pa.array(range(first_us, first_us + ROWS), pa.timestamp("us", tz="UTC")),
            }
        )
        for first_us in range(BEGIN_US, BEGIN_US + TABLES * ROWS, ROWS)
    ]
