"""Which commits, key groups and parts a query in Spark is about, found without Spark."""

import importlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from pyspark.sql import datasource
from pyspark.sql.types import StringType, StructType

import statebackend as sb
from statebackend import errors
from statebackend._log.names import floor_key
from statebackend._log.position import Pin
from statebackend._upkeep.job_primary import open_job_primary
from statebackend.ids import KeyGroupRange, StateDescriptor
from statebackend.spark.reading import positions
from statebackend.spark.reading.data_source import keys_in
from statebackend.spark.reading.positions import (
    commit_asked_for,
    cut,
    feed_after,
    feed_between,
    first_offset,
    key_group_ranges,
    last_offset,
    position,
)
from statebackend.spark.reading.read_options import FeedOptions, StateOptions, state_options
from statebackend.spark.reading.readers import Plan, StateReader
from tests.backend.rocksdb_job import RocksDBJob

LEGS = StateDescriptor(0, "legs", "value", '"int"')


async def fly(tmp_path: Path, *batches: int | None, savepoint_at: int | None = None) -> sb.Settings:
    """A job with a checkpoint, from 10 on, for each of these batches; `None`: one that no batch made."""
    settings = sb.Settings(job="fleet", primary=f"file://{tmp_path}/primary", persist_delay_s=0.0)
    async with sb.open_backend(settings) as backend:
        legs, _ = backend.value_state("legs", int), backend.list_state("hops", str)
        for number, batch_id in enumerate(batches):
            legs["N1"] = number
            source = None if batch_id is None else sb.SourceMark("query", batch_id)
            savepoint = "kept" if batch_id is not None and batch_id == savepoint_at else None
            await backend.checkpoint(10 + number, source=source, savepoint=savepoint)
    return settings


def asked(settings: sb.Settings, **options: Any) -> StateOptions:
    given = {"job": "fleet", "stateVarName": "legs", **{name: str(value) for name, value in options.items()}}
    return state_options(given, {"fleet": settings})


def feed_asked(settings: sb.Settings, **options: Any) -> tuple[StateOptions, FeedOptions]:
    found = asked(settings, readChangeFeed="true", **options)
    assert found.feed is not None
    return found, found.feed


async def newest_pin(settings: sb.Settings) -> Pin:
    async with open_job_primary(settings, None) as primary:
        return Pin.of((await primary.find()).commit)


async def commits_of(settings: sb.Settings, parts: Sequence[Any]) -> list[int]:
    async with open_job_primary(settings, None) as primary:
        return [
            (await primary.log.load_commit(sequence)).checkpoint_id for part in parts for sequence in part.sequences
        ]


async def test_a_batch_is_found_among_the_retained(tmp_path: Path) -> None:
    """Whatever ids Spark has left out. One that is not there is an error that says which are."""
    settings = await fly(tmp_path, 0, 1, None, 4)
    for batch_id, checkpoint_id in ((0, 10), (1, 11), (4, 13)):
        commit, state = await position(asked(settings, batchId=batch_id))
        assert (commit.checkpoint_id, state.name) == (checkpoint_id, "legs")
    with pytest.raises(errors.CheckpointNotFoundError, match=r"batch_ids=\(0, 4\)"):
        await position(asked(settings, batchId=3))


async def test_a_batch_that_only_a_savepoint_keeps_is_found(tmp_path: Path) -> None:
    """Behind the floor of the sweep."""
    settings = await fly(tmp_path, *range(6), savepoint_at=1)
    options = asked(settings, batchId=1)
    async with open_job_primary(settings, None) as primary:
        await primary.store.put(floor_key(5), ())
        assert (await commit_asked_for(options, primary)).checkpoint_id == 11
        with pytest.raises(errors.CheckpointNotFoundError, match=r"batch_ids=\(4, 5\)"):
            await commit_asked_for(asked(settings, batchId=2), primary)


async def test_a_moment_is_that_of_the_newest_commit_not_later(tmp_path: Path) -> None:
    """The other ways to name a commit, and what is no moment, are refused as everywhere."""
    settings = await fly(tmp_path, 0)
    newest, _ = await position(asked(settings))
    now_s = newest.committed_at_s
    commit, _ = await position(asked(settings, at=now_s))
    assert commit.checkpoint_id == 10
    with pytest.raises(errors.CheckpointNotFoundError, match="oldest_checkpoint_id=10"):
        await position(asked(settings, at=now_s - 1))
    with pytest.raises(errors.InputError, match="milliseconds"):
        await position(asked(settings, at=now_s * 1000))
    with pytest.raises(errors.InputError, match="exclude each other"):
        asked(settings, at=now_s, batchId=0)


