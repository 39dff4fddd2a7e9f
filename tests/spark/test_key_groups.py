"""The key group that Python looks up is the one that Spark's own hash gives, so that the JVM can place rows by it."""

from collections.abc import Sequence

import pyspark.sql.functions as f
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructField, StructType

from statebackend._tables.key_groups import key_group
from tests.state.sample_keys import BYTES, INTEGERS, STRINGS

COLUMNS: dict[str, tuple[DataType, Sequence[object]]] = {
    "string": (StringType(), STRINGS),
    "bigint": (LongType(), INTEGERS),
    "binary": (BinaryType(), BYTES),
}


@pytest.mark.parametrize("max_parallelism", [1, 7, 128, 32768])
@pytest.mark.parametrize("kinds", [("string",), ("bigint",), ("binary",), ("string", "bigint"), ("binary", "string")])
def test_a_key_group_is_sparks_pmod_of_xxhash64(
    spark: SparkSession, kinds: tuple[str, ...], max_parallelism: int
) -> None:
    """`pmod(xxhash64(columns), n)`, for each kind of column and for several chained, over awkward values of each."""
    columns = [COLUMNS[kind][1] for kind in kinds]
    length = max(map(len, columns))
    rows = [tuple(column[index % len(column)] for column in columns) for index in range(length)]
    names = [f"key{number}" for number in range(len(kinds))]
    schema = StructType([StructField(name, COLUMNS[kind][0]) for name, kind in zip(names, kinds, strict=True)])
    group = f.pmod(f.xxhash64(*names), f.lit(max_parallelism)).alias("key_group")
    in_spark = [row.key_group for row in spark.createDataFrame(rows, schema).select(group).collect()]
    keys = [row[0] if len(row) == 1 else row for row in rows]
    assert in_spark == [key_group(key, max_parallelism) for key in keys]


def test_an_int_column_must_be_cast_to_bigint_first(spark: SparkSession) -> None:
    """Spark hashes an `int` column in four bytes: the documented cast makes it the key's group."""
    frame = spark.range(1, 50).selectExpr("cast(id AS int) AS id")
    row = frame.select(f.xxhash64("id").alias("narrow"), f.xxhash64(f.col("id").cast("bigint")).alias("wide")).collect()
    groups = [key_group(key, 128) for key in range(1, 50)]
    assert [each.wide % 128 for each in row] == groups
    assert [each.narrow % 128 for each in row] != groups
