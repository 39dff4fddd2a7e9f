"""The state of a query of Spark's becomes the first state of a job, whichever release wrote its checkpoint."""

import operator
import shutil
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import statebackend as sb
from statebackend.errors import InputError

CHECKPOINTS = Path(__file__).parent / "checkpoints"
RELEASES = sorted(path.name for path in CHECKPOINTS.iterdir())
NEWEST = RELEASES[-1]
pytestmark = pytest.mark.spark


def checkpoint_at(directory: Path, name: str, release: str = NEWEST) -> Path:
    """A copy of a stored checkpoint. Spark notes in it where its schemas lie."""
    copy, kept = directory / name, CHECKPOINTS / release / name
    if not copy.exists() and kept.exists():
        shutil.copytree(kept, copy)
        for noted in copy.glob("state/*/_metadata/v2/*"):
            noted.write_bytes(noted.read_bytes().replace(b"file:/checkpoint", f"file:{copy}".encode()))
    return copy


def settings_of(directory: Path) -> sb.Settings:
    return sb.Settings(job="job", primary=f"file://{directory}/primary")


def imported(
    spark: SparkSession, directory: Path, states: Any, checkpoint: str, *, release: str = NEWEST, **options: Any
) -> sb.reports.SeedReport:
    async def run() -> sb.reports.SeedReport:
        path = f"file://{checkpoint_at(directory, checkpoint, release)}"
        return await sb.spark.import_checkpoint(settings_of(directory), states, path, session=spark, **options)

    return anyio.run(run)


def read(directory: Path, states: Any, take: Any) -> Any:
    async def run() -> Any:
        async with sb.open_backend(settings_of(directory), read_only=True) as backend:
            summaries = [each async for each in backend.history()]
            return take(states(backend)), summaries[0]

    return anyio.run(run)


class Transform:
    """The states of the query in `transform`."""

    def __init__(self, backend: Any) -> None:
        self.v = backend.value_state("v", dict[str, Any])
        self.l = backend.list_state("l", int)
        self.m = backend.map_state("m", str, int)
        self.ttlv = backend.value_state("ttlv", int, ttl=sb.TimeToLive(100.0))
        self.timers = backend.timers("timers", "processing")


@pytest.mark.parametrize(("release", "parallelism"), [(NEWEST, 3), *((each, None) for each in RELEASES)])
def test_variables_of_transform_with_state(
    spark: SparkSession, tmp_path: Path, release: str, parallelism: int | None
) -> None:
    """Values, lists, maps, a time-to-live and timers, with the mark of the batch; the session has its settings back."""
    before = spark.conf.get("spark.sql.streaming.stateStore.providerClass")
    report = imported(
        spark, tmp_path, Transform, "transform", clock="processing", release=release, parallelism=parallelism
    )
    assert report.keys == {"v": 3, "l": 3, "m": 3, "ttlv": 3, "timers": 3}
    assert spark.conf.get("spark.sql.streaming.stateStore.providerClass") == before

    def take(states: Transform) -> dict[str, Any]:
        return {
            "v": dict(states.v),
            "l": {key: list(each) for key, each in states.l.items()},
            "m": {key: dict(each) for key, each in states.m.items()},
            "ttlv": dict(states.ttlv),
            "timers": {key: states.timers.registered(key) for key in states.timers},
        }

    found, summary = read(tmp_path, Transform, take)
    assert found == {
        "v": {f"k{n}": {"n": 3 + (n == 0), "name": f"nmk{n}"} for n in range(3)},
        "l": {"k0": [4], "k1": [3], "k2": [3]},
        "m": {"k0": {"a": 4, "b": 2}, "k1": {"a": 3, "b": 2}, "k2": {"a": 3, "b": 2}},
        "ttlv": {"k0": 4, "k1": 3, "k2": 3},
        "timers": dict.fromkeys(["k0", "k1", "k2"], (found["timers"]["k0"][0],)),
    }
    assert (summary.source.batch_id, summary.clock.kind) == (0, "processing")
    assert found["timers"]["k0"][0] - summary.clock.now_s == pytest.approx(1e6)
    assert report.source == summary.source


