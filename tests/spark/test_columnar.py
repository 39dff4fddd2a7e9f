"""Columnar state in a stream: in functions and in processors, in the driver and on executors, each batch once."""

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import statebackend as sb
from statebackend._checkpoint.materialization.layers import layers
from statebackend._processing.runner import ProcessorRunner
from statebackend.spark.executors.pickling import pickled, unpickled
from tests.spark.conftest import feed
from tests.spark.processors import SUMMED, Columns, ColumnsByKey, split


def rows_of(settings: sb.Settings) -> dict[str, tuple[int, int]]:
    """What is committed, as any other process would read it."""

    async def read():
        async with sb.open_backend(msgspec.structs.replace(settings, local=()), read_only=True) as backend:
            rows = backend.columnar_state("sums", SUMMED, key=pa.string()).to_arrow().to_pylist()
            return {row["key"]: (row["n"], row["sum"]) for row in rows}

    return asyncio.run(read())


class Expected:
    """The same in plain Python."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[int, int]] = {}

    def feed(self, stream, *batches: str) -> None:
        feed(stream, *batches)
        for batch in batches:
            for number, key in enumerate(batch):
                count, total = self.rows.get(key, (0, 0))
                self.rows[key] = count + 1, total + number


class Received:
    """An output that remembers the rows of each batch; it fails once in batch `fails_in`."""

    def __init__(self, fails_in: int = -1) -> None:
        self.rows: dict[int, list[dict[str, Any]]] = {}
        self._fails_in = fails_in

    def __call__(self, df, batch_id):
        if batch_id == self._fails_in:
            self._fails_in = -1
            raise OSError("no room for the output")
        self.rows[batch_id] = sorted((row.asDict() for row in df.collect()), key=lambda row: row["key"])


def summed(df, batch_id, backend):
    """A function for the driver."""
    sums = backend.columnar_state("sums", SUMMED, key=pa.string())
    sums.merge(df.toArrow(), on="key", how={"n": "count", "sum": ("sum", "number")})


@pytest.fixture(params=["heap", "runs"])
def tables(request, stream) -> str:
    """Columns in memory; or over runs, with a layer or a base in each commit but the first."""
    stream.settings = msgspec.structs.replace(
        stream.settings,
        local=(f"{stream.checkpoint}-copies",),
        table=request.param,
        table_dir=f"{stream.checkpoint}-tables",
        materialize_handles_max=1,
        materialize_changelog_ratio=1000.0,
        inline_bytes_max=0,
    )
    return request.param


def layers_of(settings: sb.Settings) -> list[int]:
    """The number of layers in each range of the newest commit."""

    async def read():
        async with sb.owners.open_coordinator(settings) as coordinator:
            return [len(layers(part.changelog)) for part in coordinator.base.ranges]

    return asyncio.run(read())


@pytest.mark.usefixtures("tables")
def test_one_state_wherever_the_work_is(stream, open_sink, on_executors) -> None:
    """By a function, by key, by table, and on any number of ranges: each start goes on from the one before."""
    expected, received = Expected(), Received()
    for sink in (
        open_sink(summed, stream.settings),
        on_executors(Columns(), parallelism=3, output=received),
        open_sink(ColumnsByKey(), stream.settings, key="key", output=received),
        on_executors(ColumnsByKey(), parallelism=1, output=received),
    ):
        expected.feed(stream, "abcabddq")
        stream.run(sink, plan=split)
        assert rows_of(stream.settings) == expected.rows
        for rows in received.rows.values():
            assert {row["key"]: (row["n"], row["sum"]) for row in rows} == expected.rows
        received.rows.clear()


@pytest.mark.usefixtures("tables")
def test_a_batch_that_comes_again_is_applied_once(stream, on_executors) -> None:
    """One whose ranges had contributed when its output failed, and one that was committed and forgotten by Spark."""
    expected, received = Expected(), Received(fails_in=1)
    expected.feed(stream, "abcdab", "abcdabee", "abc")
    sink = on_executors(Columns(), output=received)
    assert "no room for the output" in stream.fail(sink, plan=split)
    stream.run(sink, plan=split)
    stream.forget_commit(2)
    stream.run(sink, plan=split)
    assert rows_of(stream.settings) == expected.rows
    assert [row["n"] for row in received.rows[1]] == [4, 4, 2, 2, 2]
    assert list(received.rows) == [0, 1, 2]


def test_ranges_have_layers_of_their_own(stream, on_executors, tables) -> None:
    """Of the batches of one query, whose workers go on, and of the next one, which cuts the ranges anew."""
    expected = Expected()
    for parallelism in (2, 3):
        expected.feed(stream, *("abcdefghijklmnopqrstuvwxyz"[: 26 >> number] for number in range(4)))
        stream.run(on_executors(Columns(), parallelism=parallelism, output=Received()), plan=split)
        assert rows_of(stream.settings) == expected.rows
        assert (max(layers_of(stream.settings)) > 0) == (tables == "runs")


def test_a_processor_with_columns_is_sent_to_the_workers() -> None:
    """Also one of a main script, with its schema and an aggregate of its own."""
    schema = pa.schema({"n": pa.int64()})

    class Doubling(sb.spark.KeyedProcessor):
        def open(self, context):
            self.counts = context.columnar_state("counts", schema, key=pa.string())

        def process_table(self, table, context):
            self.counts.merge(table, on="key", how={"n": ("sum", "n")})

    runner = unpickled(pickled(ProcessorRunner(Doubling(), key="key", order_by=(), has_output=False)))

    async def run():
        async with sb.open_backend(sb.Settings(job="sent", primary="memory://sent")) as backend:
            runner(pa.table({"key": ["a", "b", "a"], "n": [1, 2, 3]}), 0, backend)
            return {key: row["n"] for key, row in backend.columnar_state("counts", schema, key=pa.string()).items()}

    assert asyncio.run(run()) == Counter({"a": 4, "b": 2})
