"""Processors on executors: the same state and the same rows as in the driver, and each batch once, whatever fails.

Here on `local[2]`: two worker processes, no second attempts. Clusters and chance are in `test_cluster.py`.
"""

import ast
import asyncio
import logging
import os
import pickle
import shutil
import threading
from collections import Counter

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

import statebackend as sb
from statebackend.spark import advice, frames
from statebackend.spark.executors import batch_job
from tests.knobs import replaced
from tests.spark.conftest import BOUND_S, feed
from tests.spark.processors import COUNTED, Asking, Counting, Dying, Failing, Sparing, Tables, Telling, Waiting, split


class Published:
    """An output that remembers what it was given; with `fails_in`, it fails once in that batch."""

    def __init__(self, *, fails_in: int = -1) -> None:
        self.batches: list[tuple[int, list[dict]]] = []
        self._fails_in = fails_in

    def __call__(self, df, batch_id):
        if batch_id == self._fails_in:
            self._fails_in = -1
            raise OSError("no room for the output")
        self.batches.append((batch_id, sorted((row.asDict() for row in df.collect()), key=lambda row: row["key"])))


@pytest.mark.usefixtures("adaptive")
@pytest.mark.parametrize(("processor", "base_bytes_max"), [(Telling, 1 << 18), (Tables, 0), (Asking, 1 << 18)])
def test_state_and_output_are_those_of_the_driver(
    open_stream, open_sink, read, monkeypatch, *, processor, base_bytes_max
) -> None:
    """By key and by table, in the order asked for; one of the ranges may get no rows, and its task does not run.

    With commits that go along with the tasks, and with one of which each task reads its part.
    """
    monkeypatch.setattr(batch_job, "BASE_BYTES_MAX", base_bytes_max)
    published = []
    for where in ({}, {"execution": "executors", "parallelism": 3}):
        stream, output = open_stream(where.get("execution", "driver")), Published()
        counts = feed(stream, "abcabdd", "zz", "qawaq")
        stream.run(
            open_sink(processor(), stream.settings, key="key", order_by="number", output=output, **where), plan=split
        )
        found = read(stream.settings)
        assert found.counts == counts
        assert found.batches == [2, 1, 0]
        published.append(output.batches)
    assert published[0] == published[1]
    assert [len(rows) for _, rows in published[0]] == [4, 1, 3]


def test_the_frame_is_run_once(stream, on_executors, spark) -> None:
    """With any number of ranges: every run of it would read the source again."""
    evaluated = spark.sparkContext.accumulator(0)

    def counted(df):
        def pass_on(rows):
            for row in rows:
                evaluated.add(1)
                yield row

        return df.sparkSession.createDataFrame(df.rdd.mapPartitions(pass_on), df.schema)

    feed(stream, "abcdef")
    sink = on_executors()
    stream.run(lambda df, batch_id: sink(counted(split(df)), batch_id))
    assert evaluated.value == 6


@pytest.mark.usefixtures("adaptive")
def test_an_empty_batch_advances_the_state(stream, on_executors, read) -> None:
    """Its frame has no partitions, so no task says anything; also the very first batch may be one."""
    counts = feed(stream, "", "ab", "", "b")
    stream.run(on_executors(), plan=split)
    found = read(stream.settings)
    assert found.counts == counts
    assert found.batches == [3, 2, 1, 0]


def test_a_batch_that_is_committed_already_is_run_for_spark_and_not_applied(stream, on_executors, read) -> None:
    """A stateful operator upstream fails the query when its batch is not consumed."""
    counts = feed(stream, "ab", "cd")

    def deduplicated(df):
        return split(df).dropDuplicates(["key"])

    stream.run(on_executors(), plan=deduplicated)
    before = read(stream.settings)
    stream.forget_commit(1)
    stream.run(on_executors(), plan=deduplicated)
    assert read(stream.settings) == before
    assert before.counts == counts


