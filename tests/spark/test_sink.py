"""The sink on a real query: each batch is applied once and committed, whatever the function is and raises."""

import asyncio
import functools
import threading

import anyio
import anyio.lowlevel
import msgspec
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

import statebackend as sb
from statebackend.errors import InputError


def test_a_synchronous_function_runs_on_sparks_own_thread_and_is_committed(stream, open_sink, counting, read) -> None:
    """On the thread that carries the batch's properties, so `df` can be used freely."""
    stream.feed("a", "b", "a")
    stream.feed("b")
    query = stream.run(open_sink(counting, stream.settings))
    found = read(stream.settings)
    assert found.counts == {"a": 2, "b": 2}
    assert found.batches == [1, 0]
    assert found.queries == {query.id}
    assert counting.batches == [0, 1]
    assert len(set(counting.threads)) == 1
    assert counting.threads[0] is not threading.main_thread()
    assert "statebackend" not in counting.threads[0].name


def test_an_asynchronous_function_really_runs_and_is_committed(stream, open_sink, async_counting, read) -> None:
    """Given to Spark itself it would be called, dropped, and counted as done. Here it runs on the one loop thread."""
    stream.feed("a", "b", "a")
    stream.feed("b")
    stream.run(open_sink(async_counting, stream.settings))
    found = read(stream.settings)
    assert found.counts == {"a": 2, "b": 2}
    assert found.batches == [1, 0]
    assert [thread.name for thread in async_counting.threads] == ["statebackend-spark"] * 2


@pytest.mark.parametrize("shape", ["async def", "partial", "method", "decorated"])
def test_every_shape_of_asynchronous_function_is_awaited(stream, open_sink, async_counting, read, shape) -> None:
    """None of them is a coroutine function by every test there is; all of them return a coroutine."""

    async def plain(df, batch_id, backend, *, extra=None) -> None:
        await async_counting(df, batch_id, backend)

    def decorated(*args):
        return plain(*args)

    function = {
        "async def": plain,
        "partial": functools.partial(plain, extra=1),
        "method": async_counting.__call__,
        "decorated": decorated,
    }[shape]
    stream.feed("a")
    stream.run(open_sink(function, stream.settings))
    assert read(stream.settings).counts == {"a": 1}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_generator_function_fails_instead_of_doing_nothing(stream, open_sink, read, asynchronous) -> None:
    """Calling it runs nothing of it; committing that would lose the batch."""

    def generator(df, batch_id, backend):
        yield

    async def async_generator(df, batch_id, backend):
        yield

    stream.feed("a")
    assert "BatchError" in stream.fail(open_sink(async_generator if asynchronous else generator, stream.settings))
    assert read(stream.settings).batches == []


def test_an_empty_batch_runs_the_function_and_advances(stream, open_sink, counting, read) -> None:
    """Its frame has no rows and no partitions. It is a batch like any other, or its id would look unseen."""
    partitions = []

    def function(df, batch_id, backend) -> None:
        partitions.append(df.rdd.getNumPartitions())
        counting(df, batch_id, backend)

    stream.feed("a")
    stream.feed()
    stream.feed("a")
    stream.run(open_sink(function, stream.settings))
    assert read(stream.settings).batches == [2, 1, 0]
    assert counting.batches == [0, 1, 2]
    assert partitions[1] == 0


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit, ValueError])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_whatever_a_function_raises_fails_the_query_at_once(stream, open_sink, read, error, asynchronous) -> None:
    """What is not an `Exception` would pass py4j by, and leave Spark waiting for an answer, its `stop` too."""

    def function(df, batch_id, backend) -> None:
        backend.value_state("counts", int)["a"] = 1
        raise error

    async def async_function(df, batch_id, backend) -> None:
        await anyio.lowlevel.checkpoint()
        function(df, batch_id, backend)

    stream.feed("a")
    assert error.__name__ in stream.fail(open_sink(async_function if asynchronous else function, stream.settings))
    assert read(stream.settings).batches == []


