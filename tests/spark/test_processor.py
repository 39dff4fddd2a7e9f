"""Processors in the driver: rows by key or as a table, what comes out of them, and state that is theirs only."""

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as f

import statebackend as sb
from statebackend.errors import InputError, SettingsError


def split(df):
    """Keys of the form `a:3` become the key `a` and the number 3."""
    return df.selectExpr("split(key, ':')[0] AS key", "cast(split(key, ':')[1] AS bigint) AS number")


COUNTED = pa.schema([("key", pa.string()), ("count", pa.int64()), ("numbers", pa.list_(pa.int64()))])


class Counting(sb.spark.KeyedProcessor):
    """Counts rows by key, and yields each count with the numbers of the batch."""

    output_schema = COUNTED

    def open(self, context):
        self.counts = context.value_state("counts", int)

    def process(self, key, rows, context):
        self.counts[key] = self.counts.get(key, 0) + len(rows)
        yield {"count": self.counts[key], "key": key, "numbers": [row["number"] for row in rows]}


class Silent(Counting):
    """Yields nothing."""

    def process(self, key, rows, context):
        for _ in super().process(key, rows, context):
            pass


class Tables(sb.spark.KeyedProcessor):
    """The same by Arrow."""

    output_schema = COUNTED

    def open(self, context):
        self.counts = context.value_state("counts", int)
        self.tables: list[pa.Table] = []

    def process_table(self, table, context):
        found = table.group_by("key").aggregate([("key", "count"), ("number", "list")])
        counts = []
        for key, count in zip(found["key"].to_pylist(), found["key_count"].to_pylist(), strict=True):
            counts.append(self.counts.get(key, 0) + count)
            self.counts[key] = counts[-1]
        return pa.table([found["number_list"], found["key"], counts], names=["numbers", "key", "count"])


class Published:
    """An output that remembers what it was given, and what was committed then."""

    def __init__(self, read: Any, settings: sb.Settings) -> None:
        self.batches: list[tuple[int, list[dict[str, Any]]]] = []
        self.committed: list[list[int]] = []
        self._read = lambda: read(settings).batches

    def __call__(self, df, batch_id):
        rows = [row.asDict() for row in df.collect()]
        self.batches.append((batch_id, sorted(rows, key=lambda row: row["key"])))
        self.committed.append(self._read())


@pytest.fixture
def published(stream, read) -> Published:
    return Published(read, stream.settings)


def row(key: str, count: int, *numbers: int) -> dict[str, Any]:
    return {"key": key, "count": count, "numbers": list(numbers)}


@pytest.mark.parametrize("processor", [Counting, Tables])
def test_rows_come_by_key_and_in_order_and_what_comes_out_is_put_out_before_the_commit(
    stream, open_sink, read, published, processor
) -> None:
    """Three batches of two keys; what the output is given in a batch is not committed yet."""
    stream.feed("a:3", "b:9", "a:1", "a:2")
    stream.feed("b:5", "b:4")
    stream.feed("c:1")
    stream.run(open_sink(processor(), stream.settings, key="key", order_by="number", output=published), plan=split)
    assert published.batches == [
        (0, [row("a", 3, 1, 2, 3), row("b", 1, 9)]),
        (1, [row("b", 3, 4, 5)]),
        (2, [row("c", 1, 1)]),
    ]
    assert published.committed == [[], [0], [1, 0]]
    assert read(stream.settings).counts == {"a": 3, "b": 3, "c": 1}


def test_several_columns_make_a_tuple_of_a_key(stream, open_sink) -> None:
    """In the order in which they are named."""
    seen = {}

    class Pairs(sb.spark.KeyedProcessor):
        def process(self, key, rows, context):
            seen[key] = rows

    stream.feed("a:1", "a:2", "b:1", "a:1")
    stream.run(open_sink(Pairs(), stream.settings, key=["number", "key"]), plan=split)
    assert {key: len(rows) for key, rows in seen.items()} == {(1, "a"): 2, (2, "a"): 1, (1, "b"): 1}
    assert seen[2, "a"] == [{"key": "a", "number": 2}]


