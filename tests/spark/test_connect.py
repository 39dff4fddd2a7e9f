"""Spark Connect: what works in driver mode on a server of this machine, and what says clearly that it does not.

The server is Spark's own, so this takes a minute: it runs with `nox -s spark`.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import statebackend as sb
from statebackend.errors import SettingsError
from tests.spark.frames_without_spark import session_in
from tests.spark.test_cluster import only_long

HERE = Path(__file__).parent
BOUND_S = 900
FOUND = importlib.util.find_spec("grpc") is not None


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outcome of the queries of `connect_child.py`."""
    folder = tmp_path_factory.mktemp("connect")
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    command = [sys.executable, str(HERE / "connect_child.py"), str(folder)]
    with (folder / "log").open("w") as log:
        ended = subprocess.run(command, env=environment, stdout=log, stderr=log, check=False, timeout=BOUND_S)
    assert ended.returncode == 0, (folder / "log").read_text()[-4000:]
    found: dict[str, Any] = json.loads((folder / "told.json").read_text())
    return found


needs_grpc = pytest.mark.skipif(not FOUND, reason="NOT TESTED on Spark Connect: there is no grpcio (extra connect)")


@only_long
@needs_grpc
def test_a_processor_and_its_outbox_are_exactly_once(told) -> None:
    """Three runs: one whose receiver failed, one after which Spark forgets that the last batch is done, and another."""
    assert "the receiver is away" in told["processor, failing at 2"]
    assert told["processor, failing at None"] == ""
    assert told["processor"] == {"counts": {"a": 3, "b": 1, "c": 1}, "marks": [["mine", 2], ["mine", 1], ["mine", 0]]}
    received = told["received"]
    assert [(query, batch) for query, batch, _ in received] == [("mine", batch) for batch in (0, 1, 2, 2, 2)]
    assert received[2] == received[3] == received[4]
    rows = [sorted((key, count) for key, count, _ in made) for _, _, made in received[:3]]
    assert rows == [[("a", 2), ("b", 1)], [], [("a", 3), ("c", 1)]]


@only_long
@needs_grpc
def test_an_asynchronous_function_runs_with_its_spark_actions(told) -> None:
    assert told["async failure"] == ""
    assert told["async"] == {"counts": {"a": 3, "b": 1, "c": 1}, "marks": [["q", 2], ["q", 1], ["q", 0]]}


@only_long
@needs_grpc
def test_a_batch_that_is_given_in_parts_fails_the_query(told) -> None:
    """One made anew from the same plan is the same frame; another part is not."""
    assert "the whole batch in one call" in told["parts failure"]
    assert told["parts"] == {"counts": {"a": 2}, "marks": [["q", 0]]}


@only_long
@needs_grpc
def test_what_is_not_there_says_so(told) -> None:
    """A query without an id of its own, and executors; the latter before the job is claimed."""
    assert "SettingsError" in told["nameless"]
    assert "query_id" in told["nameless"]
    assert "SettingsError" in told["executors"]
    assert "execution='driver'" in told["executors"]
    assert not told["claimed for executors"]


class Frame:
    """A batch's frame whose session is not one of the usual kind."""

    sparkSession = session_in("UTC")  # noqa: N815 - Spark's word


class Nothing(sb.spark.KeyedProcessor):
    """Does nothing."""

    def process(self, key, rows, context):
        return None


def test_executors_are_refused_without_a_claim(tmp_path) -> None:
    """The process that works on the job is not fenced."""
    settings = sb.Settings(job="job", primary=f"file://{tmp_path}/primary")
    sink = sb.spark.StatefulSink(Nothing(), settings, key="key", query_id="mine", execution="executors", parallelism=2)
    with pytest.raises(SettingsError):
        sink(Frame(), 0)  # type: ignore[arg-type]
    assert not (tmp_path / "primary").exists()


def test_a_query_needs_an_id_where_spark_tells_none(tmp_path) -> None:
    """The same at every start: it is what tells a batch that comes again."""
    settings = sb.Settings(job="job", primary=f"file://{tmp_path}/primary")
    with pytest.raises(SettingsError, match="query_id"):
        sb.spark.StatefulSink(Nothing(), settings, key="key")(Frame(), 0)  # type: ignore[arg-type]
    assert not (tmp_path / "primary").exists()
