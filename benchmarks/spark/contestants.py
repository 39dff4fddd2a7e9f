"""The contestants. All add to the same totals; those that only say how fast it could be add to none."""

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import statebackend as sb
from benchmarks.contest import Report
from benchmarks.jobs import KINDS, read_totals, settings_of
from benchmarks.spark.workload import Contestant
from benchmarks.totals import TOTALS, Total
from statebackend.spark.advice import CHECKPOINT_FILES, by_file_system

PARALLELISM: Final = 2
"""Ranges of keys on executors: as many as Spark's state has partitions."""
OUTPUT: Final = "key string"
"""Of functions that put out nothing."""
STATE: Final = "n bigint, total bigint, last bigint"
_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_PROVIDERS: Final = "org.apache.spark.sql.execution.streaming.state."
ROCKSDB: Final = {_PROVIDER: f"{_PROVIDERS}RocksDBStateStoreProvider"}
IN_MEMORY: Final = {_PROVIDER: f"{_PROVIDERS}HDFSBackedStateStoreProvider"}
"""Spark's default."""
DEFAULT: Final[Mapping[str, str]] = {}
BASED: Final = {CHECKPOINT_FILES: by_file_system()}
"""Spark's checkpoint files by way of the file system. Its own state it may keep so only for a benchmark."""
EXPERT: Final = {**ROCKSDB, **BASED, "spark.sql.execution.arrow.maxRecordsPerBatch": "100000"}
"""For Spark's Python functions: all rows of a partition come at once."""


class _TableTotals(sb.spark.KeyedProcessor):
    """A table at a time, in a state of one of the kinds."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def open(self, context: sb.spark.ProcessorContext) -> None:
        self.totals = KINDS[self._kind].totals(context)

    def process_table(self, table: Any, context: sb.spark.ProcessorContext) -> None:
        self.totals.merge(table)


class _KeyTotals(sb.spark.KeyedProcessor):
    """A key at a time."""

    def open(self, context: sb.spark.ProcessorContext) -> None:
        self.totals = context.value_state("totals", Total)

    def process(self, key: Any, rows: Any, context: sb.spark.ProcessorContext) -> None:
        old = self.totals.get(key, Total())
        total = old.sum + sum(row["amount"] for row in rows)
        last = max(row["at_us"] for row in rows)
        self.totals[key] = Total(old.n + len(rows), total, max(old.last, last))


def by_table(
    kind: str = "heap", settings: Mapping[str, str] = DEFAULT, table: str = "heap", **options: Any
) -> Contestant:
    """Ours, with `process_table` and states of that kind, in that table; `options` are the sink's."""
    return Contestant(partial(_by_table, kind, table, options), settings, partial(_totals_of, kind, table=table))


def on_executors(kind: str = "heap", settings: Mapping[str, str] = DEFAULT, **options: Any) -> Contestant:
    """Ours, in Spark's Python workers; `options` are the sink's."""
    return by_table(kind, settings, execution="executors", parallelism=PARALLELISM, **options)


def by_function(settings: Mapping[str, str] = DEFAULT, **options: Any) -> Contestant:
    """Ours, with a plain function; `options` are the sink's."""

    def add(df: DataFrame, _batch_id: int, backend: sb.StateBackend) -> None:
        KINDS["heap"].totals(backend).merge(df.toArrow())

    def start(rows: DataFrame, work: Path) -> Any:
        return _foreach(rows, work, sb.spark.StatefulSink(add, settings_of(work, "heap"), **options))

    return Contestant(start, settings, partial(_totals_of, "heap"))


def by_key(settings: Mapping[str, str] = DEFAULT) -> Contestant:
    """Ours, with `process`."""
    return Contestant(_by_key, settings, partial(_totals_of, "heap"))


def nothing(settings: Mapping[str, str] = DEFAULT) -> Contestant:
    """A `foreachBatch` that does nothing: the time that Spark itself takes."""
    return Contestant(partial(_foreach, function=lambda _df, _batch_id: None), settings)


def only_collected(settings: Mapping[str, str] = DEFAULT) -> Contestant:
    """A `foreachBatch` that gets its rows as Arrow, in the fewest calls, and drops them: what no state can beat."""
    return Contestant(partial(_foreach, function=lambda df, _batch_id: _collect(df)), settings)