@pytest.mark.usefixtures("adaptive")
def test_a_batch_comes_again_with_other_partitions_after_its_ranges_had_contributed(stream, on_executors, read) -> None:
    """The state of the first attempt is in the memory of the workers, but in no commit, so it does not count."""
    counts = feed(stream, "abcdab", "abcdabee", "abc")
    published = Published(fails_in=1)
    sink = on_executors(Telling(), output=published)
    assert "no room for the output" in stream.fail(sink, plan=split)
    assert read(stream.settings).batches == [0]
    stream.run(sink, plan=lambda df: split(df).repartition(5))
    assert read(stream.settings).counts == counts
    assert read(stream.settings).batches == [2, 1, 0]
    assert [batch_id for batch_id, _ in published.batches] == [0, 1, 2]


def test_the_number_of_ranges_may_change_and_so_may_the_place_of_the_work(
    stream, open_sink, on_executors, read
) -> None:
    """From start to start, without anything being written anew; one range, and more of them than there are cores."""
    counts = Counter()
    for parallelism in (2, 5, None, 1):
        counts += feed(stream, "abcdefgh")
        if parallelism is None:
            sink = open_sink(Counting(), stream.settings, key="key")
        else:
            sink = on_executors(parallelism=parallelism)
        stream.run(sink, plan=split)
        assert read(stream.settings).counts == counts


def test_a_rewound_query_takes_its_state_back_if_asked_to(stream, on_executors, read) -> None:
    """To the newest commit before the batch. The state cached in the workers is from an abandoned branch."""
    counts = feed(stream, "abc")
    stream.run(on_executors(), plan=split)
    shutil.copytree(stream.checkpoint, stream.checkpoint.with_name("copy"))
    counts += feed(stream, "aab", "bcc", "dab")
    stream.run(on_executors(), plan=split)
    shutil.rmtree(stream.checkpoint)
    stream.checkpoint.with_name("copy").rename(stream.checkpoint)
    assert "RewindError" in stream.fail(on_executors(), plan=split)
    stream.run(on_executors(on_rewind="rollback"), plan=split)
    assert read(stream.settings).counts == counts
    assert read(stream.settings).batches == [3, 2, 1, 0]


def test_another_query_continues_from_the_state_only_if_it_may(stream, on_executors, read, tmp_path) -> None:
    """As in the driver: it is the driver that decides."""
    counts = feed(stream, "ab")
    stream.run(on_executors(), plan=split)
    other = tmp_path / "other"
    assert "WrongQueryError" in stream.fail(on_executors(), plan=split, checkpoint=other)
    stream.run(on_executors(adopt=True), plan=split, checkpoint=other)
    assert read(stream.settings).counts == counts + counts


def test_a_failed_range_says_which_it_was_and_why(stream, on_executors, read, tmp_path) -> None:
    """In an error of ours, with the user's own lines. Nothing of the batch remains in the store or in the workers."""
    counts = feed(stream, "aab", "abb", "a")
    sink = on_executors(Failing(tmp_path / "memory", batch_id=1), parallelism=1)
    message = stream.fail(sink, plan=split)
    for words in ("BatchError", "[0, 127]", "attempt=0", "ValueError: as it was told to", "processors.py", "in fail"):
        assert words in message
    assert read(stream.settings).counts == {"a": 2, "b": 1}
    stream.run(sink, plan=split)
    assert read(stream.settings).counts == counts


def test_a_worker_that_is_killed_leaves_nothing_behind_that_counts(stream, on_executors, read, tmp_path) -> None:
    """In the middle of its batch. Without second attempts that fails the query, and its next start continues."""
    counts = feed(stream, "aab", "abb", "a")
    sink = on_executors(Dying(tmp_path / "memory", batch_id=1))
    stream.fail(sink, plan=split)
    assert read(stream.settings).batches == [0]
    stream.run(sink, plan=split)
    assert read(stream.settings).counts == counts


