"""Stopping a query: the function is cancelled and cleaned up first, soon, and nothing of its batch is committed.

Spark's own `stop()` returns when the stream's thread, and with it our callback, has ended. It raises where that takes
longer than the session of the tests allows; and what does not end by the first cancellation, the bridge logs.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator

import anyio
import pytest
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql.streaming import StreamingQuery

import statebackend as sb
from statebackend.objectstore import MemoryStore
from statebackend.spark import bridge
from tests.knobs import settings_with


class Uncaught:
    """Sees, in the JVM, the error that ends one of its threads."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def uncaughtException(self, thread, error) -> None:  # noqa: N802 - Java's name
        self.errors.append(error.toString())

    class Java:  # noqa: D106 - py4j's way to say what the class implements
        implements = ("java.lang.Thread$UncaughtExceptionHandler",)


@pytest.fixture(autouse=True)
def nothing_ends_the_querys_thread(spark) -> Iterator[None]:
    """It has to hear of the stop: an error in what it does then leaves `query.exception()` empty just as well."""
    ensure_callback_server_started(spark.sparkContext._gateway)
    threads, uncaught = spark.sparkContext._jvm.java.lang.Thread, Uncaught()
    threads.setDefaultUncaughtExceptionHandler(uncaught)
    yield
    threads.setDefaultUncaughtExceptionHandler(None)
    assert uncaught.errors == []


@pytest.fixture
def stop(caplog: pytest.LogCaptureFixture) -> Callable[[StreamingQuery], None]:
    """Stops a query, which ends at once, as one that has not failed."""

    def stop_(query: StreamingQuery) -> None:
        query.stop()
        assert not query.isActive
        assert query.exception() is None
        assert [record for record in caplog.records if record.name == bridge.__name__] == []

    return stop_


class HangingStore(MemoryStore):
    """Hangs in the operation and at the keys it is told to, until cancelled."""

    def __init__(self, operation: str, hangs_at: Callable[[str], bool]) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.released = False
        self._operation = operation
        self._hangs_at = hangs_at

    async def _hang(self, operation: str, key: str) -> None:
        if not self.released and operation == self._operation and self._hangs_at(key):
            self.reached.set()
            await anyio.sleep_forever()

    async def put(self, key: str, body: sb.abc.Body) -> None:
        await self._hang("put", key)
        await super().put(key, body)

    async def get(self, key: str) -> bytes:
        await self._hang("get", key)
        return await super().get(key)


def test_stopping_cancels_a_coroutine_and_waits_for_its_cleanup(stream, open_sink, async_counting, read, stop) -> None:
    """Its `finally` may await, as in any cancelled asyncio task, and has run when `stop()` returns."""
    begun, cleaned_up = threading.Event(), threading.Event()

    async def function(df, batch_id, backend) -> None:
        await async_counting(df, batch_id, backend)
        if batch_id == 1 and not cleaned_up.is_set():
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.01)
                cleaned_up.set()

    sink = open_sink(function, stream.settings)
    stream.feed("a")
    stream.feed("a", "b")
    query = stream.start(sink)
    assert begun.wait(60)
    stop(query)
    assert cleaned_up.is_set()
    assert read(stream.settings).counts == {"a": 1}
    stream.run(sink)
    assert read(stream.settings).counts == {"a": 2, "b": 1}
    assert async_counting.batches == [0, 1, 1]


def test_stopping_cancels_the_calls_of_a_processor_and_waits_for_their_cleanup(stream, open_sink, read, stop) -> None:
    """All that are under way: each may await in its `finally`. Their batch is processed again as a whole."""
    begun, cleaned_up = threading.Barrier(3), list[str]()
    waits = True

    class Waiting(sb.spark.KeyedProcessor):
        def open(self, context):
            self.counts = context.value_state("counts", int)

        async def process(self, key, rows, context):
            self.counts[key] = self.counts.get(key, 0) + len(rows)
            if waits and context.batch_id == 1:
                try:
                    await asyncio.to_thread(begun.wait, 60)
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(0.01)
                    cleaned_up.append(key)

    sink = open_sink(Waiting(), stream.settings, key="key", concurrency=2)
    stream.feed("a")
    stream.feed("a", "b", "c")
    query = stream.start(sink)
    begun.wait(60)
    stop(query)
    assert sorted(cleaned_up) == ["a", "b"]
    assert read(stream.settings).counts == {"a": 1}
    waits = False
    stream.run(sink)
    assert read(stream.settings).counts == {"a": 2, "b": 1, "c": 1}