def test_a_failure_in_the_middle_of_a_batch_leaves_nothing_half_applied(stream, open_sink, counting, read) -> None:
    """Neither in the store nor in the sink's memory, which the next start uses again."""

    def function(df, batch_id, backend) -> None:
        if batch_id == 1 and counting.batches == [0]:
            counting.remember(batch_id)
            counting.count((row.key for row in df.limit(2).collect()), backend)
            raise OSError("in the middle")
        counting(df, batch_id, backend)

    sink = open_sink(function, stream.settings)
    stream.feed("a", "b")
    stream.feed("a", "b", "c")
    assert "in the middle" in stream.fail(sink)
    assert read(stream.settings).counts == {"a": 1, "b": 1}
    stream.run(sink)
    assert read(stream.settings).counts == {"a": 2, "b": 2, "c": 1}
    assert counting.batches == [0, 1, 1]


def test_a_sink_called_by_hand_forgets_a_failed_batch(stream, open_sink, spark, counting, *, read, caplog) -> None:
    """Also when no new run tells it to: the batch that comes again starts from what is committed.

    The error says all of it: no warning tells that changes were left without a checkpoint.
    """

    def function(df, batch_id, backend) -> None:
        counting(df, batch_id, backend)
        if counting.batches == [0]:
            raise OSError

    sink = open_sink(function, stream.settings, query_id="by hand")
    df = spark.createDataFrame([("a",)], "key string")
    with pytest.raises(OSError):
        sink(df, 0)
    sink(df, 0)
    assert read(stream.settings).counts == {"a": 1}
    assert "no checkpoint has" not in caplog.text


def test_rows_that_a_function_returns_are_refused_where_nothing_takes_them(stream, open_sink, spark, read) -> None:
    """The sink lacks its outbox: the query would be green, and the rows nowhere. What is no rows is dropped."""
    df = spark.createDataFrame([("a",)], "key string")
    table = pa.table({"key": ["a"]})
    returned = iter([table, table.to_batches()[0], table.to_pandas(), df, [{"key": "a"}], {"key": "a"}, df.collect()])

    async def function(df, batch_id, backend):
        backend.value_state("counts", int)["a"] = 1
        return next(returned, 7)

    sink = open_sink(function, stream.settings, query_id="by hand")
    for _ in range(7):
        with pytest.raises(InputError, match="the sink has no outbox"):
            sink(df, 0)
    assert read(stream.settings).batches == []
    sink(df, 0)
    assert read(stream.settings).batches == [0]


def test_a_sink_called_after_spark_was_stopped_says_so(stream, open_sink, counting, read, monkeypatch) -> None:
    """Before it opens anything, and after it had a batch. It can still be closed."""
    sink = open_sink(counting, stream.settings, query_id="by hand")
    df = stream.spark.createDataFrame([("a",)], "key string")
    for _ in range(2):
        with monkeypatch.context() as stopped:
            stopped.setattr(stream.spark.sparkContext, "_jsc", None)  # as `SparkContext.stop` leaves it
            with pytest.raises(sb.errors.InputError, match="was stopped"):
                sink(df, 1)
            sink.close()
        sink(df, 0)
    assert read(stream.settings).counts == {"a": 1}


def test_a_sink_is_not_closed_on_the_loop(stream, open_sink, read) -> None:
    """It would wait for itself. The function that tries fails, and so does its batch."""

    async def function(df, batch_id, backend) -> None:
        sink.close()

    sink = open_sink(function, stream.settings)
    stream.feed("a")
    assert "RuntimeError" in stream.fail(sink)
    assert read(stream.settings).batches == []


def test_a_checkpoint_that_fails_fails_the_query_with_its_own_error(stream, open_sink, counting, read) -> None:
    """Here another writer commits while our function runs: nothing of ours may be committed on top of it."""

    async def commit_as_another() -> None:
        async with sb.open_backend(stream.settings) as backend:
            backend.value_state("counts", int)["theirs"] = 1
            await backend.checkpoint(backend.next_checkpoint_id)

    def function(df, batch_id, backend) -> None:
        counting(df, batch_id, backend)
        if counting.batches == [0]:
            asyncio.run(commit_as_another())

    sink = open_sink(function, stream.settings)
    stream.feed("a")
    assert "FencedError" in stream.fail(sink)
    assert read(stream.settings).counts == {"theirs": 1}
    stream.run(sink)
    assert read(stream.settings).counts == {"theirs": 1, "a": 1}