def native(settings: Mapping[str, str]) -> Contestant:
    """Spark's aggregation, in the JVM."""
    return Contestant(_native, settings, _aggregated)


def has_transform_with_state(report: Report) -> bool:
    """True if this environment has the packages for it. The report says so if not."""
    if any(importlib.util.find_spec(name) is None for name in ("google", "google.protobuf")):  # the first decides
        report.skip("transformWithState, which needs protobuf (extra `connect`)")
        return False
    return True


def pandas_with_state() -> Contestant:
    """Spark's state for Python functions."""
    return Contestant(_pandas_with_state, EXPERT, partial(_kept, "value.groupState.*"))


def with_state_by_rows() -> Contestant:
    """Spark's newer state for Python functions, a row at a time."""
    return Contestant(_with_state, EXPERT, _variable)


def _by_table(kind: str, table: str, options: Mapping[str, Any], rows: DataFrame, work: Path) -> Any:
    return _foreach(rows, work, _sink(_TableTotals(kind), work, table, **options))


def _by_key(rows: DataFrame, work: Path) -> Any:
    return _foreach(_in_microseconds(rows), work, _sink(_KeyTotals(), work))


def _native(rows: DataFrame, work: Path) -> Any:
    return _update(rows.groupBy("key").agg(sql.count("*"), sql.sum("amount"), sql.max("at")), work)


def _pandas_with_state(rows: DataFrame, work: Path) -> Any:
    groups, without = _in_microseconds(rows).groupBy("key"), GroupStateTimeout.NoTimeout
    return _update(groups.applyInPandasWithState(_in_pandas, OUTPUT, STATE, "update", without), work)


def _with_state(rows: DataFrame, work: Path) -> Any:
    groups = _in_microseconds(rows).groupBy("key")
    return _update(groups.transformWithState(RowTotals(), OUTPUT, "Update", "None"), work)


def _in_microseconds(rows: DataFrame) -> DataFrame:
    """Numbers for times, which Python handles faster."""
    return rows.selectExpr("key", "amount", "unix_micros(at) AS at_us")


def _collect(df: DataFrame) -> None:
    pa.Table.from_batches(df._collect_as_arrow())  # type: ignore[operator]  # noqa: SLF001


def _totals_of(kind: str, _spark: SparkSession, work: Path, **changes: Any) -> Any:
    return read_totals(work, kind, **changes)


def _kept(value: str, spark: SparkSession, work: Path, **options: str) -> Any:
    """What is in Spark's state."""
    rows = spark.read.format("statestore").options(**options).load(str(work / "checkpoint"))
    return rows.select("key.*", value).toArrow().rename_columns(TOTALS.names)


_aggregated: Final = partial(_kept, "value.*")
_variable: Final = partial(_kept, "value.*", stateVarName="total")


class RowTotals(StatefulProcessor):
    """Adds rows to totals in Spark's `ValueState`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", STATE)

    def close(self) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        found: Any = self._total.get()
        count, total, last = (0, 0, 0) if found is None else found
        for _, amount, at_us in rows:
            count, total, last = count + 1, total + amount, max(last, at_us)
        self._total.update((count, total, last))
        return iter(())


def _in_pandas(_key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    count, total, last = state.get if state.exists else (0, 0, 0)
    for frame in frames:
        amounts, times_us = frame["amount"].to_numpy(), frame["at_us"].to_numpy()
        count, total, last = count + len(amounts), total + int(amounts.sum()), max(last, int(times_us.max()))
    state.update((count, total, last))
    return iter(())


def _sink(processor: sb.spark.KeyedProcessor, work: Path, table: str = "heap", **options: Any) -> sb.spark.StatefulSink:
    return sb.spark.StatefulSink(processor, settings_of(work, "heap", table=table), key="key", **options)


def _foreach(rows: DataFrame, work: Path, function: Callable[[DataFrame, int], None]) -> Any:
    return _write(rows, work).foreachBatch(function).start()


def _update(totals: DataFrame, work: Path) -> Any:
    return _write(totals, work).format("noop").outputMode("update").start()


def _write(rows: DataFrame, work: Path) -> Any:
    return rows.writeStream.trigger(availableNow=True).option("checkpointLocation", str(work / "checkpoint"))
