"""The columns that Spark gets have the values of the library's own batches, whatever type each has to become."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from statebackend.spark.reading.spark_columns import SparkColumns
from tests.examples import name_of

UINT = pa.uint64()
"""A type that Spark does not have: it becomes a decimal."""
INNER = pa.struct([("n", UINT), ("at", pa.timestamp("ns")), ("text", pa.large_string())])
AT = dt.datetime(2013, 5, 1, 12)  # noqa: DTZ001  # as the column, it has no zone


def inner(number: int) -> dict[str, Any]:
    """A record with one of each."""
    return {"n": number, "at": AT, "text": f"{number}"}


def shown(kind: str, type_: pa.DataType, values: list[Any], *, flatten: bool = True) -> list[dict[str, Any]]:
    """The rows that Spark gets of keys with these values."""
    groups, keys = pa.array(range(len(values)), pa.int32()), pa.array([f"k{place}" for place in range(len(values))])
    own = pa.RecordBatch.from_arrays([groups, keys, pa.array(values, type_)], names=["key_group", "key", "value"])
    columns = SparkColumns(kind, flatten=flatten, names=None, by_batch=None)
    found = columns.batch(own, columns.schema(own.schema, old_values=False))
    found.validate(full=True)
    return [{name: each for name, each in row.items() if name != "partition_id"} for row in found.to_pylist()]


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (UINT, [7, None, 2**64 - 1]),
        (INNER, [inner(1), None, {"n": None, "at": AT, "text": None}]),
        (pa.struct([("in", INNER), ("m", UINT)]), [{"in": inner(1), "m": 1}, {"in": None, "m": 2}, None]),
        (
            pa.struct([("in", pa.struct([("in", INNER)]))]),
            [{"in": {"in": None}}, {"in": None}, {"in": {"in": inner(3)}}],
        ),
        (pa.list_(INNER), [[inner(1), None], None, [], [None]]),
        (pa.struct([("all", pa.list_(UINT))]), [{"all": None}, {"all": [None, 7]}, {"all": []}, None]),
        (pa.map_(pa.string(), INNER), [[("a", inner(1)), ("b", None)], None, []]),
        (pa.struct([("all", pa.map_(UINT, UINT))]), [{"all": [(1, None)]}, {"all": None}, {"all": [(1, 2), (3, 4)]}]),
    ],
    ids=name_of,
)
def test_a_null_is_null_within_a_value_that_is_cast(type_: pa.DataType, values: list[Any]) -> None:
    """A record, a list or a map that is null within another one: not one whose parts are null, or empty."""
    is_record = pa.types.is_struct(type_)
    expected = [{"key": {"value": f"k{place}"}, "value": value} for place, value in enumerate(values)]
    found = shown("value", type_, values)
    if not is_record:  # what is none is the one field of a record
        expected = [{**row, "value": None if row["value"] is None else {"value": row["value"]}} for row in expected]
    assert found == expected


def test_elements_and_entries_that_are_null_are_rows() -> None:
    """Beside others that are cast, flattened or not; a list that is null is one row of null."""
    lists = [[inner(1), None], [inner(2)]]
    found = shown("list", pa.list_(INNER), lists)
    assert [(row["key"]["value"], row["list_element"]) for row in found] == [
        ("k0", inner(1)),
        ("k0", None),
        ("k1", inner(2)),
    ]
    assert [row["list_value"] for row in shown("list", pa.list_(INNER), lists, flatten=False)] == lists
    maps = [[("a", 7), ("b", None)], [("c", 9)]]
    found = shown("map", pa.map_(pa.string(), UINT), maps)
    assert [(row["user_map_key"]["value"], row["user_map_value"]) for row in found] == [
        ("a", {"value": Decimal(7)}),
        ("b", None),
        ("c", {"value": Decimal(9)}),
    ]
    found = shown("map", pa.map_(pa.string(), UINT), maps, flatten=False)
    assert [row["map_value"] for row in found] == [
        [({"value": key}, None if value is None else {"value": value}) for key, value in entries] for entries in maps
    ]


def test_timers_are_whole_milliseconds() -> None:
    """A row for each time of a key, rounded to the nearest."""
    found = shown("timers", pa.list_(pa.float64()), [[1.0, 1367409600.7], [0.0006]])
    assert [(row["key"]["value"], row["expiration_timestamp_ms"]) for row in found] == [
        ("k0", 1000),
        ("k0", 1367409600700),
        ("k1", 1),
    ]
