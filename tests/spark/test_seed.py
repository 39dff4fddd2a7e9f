"""A seed from frames that executors write: what a seed through the driver gives, in one commit, or nothing of it."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import statebackend as sb
from statebackend._upkeep.seeding import sorted_runs
from statebackend.errors import BatchError, FencedError, InputError, KeyTypeError, SettingsError, ValueEncodeError
from statebackend.objectstore import MemoryStore
from statebackend.spark.executors import seed_task
from tests.spark.conftest import Stream, configured, feed
from tests.spark.processors import Counting, split

COLUMNS = pa.schema({"n": pa.int64(), "name": pa.string(), "at": pa.timestamp("us", "UTC")})
ROWS = 200
KEYS = [f"key {number}" for number in range(ROWS)]


def states(backend: Any) -> Any:
    """Declared by a function that workers import by name."""
    return (
        backend.value_state("value", dict[str, int]),
        backend.list_state("list", str),
        backend.map_state("map", str, int),
        backend.timers("timers"),
        backend.columnar_state("columns", COLUMNS, key=pa.string()),
    )


def frames_of(spark: SparkSession) -> dict[str, DataFrame]:
    """Rows of every kind of state."""
    rows = spark.range(ROWS).selectExpr("concat('key ', id) AS who", "id", "cast(id % 3 AS int) AS few")
    return {
        "value": rows.selectExpr("who", "id AS orders", "cast(few AS bigint) AS amount"),
        "list": rows.selectExpr("array_repeat('x', few) AS value", "who"),
        "map": rows.selectExpr("who", "map('a', id, 'b', 2L) AS value"),
        "timers": rows.selectExpr("who", "array(id + 0.5D, 1D) AS value").limit(7),
        "columns": rows.selectExpr("who", "id AS n", "if(few = 0, null, who) AS name", "timestamp_micros(id) AS at"),
    }


def settings_of(directory: Path, **changed: Any) -> sb.Settings:
    return sb.Settings(job="job", primary=f"file://{directory}/primary", max_parallelism=16, **changed)


def seed(settings: sb.Settings, frames: dict[str, DataFrame], **options: Any) -> sb.reports.SeedReport:
    options = {"key": "who", "parallelism": 3, **options}
    declares = options.pop("states", states)
    return asyncio.run(sb.spark.seed(settings, declares, frames, **options))


def read(settings: sb.Settings) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        async with sb.open_backend(settings, read_only=True) as backend:
            value, lists, maps, timers, columns = states(backend)
            return {
                "value": dict(value),
                "list": {key: list(found) for key, found in lists.items()},
                "map": {key: dict(found) for key, found in maps.items()},
                "timers": {key: timers.registered(key) for key in timers},
                "columns": dict(columns),
                "commits": [(each.checkpoint_id, each.starts_from) async for each in backend.history()],
            }

    return asyncio.run(run())


def stored(directory: Path, kind: str = "segments") -> list[str]:
    return sorted(path.name for path in (directory / "primary" / "job" / kind).glob("*"))


@pytest.mark.usefixtures("adaptive")
@pytest.mark.parametrize("parallelism", [1, 3, 16])
def test_it_is_what_a_seed_through_the_driver_is(spark: SparkSession, tmp_path: Path, parallelism: int) -> None:
    """In every kind of state; with a range of bases for each owner; and a stream goes on from there, anywhere."""
    through, by = settings_of(tmp_path / "driver"), settings_of(tmp_path / "executors")
    frames, start = frames_of(spark), {"orders": {"0": 7}}
    expected = asyncio.run(sb.seed(through, states, frames, key="who", starts_from=start))
    report = seed(by, frames, parallelism=parallelism, starts_from=start)
    assert read(by) == read(through)
    assert read(by)["commits"] == [(0, start)]
    assert (report.keys, report.rows) == (expected.keys, expected.rows)
    assert (report.checkpoint_id, report.segments) == (0, len(stored(tmp_path / "executors")))
    assert report.segments == parallelism
    assert report.requests > parallelism


def test_many_runs_on_disk_are_merged(spark: SparkSession, tmp_path: Path) -> None:
    """Of all states at once, since their rows come mixed."""
    settings = settings_of(tmp_path, table_dir=f"{tmp_path}/scratch")

    driver = os.getpid()

    def small(backend: Any) -> None:
        if os.getpid() != driver:
            sorted_runs.RUN_ROWS = 7
        states(backend)

    with configured(spark, {"spark.sql.execution.arrow.maxRecordsPerBatch": "16"}):
        seed(settings, frames_of(spark), states=small, parallelism=2)
    found = read(settings)
    assert found["value"] == {key: {"orders": n, "amount": n % 3} for n, key in enumerate(KEYS)}
    assert found["list"] == {key: ["x"] * (n % 3) for n, key in enumerate(KEYS) if n % 3}
    assert [path.name for path in (tmp_path / "scratch").iterdir()] == ["lock"]


def test_a_key_of_several_columns(spark: SparkSession, tmp_path: Path) -> None:
    """Lies where Python looks for the tuple."""
    settings = settings_of(tmp_path)
    frame = spark.range(50).selectExpr("concat('k', id % 7) AS a", "id AS b", "id * 2 AS value")

    def pairs(backend: Any) -> Any:
        return backend.value_state("n", int)

    seed(settings, {"n": frame}, states=pairs, key=["a", "b"])

    async def run() -> Any:
        async with sb.open_backend(settings, read_only=True) as backend:
            return dict(pairs(backend))

    assert asyncio.run(run()) == {(f"k{n % 7}", n): 2 * n for n in range(50)}


def test_a_stream_goes_on_from_it_on_executors(stream: Stream, on_executors: Any, read: Any) -> None:
    """With as many ranges, or with others."""
    frame = stream.spark.createDataFrame([("a", 10), ("z", 20)], "key string, value bigint")
    seed(stream.settings, {"counts": frame}, states=Counting(), key="key", parallelism=2)
    counts = feed(stream, "aab", "abc")
    stream.run(on_executors(), plan=split)
    feed(stream, "a")
    stream.run(on_executors(parallelism=3), plan=split)
    assert read(stream.settings).counts == {"a": 11 + counts["a"], "b": 2, "c": 1, "z": 20}


WRONG: list[tuple[str, str, type[InputError], dict[str, Any]]] = [
    ("value", "SELECT 'a' AS who, 'x' AS orders, 1L AS amount", ValueEncodeError, {"row": "that of key 'a'"}),
    ("value", "SELECT cast(null AS string) AS who, 1L AS orders, 1L AS amount", KeyTypeError, {"column": "who"}),
    ("value", "SELECT explode(array('a', 'b', 'a')) AS who, 1L AS orders, 1L AS amount", InputError, {"key": "'a'"}),
    ("columns", "SELECT 'a' AS who, 1L AS n", InputError, {"missing": ["at", "name"]}),
]


@pytest.mark.parametrize("wrong", WRONG, ids=["type", "null key", "key twice", "no column"])
def test_a_wrong_row_is_told_by_its_key(
    spark: SparkSession, tmp_path: Path, wrong: tuple[str, str, type[InputError], dict[str, Any]]
) -> None:
    """A dry run tells it and leaves nothing; a real one deletes what the other ranges have written."""
    state, query, error, facts = wrong
    settings, frames = settings_of(tmp_path), {**frames_of(spark), state: spark.sql(query)}
    for dry_run in (True, False):
        with pytest.raises(error) as caught:
            seed(settings, frames, dry_run=dry_run)
        assert {name: caught.value.facts.get(name) for name in facts} == facts
        assert caught.value.facts["state"] == state
        assert stored(tmp_path) == []
        assert len(stored(tmp_path, "commits")) == (0 if dry_run else 1)  # the claim
    seed(settings, frames_of(spark))
    assert len(read(settings)["value"]) == ROWS


def test_a_dry_run_counts_and_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """As the real one counts."""
    settings = settings_of(tmp_path)
    dry = seed(settings, frames_of(spark), dry_run=True)
    assert (dry.dry_run, dry.checkpoint_id, stored(tmp_path), stored(tmp_path, "commits")) == (True, None, [], [])
    done = seed(settings, frames_of(spark))
    assert (dry.keys, dry.rows) == (done.keys, done.rows)
    with pytest.raises(InputError, match="has a state already"):
        seed(settings, frames_of(spark))


def test_a_worker_that_is_killed_leaves_nothing_visible(spark: SparkSession, tmp_path: Path) -> None:
    """What it and the others have stored is swept; a second call makes the seed."""
    settings, dies = settings_of(tmp_path), tmp_path / "dies"
    dies.touch()

    def fatal(backend: Any) -> None:
        states(backend)
        if dies.exists() and os.getpid() != driver:
            os.kill(os.getpid(), signal.SIGKILL)

    driver = os.getpid()
    with pytest.raises(Exception, match="crashed"):
        seed(settings, frames_of(spark), states=fatal)
    assert read(settings)["commits"] == []
    dies.unlink()
    seed(settings, frames_of(spark), states=fatal)
    asyncio.run(sb.sweep(settings, dry_run=False, min_age_s=0.0))
    assert len(stored(tmp_path)) == 3
    assert len(read(settings)["map"]) == ROWS


def test_an_error_in_a_worker_is_told_with_its_range(spark: SparkSession, tmp_path: Path) -> None:
    """As of a batch on executors."""
    driver = os.getpid()

    def failing(backend: Any) -> None:
        if os.getpid() != driver:
            raise LookupError("not here")
        states(backend)

    with pytest.raises(BatchError, match="not here") as caught:
        seed(settings_of(tmp_path), frames_of(spark), states=failing)
    assert "key_groups" in caught.value.facts


def test_a_worker_that_declares_other_states_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Its rows would be those of other states."""
    driver = os.getpid()

    def other(backend: Any) -> None:
        if os.getpid() != driver:
            backend.value_state("another", int)
        states(backend)

    with pytest.raises(InputError, match="declares other states"):
        seed(settings_of(tmp_path), frames_of(spark), states=other)


