"""Output by the outbox: published after the commit, always the same rows, and nothing uncommitted."""

import asyncio
import itertools
import shutil
import threading
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import statebackend as sb
from statebackend.errors import CorruptObjectError, InputError, SettingsError
from statebackend.ids import SourceMark, StagedOutput
from statebackend.observers import Metrics
from statebackend.spark.output import rows_to_stage

SCHEMA = pa.schema([("key", pa.string()), ("count", pa.int64()), ("chance", pa.int64())])
_chance = itertools.count()
"""Makes a processor give other rows each time it runs."""


class Counting(sb.spark.KeyedProcessor):
    """Counts rows by key; no two runs of it on the same rows give the same."""

    output_schema = SCHEMA

    def open(self, context):
        self.counts = context.value_state("counts", int)

    def process(self, key, rows, context):
        self.counts[key] = self.counts.get(key, 0) + len(rows)
        yield {"key": key, "count": self.counts[key], "chance": next(_chance)}


def counted(df, batch_id, backend):
    """The same as a function."""
    counts = backend.value_state("counts", int)
    rows = []
    for key in df.toArrow()["key"].to_pylist():
        counts[key] = counts.get(key, 0) + 1
        rows.append({"key": key, "count": counts[key], "chance": next(_chance)})
    return pa.Table.from_pylist(rows, SCHEMA) if rows else None


async def counted_later(df, batch_id, backend):
    """The same on the loop."""
    table = await sb.spark.to_arrow(df)

    class Read:
        def toArrow(self):  # noqa: N802 - Spark's word
            return table

    return counted(Read(), batch_id, backend)


class Receiver:
    """A good receiver: stores the first rows of each key, and notes everything else that came."""

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.tables: dict[tuple[str, int], Any] = {}
        self.calls: list[int] = []
        self.epochs: list[int] = []
        self.fails_at = fails_at

    def __call__(self, publication: sb.spark.Publication) -> None:
        self.calls.append(publication.batch_id)
        self.epochs.append(publication.epoch)
        table = publication.table
        assert table.num_rows == publication.rows
        assert self.tables.setdefault((publication.query_id, publication.batch_id), table).equals(table)
        if publication.batch_id == self.fails_at:
            self.fails_at = None
            raise OSError("the receiver is away")

    @property
    def counts(self) -> list[dict[str, int]]:
        """The counts that were published, by batch."""
        return [
            dict(zip(table["key"].to_pylist(), table["count"].to_pylist(), strict=True))
            for _, table in sorted(self.tables.items())
        ]


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


def test_rows_are_published_once_they_are_committed(stream, open_sink, read, receiver) -> None:
    """Batch by batch, also one without rows. Here each is an object, elsewhere on this page it lies in the commit."""
    settings = msgspec.structs.replace(stream.settings, inline_bytes_max=0)
    seen = []

    def publish(publication: sb.spark.Publication) -> None:
        seen.append(read(settings).batches[0])
        receiver(publication)

    stream.feed("a", "b", "a")
    stream.feed()
    stream.feed("a")
    stream.run(open_sink(Counting(), settings, key="key", output=sb.spark.Outbox(publish)))
    assert receiver.counts == [{"a": 2, "b": 1}, {}, {"a": 3}]
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("function", [counted, counted_later], ids=["function", "async function"])
def test_a_function_returns_its_rows(stream, open_sink, receiver, function) -> None:
    """A table, or nothing, and then there is nothing to publish."""
    stream.feed("a", "b")
    stream.feed()
    stream.feed("a")
    stream.run(open_sink(function, stream.settings, output=sb.spark.Outbox(receiver)))
    assert receiver.counts == [{"a": 1, "b": 1}, {"a": 2}]
    assert receiver.calls == [0, 2]


def test_a_batch_that_comes_again_is_not_processed_and_published_again_as_it_was(
    stream, open_sink, read, receiver
) -> None:
    """Killed anywhere between our commit and Spark's: the same rows, though the processor would give others now."""
    stream.feed("a", "b")
    stream.feed("a")
    sink = open_sink(Counting(), stream.settings, key="key", output=sb.spark.Outbox(receiver))
    stream.run(sink)
    for again in (sink, open_sink(Counting(), stream.settings, key="key", output=sb.spark.Outbox(receiver))):
        stream.forget_commit(1)
        stream.run(again)
    assert receiver.calls == [0, 1, 1, 1]
    assert receiver.counts == [{"a": 1, "b": 1}, {"a": 2}]
    assert receiver.epochs == sorted(receiver.epochs)
    assert read(stream.settings).counts == {"a": 2, "b": 1}


