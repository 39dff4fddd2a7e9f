"""The import of a state of Spark's, through the driver and on executors, against Spark's own reader alone.

    python -m benchmarks spark.importing --sizes keys=20000       a small one

Envelope. The reader of Spark's state scans the store of each partition in a task of its own: that is the contestant,
its rows dropped in the JVM. Through the driver the same rows go to Python and back as Arrow, twice, and one process
hashes, sorts and compresses them: columns about a microsecond a key, beside the reader's two or three for each of two
cores. On executors two workers do that, and the rows cross once, behind a shuffle. So an import should take at most
1.2 times as long as the reader where the reader is what is waited for; through the driver that is less sure. The logs
of the checkpoint are read, and the operators, by a small job of Spark each: half a second, which counts for few keys.
The second contestant has Spark hand the reader's rows to Python, which drops them: nothing in Python can be quicker. Of
a million keys the reader took 2.3 s of processor time, this 3.3, and an import 3.9: where all cores are busy with the
scan, 1.2 is out of reach of anything that is written in Python.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

import statebackend as sb
from benchmarks.contest import Line, Report, ratio
from benchmarks.spark.workload import open_session

READER: Final = "Spark's reader"
ROWS: Final = "reader, rows in Python"
LIMIT: Final = 1.2
COLUMNS: Final = pa.schema({"n": pa.int64(), "amount": pa.int64()})
WAYS: Final[dict[str, int | None]] = {"import, driver": None, "import, executors": 2}
"""The number of ranges that executors write."""


def run(report: Report, *, keys: int = 1_000_000, rounds: int = 3) -> None:
    """Of an aggregation's state of so many keys. Five minutes."""
    with tempfile.TemporaryDirectory() as name, open_session(Path(name)) as spark:
        checkpoint = _aggregated(spark, Path(name), keys)
        contestants = {
            READER: partial(_read, spark, checkpoint, keys),
            ROWS: partial(_read, spark, checkpoint, keys, in_python=True),
        }
        for way, parallelism in WAYS.items():
            contestants[way] = partial(_imported, spark, checkpoint, keys, parallelism)
        found = report.contest("a state of Spark's", "s", contestants, rounds=rounds, keys=keys)
        for way in WAYS:
            for least in (READER, ROWS):
                times = ratio(found[way], found[least])
                claim = f"{way}, of {keys:,} keys, over {least}"
                report.add(Line(claim, f"at most {LIMIT}", times.median, "x", LIMIT, detail=f"ratios {times}"))


def _aggregated(spark: SparkSession, folder: Path, keys: int) -> Path:
    """The checkpoint of a query that has counted and summed each key once."""
    rows = spark.range(keys).selectExpr("concat('customer-', lpad(id, 9, '0')) AS key", "id AS amount")
    rows.write.parquet(str(folder / "rows"))
    read = spark.readStream.schema("key string, amount bigint").parquet(str(folder / "rows"))
    sums = read.groupBy("key").agg({"amount": "sum", "*": "count"})
    writer = sums.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
    return folder / "checkpoint"


def _read(spark: SparkSession, checkpoint: Path, keys: int, *, in_python: bool = False) -> float:
    begun = time.perf_counter()
    stored = spark.read.format("statestore").load(str(checkpoint))
    rows: Any = stored.select("key.key", "value.*").mapInArrow(_dropped, "key string") if in_python else stored
    rows.write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - begun
    assert stored.count() == keys
    return seconds


def _dropped(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch.select(["key"]).slice(0, 0)


def _imported(spark: SparkSession, checkpoint: Path, keys: int, parallelism: int | None) -> float:
    with tempfile.TemporaryDirectory() as primary:
        settings = sb.Settings(job="imported", primary=f"file://{primary}")
        importing = sb.spark.import_checkpoint(
            settings,
            _declared,
            f"file://{checkpoint}",
            fields={"state": ["amount", "n"]},
            parallelism=parallelism,
            session=spark,
        )
        begun = time.perf_counter()
        report = asyncio.run(importing)
        seconds = time.perf_counter() - begun
        assert report.keys == {"state": keys}
        return seconds


def _declared(backend: Any) -> None:
    backend.columnar_state("state", COLUMNS, key=pa.string())