def test_columns_are_called_what_they_are_called(spark, stream, on_executors) -> None:
    """Also by names that Spark's own ways to Python refuse, of any type, and in another order in the next batch."""

    class Telling(sb.spark.KeyedProcessor):
        output_schema = pa.schema({"told": pa.string()})

        def process_table(self, table, context):
            return pa.table([[repr((table.schema.names, table.to_pylist()))]], names=["told"])

    def output(df, batch_id):
        told.extend(ast.literal_eval(row.told) for row in df.collect())

    told = []
    sink = on_executors(Telling(), key="a.key`s", output=output, query_id="mine", parallelism=1)
    wide = spark.createDataFrame(
        [("k", [1, None], {"x": 1.5})], "`a.key``s` string, list array<int>, `ma p` map<string, double>"
    )
    sink(wide, 0)
    sink(wide.select("`ma p`", "`a.key``s`"), 1)
    assert told == [
        (["a.key`s", "list", "ma p"], [{"a.key`s": "k", "list": [1, None], "ma p": [("x", 1.5)]}]),
        (["ma p", "a.key`s"], [{"ma p": [("x", 1.5)], "a.key`s": "k"}]),
    ]


def test_an_attempt_that_is_made_twice_counts_once(stream, on_executors, read, monkeypatch) -> None:
    """As when Spark runs a task again whose result was lost: what the first attempt left behind is in no commit."""

    def task_of(run_spec, batch_spec, *, release):
        def work(batches):  # pickled by value
            from statebackend.spark.executors.worker import run  # noqa: PLC0415

            rows = list(batches)
            list(run(run_spec, batch_spec, rows))
            yield from run(run_spec, batch_spec, rows)

        return work

    monkeypatch.setattr(batch_job, "task_of", task_of)
    counts = feed(stream, "aab", "abb", "cab")
    stream.run(on_executors(), plan=split)
    assert read(stream.settings).counts == counts


def test_a_driver_that_was_fenced_commits_nothing(stream, on_executors, read) -> None:
    """Here another driver opens the job after the ranges have contributed to the batch of the first."""
    counts = feed(stream, "ab", "a")

    async def open_as_another() -> None:
        async with sb.owners.open_coordinator(stream.settings):
            pass

    def output(df, batch_id):
        if batch_id == 1 and not output.fenced:
            output.fenced = True
            asyncio.run(open_as_another())

    output.fenced = False
    sink = on_executors(Telling(), output=output)
    assert "FencedError" in stream.fail(sink, plan=split)
    assert read(stream.settings).batches == [0]
    stream.run(sink, plan=split)
    assert read(stream.settings).counts == counts


def test_talking_tcp_with_the_workers_is_logged_once(stream, on_executors, caplog: pytest.LogCaptureFixture) -> None:
    """It costs each batch 40 ms, and can be changed only where Spark is started."""
    feed(stream, "ab", "c")
    with caplog.at_level(logging.INFO, advice.__name__):
        stream.run(on_executors(), plan=split)
    assert len([record for record in caplog.records if advice.UNIX_SOCKETS in record.getMessage()]) == 1


def test_closing_a_sink_under_a_batch_fails_that_batch(stream, on_executors, read) -> None:
    """After its ranges have contributed: a claim that was left commits nothing. The batch comes again."""
    counts = feed(stream, "ab")
    inside, closed = threading.Event(), threading.Event()

    def output(df, batch_id):
        inside.set()
        assert closed.wait(BOUND_S)

    sink = on_executors(Telling(), output=output)
    query = stream.start(sink, plan=split)
    assert inside.wait(BOUND_S)
    sink.close()
    closed.set()
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(BOUND_S)
    assert "BackendClosedError" in str(query.exception())
    assert read(stream.settings).batches == []
    stream.run(sink, plan=split)
    assert read(stream.settings).counts == counts


def test_workers_do_not_collect_all_that_they_have_loaded(stream, on_executors) -> None:
    """Spark has each worker collect its garbage after each task, and the next task waits for that."""
    published = Published()
    feed(stream, "abcdefg")
    stream.run(on_executors(Sparing(), output=published), plan=split)
    assert published.batches == [(0, [{"key": key, "spared": True} for key in "abcdefg"])]