async def test_a_state_that_is_not_there_is_named_with_the_closest(tmp_path: Path) -> None:
    """And no state is taken for granted where there are two."""
    settings = await fly(tmp_path, 0)
    with pytest.raises(errors.InputError, match="did you mean 'legs'"):
        await position(asked(settings, stateVarName="leg"))
    with pytest.raises(errors.InputError, match="name the state"):
        await position(state_options({"job": "fleet"}, {"fleet": settings}))
    with pytest.raises(errors.InputError, match="name the state"):
        await position(state_options({"job": "fleet", "readRegisteredTimers": "true"}, {"fleet": settings}))
    with pytest.raises(errors.InputError, match="no checkpoint"):
        await position(state_options({"job": "other", "primary": settings.primary}, {}))


async def test_a_feed_of_batches_has_the_commits_between(tmp_path: Path) -> None:
    """Both ends included, with those that no batch made. A start in a gap begins behind it."""
    settings = await fly(tmp_path, 0, 1, None, 4, 5)
    for start, end, checkpoints in (
        (0, None, [10, 11, 12, 13, 14]),
        (1, 4, [11, 12, 13]),
        (2, 4, [12, 13]),
        (5, 5, [14]),
    ):
        options = {"changeStartBatchId": start} | ({} if end is None else {"changeEndBatchId": end})
        parts = await feed_between(*feed_asked(settings, **options))
        assert await commits_of(settings, parts) == checkpoints
    parts = await feed_between(*feed_asked(settings, changeStartCheckpointId=12, changeEndCheckpointId=13))
    assert await commits_of(settings, parts) == [12, 13]
    for options in ({"changeStartBatchId": 6}, {"changeStartBatchId": 0, "changeEndBatchId": 6}):
        with pytest.raises(errors.InputError, match="beyond the newest"):
            await feed_between(*feed_asked(settings, **options))


async def test_a_job_without_batches_has_a_feed_by_checkpoints(tmp_path: Path) -> None:
    """And an error that says so for one by batches."""
    settings = await fly(tmp_path, None, None)
    with pytest.raises(errors.InputError, match="begin the feed by changeStartCheckpointId"):
        await feed_between(*feed_asked(settings, changeStartBatchId=0))
    parts = await feed_between(*feed_asked(settings, changeStartCheckpointId=11))
    assert await commits_of(settings, parts) == [11]


async def test_a_stream_goes_on_where_it_was(tmp_path: Path) -> None:
    """From now on, from a batch, or from the batch that comes next; then from offset to offset, nothing twice."""
    settings = await fly(tmp_path, 0, 1, 2)
    newest = await last_offset(asked(settings))
    assert await first_offset(*feed_asked(settings)) == newest
    assert await first_offset(*feed_asked(settings, changeStartBatchId=3)) == newest
    with pytest.raises(errors.InputError, match="beyond the newest"):
        await first_offset(*feed_asked(settings, changeStartBatchId=4))
    options, feed = feed_asked(settings, changeStartBatchId=0)
    start, seen = await first_offset(options, feed), []
    while (end := await last_offset(options, start, 2)) != start:
        seen.append(await commits_of(settings, await feed_after(options, start, end)))
        start = end
    assert seen == [[10, 11], [12]]
    assert await feed_after(options, start, start) == []


def test_a_range_is_cut_without_a_gap() -> None:
    """Into no more parts than it has key groups."""
    for count in (1, 2, 3, 7, 100):
        parts = cut(KeyGroupRange(3, 9), count)
        assert [group for part in parts for group in part] == [*range(3, 10)]
        assert len(parts) == min(count, 7)


async def test_tasks_have_a_range_each(tmp_path: Path) -> None:
    """As many as are asked for; a range that the job does not have is refused."""
    settings = await fly(tmp_path, 0)
    pin = await newest_pin(settings)
    assert await key_group_ranges(asked(settings), pin) == [(0, 127)]
    assert await key_group_ranges(asked(settings, partitions=2, keyGroups="0-9"), pin) == [(0, 4), (5, 9)]
    with pytest.raises(errors.InputError, match="other key groups"):
        await key_group_ranges(asked(settings, keyGroups="100-200"), pin)