def test_a_publication_that_fails_fails_the_query_and_is_made_up_for(stream, open_sink, read, receiver) -> None:
    """The batch is committed: the next run publishes it before anything newer, and processes it no more."""
    away = [1]
    stream.feed("a")
    stream.feed("a", "b")
    stream.feed("b")

    def publish(publication: sb.spark.Publication) -> None:
        if publication.batch_id in away:
            away.clear()
            raise OSError("the receiver is away")
        receiver(publication)

    metrics = Metrics()
    sink = open_sink(Counting(), stream.settings, key="key", output=sb.spark.Outbox(publish), observer=metrics)
    assert "the receiver is away" in stream.fail(sink)
    assert read(stream.settings).batches == [1, 0]
    stream.run(sink)
    assert receiver.counts == [{"a": 1}, {"a": 2, "b": 1}, {"b": 2}]
    assert receiver.calls == [0, 1, 2]
    assert (metrics.publications, metrics.published_rows, metrics.failed_publications) == (3, 4, 1)
    assert metrics.publication_seconds.count == 3


def test_what_is_not_committed_is_not_published(stream, open_sink, read, receiver) -> None:
    """The processor fails, or the rows that came out are wrong: the batch comes again, and gives other rows."""

    class Failing(Counting):
        fails = True

        def process(self, key, rows, context):
            yield from super().process(key, rows, context)
            if key == "bad" and Failing.fails:
                Failing.fails = False
                yield {"key": "bad"}

    stream.feed("a")
    stream.feed("a", "bad")
    sink = open_sink(Failing(), stream.settings, key="key", output=sb.spark.Outbox(receiver))
    assert "output_schema" in stream.fail(sink)
    assert receiver.calls == [0]
    stream.run(sink)
    assert receiver.calls == [0, 0, 1]  # once more, since nobody knew
    assert receiver.counts == [{"a": 1}, {"a": 2, "bad": 1}]


def test_another_query_publishes_what_the_one_before_has_left(stream, open_sink, receiver, tmp_path) -> None:
    """Under the ids of that one, and before anything of its own."""
    stream.feed("a")
    sink = open_sink(Counting(), stream.settings, key="key", output=sb.spark.Outbox(Receiver(fails_at=0)))
    stream.fail(sink)
    adopting = open_sink(Counting(), stream.settings, key="key", adopt=True, output=sb.spark.Outbox(receiver))
    query = stream.run(adopting, checkpoint=tmp_path / "other")
    (left, own) = receiver.tables
    assert left[0] != query.id
    assert own == (query.id, 0)
    assert [table["count"].to_pylist() for table in receiver.tables.values()] == [[1], [2]]


