"""Writes the checkpoints that `test_import.py` reads, by the PySpark that this process imports.

    PYTHONPATH=<folder with PySpark 4.0> python tests/spark/make_checkpoints.py tests/spark/checkpoints/4.0

It imports nothing of ours. Where the checkpoint and the rows lay is written as `/checkpoint` and `/data/orders`.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupStateTimeout

STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
ROWS = [{"k": f"k{number % 3}", "v": number, "at": f"1970-01-01T00:{number + 10}:00Z"} for number in range(10)]
LONG_MS = 100_000_000


class Kinds(StatefulProcessor):
    """Every kind of variable."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.v = handle.getValueState("v", "n bigint, name string")
        self.l = handle.getListState("l", "n bigint")
        self.m = handle.getMapState("m", "name string", "n bigint")
        self.ttlv = handle.getValueState("ttlv", "n bigint", LONG_MS)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        count = sum(len(some) for some in rows)
        self.v.update((count, f"nm{key[0]}"))
        self.l.put([(count,)])
        self.m.updateValue(("a",), (count,))
        self.m.updateValue(("b",), (2,))
        self.ttlv.update((count,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1_000_000_000)
        yield pd.DataFrame({"k": [key[0]], "n": [count]})

    def close(self) -> None:
        pass


def transform(rows: Any) -> Any:
    """By pandas: PySpark 4.0 has no other."""
    return rows.groupBy("k").transformWithStateInPandas(
        statefulProcessor=Kinds(),
        outputStructType="k string, n bigint",
        outputMode="Update",
        timeMode="ProcessingTime",
    )


def groups(rows: Any) -> Any:
    """A state of two fields, and a timeout."""

    def count(key: Any, some: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        total = sum(len(each) for each in some)
        state.update((total, "x"))
        state.setTimeoutDuration(1_000_000_000)
        yield pd.DataFrame({"k": [key[0]], "n": [total]})

    return rows.groupBy("k").applyInPandasWithState(
        count, "k string, n bigint", "n bigint, name string", "update", GroupStateTimeout.ProcessingTimeTimeout
    )


def aggregation(rows: Any) -> Any:
    """Several buffers, of which two have the same names."""
    return rows.groupBy("k").agg(f.count("*"), f.sum("v"), f.avg("v"), f.max("v"))


def windows(rows: Any) -> Any:
    """A key that no state here can have."""
    return rows.withWatermark("at", "1 minute").groupBy(f.window("at", "5 minutes"), "k").count()


QUERIES: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "transform": (transform, True),
    "groups": (groups, False),
    "aggregation": (aggregation, False),
    "windows": (windows, False),
}


def main() -> None:
    """Run each query over one file of rows."""
    target = Path(sys.argv[1])
    session: Any = SparkSession.builder
    spark = (
        session.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")  # timers would make them for ever
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        orders = Path(folder, "orders")
        orders.mkdir()
        (orders / "a.json").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
        for name, (query_of, needs_rocksdb) in QUERIES.items():
            checkpoint = Path(folder, name)
            spark.conf.unset(STORE)
            if needs_rocksdb:
                spark.conf.set(STORE, ROCKSDB)
            rows = spark.readStream.schema("k string, v bigint, at timestamp").json(str(orders))
            writer = query_of(rows).writeStream.format("noop").outputMode("update").trigger(availableNow=True)
            writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()
            _keep(checkpoint, orders, target / name)
    spark.stop()


def _keep(checkpoint: Path, orders: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(checkpoint, target, ignore=shutil.ignore_patterns("*.crc", "_delta_log"))
    for path in (each for each in target.rglob("*") if each.is_file()):
        body = path.read_bytes()
        body = body.replace(str(checkpoint).encode(), b"/checkpoint").replace(str(orders).encode(), b"/data/orders")
        path.write_bytes(body)


if __name__ == "__main__":
    main()
