"""Rows are placed by key group: each task gets the rows of one range, whatever Spark's planner would rather do."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from statebackend._ranges.equal_ranges import ranges_of
from statebackend._tables.key_groups import key_group
from statebackend.errors import InputError, SettingsError
from statebackend.ids import MAX_PARALLELISM_LIMIT
from statebackend.spark.executors import placement as placement_module
from statebackend.spark.executors.placement import REDUCE_LOCALITY, SALT, Placement
from tests.spark.conftest import configured
from tests.state.sample_keys import BYTES, INTEGERS, STRINGS

MAX_PARALLELISM = 128
SMALL = [number for number in INTEGERS if -100 < number < 100]
COLUMNS: Mapping[str, tuple[t.DataType, Sequence[Any]]] = {
    "string": (t.StringType(), STRINGS),
    "bigint": (t.LongType(), INTEGERS),
    "int": (t.IntegerType(), SMALL),
    "tinyint": (t.ByteType(), SMALL),
    "binary": (t.BinaryType(), BYTES),
}


@given(st.integers(1, 300), st.integers(1, MAX_PARALLELISM_LIMIT))
def test_ranges_cover_every_key_group_once_and_are_those_of_the_slots(parallelism: int, max_parallelism: int) -> None:
    """The slot is what the JVM computes of a key group; more slots than key groups are refused."""
    if parallelism > max_parallelism:
        with pytest.raises(SettingsError):
            ranges_of(parallelism, max_parallelism)
        return
    ranges = ranges_of(parallelism, max_parallelism)
    assert [each.first for each in ranges] == [0, *(each.last + 1 for each in ranges[:-1])]
    assert ranges[-1].last == max_parallelism - 1
    for slot, each in enumerate(ranges):
        assert {group * parallelism // max_parallelism for group in (each.first, each.last)} == {slot}


def by_partition(placement: Placement, df) -> dict[int, list[dict[str, Any]]]:
    """The rows in each partition of the placed frame that has any."""

    def tell(batches):  # nested, and so pickled by value: the workers do not know this module
        import pickle  # noqa: PLC0415

        import pyarrow as pa  # noqa: PLC0415
        from pyspark import TaskContext  # noqa: PLC0415

        for batch in batches:
            told = pickle.dumps((TaskContext.get().partitionId(), batch.to_pylist()))
            yield pa.RecordBatch.from_pydict({"told": [told]})

    import pickle  # noqa: PLC0415

    found: dict[int, list[dict[str, Any]]] = {}
    for row in placement.place(df).mapInArrow(tell, "told binary").collect():
        partition, rows = pickle.loads(row.told)
        found.setdefault(partition, []).extend(rows)
    return found


@pytest.mark.parametrize(
    "kinds", [("string",), ("bigint",), ("int",), ("tinyint",), ("binary",), ("binary", "int"), ("string", "bigint")]
)
def test_each_key_goes_to_the_range_that_owns_it(spark, kinds) -> None:
    """Over awkward values of every type that a key column may have, and the tuples of several columns."""
    values = [COLUMNS[kind][1] for kind in kinds]
    rows = [tuple(column[index % len(column)] for column in values) for index in range(max(map(len, values)))]
    names = [f"key {number}`s" for number in range(len(kinds))]
    schema = t.StructType([t.StructField(name, COLUMNS[kind][0]) for name, kind in zip(names, kinds, strict=True)])
    df = spark.createDataFrame(rows, schema)
    placement = Placement(df, names, parallelism=3, max_parallelism=MAX_PARALLELISM)
    found = by_partition(placement, df)
    seen = []
    for partition, placed in found.items():
        assert {row.pop(SALT) for row in placed} == {placement.salts[partition]}
        keys = [tuple(row.values()) if len(names) > 1 else next(iter(row.values())) for row in placed]
        assert {key_group(key, MAX_PARALLELISM) in ranges_of(3, MAX_PARALLELISM)[partition] for key in keys} == {True}
        seen.extend(keys)
    assert sorted(map(repr, seen)) == sorted(repr(row if len(names) > 1 else row[0]) for row in rows)


@pytest.mark.parametrize("parallelism", [1, 2, 5, 40])
def test_no_two_slots_share_a_partition(spark, parallelism) -> None:
    """Spark's own hash of the salts says the same as ours."""
    df = spark.range(1).selectExpr("id AS key")
    salts = Placement(df, ["key"], parallelism=parallelism, max_parallelism=MAX_PARALLELISM).salts
    in_spark = spark.createDataFrame([(salt,) for salt in salts], "salt int").selectExpr(
        f"pmod(hash(salt), {parallelism})"
    )
    assert [row[0] for row in in_spark.collect()] == list(range(parallelism))


