"""A sink on standby: its first batch goes on with a state that it has in memory, and the driver before it is fenced."""

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import statebackend as sb
from statebackend.errors import FencedError, SettingsError, StoreAccessError, WrongQueryError
from statebackend.testing import Fail, FaultyStore
from tests.spark.frames_without_spark import frame_of


class Counts:
    """Counts keys, and remembers where the state came from."""

    def __init__(self) -> None:
        self.restored: list[sb.abc.RestoreReport | None] = []
        self.counts: dict[sb.Key, int] = {}
        self.refuses = False

    def __call__(self, df: Any, batch_id: int, backend: sb.StateBackend) -> None:
        counts = backend.value_state("counts", int)
        self.restored.append(backend.restored)
        for key in df.table["key"].to_pylist():
            counts[key] = counts.get(key, 0) + 1
        self.counts = dict(counts)
        if self.refuses:
            raise RuntimeError("refused")

    @property
    def was_warm(self) -> bool:
        """Whether the last batch went on with what a follower held."""
        report = self.restored[-1]
        return report is not None and report.files_local == report.files_primary == 0


class Followed(sb.Observer):
    """Knows when a follower has its state."""

    def __init__(self) -> None:
        self.is_there = threading.Event()

    def restored(self, report: sb.abc.RestoreReport) -> None:
        self.is_there.set()


@pytest.fixture
def settings() -> sb.Settings:
    """A job whose changes lie in files."""
    return sb.Settings(job="counted", primary="memory://unused", inline_bytes_max=0)


@pytest.fixture
def store() -> FaultyStore:
    """Its primary. Each sink gets it as its own: two in one process would be told apart as the parts of one batch."""
    return FaultyStore(sb.objectstore.MemoryStore())


@pytest.fixture
def sinks() -> Iterator[list[sb.spark.StatefulSink]]:
    """Closed at the end."""
    found: list[sb.spark.StatefulSink] = []
    yield found
    for sink in found:
        sink.close()


@pytest.fixture
def open_sink(settings: sb.Settings, store: FaultyStore, sinks: list[sb.spark.StatefulSink]) -> Any:
    """Sinks of one query, which go on where the one before has stopped."""

    def open_(**options: Any) -> tuple[sb.spark.StatefulSink, Counts]:
        counts = Counts()
        options = {"query_id": "query", "store": store} | options
        sinks.append(sb.spark.StatefulSink(counts, settings, **options))
        return sinks[-1], counts

    return open_


def warm(open_sink: Any, **options: Any) -> tuple[sb.spark.StatefulSink, Counts]:
    """A sink on standby that has read the state."""
    followed = Followed()
    sink, counts = open_sink(standby=True, observer=followed, **options)
    assert followed.is_there.wait(60)
    return sink, counts


def test_the_first_batch_takes_over_what_is_in_memory(open_sink: Any) -> None:
    """Also what was committed since the follower last looked. Until then the old driver goes on."""
    old, _ = open_sink()
    old(frame_of("a"), 0)
    new, counts = warm(open_sink)
    old(frame_of("ab"), 1)
    new(frame_of("b"), 2)
    assert counts.counts == {"a": 2, "b": 2}
    assert counts.was_warm
    with pytest.raises(FencedError):
        old(frame_of("a"), 2)
    new(frame_of("a"), 3)
    assert counts.counts == {"a": 3, "b": 2}


def test_another_query_is_refused_and_fences_nobody(open_sink: Any) -> None:
    """It follows on. Told to adopt what it finds, it takes over what is in memory."""
    old, kept = open_sink()
    old(frame_of("a"), 0)
    new, counts = warm(open_sink, query_id="another", adopt="query")
    wrong, _ = warm(open_sink, query_id="another")
    for batch_id in (1, 2):
        with pytest.raises(WrongQueryError):
            wrong(frame_of("b"), 0)
        old(frame_of("a"), batch_id)
    assert kept.counts == {"a": 3}
    new(frame_of("b"), 0)
    assert counts.counts == {"a": 3, "b": 1}
    assert counts.was_warm


def test_a_batch_that_fails_afterwards_is_opened_as_ever(open_sink: Any) -> None:
    """Nothing of it survives; a sink is on standby once."""
    old, _ = open_sink()
    old(frame_of("a"), 0)
    new, counts = warm(open_sink)
    counts.refuses = True
    with pytest.raises(RuntimeError, match="refused"):
        new(frame_of("a"), 1)
    counts.refuses = False
    new(frame_of("a"), 1)
    assert counts.counts == {"a": 2}
    assert not counts.was_warm


def test_a_job_that_is_not_there_yet_is_opened_as_ever(open_sink: Any) -> None:
    """The follower still waits for it."""
    new, counts = open_sink(standby=True)
    new(frame_of("a"), 0)
    new(frame_of("a"), 1)
    assert counts.counts == {"a": 2}


def test_a_takeover_that_fails_can_be_tried_again(open_sink: Any, store: FaultyStore) -> None:
    """The follower goes on meanwhile."""
    old, _ = open_sink()
    old(frame_of("a"), 0)
    new, counts = warm(open_sink)
    store.plan = [Fail(operation="put_if_absent", error=StoreAccessError("not yours"))]
    with pytest.raises(StoreAccessError):
        new(frame_of("a"), 1)
    store.plan = []
    new(frame_of("a"), 1)
    assert counts.counts == {"a": 2}
    assert counts.was_warm


def test_a_sink_that_is_closed_follows_no_more(open_sink: Any) -> None:
    """Twice is fine, and another batch opens it again."""
    old, _ = open_sink()
    old(frame_of("a"), 0)
    new, _ = warm(open_sink)
    call = new._standby._call
    assert call is not None
    assert not call.has_ended
    new.close()
    assert call.has_ended
    new.close()
    new(frame_of("a"), 1)


def test_a_sink_on_standby_pickles(tmp_path: Path) -> None:
    """The copy, in another process as a rule, does not follow."""
    settings = sb.Settings(job="pickled", primary=f"file://{tmp_path}/primary")
    with sb.spark.StatefulSink(Counts(), settings, query_id="query", standby=True) as sink:
        copied = pickle.loads(pickle.dumps(sink))
    with copied:
        assert copied._standby._call is None
        copied(frame_of("a"), 0)


def test_executors_have_no_standby(settings: sb.Settings) -> None:
    """Each host caches the ranges that it works on."""

    class Nothing(sb.spark.KeyedProcessor):
        def process(self, key: Any, rows: Any, context: Any) -> None:
            pass

    with pytest.raises(SettingsError, match="standby"):
        sb.spark.StatefulSink(Nothing(), settings, key="key", execution="executors", parallelism=2, standby=True)
