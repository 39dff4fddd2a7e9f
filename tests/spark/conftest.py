"""One real Spark session for all tests of the room, and streams small enough to know every batch of.

A `Stream` is a folder of JSON files, one micro-batch each, and a Spark checkpoint. Its file source goes by modification
time, so each file is given its own.
"""

import asyncio
import contextlib
import json
import os
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import statebackend as sb
from tests.spark import processors

ROOT = Path(__file__).parents[2]
BOUND_S = 180
"""How long a query may take before it counts as hung. A query that hangs in the JVM never gets this far by itself."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


def build_session(warehouse: Path, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A small, quiet session on the loopback interface, with more settings. Its workers find what the tests find."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    session = (
        SparkSession.builder.master("local[2]")
        .appName("statebackend-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # starts sooner
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.adaptive.enabled", "false")  # there is nothing to adapt in a batch of three rows
        .config("spark.sql.warehouse.dir", str(warehouse))
        .config("spark.sql.streaming.stopTimeout", f"{BOUND_S}s")  # by default a stop waits for ever
        .config(map=dict(settings or {}))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        pytest.fail("these tests need Java 17 or newer: set JAVA_HOME, or run them with `nox -s tests`", pytrace=False)
    session = build_session(tmp_path_factory.mktemp("warehouse"))
    yield session
    session.stop()


@contextlib.contextmanager
def configured(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """The session with other settings for a while. Streams started meanwhile have them to their end."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


@pytest.fixture
def adaptive(spark: SparkSession) -> Iterator[None]:
    """The planner as users have it, which may merge and split partitions."""
    with configured(spark, {"spark.sql.adaptive.enabled": "true"}):
        yield


class Stream:
    """A file stream, fed and run by hand, with the job that has its state."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.checkpoint = folder / "checkpoint"
        self.settings = sb.Settings(job="stream", primary=f"file://{folder}/primary", persist_delay_s=0.0)
        self._input = folder / "input"
        self._input.mkdir(parents=True, exist_ok=True)
        self._files = len(list(self._input.iterdir()))

    def feed(self, *keys: str) -> None:
        """One more file, which becomes one micro-batch. Without keys: an empty batch."""
        path = self._input / f"{self._files:04d}.json"
        hidden = path.with_name(f".{path.name}")
        hidden.write_text("".join(json.dumps({"key": key}) + "\n" for key in keys))
        os.utime(hidden, (1_700_000_000 + self._files,) * 2)
        hidden.rename(path)
        self._files += 1

    def start(
        self,
        sink: Callable[[DataFrame, int], None],
        *,
        plan: Callable[[DataFrame], DataFrame] = lambda df: df,
        checkpoint: Path | None = None,
    ) -> StreamingQuery:
        """Start a query that ends when it has caught up with the files that are there now."""
        reader = self.spark.readStream.schema("key string").option("maxFilesPerTrigger", 1)
        writer = plan(reader.json(str(self._input))).writeStream.foreachBatch(sink).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(checkpoint or self.checkpoint)).start()

    def run(self, sink: Callable[[DataFrame, int], None], **options: object) -> StreamingQuery:
        """Run a query until it has caught up; raise what it failed with."""
        query = self.start(sink, **options)  # type: ignore[arg-type]
        assert query.awaitTermination(BOUND_S), "the query hangs"
        return query

    def fail(self, sink: Callable[[DataFrame, int], None], **options: object) -> str:
        """Run a query that has to fail, within the bound; return what it failed with."""
        query = self.start(sink, **options)  # type: ignore[arg-type]
        with pytest.raises(StreamingQueryException):
            assert query.awaitTermination(BOUND_S), "the query hangs"
        assert not query.isActive
        error = query.exception()
        assert error is not None
        return str(error)

    def forget_commit(self, batch_id: int) -> None:
        """As if Spark had died between our commit and its own: it delivers the batch again."""
        (self.checkpoint / "commits" / str(batch_id)).unlink()
        (self.checkpoint / "commits" / f".{batch_id}.crc").unlink()


class Committed(msgspec.Struct):
    """The result of a restore: the counts, and the batch ids of the commits behind them, newest first."""

    counts: dict[str, int]
    batches: list[int]
    queries: set[str]


def committed(settings: sb.Settings) -> Committed:
    """Read what is committed, the way any other process would."""

    async def read() -> Committed:
        async with sb.open_backend(msgspec.structs.replace(settings, local=()), read_only=True) as backend:
            sources = [summary.source async for summary in backend.history()]
            marks = [source for source in sources if source is not None]
            return Committed(
                counts={str(key): count for key, count in backend.value_state("counts", int).items()},
                batches=[mark.batch_id for mark in marks],
                queries={mark.query_id for mark in marks},
            )

    return asyncio.run(read())


class Counting:
    """Counts keys, synchronously. Remembers which batches reached it, and on which threads."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.threads: list[threading.Thread] = []

    def __call__(self, df: DataFrame, batch_id: int, backend: sb.StateBackend) -> None:
        self.remember(batch_id)
        self.count((row.key for row in df.collect()), backend)

    def remember(self, batch_id: int) -> None:
        self.batches.append(batch_id)
        self.threads.append(threading.current_thread())

    @staticmethod
    def count(keys: Iterator[str], backend: sb.StateBackend) -> None:
        counts = backend.value_state("counts", int)
        for key, found in Counter(keys).items():
            counts[key] = counts.get(key, 0) + found


class AsyncCounting(Counting):
    """The same, as a callable object with an asynchronous `__call__`."""

    async def __call__(self, df: DataFrame, batch_id: int, backend: sb.StateBackend) -> None:  # type: ignore[override]
        self.remember(batch_id)
        table = await sb.spark.to_arrow(df)
        self.count(iter(table["key"].to_pylist()), backend)


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
def async_counting() -> AsyncCounting:
    return AsyncCounting()


@pytest.fixture
def read() -> Callable[[sb.Settings], Committed]:
    return committed


@pytest.fixture
def open_stream(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[str], Stream]]:
    """Streams by name. Whatever still runs at the end of the test is stopped."""
    yield lambda name: Stream(spark, tmp_path / name)
    for query in spark.streams.active:
        with contextlib.suppress(Exception):  # the test has failed already, and says why
            query.stop()


@pytest.fixture
def stream(open_stream: Callable[[str], Stream]) -> Stream:
    return open_stream("stream")


@pytest.fixture
def open_sink() -> Iterator[Callable[..., sb.spark.StatefulSink]]:
    """Sinks, closed at the end of the test."""
    with contextlib.ExitStack() as sinks:
        yield lambda *args, **options: sinks.enter_context(sb.spark.StatefulSink(*args, **options))


@pytest.fixture
def on_executors(stream: Stream, open_sink: Callable[..., sb.spark.StatefulSink]) -> Callable[..., Any]:
    """Sinks on executors, for keys of strings."""

    def open_(
        processor: sb.spark.KeyedProcessor | None = None, *, settings: sb.Settings | None = None, **options: Any
    ) -> sb.spark.StatefulSink:
        options = {"key": "key", "parallelism": 2, **options}
        return open_sink(
            processor or processors.Counting(), settings or stream.settings, execution="executors", **options
        )

    return open_


def feed(stream: Stream, *batches: str) -> Counter[str]:
    """Each batch a text of keys; returns how often each key occurs in all."""
    for batch in batches:
        stream.feed(*(f"{key}:{number}" for number, key in enumerate(batch)))
    return Counter("".join(batches))