def test_a_sink_without_an_outbox_leaves_what_is_to_be_published(
    stream, open_sink, receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """It warns and continues; the next sink with an outbox publishes it."""
    stream.feed("a")
    stream.fail(open_sink(Counting(), stream.settings, key="key", output=sb.spark.Outbox(Receiver(fails_at=0))))

    class Silent(Counting):
        def process(self, key, rows, context):
            for _ in super().process(key, rows, context):
                pass

    stream.feed("a")
    stream.feed("a")
    stream.run(open_sink(Silent(), stream.settings, key="key"))
    assert [record.levelname for record in caplog.records if "no outbox" in record.message] == ["WARNING"]
    stream.feed("a")
    stream.run(open_sink(Counting(), stream.settings, key="key", output=sb.spark.Outbox(receiver)))
    assert receiver.calls == [0, 3]
    assert receiver.counts == [{"a": 1}, {"a": 4}]


def test_a_driver_that_was_fenced_publishes_nothing(stream, open_sink, receiver) -> None:
    """Another one opens the job between its commit and its publication, and publishes what it has committed."""
    published: list[bytes] = []

    async def usurp() -> None:
        async with sb.open_backend(stream.settings) as backend:
            taken = await backend.take_output()
            assert taken is not None
            published.append(taken[0].source.batch_id)

    class Usurped(sb.Observer):
        def checkpoint_committed(self, info: sb.CheckpointInfo) -> None:
            other = threading.Thread(target=lambda: asyncio.run(usurp()))
            other.start()
            other.join()

    stream.feed("a")
    sink = open_sink(Counting(), stream.settings, key="key", output=sb.spark.Outbox(receiver), observer=Usurped())
    assert "FencedError" in stream.fail(sink)
    assert published == [0]
    assert receiver.calls == []


def test_a_rewound_query_publishes_from_where_it_goes_on(stream, open_sink, receiver) -> None:
    """What it goes back to once more, as it was; then other rows, under keys that the receiver has seen."""
    later = Receiver()
    stream.feed("a")
    stream.run(open_sink(Counting(), stream.settings, key="key", output=sb.spark.Outbox(receiver)))
    shutil.copytree(stream.checkpoint, stream.checkpoint.with_name("copy"))
    stream.feed("a")
    stream.feed("a")
    stream.run(open_sink(Counting(), stream.settings, key="key", output=sb.spark.Outbox(receiver)))
    shutil.rmtree(stream.checkpoint)
    stream.checkpoint.with_name("copy").rename(stream.checkpoint)
    options = {"key": "key", "on_rewind": "rollback", "output": sb.spark.Outbox(later)}
    stream.run(open_sink(Counting(), stream.settings, **options))
    assert later.calls == [0, 1, 2]
    assert later.counts == receiver.counts == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert min(later.epochs) > max(receiver.epochs)


def test_an_asynchronous_publisher_is_awaited_and_may_run_spark(stream, open_sink) -> None:
    """The frame has the rows and the types of the table; it is made off the loop."""
    rows = []

    async def publish(publication: sb.spark.Publication) -> None:
        rows.append(await sb.spark.run(lambda: [row.asDict() for row in publication.df().collect()]))
        rows.append(publication.table.to_pylist())

    stream.feed("a", "b")
    stream.run(open_sink(Counting(), stream.settings, key="key", output=sb.spark.Outbox(publish)))
    assert rows[0] == rows[1]
    assert [row["key"] for row in rows[0]] == ["a", "b"]


def test_a_publisher_that_is_a_generator_fails_the_query(stream, open_sink) -> None:
    """Nothing of it would have run."""

    def publish(publication):
        yield

    stream.feed("a")
    assert "BatchError" in stream.fail(
        open_sink(Counting(), stream.settings, key="key", output=sb.spark.Outbox(publish))
    )


def test_a_function_that_returns_something_else_fails_and_commits_nothing(stream, open_sink, read) -> None:
    """Nothing is dropped without a word."""
    stream.feed("a")
    sink = open_sink(lambda df, batch_id, backend: [], stream.settings, output=sb.spark.Outbox(print))
    assert "InputError" in stream.fail(sink)
    assert read(stream.settings).batches == []


def test_an_outbox_needs_a_function() -> None:
    with pytest.raises(SettingsError):
        sb.spark.Outbox("delta")  # type: ignore[arg-type]


def test_what_is_large_is_staged_in_parts_and_comes_back_in_order() -> None:
    """Nested and missing values, and columns that are cut in pieces already."""
    schema = pa.schema([("n", pa.int64()), ("text", pa.string()), ("many", pa.list_(pa.timestamp("us", tz="UTC")))])
    rows = [{"n": n, "text": None if n % 3 else "x" * 1000, "many": [n, None][: n % 3]} for n in range(100)]
    whole = pa.Table.from_pylist(rows, schema)
    table = pa.concat_tables([whole.slice(0, 10), whole.slice(10)])
    output = rows_to_stage(table, part_bytes_max=table.nbytes // 2)
    assert output is not None
    assert len(output.parts) == 2
    staged = StagedOutput(SourceMark("query", 7), output.rows, output.schema)
    publication = sb.spark.Publication(staged, output.parts, epoch=3, session=None)  # type: ignore[arg-type]
    assert publication.table.equals(table)
    assert "batch_id=7, epoch=3, rows=100" in repr(publication)


def test_a_null_that_a_table_itself_rules_out_is_not_staged() -> None:
    """The table may be that of a function, with a schema of its own."""
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    with pytest.raises(InputError, match="field='n'"):
        rows_to_stage(pa.table([[1, None]], schema=schema))


def test_a_table_with_a_name_twice_is_not_staged() -> None:
    """Whoever receives it as rows would lose one of the two."""
    with pytest.raises(InputError, match="columns share a name"):
        rows_to_stage(pa.table([[1], [2]], names=["n", "n"]))


def test_rows_that_are_missing_are_not_published() -> None:
    """A part that is whole by itself, but one too few."""
    output = rows_to_stage(pa.table({"n": [1, 2]}))
    assert output is not None
    staged = StagedOutput(SourceMark("query", 7), 3, output.schema)
    with pytest.raises(CorruptObjectError):
        _ = sb.spark.Publication(staged, output.parts, epoch=3, session=None).table  # type: ignore[arg-type]
    with pytest.raises(CorruptObjectError):
        _ = sb.spark.Publication(staged, [b"no stream"], epoch=3, session=None).table  # type: ignore[arg-type]
