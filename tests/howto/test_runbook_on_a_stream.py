"""The runbook again, entry by entry, on a query of Spark's: afterwards each state has every row of the stream once.

Part of the long form: `nox -s spark`.
"""

import asyncio
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import statebackend as sb
from statebackend.errors import StoreFullError
from statebackend.objectstore import LocalStore
from statebackend.testing import Fail, FaultyStore
from tests.howto.pages import load_page
from tests.howto.test_runbook import ENTRIES, Site, site
from tests.howto.test_ship import GRACE_S, STARTS_WITHIN_S, Pod
from tests.knobs import replaced
from tests.spark.conftest import BOUND_S, spark

__all__ = ["site", "spark"]

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),  # seconds; Spark starts slowly on a busy machine
    pytest.mark.skipif("STATEBACKEND_SPARK_LONG" not in os.environ, reason="nox -s spark: some forty runs of a query"),
]

cut = load_page("savepoints").cut
TOLD = ("FencedError", "RewindError", "ConcurrentModification", "CONCURRENT_STREAM_LOG_UPDATE")
"""How one of two that are the same query is told: by the state, or by Spark, whoever is first to notice."""


class Stream(Site):
    """The same directories, and a query that counts the flights of a folder, which all its checkpoints share."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str], spark: SparkSession) -> None:
        super().__init__(root, capsys)
        self.checkpoint = root / "checkpoint"
        self.flights = 0
        self._spark = spark
        (root / "incoming").mkdir()

    def fly(self) -> int:
        """One more flight, which becomes one batch; and how many there have been."""
        file = self.root / "incoming" / f"{self.flights}.csv"
        file.write_text("N14228\n")
        os.utime(file, (self.flights, self.flights))
        self.flights += 1
        return self.flights

    def batch(self, settings: sb.Settings | None = None) -> int:
        self.fly()
        return self.run(settings)

    def run(
        self, settings: sb.Settings | None = None, *, checkpoint: Path | None = None, weight: int = 1, **options: Any
    ) -> int:
        """Start the query, which ends when it has taken what has come; and what the state has then."""

        def count(df: Any, batch_id: int, backend: sb.StateBackend) -> None:
            counts = backend.value_state("counts", int, default=0)
            for row in df.collect():
                counts[row["tail"]] += weight

        flights = self._spark.readStream.schema("tail string").option("maxFilesPerTrigger", 1)
        with sb.spark.StatefulSink(count, settings or self.settings, **options) as sink:
            writer = flights.csv(str(self.root / "incoming")).writeStream.foreachBatch(sink).trigger(availableNow=True)
            query = writer.option("checkpointLocation", str(checkpoint or self.checkpoint)).start()
            assert query.awaitTermination(BOUND_S), "the query hangs"
        return self.count(settings or self.settings)

    def count(self, settings: sb.Settings) -> int:
        async def read() -> int:
            async with sb.open_backend(replaced(settings, local=()), read_only=True) as backend:
                return backend.value_state("counts", int)["N14228"]

        return asyncio.run(read())

    def batch_id(self, settings: sb.Settings) -> int:
        """The batch with which the state ends."""

        async def read() -> int:
            async with sb.open_backend(replaced(settings, local=()), read_only=True) as backend:
                newest: Any = backend.newest
                return int(newest.source.batch_id)

        return asyncio.run(read())


@pytest.fixture
def stream(site: Site, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Stream:
    """After three batches, in the place of the job that has no query."""
    shutil.rmtree(site.place("data"))
    shutil.rmtree(site.place("var"))
    stream = Stream(site.root, capsys, spark)
    assert [stream.batch() for _ in range(3)] == [1, 2, 3]
    return stream


def test_every_entry_is_done_on_a_stream() -> None:
    """By its title; what has no query of its own is in `test_runbook.py` as well."""
    code = Path(__file__).read_text(encoding="utf-8")
    titles = [title for title in ENTRIES if not title.startswith("#")]
    assert [title for title in titles if f'follow("{title}"' not in code] == []


def test_the_numbers_look_wrong(stream: Stream) -> None:
    """A program counts each row ten times; found by the log, and taken back to the batch before."""
    stream.fly()
    assert stream.run(weight=10) == 13
    shown = stream.follow("The numbers look wrong: what now", "statebackend log")
    assert shown == [0]
    assert "3 -> 13" in stream.said[-1]
    assert stream.follow("The numbers look wrong: what now") == [0, 0, 0, 0, 0], stream.said
    cut(stream.checkpoint, 1)
    assert stream.run(savepoint="last-good") == stream.flights


def test_a_lost_host(stream: Stream) -> None:
    """The query goes on with the same checkpoint, on a host without copies; and on the old one, which is behind."""
    other = replaced(stream.settings, local=(f"{stream.root}/other",))
    shutil.rmtree(stream.settings.local[0])
    assert stream.batch() == stream.flights
    assert stream.follow("A lost host") == [0]
    assert re.search(r" 0 files .* from local copies, [1-9]", stream.said[-1])
    assert stream.batch(other) == stream.flights
    assert stream.batch() == stream.flights


def test_a_full_disk(stream: Stream) -> None:
    """Local: the batch is committed. Primary: the query fails, and goes on once there is room."""
    assert stream.batch(replaced(stream.settings, local_bytes_max=1)) == stream.flights
    store = FaultyStore(LocalStore(stream.place("data/state")))
    store.plan.append(Fail(operation="put_if_absent", key="*/commits/*", error=StoreFullError("full")))
    stream.fly()
    with pytest.raises(StreamingQueryException, match="StoreFullError"):
        stream.run(store=store)
    assert stream.count(stream.settings) == stream.flights - 1
    assert stream.follow("Disk full") == [0, 0]
    assert stream.run() == stream.flights


def test_two_queries_with_one_name(stream: Stream) -> None:
    """The second one is refused, and the first goes on."""
    stream.fly()
    with pytest.raises(StreamingQueryException, match="WrongQueryError"):
        stream.run(checkpoint=stream.root / "another checkpoint")
    assert stream.follow("Two queries by mistake") == [0]
    assert stream.run() == stream.flights


def test_the_same_query_twice(tmp_path: Path) -> None:
    """In two processes: one at least is told that it lost. Who goes on, or is started then, counts no row twice."""
    early, later, last = Pod(tmp_path), Pod(tmp_path, "later.log"), Pod(tmp_path, "last.log")
    command, arguments = (sys.executable, "job.py"), {"PYSPARK_SUBMIT_ARGS": early.arguments}
    with early.started(*command, **arguments) as first, later.started(*command, **arguments) as second:
        both = {first: early, second: later}
        wait(lambda: any(process.poll() is not None for process in both))
        goal = early.newest() + 4
        wait(lambda: early.newest() >= goal or all(process.poll() is not None for process in both))
        for process in both:
            process.send_signal(signal.SIGTERM)
            process.wait(GRACE_S)
    lost = [pod.log.read_text() for process, pod in both.items() if process.returncode]
    assert lost
    assert [log for log in lost if not re.search("|".join(TOLD), log)] == []
    with last.started(*command, **arguments) as process:
        last.wait_for(early.newest() + 4, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(GRACE_S) == 0, last.log.read_text()
    clicks, expected = last.counted()
    assert clicks == expected > 0


def wait(is_so: Callable[[], bool]) -> None:
    """For other processes."""
    begun_s = time.monotonic()
    while not is_so():
        assert time.monotonic() < begun_s + STARTS_WITHIN_S
        time.sleep(0.05)


def test_daily_savepoints(stream: Stream) -> None:
    """Taken beside the query, which goes on."""
    assert stream.follow("Daily savepoints") == [0, 0]
    assert re.search(r"nightly-\d{8}T\d{6}Z", stream.said[-1])
    assert stream.batch() == stream.flights


def test_an_upgrade_and_the_way_back(stream: Stream) -> None:
    """The copy in the place of the job, and the checkpoint taken back to the same batch."""
    assert stream.follow("Upgrade a release and go back") == [0, 0]
    assert stream.batch() == stream.flights
    assert stream.batch() == stream.flights
    job = stream.place("data/state/fleet")
    shutil.rmtree(job)
    shutil.copytree(stream.place("data/before-upgrade"), job)
    cut(stream.checkpoint, stream.batch_id(stream.settings))
    assert stream.run() == stream.flights


def test_two_environments(stream: Stream) -> None:
    """Each with its own roots and checkpoint; with one root for both the states are right as well."""
    assert stream.follow("Two environments") == [0, 0]
    staging = replaced(stream.settings, primary=f"file://{stream.place('data/staging')}")
    apart = replaced(staging, local=(str(stream.place("var/lib/staging")),))
    assert stream.batch() == stream.flights  # production goes on before its checkpoint is copied
    shutil.copytree(stream.checkpoint, stream.root / "staging")
    cut(stream.root / "staging", stream.batch_id(staging))
    assert stream.run(apart, checkpoint=stream.root / "staging") == stream.flights
    for _ in range(2):
        assert stream.batch() == stream.flights
        assert stream.run(staging, checkpoint=stream.root / "staging") == stream.flights
    assert stream.follow("The numbers look wrong: what now", "statebackend verify") == [0]
    assert "of another run" in stream.said[-1]


def test_a_move(stream: Stream) -> None:
    """The query goes on with its checkpoint. With the old setting it finds nothing, and is refused."""
    assert stream.follow("Move to another bucket") == [0, 0, 0]
    assert stream.batch(replaced(stream.settings, primary=f"file://{stream.place('data/moved')}")) == stream.flights
    stream.fly()
    with pytest.raises(StreamingQueryException, match="StateGoneError"):
        stream.run()


def test_another_name(stream: Stream) -> None:
    """The query goes on under it, with its own checkpoint."""
    assert stream.follow("Rename a job") == [0], stream.said
    assert stream.batch(replaced(stream.settings, job="fleet-eu")) == stream.flights