@pytest.mark.parametrize(("keys", "partitions_min"), [(1, 1), (2000, 5)], ids=["skewed", "even"])
def test_partitions_are_neither_merged_nor_split(spark, keys, partitions_min) -> None:
    """By a planner that is keen on both: partitions here are tiny, and one of them may have all the rows."""
    settings = {
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
        "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "1",
        "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "0",
    }
    df = spark.range(4000).selectExpr(f"id % {keys} AS key", "id")
    placement = Placement(df, ["key"], parallelism=5, max_parallelism=MAX_PARALLELISM)
    with configured(spark, settings):
        found = by_partition(placement, df)
    assert len(found) == partitions_min
    assert sum(map(len, found.values())) == 4000
    for partition, rows in found.items():
        assert {row[SALT] for row in rows} == {placement.salts[partition]}


@pytest.mark.parametrize("key", ["gone", "price", "when"])
def test_a_column_that_cannot_be_a_key_is_refused_in_the_driver(spark, key) -> None:
    """Before any task runs, and with the same error that the driver's own grouping raises."""
    df = spark.range(1).selectExpr("id", "1.5D AS price", "current_date() AS when")
    placement = Placement(df, [key], parallelism=2, max_parallelism=MAX_PARALLELISM)
    with pytest.raises(InputError):
        placement.place(df)


class Elsewhere:
    """A cluster's context, as far as placement asks."""

    def __init__(self, **conf: str) -> None:
        self.master = "spark://elsewhere:7077"
        self._conf = conf

    def getConf(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        return self._conf


@pytest.mark.parametrize("allowed", [True, False])
def test_an_anchored_frame_has_the_same_rows_in_the_same_partitions(spark, monkeypatch, caplog, allowed) -> None:
    """Only a cluster can show that it draws anything. If the settings prevent it, that is logged once."""
    df = spark.range(500).selectExpr("cast(id AS string) AS key", "id")
    plain = by_partition(Placement(df, ["key"], parallelism=3, max_parallelism=MAX_PARALLELISM), df)
    context = Elsewhere(**{REDUCE_LOCALITY: str(not allowed)})
    monkeypatch.setattr(placement_module, "context_of", lambda df: context)
    with caplog.at_level(logging.WARNING):
        placement = Placement(df, ["key"], parallelism=3, max_parallelism=MAX_PARALLELISM)
    assert (REDUCE_LOCALITY in caplog.text) == (not allowed)
    joins = placement.place(df)._jdf.queryExecution().toString().count("Join")
    assert (joins > 0) == allowed
    found = by_partition(placement, df)
    assert {number: sorted(row["c1"] for row in rows) for number, rows in found.items()} == {
        number: sorted(row["c1"] for row in rows) for number, rows in plain.items()
    }
    placement.close()
    placement.close()


@pytest.mark.parametrize("names", [("key", "a.b", "`", ""), ("key", "x", "x", "X")], ids=["awkward", "repeated"])
def test_columns_arrive_by_their_places_whatever_their_names(spark, names) -> None:
    """A name may hold what Spark's SQL gives a meaning, and one that is not the key's may occur twice."""
    df = spark.range(3).selectExpr("id", "id + 10", "id + 20", "id + 30").toDF(*names)
    placement = Placement(df, ["key"], parallelism=2, max_parallelism=MAX_PARALLELISM)
    rows = [row for placed in by_partition(placement, df).values() for row in placed]
    assert sorted([row[f"c{number}"] for number in range(4)] for row in rows) == [
        [number, number + 10, number + 20, number + 30] for number in range(3)
    ]
