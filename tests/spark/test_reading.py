"""The data sources on a real session, beside Spark's own state reader on the same input."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, datasource

import statebackend as sb
from tests.reading.odd_job import written_job
from tests.reading.odd_states import KINDS
from tests.spark.conftest import BOUND_S, Stream, configured
from tests.spark.test_reading_kinds import bare, key_in

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class Count(msgspec.Struct):
    """As Spark stores a count."""

    count: int


def count(df: DataFrame, batch_id: int, backend: sb.StateBackend) -> None:
    counts = backend.value_state("counts", Count)
    for key, found in Counter(row.key for row in df.collect()).items():
        counts[key] = Count(counts[key].count + found if key in counts else found)


def count_by_spark(stream: Stream, checkpoint: str) -> None:
    """The same by Spark's own state, from the same files."""
    reader = stream.spark.readStream.schema("key string").option("maxFilesPerTrigger", 1)
    counts = reader.json(str(stream._input)).groupBy("key").count()
    writer = counts.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
    assert writer.option("checkpointLocation", checkpoint).start().awaitTermination(BOUND_S)


@pytest.fixture(scope="module")
def places(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Two batches, counted by both; what reads each of them."""
    stream = Stream(spark, tmp_path_factory.mktemp("counted"))
    stream.feed("a", "b", "a")
    stream.feed("b", "c")
    with sb.spark.StatefulSink(count, stream.settings) as sink:  # which registers the job
        stream.run(sink)
    checkpoint = str(stream.checkpoint.with_name("own"))
    count_by_spark(stream, checkpoint)
    ours = {"format": "statebackend", "job": stream.settings.job, "stateVarName": "counts", "keyColumns": "key"}
    return {"ours": ours, "theirs": {"format": "statestore", "path": checkpoint}}


def test_a_query_moves_unchanged(spark: SparkSession, places: dict[str, dict[str, Any]]) -> None:
    """Columns, their types and the rows are those of Spark's own reader: of the newest batch, an earlier one, and the
    change feed. But for `partition_id`, since the keys are divided into other parts.
    """
    for options in ({}, {"batchId": "0"}, {"readChangeFeed": "true", "changeStartBatchId": "0"}):
        found = {}
        for whose, place in places.items():
            frame = spark.read.load(**place, **options)
            found[whose] = (frame.schema.simpleString(), sorted(map(str, frame.drop("partition_id").collect())))
        assert found["ours"] == found["theirs"]


def test_filters_are_pushed_on_request_alone(spark: SparkSession, places: dict[str, dict[str, Any]]) -> None:
    """A reader that takes filters fails where Spark's switch is off, so a query without the option gets another one."""
    if not hasattr(datasource, "EqualTo"):
        pytest.skip("Spark 4.1 and newer push filters")
    query = "key.key = 'a' and value.count > 1"
    with configured(spark, {PUSHDOWN: "true"}):
        pushed = spark.read.load(**places["ours"], pushFilters="true").where(query).collect()
    with configured(spark, {PUSHDOWN: "false"}):
        assert spark.read.load(**places["ours"]).where(query).collect() == pushed
        with pytest.raises(PySparkException, match="PUSHDOWN_DISABLED"):
            spark.read.load(**places["ours"], pushFilters="true").where(query).collect()
    assert [(row.key.key, row.value["count"]) for row in pushed] == [("a", 2)]


def test_odd_states_in_rocksdb_of_three_owners(spark: SparkSession, tmp_path: Path) -> None:
    """Records under keys of several types, maps whose keys may be none, and what each owner has a copy of."""
    pytest.importorskip("rocksdict", reason="the extra rocksdb")
    job = written_job(tmp_path, "rocksdb", 3, "some")
    sb.spark.register(spark, job.settings)

    def found(name: str, **options: str) -> list[dict[str, Any]]:
        options |= {"job": "fleet", "stateVarName": name, "flattenCollectionTypes": "false"}
        rows: list[dict[str, Any]] = spark.read.format("statebackend").options(**options).load().toArrow().to_pylist()
        return rows

    for name, column in (("records", "value"), ("none", "map_value")):
        rows = found(name, keysAsJson=str(KINDS[name].is_mixed), partitions="2")
        assert {key_in(name, row): KINDS[name].form(bare(row[column])) for row in rows} == job.written.values(3, name)
    assert [row["value"]["value"] for row in found("broadcast")] == job.operator("broadcast")