def test_a_writer_that_comes_meanwhile_stays_alone(spark: SparkSession, tmp_path: Path) -> None:
    """The seed is fenced, and deletes what its tasks have stored."""
    settings = settings_of(tmp_path)

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(seeding)
            while not stored(tmp_path, "commits"):  # the claim
                await anyio.lowlevel.checkpoint()
            async with sb.open_backend(settings) as backend:
                states(backend)[0]["theirs"] = {"orders": 1}
                await backend.checkpoint(0)

    async def seeding() -> None:
        with pytest.raises(FencedError):
            await sb.spark.seed(settings, states, frames_of(spark), key="who", parallelism=2)

    asyncio.run(run())
    assert read(settings)["value"] == {"theirs": {"orders": 1}}
    asyncio.run(sb.sweep(settings, dry_run=False, min_age_s=0.0))
    assert stored(tmp_path) == []  # that of the other lies in the commit


def test_a_cancelled_call_cancels_the_job(spark: SparkSession, tmp_path: Path) -> None:
    """And waits for its end; nothing is there then."""
    settings = settings_of(tmp_path)
    driver = os.getpid()

    def slow(backend: Any) -> None:
        if os.getpid() != driver:
            time.sleep(60)
        states(backend)

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(seeding)
            while not spark.sparkContext.statusTracker().getActiveJobsIds():
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()

    async def seeding() -> None:
        await sb.spark.seed(settings, slow, frames_of(spark), key="who", parallelism=2)

    asyncio.run(run())
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []
    assert read(settings)["commits"] == []


