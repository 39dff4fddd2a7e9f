"""The contestants: each gets the rows and a folder, and returns a query over them that ends with the rows."""

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sql
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import statebackend as sb

Contestant = Callable[[DataFrame, Path], Any]

PARALLELISM = 2
"""Ranges of keys on executors: as many as Spark's state has partitions."""
TOTALS = "key string, count bigint, total bigint, last timestamp"
STATE = "count bigint, total bigint, last timestamp"


class Total(msgspec.Struct, array_like=True, gc=False):
    """The state of a key. `last` is in microseconds."""

    count: int = 0
    total: int = 0
    last: int = 0


class TableTotals(sb.spark.KeyedProcessor):
    """A table at a time: Arrow groups the rows, and the state is read and written in bulk."""

    def open(self, context: sb.spark.ProcessorContext) -> None:
        self.totals = context.value_state("totals", Total)

    def process_table(self, table: Any, context: sb.spark.ProcessorContext) -> None:
        found = table.group_by("key").aggregate([("amount", "count"), ("amount", "sum"), ("at", "max")])
        keys = found["key"].to_pylist()
        known: list[Any] = self.totals.get_many(keys, Total())
        new = zip(
            known,
            found["amount_count"].to_pylist(),
            found["amount_sum"].to_pylist(),
            pc.cast(found["at_max"], "int64").to_pylist(),
            strict=True,
        )
        self.totals.put_many(
            keys, [Total(old.count + count, old.total + total, max(old.last, last)) for old, count, total, last in new]
        )


class KeyTotals(sb.spark.KeyedProcessor):
    """A key at a time."""

    def open(self, context: sb.spark.ProcessorContext) -> None:
        self.totals = context.value_state("totals", Total)

    def process(self, key: Any, rows: Any, context: sb.spark.ProcessorContext) -> None:
        old = self.totals.get(key, Total())
        total = old.total + sum(row["amount"] for row in rows)
        last = max(row["at_us"] for row in rows)
        self.totals[key] = Total(old.count + len(rows), total, max(old.last, last))


def by_table(rows: DataFrame, work: Path) -> Any:
    """Ours, with `process_table`."""
    return _foreach(rows, work, _sink(TableTotals(), work))


def by_table_on_executors(rows: DataFrame, work: Path) -> Any:
    """Ours, with `process_table`, on executors."""
    return _foreach(rows, work, _sink(TableTotals(), work, execution="executors", parallelism=PARALLELISM))


def by_key(rows: DataFrame, work: Path) -> Any:
    """Ours, with `process`."""
    return _foreach(rows.selectExpr("key", "amount", "unix_micros(at) AS at_us"), work, _sink(KeyTotals(), work))


def nothing(rows: DataFrame, work: Path) -> Any:
    """A `foreachBatch` that does nothing: the time that Spark itself takes."""
    return _foreach(rows, work, lambda _df, _batch_id: None)


def sparks_own(rows: DataFrame, work: Path) -> Any:
    """Spark's aggregation, in the JVM."""
    totals = rows.groupBy("key").agg(sql.count("*"), sql.sum("amount"), sql.max("at"))
    return _write(totals, work).format("noop").outputMode("update").start()


def pandas_with_state(rows: DataFrame, work: Path) -> Any:
    """Spark's state for Python functions."""
    totals = rows.groupBy("key").applyInPandasWithState(
        _in_pandas, TOTALS, STATE, "update", GroupStateTimeout.NoTimeout
    )
    return _write(totals, work).format("noop").outputMode("update").start()


def with_state_by_rows(rows: DataFrame, work: Path) -> Any:
    """Spark's newer state for Python functions, a row at a time."""
    totals = rows.groupBy("key").transformWithState(RowTotals(), TOTALS, "Update", "None")
    return _write(totals, work).format("noop").outputMode("update").start()


def with_state_by_pandas(rows: DataFrame, work: Path) -> Any:
    """Spark's newer state for Python functions, a frame at a time."""
    totals = rows.groupBy("key").transformWithStateInPandas(PandasTotals(), TOTALS, "Update", "None")
    return _write(totals, work).format("noop").outputMode("update").start()


class _SparkTotals(StatefulProcessor):
    """The totals in Spark's `ValueState`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", STATE)

    def close(self) -> None: ...

    def known(self) -> Any:
        """The totals of the key."""
        return self._total.get() if self._total.exists() else (0, 0, None)


class RowTotals(_SparkTotals):
    """Gets rows."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        count, total, last = self.known()
        for row in rows:
            count, total = count + 1, total + row["amount"]
            # The time in the state has a time zone and the one in the row has none, or the other way round.
            last = row["at"] if last is None else max(last, row["at"], key=datetime.timestamp)
        self._total.update((count, total, last))
        yield Row(key=key[0], count=count, total=total, last=last)


class PandasTotals(_SparkTotals):
    """Gets frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        count, total, last = self.known()
        for frame in rows:
            count, total = count + len(frame), total + int(frame["amount"].sum())
            newest = frame["at"].max().to_pydatetime()
            last = newest if last is None else max(last, newest)
        self._total.update((count, total, last))
        yield pd.DataFrame({"key": [key[0]], "count": [count], "total": [total], "last": [last]})


def _in_pandas(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    count, total, last = state.get if state.exists else (0, 0, None)
    for frame in frames:
        count, total = count + len(frame), total + int(frame["amount"].sum())
        newest = frame["at"].max().to_pydatetime()
        last = newest if last is None else max(last, newest)
    state.update((count, total, last))
    yield pd.DataFrame({"key": [key[0]], "count": [count], "total": [total], "last": [last]})


def _sink(processor: sb.spark.KeyedProcessor, work: Path, **options: Any) -> sb.spark.StatefulSink:
    settings = sb.Settings(job="bench", primary=f"file://{work}/primary")
    return sb.spark.StatefulSink(processor, settings, key="key", **options)


def _foreach(rows: DataFrame, work: Path, function: Callable[[DataFrame, int], None]) -> Any:
    return _write(rows, work).foreachBatch(function).start()


def _write(rows: DataFrame, work: Path) -> Any:
    return rows.writeStream.trigger(availableNow=True).option("checkpointLocation", str(work / "checkpoint"))
