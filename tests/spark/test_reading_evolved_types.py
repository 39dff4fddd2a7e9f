"""What Spark reads of a state whose type has changed: every task shows it as the newest declaration has it."""

from pathlib import Path
from typing import Any

import anyio
import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import statebackend as sb
from statebackend import errors
from statebackend.spark.reading.data_source import StateSource
from statebackend.spark.reading.spark_columns import SparkColumns


class Leg(msgspec.Struct):
    a: int
    c: int


class LaterLeg(msgspec.Struct):
    """A field has gone, and another one has come to its place in the order of the names."""

    a: int
    b: int = 0


def in_km(leg: dict[str, Any]) -> dict[str, Any]:
    return leg | {"a": leg["a"] * 1000}


def fly(tmp_path: Path, *runs: tuple[Any, Any, list[Any]], first: int = 0) -> sb.Settings:
    """A job of which each run writes a batch: of a type, with this value, or none, and these upcasts."""
    settings = sb.Settings(job="fleet", primary=f"file://{tmp_path}/primary", persist_delay_s=0.0, local=())

    async def run() -> None:
        for batch_id, (type_, value, migrate) in enumerate(runs, first):
            async with sb.open_backend(settings) as backend:
                legs = backend.value_state("legs", type_, migrate=migrate)
                if value is not None:
                    legs["k"] = value
                await backend.checkpoint(10 + batch_id, source=sb.SourceMark("query", batch_id))

    anyio.run(run)
    return settings


def source_of(settings: sb.Settings, migrate: Any = None, **options: Any) -> StateSource:
    registered = {"jobs": {"fleet": settings}, "migrate": {"fleet": migrate or {}}}
    return type("Source", (StateSource,), registered)(
        {"job": "fleet", **{name: str(each) for name, each in options.items()}}
    )


def rows_of(source: StateSource, schema: StructType | None = None) -> list[dict[str, Any]]:
    """What all tasks read together."""
    reader = source.reader(schema or source.schema())
    batches = [batch for each in reader.partitions() for batch in reader.read(each)]
    return [row for batch in batches for row in batch.to_pylist()]


def test_tasks_of_one_feed_have_the_same_columns(tmp_path: Path) -> None:
    """Also those whose commits are all from before the type has changed: no field has the values of another one."""
    settings = fly(tmp_path, (Leg, Leg(1, 100), []), (Leg, Leg(2, 200), []), (LaterLeg, LaterLeg(3, 30), []))
    rows = rows_of(source_of(settings, readChangeFeed=True, changeStartBatchId=0, oldValues=True, partitions=3))
    first, second, third = ({"a": a, "b": b} for a, b in ((1, None), (2, None), (3, 30)))
    assert [(row["old_value"], row["value"]) for row in rows] == [(None, first), (first, second), (second, third)]


def test_values_of_an_earlier_version_take_the_registered_upcasts(tmp_path: Path) -> None:
    """In a frame and in a feed. Without them the error names the way; a state that is not there is no slip."""
    settings = fly(tmp_path, (LaterLeg, LaterLeg(1, 10), []), (LaterLeg, LaterLeg(2, 20), [in_km]))
    feed = {"readChangeFeed": True, "changeStartBatchId": 0, "oldValues": True}
    rows = rows_of(source_of(settings, {"legs": in_km}, **feed))
    first, second = {"a": 1000, "b": 10}, {"a": 2, "b": 20}
    assert [(row["old_value"], row["value"]) for row in rows] == [(None, first), (first, second)]
    later = fly(tmp_path / "frame", (LaterLeg, LaterLeg(1, 10), []), (LaterLeg, None, [in_km]))
    assert [row["value"] for row in rows_of(source_of(later, {"legs": [in_km]}))] == [first]
    with pytest.raises(errors.ValueDecodeError, match=r"spark\.register"):
        rows_of(source_of(later))
    with pytest.raises(errors.InputError, match="did you mean 'legs'"):
        rows_of(source_of(later, {"leg": in_km}))


def test_a_query_that_was_planned_before_the_type_changed_says_so(tmp_path: Path) -> None:
    """Its columns are what they were: a field that has come is not in them, and one that has gone is no null."""
    settings = fly(tmp_path, (Leg, Leg(1, 100), []))
    planned = source_of(settings).schema()
    fly(tmp_path, (LaterLeg, LaterLeg(3, 30), []), first=1)
    with pytest.raises(errors.InputError, match="start it again"):
        rows_of(source_of(settings), planned)


def test_fields_go_by_their_names() -> None:
    """In records within lists, too. What no longer fits its column is an error, and no number."""
    columns = SparkColumns("value", flatten=True, names=None, by_batch=None)

    def batch(type_: pa.DataType, value: Any) -> Any:
        own = {"key_group": pa.array([0], pa.int32()), "key": pa.array(["k"]), "value": pa.array([value], type_)}
        return pa.RecordBatch.from_pydict(own)

    before = pa.struct([("a", pa.int32()), ("in", pa.list_(pa.struct([("b", pa.int32()), ("c", pa.int32())])))])
    planned = columns.schema(batch(before, None).schema, old_values=False)
    now = pa.struct(
        [("0", pa.int32()), ("a", pa.int64()), ("in", pa.list_(pa.struct([("c", pa.int64()), ("b", pa.int64())])))]
    )
    (row,) = columns.batch(batch(now, {"0": 1, "a": 2, "in": [{"c": 3, "b": 4}]}), planned).to_pylist()
    assert row["value"] == {"a": 2, "in": [{"b": 4, "c": 3}]}
    with pytest.raises(errors.InputError, match="start it again"):
        columns.batch(batch(now, {"0": 1, "a": 1 << 40, "in": []}), planned)