@pytest.mark.parametrize(("table", "tasks"), [("heap", 12), ("rocksdb", 1)])
async def test_a_large_base_is_cut_unless_each_task_would_fetch_all_of_it(
    tmp_path: Path, table: str, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it would RocksDB's files."""
    if table == "rocksdb":
        pytest.importorskip("rocksdict", reason="the extra rocksdb")
    monkeypatch.setattr(positions, "PARTITION_BYTES", 1)
    job = RocksDBJob(tmp_path, table=table)
    async with job.open() as backend:
        for checkpoint_id in range(2):
            backend.value_state("legs", int)["N1"] = checkpoint_id
            await backend.checkpoint(checkpoint_id)
            await backend._base_writer.settled()
    assert job.commits()[-1].ranges[0].all_bases
    assert len(await key_group_ranges(asked(job.settings), await newest_pin(job.settings))) == tasks


async def stream_of(settings: sb.Settings, **options: Any) -> Any:
    admission = importlib.import_module("statebackend.spark.reading.admission")  # needs Spark 4.2
    found, feed = feed_asked(settings, changeStartBatchId=0, **options)
    return admission.AdmittingStream(Plan(found, LEGS, await newest_pin(settings)), StructType(), feed)


async def test_a_stream_takes_so_many_commits_at_a_time(tmp_path: Path) -> None:
    """A commit counts as a file. With `availableNow` it ends at the commit that is the newest when it begins."""
    limits = pytest.importorskip("pyspark.sql.streaming.datasource", reason="Spark 4.2 and newer limit a stream")
    settings = await fly(tmp_path, 0, 1, 2)
    stream = await stream_of(settings, maxCommitsPerTrigger=2)
    assert stream.getDefaultReadLimit() == limits.ReadMaxFiles(2)
    assert (await stream_of(settings)).getDefaultReadLimit() == limits.ReadAllAvailable()
    start = stream.initialOffset()
    first = stream.latestOffset(start, limits.ReadMaxFiles(2))
    newest = stream.reportLatestOffset()
    assert stream.latestOffset(first, limits.ReadMaxFiles(2)) == newest != first
    stream.prepareForTriggerAvailableNow()
    async with sb.open_backend(settings) as backend:
        await backend.checkpoint(13, source=sb.SourceMark("query", 3))
    assert stream.latestOffset(start, limits.ReadAllAvailable()) == newest != stream.reportLatestOffset()


def test_filters_on_all_parts_of_the_key_become_keys() -> None:
    """Equality of text, whole numbers and bytes; anything else is left to Spark."""
    if not hasattr(datasource, "EqualTo"):
        pytest.skip("Spark 4.1 and newer push filters")
    equal, one_of, above = datasource.EqualTo, datasource.In, datasource.GreaterThan
    assert keys_in([equal(("key", "value"), "a")], ["value"]) == {"a"}
    assert keys_in([one_of(("key", "value"), ("a", "b")), equal(("key", "value"), "b")], ["value"]) == {"b"}
    assert keys_in([equal(("key", "_1"), "a"), one_of(("key", "_2"), (1, 2))], ["_1", "_2"]) == {("a", 1), ("a", 2)}
    for filters in (
        [equal(("key", "_1"), "a")],
        [above(("key", "value"), 1)],
        [equal(("value", "value"), 1)],
        [equal(("key", "value"), 1.0)],
        [one_of(("key", "value"), (1, None))],
    ):
        assert keys_in(filters, ["_1", "_2"]) == frozenset()
        assert keys_in(filters, ["value"]) == frozenset()


def test_a_time_to_live_leaves_out_what_has_expired(tmp_path: Path) -> None:
    """By the clock in the commit, or as of the time that is given; a commit without a clock needs that."""
    settings = sb.Settings(job="fleet", primary=f"file://{tmp_path}/primary", persist_delay_s=0.0)

    async def work(*, clock: bool) -> None:
        async with sb.open_backend(settings) as backend:
            recent = backend.value_state("legs", int, ttl=sb.TimeToLive(10, None if clock else lambda: 100.0))
            for number, key in enumerate(("old", "new")):
                if clock:
                    backend.advance_clock(100 + 8 * number)
                recent[key] = number
                await backend.checkpoint(10 + 10 * clock + number)

    anyio.run(partial(work, clock=False))
    assert read(settings, ttl=10, ttlNow=109.5) == {"old", "new"}
    assert read(settings, ttl=10, ttlNow=110) == set()
    with pytest.raises(errors.InputError, match="no clock to expire values by"):
        read(settings, ttl=10)
    anyio.run(partial(work, clock=True))
    assert read(settings, ttl=10) == {"old", "new"}
    assert read(settings, ttl=8) == {"new"}
    assert read(settings) == {"old", "new"}


def read(settings: sb.Settings, **options: Any) -> set[str]:
    """The keys that one task reads."""
    schema = StructType().add("key", StructType().add("value", StringType()))
    reader = StateReader(Plan(asked(settings, **options), LEGS, anyio.run(newest_pin, settings)), schema)
    return {row["key"]["value"] for batch in reader.read(datasource.InputPartition(None)) for row in batch.to_pylist()}