def test_the_frame_is_run_once(stream, open_sink, spark) -> None:
    """With any number of keys: every run of it would read the source again."""
    evaluated = spark.sparkContext.accumulator(0)

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            evaluated.add(batch.num_rows)
            yield batch

    stream.feed(*(f"{n % 7}:{n}" for n in range(50)))
    stream.run(
        open_sink(Silent(), stream.settings, key="key"),
        plan=lambda df: split(df).mapInArrow(counted, "key string, number bigint"),
    )
    assert evaluated.value == 50


def test_a_batch_that_is_in_the_state_is_neither_processed_nor_put_out_again(
    stream, open_sink, read, published
) -> None:
    """It was put out before its commit, so before anything could make Spark deliver it again."""
    stream.feed("a:1")
    stream.run(open_sink(Counting(), stream.settings, key="key", output=published), plan=split)
    stream.forget_commit(0)
    stream.feed("a:2")
    stream.run(open_sink(Counting(), stream.settings, key="key", output=published), plan=split)
    assert published.batches == [(0, [row("a", 1, 1)]), (1, [row("a", 2, 2)])]
    assert read(stream.settings).counts == {"a": 2}


def test_an_empty_batch_has_no_keys_and_puts_out_no_rows_and_advances(stream, open_sink, read, published) -> None:
    """A place that numbers its batches is told of this one too."""
    stream.feed("a:1")
    stream.feed()
    stream.run(open_sink(Counting(), stream.settings, key="key", output=published), plan=split)
    assert published.batches == [(0, [row("a", 1, 1)]), (1, [])]
    assert read(stream.settings).batches == [1, 0]


@pytest.mark.parametrize("fails_in", ["process", "output"])
def test_a_failed_batch_leaves_nothing_behind_not_even_in_the_processor(
    stream, open_sink, read, published, fails_in
) -> None:
    """State and attributes start again from the last commit, in the same sink."""
    failing = {fails_in}

    class Remembering(Counting):
        def open(self, context):
            super().open(context)
            self.rows = sum(self.counts.values())

        def process(self, key, rows, context):
            self.rows += len(rows)
            assert self.rows == sum(self.counts.values()) + len(rows)
            yield from super().process(key, rows, context)
            if context.batch_id == 1 and "process" in failing:
                raise RuntimeError("as wanted")

    def output(df, batch_id):
        if batch_id == 1 and "output" in failing:
            raise RuntimeError("as wanted")
        published(df, batch_id)

    processor = Remembering()
    sink = open_sink(processor, stream.settings, key="key", output=output)
    stream.feed("a:1", "b:1")
    stream.feed("a:2", "b:2")
    assert "as wanted" in stream.fail(sink, plan=split)
    assert read(stream.settings).counts == {"a": 1, "b": 1}
    failing.clear()
    stream.run(sink, plan=split)
    assert read(stream.settings).counts == {"a": 2, "b": 2}
    assert vars(processor) == {}
    assert published.batches[-1] == (1, [row("a", 2, 2), row("b", 2, 2)])


def test_a_sink_with_a_processor_pickles_after_use(stream, open_sink, read) -> None:
    """Without what was opened: it opens its own when it gets a batch."""
    stream.feed("a:1")
    sink = open_sink(Silent(), stream.settings, key="key")
    stream.run(sink, plan=split)
    with pickle.loads(pickle.dumps(sink)) as copy:
        stream.feed("a:2")
        stream.run(copy, plan=split)
    assert read(stream.settings).counts == {"a": 2}


# --------------------------------------------------------------------------------------- what is not as it must be


class Extra(Counting):
    def process(self, key, rows, context):
        yield {**row(key, 1), "extra": 1}


class Lacking(Counting):
    def process(self, key, rows, context):
        yield {"key": key}


class Unfit(Counting):
    def process(self, key, rows, context):
        yield {**row(key, 1), "count": "many"}


class Returning(Counting):
    def process(self, key, rows, context):
        return row(key, 1)


class Number(Counting):
    def process(self, key, rows, context):
        return 1


class ListOfTables(Tables):
    def process_table(self, table, context):
        return [super().process_table(table, context)]


class OtherTable(Tables):
    def process_table(self, table, context):
        return table


class UnfitTable(Tables):
    def process_table(self, table, context):
        found = super().process_table(table, context)
        return found.set_column(2, "count", pc.cast(found["count"], pa.list_(pa.int64()).value_type)).set_column(
            1, "key", pa.array([[1]] * found.num_rows)
        )