@pytest.mark.parametrize("release", RELEASES)
def test_state_of_groups_and_of_an_aggregation(spark: SparkSession, tmp_path: Path, release: str) -> None:
    """With timeouts; fields that come twice get a number, or other names."""

    def groups(backend: Any) -> Any:
        return backend.value_state("seen", dict[str, Any]), backend.timers("due", "processing")

    report = imported(
        spark, tmp_path / "a", groups, "groups", variables={"state": "seen", "timeouts": "due"}, release=release
    )
    assert report.keys == {"seen": 3, "due": 3}
    found, _ = read(tmp_path / "a", groups, lambda states: dict(states[0]))
    assert found == {"k0": {"n": 4, "name": "x"}, "k1": {"n": 3, "name": "x"}, "k2": {"n": 3, "name": "x"}}

    def sums(backend: Any) -> Any:
        return backend.value_state("state", dict[str, float])

    imported(spark, tmp_path / "b", sums, "aggregation", release=release)
    found, _ = read(tmp_path / "b", sums, dict)
    assert found["k0"] == {"count": 4, "sum": 18, "sum_2": 18.0, "count_2": 4, "max": 9}

    names = ["orders", "amount", "amount_sum", "amount_count", "largest"]
    schema = pa.schema([(name, pa.float64() if name == "amount_sum" else pa.int64()) for name in names])

    def columns(backend: Any) -> Any:
        return backend.columnar_state("state", schema, key=pa.string())

    imported(spark, tmp_path / "c", columns, "aggregation", fields={"state": names}, release=release)
    found, _ = read(tmp_path / "c", columns, dict)
    assert found["k1"] == dict(zip(names, (3, 12, 12.0, 3, 7), strict=True))


def test_what_cannot_be_mapped_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    """And nothing is written."""

    def only_v(backend: Any) -> None:
        backend.value_state("v", dict[str, Any])

    def other_kind(backend: Any) -> None:
        backend.reducing_state("l", int, operator.add)

    def wrong_type(backend: Any) -> None:
        backend.value_state("v", dict[str, str])

    rest = dict.fromkeys(["l", "m", "ttlv", "timers"])
    for states, checkpoint, options, facts in (
        (only_v, "transform", {}, {"variable": "l"}),
        (other_kind, "transform", {"variables": rest | {"v": None, "l": "l"}}, {"variable": "l", "kind": "list"}),
        (only_v, "transform", {"variables": {"w": None}}, {"variable": "w"}),
        (wrong_type, "transform", {"variables": rest}, {"state": "v"}),
        (only_v, "windows", {"variables": {"state": "v"}}, {"variable": "state", "part": "window"}),
        (only_v, "aggregation", {"variables": {"state": "v"}, "fields": {"state": ["a"]}}, {"given": ["a"]}),
        (only_v, "transform", {"operator_id": 7}, {"operators": [0]}),
        (only_v, "nowhere", {}, {}),
    ):
        with pytest.raises(InputError) as caught:
            imported(spark, tmp_path, states, checkpoint, **options)
        assert {name: caught.value.facts.get(name) for name in facts} == facts, str(caught.value)
    assert not (tmp_path / "primary").exists()


def test_a_query_amid_a_batch_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """It has to be started once more, and to finish."""
    (checkpoint_at(tmp_path, "aggregation") / "commits" / "0").unlink()
    with pytest.raises(InputError, match="no committed batch"):
        imported(spark, tmp_path, lambda _: None, "aggregation")


class Counts(sb.spark.KeyedProcessor):
    """What the query in `groups` did: counts rows, beside a name."""

    def open(self, context: Any) -> None:
        self.state = context.value_state("state", dict[str, Any])

    def process(self, key: Any, rows: Any, context: Any) -> None:
        self.state[key] = {**self.state[key], "n": self.state[key]["n"] + len(list(rows))}


def test_the_query_goes_on_with_the_next_batch(spark: SparkSession, tmp_path: Path) -> None:
    """With a sink in place of the operator, and a copy of the checkpoint without the state. No row counts twice."""
    old, new, rows = checkpoint_at(tmp_path, "groups"), tmp_path / "new", tmp_path / "orders"
    new.mkdir()
    report = imported(spark, tmp_path, Counts(), "groups")
    assert report.source is not None
    for part in ("metadata", "offsets", "commits", "sources"):
        (shutil.copytree if (old / part).is_dir() else shutil.copy)(old / part, new / part)
    rows.mkdir()
    read_before = new / "sources" / "0" / "0"
    read_before.write_text(read_before.read_text().replace("file:///data/orders", f"file://{rows}"))
    (rows / "b.json").write_text('{"k": "k1"}\n{"k": "k1"}\n')
    for batches in (1, 1):  # started once more, there is nothing new
        sink = sb.spark.StatefulSink(Counts(), settings_of(tmp_path), key="k")
        stream = spark.readStream.schema("k string").json(str(rows)).writeStream.foreachBatch(sink)
        query = stream.option("checkpointLocation", str(new)).trigger(availableNow=True).start()
        query.awaitTermination()
        found, summary = read(tmp_path, lambda backend: backend.value_state("state", dict[str, Any]), dict)
        assert (summary.source.query_id, summary.source.batch_id) == (report.source.query_id, batches)
        assert found["k1"] == {"n": 5, "name": "x"}
        assert found["k2"] == {"n": 3, "name": "x"}
