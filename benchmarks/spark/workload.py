"""Files of rows, one per micro-batch: a key, a number and a time. The task: count, sum and last time of each key."""

import random
import shutil
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession

SCHEMA = "key string, amount bigint, at timestamp"
BEGIN_US = 1_700_000_000_000_000
TIMEOUT_S = 1800

Start = Callable[[DataFrame, Path], Any]


@dataclass(frozen=True)
class Workload:
    """`files` files of `rows` rows in a folder of their own, written once."""

    spark: SparkSession
    folder: Path
    files: int
    rows: int
    keys: int

    def measure(self, start: Start) -> float:
        """Run a query over all files; return the seconds. `start` gets the rows and a folder of its own."""
        work = self.folder / "work"
        work.mkdir()
        try:
            rows = self.stream()
            begun = time.perf_counter()
            query = start(rows, work)
            if not query.awaitTermination(TIMEOUT_S):
                raise TimeoutError("the query does not end")
            return time.perf_counter() - begun
        finally:
            shutil.rmtree(work)

    def stream(self) -> DataFrame:
        """The files as a stream, each a micro-batch."""
        reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.source()))

    def source(self) -> Path:
        """The folder of the files, which are written on first use."""
        path = self.folder / f"{self.files}-files-{self.rows}-rows-{self.keys}-keys"
        if not path.exists():
            path.mkdir()
            chance = random.Random(17)
            for number in range(self.files):
                pyarrow.parquet.write_table(self._table(number, chance), path / f"{number:04d}.parquet")
        return path

    def _table(self, number: int, chance: random.Random) -> Any:
        first_us = BEGIN_US + number * self.rows
        return pa.table(
            {
                "key": [f"key-{chance.randrange(self.keys):07d}" for _ in range(self.rows)],
                "amount": [chance.randrange(1000) for _ in range(self.rows)],
                "at": pa.array(range(first_us, first_us + self.rows), pa.timestamp("us", tz="UTC")),
            }
        )


@contextmanager
def open_session(folder: Path) -> Generator[SparkSession]:
    """`local[2]` with two partitions, and state in RocksDB with changelog checkpointing: Spark at its best."""
    builder = SparkSession.builder.master("local[2]").appName("statebackend benchmarks")
    spark = builder.config(
        map={
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "2g",
            "spark.local.dir": str(folder / "scratch"),
            "spark.python.unix.domain.socket.enabled": "true",  # for all Python here: by TCP each task waits 40 ms
            "spark.shuffle.reduceLocality.enabled": "false",  # executors mode wants it; on one machine it is no matter
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.stateStore.providerClass": (
                "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
            ),
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
    ).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()
