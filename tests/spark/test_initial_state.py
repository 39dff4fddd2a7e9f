"""The way back into Spark: maps, keys of several parts and timers are columns that `transformWithState` begins with."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StatefulProcessor

import statebackend as sb
from statebackend.errors import InputError
from tests.spark.conftest import BOUND_S, configured

STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
COLUMNS = pa.schema({"n": pa.int64(), "at": pa.timestamp("us", "UTC")})
PAIR = pa.struct({"a": pa.string(), "b": pa.int64()})


def declare(backend: Any) -> None:
    backend.map_state("counts", str, int)
    backend.timers("due")
    backend.columnar_state("columns", COLUMNS, key=PAIR)


@pytest.fixture
async def settings(tmp_path: Path) -> sb.Settings:
    """A job whose keys have two parts, of which no state has all."""
    settings = sb.Settings(job="job", primary=f"file://{tmp_path}/state")
    sources = {
        "counts": {("a", 1): {"x": 1, "y": 2}, ("b", 2): {"x": 3}},
        "due": {("a", 1): (5.0, 1.5), ("c", 3): 7},
        "columns": {("a", 1): {"n": 9, "at": None}},
    }
    await sb.seed(settings, declare, sources)
    return settings


def test_each_part_of_a_key_has_a_column(spark: SparkSession, settings: sb.Settings) -> None:
    """And each state one: a map, an array of milliseconds, a struct; null where the key has nothing."""
    frame = sb.spark.initial_state(spark, settings, ["counts", "columns"], key=["k", "n"], timers="due")
    found = {(row["k"], row["n"]): row.asDict(recursive=True) for row in frame.collect()}
    rest = {"counts": None, "columns": None, "due": None}
    assert found == {
        ("a", 1): {
            "k": "a",
            "n": 1,
            "counts": {"x": 1, "y": 2},
            "columns": {"n": 9, "at": None},
            "due": [1500, 5000],
        },
        ("b", 2): {"k": "b", "n": 2, **rest, "counts": {"x": 3}},
        ("c", 3): {"k": "c", "n": 3, **rest, "due": [7000]},
    }


class GoesOn(StatefulProcessor):
    """Takes over a map and timers, and says what it has."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.counts = handle.getMapState("counts", "name string", "n bigint")

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:  # noqa: N802, N803
        row = initialState.iloc[0]
        for name, count in dict(row["counts"] if row["counts"] is not None else {}).items():
            self.counts.updateValue((name,), (int(count),))
        for at_ms in row["due"] if row["due"] is not None else ():
            self.handle.registerTimer(int(at_ms) + 4_000_000_000_000)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        total = sum(len(some) for some in rows)
        counts = {name[0]: value[0] for name, value in self.counts.iterator()}
        timers = sorted(at - 4_000_000_000_000 for at in self.handle.listTimers())
        yield pd.DataFrame({"k": [key[0]], "told": [json.dumps([total, counts, timers], sort_keys=True)]})

    def close(self) -> None:
        pass


def test_a_query_begins_with_maps_and_timers(spark: SparkSession, settings: sb.Settings, tmp_path: Path) -> None:
    """Of keys of two parts."""
    frame = sb.spark.initial_state(spark, settings, "counts", key=["k", "n"], timers="due")
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "0.json").write_text('{"k": "a", "n": 1}\n{"k": "c", "n": 3}\n{"k": "d", "n": 4}\n')
    with configured(spark, {STORE: ROCKSDB, "spark.sql.streaming.noDataMicroBatches.enabled": "false"}):
        told = (
            spark.readStream.schema("k string, n bigint")
            .json(str(rows))
            .groupBy("k", "n")
            .transformWithStateInPandas(
                statefulProcessor=GoesOn(),
                outputStructType="k string, told string",
                outputMode="Update",
                timeMode="ProcessingTime",
                initialState=frame.groupBy("k", "n"),
            )
        )
        writer = told.writeStream.format("memory").queryName("told").outputMode("update").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(BOUND_S)
    found = {row["k"]: json.loads(row["told"]) for row in spark.sql("SELECT * FROM told").collect()}
    assert found == {"a": [1, {"x": 1, "y": 2}, [1500, 5000]], "c": [1, {}, [7000]], "d": [1, {}, []]}


def test_a_file_has_the_same_columns(settings: sb.Settings, tmp_path: Path) -> None:
    """A state at a time; timers in seconds, as they are; a key of two parts needs two names."""

    def exported(state: str, key: list[str]) -> list[dict[str, Any]]:
        path = tmp_path / f"{state}.parquet"
        asyncio.run(sb.export(settings, state, path, initial_key=key))
        rows: list[dict[str, Any]] = pq.read_table(path).sort_by("k").to_pylist()
        return rows

    assert exported("counts", ["k", "n"]) == [
        {"k": "a", "n": 1, "counts": [("x", 1), ("y", 2)]},
        {"k": "b", "n": 2, "counts": [("x", 3)]},
    ]
    assert exported("due", ["k", "n"]) == [{"k": "a", "n": 1, "due": [1.5, 5.0]}, {"k": "c", "n": 3, "due": [7.0]}]
    assert exported("columns", ["k", "m"]) == [{"k": "a", "m": 1, "columns": {"n": 9, "at": None}}]
    with pytest.raises(InputError, match="each part of the key a name"):
        asyncio.run(sb.export(settings, "counts", tmp_path / "one name.parquet", initial_key=["k"]))