def test_what_cannot_be_placed_is_refused_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """Before anything is claimed."""
    settings, frames = settings_of(tmp_path), frames_of(spark)
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (SettingsError, {"parallelism": 17}),
        (SettingsError, {"settings": sb.Settings(job="job", primary="memory://here")}),
        (SettingsError, {"uploader": sb.uploaders.PrimaryUploader(MemoryStore())}),
        (InputError, {"frames": {"other": frames["map"]}}),
        (InputError, {"frames": {}}),
        (InputError, {"frames": {"value": frames["value"].selectExpr("who", "who AS orders", "1L AS orders")}}),
        (InputError, {"key": "nobody"}),
        (InputError, {"frames": {"list": frames["value"].selectExpr("1.5D AS who", "array('x') AS value")}}),
        (InputError, {"starts_from": object()}),
        (InputError, {"clock_s": 1.0, "clock_kind": "now"}),
        (InputError, {"clock_s": "now"}),
    ]
    for error, options in wrong:
        with pytest.raises(error):
            seed(options.pop("settings", settings), options.pop("frames", frames), **options)
    assert not (tmp_path / "primary").exists()


def test_a_refusal_survives_the_way(spark: SparkSession) -> None:
    """With facts of any kind."""
    told = seed_task.Refusal.of(ValueEncodeError("it does not fit", row=1, key=b"x", type=pa.int64(), path=Path("/a")))
    found = told.error()
    assert isinstance(found, ValueEncodeError)
    assert found.facts == {"row": 1, "key": "eA==", "type": "DataType(int64)", "path": "PosixPath('/a')"}