def test_stopping_the_query_ends_its_tasks(stream, on_executors, read, tmp_path) -> None:
    """A worker is in the middle of user code that never ends; `stop` returns, and the batch comes again."""
    counts = feed(stream, "ab")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    sink = on_executors(Waiting(pipe, tmp_path / "memory"), parallelism=1)
    query = stream.start(sink, plan=split)
    with pipe.open("rb"):  # waits for the worker
        query.stop()
    assert query.exception() is None
    assert read(stream.settings).batches == []
    stream.run(sink, plan=split)
    assert read(stream.settings).counts == counts


def test_two_queries_share_the_workers(open_stream, open_sink, read) -> None:
    """Each worker process gets tasks of both jobs, with separate states."""
    streams = [open_stream("left"), open_stream("right")]
    counts = [feed(streams[0], "aab", "ab", "c"), feed(streams[1], "bbc", "a", "cc")]
    sinks = [
        open_sink(Counting(), stream.settings, key="key", execution="executors", parallelism=2) for stream in streams
    ]
    queries = [stream.start(sink, plan=split) for stream, sink in zip(streams, sinks, strict=True)]
    assert all(query.awaitTermination(BOUND_S) for query in queries)
    assert [read(stream.settings).counts for stream in streams] == counts


def test_the_drivers_observer_hears_of_ranges_and_of_requests(stream, on_executors) -> None:
    """Of each range that had rows, where its state was; and what the checkpoint cost, in the workers and here."""

    class Watching(sb.Observer):
        def __init__(self) -> None:
            self.found: list[str] = []
            self.infos: list[sb.CheckpointInfo] = []
            self.requests = Counter()

        def range_opened(self, found: str) -> None:
            self.found.append(found)

        def primary_requested(self, requests, *, usd: float) -> None:
            self.requests.update(requests)

        def checkpoint_committed(self, info: sb.CheckpointInfo) -> None:
            self.infos.append(info)

    watching = Watching()
    feed(stream, "abcdefghij", "abcdefghij")
    settings = replaced(stream.settings, inline_bytes_max=0, upload__timeout_s=0.0)  # one attempt each
    stream.run(on_executors(settings=settings, observer=watching), plan=split)
    assert watching.found[:2] == ["new", "new"]
    assert "new" not in watching.found[2:]
    assert [info.checkpoint_id for info in watching.infos] == [0, 1]
    assert [info.changes for info in watching.infos] == [10, 10]
    for info in watching.infos:
        assert info.requests_by_kind["put_if_absent"] == 1
        assert info.requests_by_kind["put"] == 2
        assert info.requests == sum(info.requests_by_kind.values())
    assert watching.requests["put"] >= 4


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_a_batch_is_without_adaptive_planning_and_leaves_its_session_as_it_was(spark, adaptive) -> None:
    """Adaptive planning makes a job of each stage, which costs more than a small batch."""
    df = spark.newSession().range(1)
    df.sparkSession.conf.set(frames.ADAPTIVE, adaptive)
    with frames.without_adaptive_planning(df):
        assert df.sparkSession.conf.get(frames.ADAPTIVE) == "false"
    assert df.sparkSession.conf.get(frames.ADAPTIVE) == adaptive


def test_a_sink_on_executors_travels_without_what_is_open(stream, on_executors, read) -> None:
    """As one in the driver does."""
    counts = feed(stream, "ab")
    sink = on_executors()
    stream.run(sink, plan=split)
    with pickle.loads(pickle.dumps(sink)) as arrived:
        counts += feed(stream, "b")
        stream.run(arrived, plan=split)
    assert read(stream.settings).counts == counts


def test_rows_that_came_out_of_no_range_are_an_empty_table(stream, on_executors) -> None:
    """The output is called for an empty batch as well, with the columns that it always has."""
    schemas = []
    feed(stream, "")
    stream.run(on_executors(Telling(), output=lambda df, batch_id: schemas.append(df.columns)), plan=split)
    assert schemas == [COUNTED.names]