def test_stopping_ends_a_spark_job_that_a_coroutine_waits_for(stream, open_sink, read, stop) -> None:
    """The job belongs to the query though it was started from another thread, so Spark cancels it."""
    begun = threading.Event()

    async def function(df, batch_id, backend) -> None:
        begun.set()
        await sb.spark.to_arrow(endless(df.sparkSession))

    stream.feed("a")
    query = stream.start(open_sink(function, stream.settings))
    assert begun.wait(60)
    stop(query)
    assert read(stream.settings).batches == []


def test_stopping_ends_a_job_that_starts_only_after_the_stop(stream, open_sink, stop) -> None:
    """Spark cancels a query's jobs first and interrupts it second; a job in between is ours to cancel."""
    in_thread, stopping = threading.Event(), threading.Event()

    def start_late(df) -> None:
        in_thread.set()
        assert stopping.wait(60)
        endless(df.sparkSession).collect()

    async def tell_when_cancelled() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            stopping.set()

    async def function(df, batch_id, backend) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tell_when_cancelled)
            tasks.start_soon(sb.spark.run, start_late, df)

    stream.feed("a")
    query = stream.start(open_sink(function, stream.settings))
    assert in_thread.wait(60)
    stop(query)
    assert stopping.is_set()


def test_stopping_ends_a_spark_job_of_a_synchronous_function(stream, open_sink, read, stop) -> None:
    """It runs on the query's own thread, where Spark interrupts it; what it raises must get through as it is."""
    begun = threading.Event()

    def function(df, batch_id, backend) -> None:
        begun.set()
        endless(df.sparkSession).collect()

    stream.feed("a")
    query = stream.start(open_sink(function, stream.settings))
    assert begun.wait(60)
    stop(query)
    assert read(stream.settings).batches == []


def test_an_error_that_comes_after_the_stop_counts_as_the_stop(stream, open_sink, read, stop) -> None:
    """It is mostly a consequence, as of a cancelled job. Spark hears of the stop, and so the query has not failed."""
    begun = threading.Event()

    def function(df, batch_id, backend) -> None:
        thread = df.sparkSession._jvm.java.lang.Thread.currentThread()
        begun.set()
        while not thread.isInterrupted():
            pass
        raise ValueError("a consequence")

    stream.feed("a")
    query = stream.start(open_sink(function, stream.settings))
    assert begun.wait(60)
    stop(query)
    assert read(stream.settings).batches == []


@pytest.mark.parametrize(
    "hangs",
    [("get", lambda key: True), ("put", lambda key: "/commits/" not in key)],
    ids=["opening", "uploading"],
)
def test_stopping_ends_the_wait_for_a_store_that_hangs(stream, open_sink, counting, stop, hangs) -> None:
    """A restore may take long and an upload may hang: both are waited for with an eye on the query."""
    store = HangingStore(*hangs)
    settings = settings_with(job="stream", primary="memory://unused", upload__timeout_s=0, close_timeout_s=0.5)
    sink = open_sink(counting, settings, store=store)
    stream.feed("a")
    query = stream.start(sink)
    assert store.reached.wait(60)
    stop(query)
    store.released = True
    before = list(counting.batches)
    stream.run(sink)
    assert counting.batches == [*before, 0]


def test_a_job_that_a_coroutine_starts_carries_the_querys_properties(stream, open_sink) -> None:
    """Captured on the callback thread: on the loop's thread there are none."""
    seen = []

    def properties(df) -> list[str | None]:
        names = ("spark.jobGroup.id", "sql.streaming.queryId", "streaming.sql.batchId")
        return [df.sparkSession.sparkContext.getLocalProperty(name) for name in names]

    async def function(df, batch_id, backend) -> None:
        for _ in range(2):
            seen.append(await sb.spark.run(properties, df))
            seen.append(threading.current_thread().name)

    stream.feed("a")
    stream.feed("a")
    query = stream.run(open_sink(function, stream.settings))
    found = [[query.runId, query.id, batch] for batch in ("0", "0", "1", "1")]
    assert seen[::2] == found
    assert set(seen[1::2]) == {"statebackend-spark"}


def endless(session):
    """A frame that takes hours to compute and ends soon when its job is cancelled."""
    return session.range(10**13).selectExpr("sum(hash(id))")