def test_the_state_stays_open_between_batches_and_opens_again_for_a_new_run(stream, open_sink, counting, read) -> None:
    """Restoring once per run, not once per batch; and the same sink serves the query's next run in the same process."""

    class Restores(sb.Observer):
        def __init__(self) -> None:
            self.checkpoints: list[int] = []

        def restored(self, report: sb.RestoreReport) -> None:
            self.checkpoints.append(report.checkpoint_id)

    restores = Restores()
    sink = open_sink(counting, stream.settings, observer=restores)
    for _ in range(3):
        stream.feed("a")
    stream.run(sink)
    assert restores.checkpoints == []  # there was nothing to restore at first
    for _ in range(2):
        stream.feed("a")
    stream.run(sink)
    assert restores.checkpoints == [2]
    assert counting.batches == [0, 1, 2, 3, 4]
    assert read(stream.settings).counts == {"a": 5}


def test_a_closed_sink_opens_again_with_the_next_batch(stream, open_sink, counting, read) -> None:
    """Closing is not the end of a sink, and closing twice is no error."""
    sink = open_sink(counting, stream.settings)
    stream.feed("a")
    stream.run(sink)
    sink.close()
    sink.close()
    stream.feed("a")
    stream.run(sink)
    assert read(stream.settings).counts == {"a": 2}


def test_closing_a_sink_under_a_batch_fails_that_batch(stream, open_sink, counting, read) -> None:
    """Its changes are gone with the state; the batch comes again, and then it counts."""
    inside, closed = threading.Event(), threading.Event()

    def function(df, batch_id, backend) -> None:
        counting(df, batch_id, backend)
        inside.set()
        assert closed.wait(60)

    sink = open_sink(function, stream.settings)
    stream.feed("a")
    query = stream.start(sink)
    assert inside.wait(60)
    sink.close()
    closed.set()
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(60)
    assert "BackendClosedError" in str(query.exception())
    assert read(stream.settings).batches == []
    stream.run(sink)
    assert read(stream.settings).counts == {"a": 1}


def test_two_queries_with_two_sinks_run_at_the_same_time(open_stream, open_sink, read) -> None:
    """Each function waits for the other one inside its batch, on the one loop: in turns, they would never finish."""
    meeting = asyncio.Barrier(2)

    async def function(df, batch_id, backend) -> None:
        with anyio.fail_after(30):
            await meeting.wait()
        rows = await sb.spark.to_arrow(df)
        backend.value_state("counts", int)[rows["key"][0].as_py()] = batch_id

    streams = [open_stream("left"), open_stream("right")]
    for stream, key in zip(streams, ["left", "right"], strict=True):
        stream.feed(key)
        stream.feed(key)
    queries = [stream.start(open_sink(function, stream.settings)) for stream in streams]
    assert all(query.awaitTermination(60) for query in queries)
    assert [read(stream.settings).counts for stream in streams] == [{"left": 1}, {"right": 1}]


def test_a_sink_serves_one_query_at_a_time(open_stream, open_sink, counting) -> None:
    """Two queries on one state would undo each other. The second gets an error, the first continues."""
    inside, told = threading.Event(), threading.Event()

    def function(df, batch_id, backend) -> None:
        inside.set()
        assert told.wait(60)
        counting(df, batch_id, backend)

    left, right = open_stream("left"), open_stream("right")
    sink = open_sink(function, left.settings)
    left.feed("a")
    right.feed("b")
    query = left.start(sink)
    assert inside.wait(60)
    assert "InputError" in right.fail(sink)
    told.set()
    assert query.awaitTermination(60)
    assert counting.batches == [0]


def test_a_local_copy_is_used_by_the_next_run(stream, open_sink, counting, read, tmp_path) -> None:
    """The sink hands the settings on as they are: with a local root, the next run restores from it."""
    reports = []

    class Restores(sb.Observer):
        def restored(self, report: sb.RestoreReport) -> None:
            reports.append(report)

    unhurried = {"secondary_grace_s": 60.0}  # a slow machine must not cost the copy
    settings = msgspec.structs.replace(stream.settings, local=(str(tmp_path / "local"),), **unhurried)
    sink = open_sink(counting, settings, observer=Restores())
    stream.feed("a")
    stream.run(sink)
    stream.feed("a")
    stream.run(sink)
    assert [(report.files_local, report.files_primary) for report in reports] == [(1, 0)]
    assert read(settings).counts == {"a": 2}
