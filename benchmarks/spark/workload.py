"""Files of rows, one for each micro-batch: first every key once, which is not measured, then the batches.

A figure is the wall time of a batch: from the time at which Spark wrote that a batch was done to that of the last one,
by the number of batches between them. All contestants have it, whatever they do in their batches, or behind them.
"""

import os
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession

from benchmarks.totals import Traffic, answer, check

SCHEMA: Final = "key string, amount bigint, at timestamp"
TIMEOUT_S: Final = 1800
NOT_MEASURED: Final = 3
"""Batches at the beginning that do not count: all keys, and two more until everything is warm."""


@dataclass(frozen=True)
class Contestant:
    """`start` gets the rows and a folder, and returns a query that ends with the rows; `totals` reads what it has."""

    start: Callable[[DataFrame, Path], Any]
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    totals: Callable[[SparkSession, Path], Any] | None = None


@dataclass
class Workload:
    """`batches` files of `rows` rows each over the keys of `traffic`, after one with all of them. Written once."""

    spark: SparkSession
    folder: Path
    traffic: Traffic
    rows: int
    batches: int
    not_measured: int = NOT_MEASURED
    _right: set[str] = field(default_factory=set[str])

    def __str__(self) -> str:
        kind = "zipf" if self.traffic.zipf else "uniform"
        return f"{self.traffic.keys:,} keys, {kind}, {self.rows:,} rows a batch"

    def measure(self, name: str, contestant: Contestant) -> float:
        """Run a query over all files; return the milliseconds of a batch. Its totals are checked the first time."""
        work = self.folder / "work"
        work.mkdir()
        try:
            if not self.start(contestant, work).awaitTermination(TIMEOUT_S):
                raise TimeoutError("the query does not end")
            if contestant.totals is not None and name not in self._right:
                check(name, contestant.totals(self.spark, work), self.answer())
                self._right.add(name)
            return _ms_per_batch(work, self.not_measured)
        finally:
            shutil.rmtree(work)

    def start(self, contestant: Contestant, work: Path) -> Any:
        """Start it, with its own settings in the session."""
        with _configured(self.spark, contestant.settings):
            reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
            return contestant.start(reader.parquet(str(self.source())), work)

    def source(self) -> Path:
        """The folder of the files, which are written on first use."""
        kind = "zipf" if self.traffic.zipf else "uniform"
        path = self.folder / f"{self.batches}-batches-{self.rows}-rows-{self.traffic.keys}-{kind}"
        if not path.exists():
            path.mkdir()
            for number, table in enumerate(self._tables()):
                file = path / f"{number:04d}.parquet"
                pyarrow.parquet.write_table(table, file)
                os.utime(file, (number, number))  # by which Spark orders them
        return path

    def answer(self) -> Any:
        """The totals of all rows."""
        return answer(self._tables())

    def _tables(self) -> Sequence[Any]:
        return [self.traffic.every_key(), *(self.traffic.rows(number, self.rows) for number in range(self.batches))]


def _ms_per_batch(work: Path, not_measured: int) -> float:
    commits = work / "checkpoint" / "commits"
    written = [path.stat().st_mtime_ns for path in commits.iterdir() if path.name.isdigit()]
    counted = sorted(written)[not_measured - 1 :]
    return (counted[-1] - counted[0]) / (len(counted) - 1) / 1e6


@contextmanager
def _configured(spark: SparkSession, settings: Mapping[str, str]) -> Generator[None]:
    """The session with these settings. A query keeps those that it began with."""
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


@contextmanager
def open_session(folder: Path, *, cores: int = 2) -> Generator[SparkSession]:
    """`local[2]` with two partitions, and state in RocksDB with changelog checkpointing: Spark at its best.

    `cores`: tasks at a time. More than the machine has are for tasks that wait.
    """
    builder = SparkSession.builder.master(f"local[{cores}]").appName("statebackend benchmarks")
    spark = builder.config(
        map={
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "6g",  # Spark's default state of 1,000,000 keys, of several queries
            "spark.local.dir": str(folder / "scratch"),
            "spark.python.unix.domain.socket.enabled": "true",  # for all Python here: by TCP each task waits 40 ms
            "spark.shuffle.reduceLocality.enabled": "false",  # executors mode wants it; on one machine it is no matter
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
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