@pytest.mark.parametrize("processor", [Extra, Lacking, Unfit, Returning, Number, ListOfTables, OtherTable, UnfitTable])
def test_rows_that_do_not_fit_fail_the_batch(stream, open_sink, read, published, processor) -> None:
    """A column more, a column less, a value of another type, no rows at all: nothing is put out or committed."""
    stream.feed("a:1")
    error = stream.fail(open_sink(processor(), stream.settings, key="key", output=published), plan=split)
    assert "InputError" in error
    assert published.batches == []
    assert read(stream.settings).batches == []


@pytest.mark.parametrize("processor", [Counting, Tables])
def test_rows_without_an_output_fail_the_batch(stream, open_sink, read, processor) -> None:
    """Dropping them would be a silent loss."""
    stream.feed("a:1")
    assert "has no output" in stream.fail(open_sink(processor(), stream.settings, key="key"), plan=split)
    assert read(stream.settings).batches == []


def test_an_asynchronous_output_fails_the_batch(stream, open_sink, read) -> None:
    """Nothing of it would have run, as with a function that Spark calls itself."""

    def output(df, batch_id):
        yield df

    stream.feed("a:1")
    assert "BatchError" in stream.fail(open_sink(Counting(), stream.settings, key="key", output=output), plan=split)
    assert read(stream.settings).batches == []


def test_a_null_key_fails_the_batch_and_is_named(stream, open_sink, read) -> None:
    """It could not be looked up again, and grouping it with others would mix strangers' state."""
    stream.feed("a:1")
    error = stream.fail(
        open_sink(Silent(), stream.settings, key="number"),
        plan=lambda df: df.selectExpr("key", "cast(NULL AS bigint) AS number"),
    )
    assert "a key is null" in error
    assert read(stream.settings).batches == []


@pytest.mark.parametrize("where", [{}, {"execution": "executors", "parallelism": 2}], ids=["driver", "executors"])
def test_two_columns_of_one_name_are_refused_before_the_processor(spark, stream, open_sink, read, where) -> None:
    """By the same words in both places: of `price` of an offer and of an order, a row would have only the last."""
    order = spark.sql("SELECT 'a' AS key, 3 AS price")
    joined = order.join(spark.sql("SELECT 'a' AS same, 4 AS price"), f.col("key") == f.col("same"))
    sink = open_sink(Silent(), stream.settings, key="key", query_id="mine", **where)
    with pytest.raises(InputError, match="columns share a name") as caught:
        sink(joined, 0)
    assert caught.value.facts["columns"] == ["price"]
    assert read(stream.settings).batches == []


class Neither(sb.spark.KeyedProcessor):
    pass


class Both(Counting):
    def process_table(self, table, context):
        return table


class Schemaless(Counting):
    output_schema = "key string"


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (Neither(), {"key": "key"}),
        (Both(), {"key": "key"}),
        (Counting(), {}),
        (Counting(), {"key": ()}),
        (Counting(), {"key": "key", "output": "outbox"}),
        (Schemaless(), {"key": "key", "output": print}),
        (print, {"key": "key"}),
        (print, {"output": print}),
        (Counting, {"key": "key"}),
    ],
)
def test_arguments_that_cannot_be_are_refused_at_once(function, options) -> None:
    """When the sink is made, and not when the first batch has come."""
    with pytest.raises(SettingsError):
        sb.spark.StatefulSink(function, sb.Settings(job="j", primary="memory://processor"), **options)


async def test_a_context_has_every_kind_of_state_that_the_backend_has(stream) -> None:
    """The backend's own, also one that nobody has thought of there; and nothing else of the backend."""
    async with sb.open_backend(stream.settings) as backend:
        context = sb.spark.ProcessorContext(backend)
        kinds = [name for name in dir(backend) if name.endswith("_state") and not name.startswith("_")]
        assert {"value_state", "list_state", "map_state"} <= set(kinds)
        for kind in [*kinds, "timers"]:
            assert getattr(context, kind) == getattr(backend, kind)
        assert context.key_groups == backend.key_groups
        backend.lucky_state = object()
        assert context.lucky_state is backend.lucky_state
        for name in ("checkpoint", "close", "unlucky_state"):
            with pytest.raises(AttributeError):
                getattr(context, name)
