"""A time-to-live that is declared later, longer or shorter applies to what is stored already, everywhere alike."""

import operator
from pathlib import Path
from typing import Any

import anyio.to_thread
import pyarrow as pa
import pytest

import statebackend as sb
from statebackend.objectstore import MemoryStore
from statebackend.owners import KeyGroupRange
from statebackend.testing import run_virtual
from tests.aggregates import Mean
from tests.rewrite.jobs import newest_commit, settings_of

SCHEMA = pa.schema({"n": pa.int64()})
KINDS = ("value", "list", "map", "total", "mean", "columns")


def declare(states: Any, ttl: sb.TimeToLive | None) -> dict[str, Any]:
    """Every kind that can expire, by a backend or by a follower."""
    return {
        "value": states.value_state("value", int, ttl=ttl),
        "list": states.list_state("list", int, ttl=ttl),
        "map": states.map_state("map", str, int, ttl=ttl),
        "total": states.reducing_state("total", int, operator.add, ttl=ttl),
        "mean": states.aggregating_state("mean", Mean(), ttl=ttl),
        "columns": states.columnar_state("columns", SCHEMA, key=pa.string(), ttl=ttl),
    }


def write(states: dict[str, Any], key: str) -> None:
    states["value"][key] = 1
    states["list"][key].append(1)
    states["map"][key]["x"] = 1
    states["total"].add(key, 1)
    states["mean"].add(key, 1)
    states["columns"][key] = {"n": 1}


def keys_of(states: dict[str, Any]) -> set[str]:
    """The keys, which all kinds agree on."""
    (found,) = {frozenset(state) for state in states.values()}
    return set(found)


class Job:
    """A job whose clock is moved by hand. Each call opens it anew, as another process would."""

    def __init__(self, settings: sb.Settings) -> None:
        self.settings = settings
        self.store = MemoryStore()

    async def run(self, now_s: float, ttl: sb.TimeToLive | None, *keys: str) -> set[str]:
        """One batch, which writes these keys. What is there after it."""
        async with sb.open_backend(self.settings, store=self.store) as backend:
            backend.advance_clock(now_s)
            states = declare(backend, ttl)
            for key in keys:
                write(states, key)
            await backend.checkpoint(backend.next_checkpoint_id)
            return keys_of(states)

    async def follow(self, ttl: sb.TimeToLive) -> set[str]:
        async with sb.follow(self.settings, store=self.store) as follower:
            return keys_of(declare(follower, ttl))

    async def read(self, ttl: sb.TimeToLive) -> set[str]:
        """By readers of columns, of each kind."""

        def read(kind: str) -> frozenset[str]:
            table = sb.read_state(self.settings, kind, ttl=ttl, store=self.store).read_all()
            return frozenset(table["key"].to_pylist())

        (keys,) = {await anyio.to_thread.run_sync(read, kind) for kind in KINDS}
        return set(keys)


@pytest.fixture(params=["heap", "rocksdb", "runs"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    return Job(settings_of(16, table=request.param, table_dir=str(tmp_path)))


async def test_what_was_stored_before_counts_as_written_at_the_first_checkpoint_with_it(job: Job) -> None:
    """Once: a restart does not begin anew. In every kind, on the heap and in RocksDB, for readers and followers."""
    ttl = sb.TimeToLive(100)
    assert await job.run(0, None, "a") == {"a"}
    assert await job.run(1000, ttl, "b") == {"a", "b"}
    for now_s in (1050, 1099):
        assert await job.run(now_s, ttl) == {"a", "b"}
        assert await job.read(ttl) == await job.follow(ttl) == {"a", "b"}
    assert await job.run(1099.5, ttl, "b") == {"a", "b"}
    assert await job.run(1100, ttl) == {"b"}
    assert await job.read(ttl) == await job.follow(ttl) == {"b"}


async def test_a_reader_leaves_out_what_the_job_has_not_dropped_yet(job: Job) -> None:
    """The commit says since when: a reader with a shorter time-to-live needs no more."""
    await job.run(0, None, "a")
    await job.run(1000, sb.TimeToLive(100))
    await job.run(1050, sb.TimeToLive(100), "b")
    short = sb.TimeToLive(20)
    assert await job.read(short) == await job.follow(short) == {"b"}


async def test_shorter_and_longer_count_from_the_time_of_writing(job: Job) -> None:
    """Shorter drops what is older by then. Longer lets what is left live on, and brings nothing back.

    Whatever was dropped by then: that depends on the kind, and on where the state lies.
    """
    await job.run(0, sb.TimeToLive(100), "a")
    await job.run(50, sb.TimeToLive(100), "b")
    assert await job.run(60, sb.TimeToLive(20)) == {"b"}
    assert await job.run(69, sb.TimeToLive(1000)) == {"b"}
    assert await job.read(sb.TimeToLive(1000)) == await job.follow(sb.TimeToLive(1000)) == {"b"}
    assert await job.run(1049, sb.TimeToLive(1000)) == {"b"}
    assert await job.run(1050, sb.TimeToLive(1000)) == set()


async def test_without_one_again_nothing_expires_and_a_later_one_begins_then(job: Job) -> None:
    """What was written in between has no time, and counts from the later beginning."""
    ttl = sb.TimeToLive(100)
    await job.run(0, None, "a")
    await job.run(1000, ttl)
    assert await job.run(1090, None, "b") == {"a", "b"}
    assert await job.run(5000, None) == {"a", "b"}
    assert await job.run(6000, ttl) == {"a", "b"}
    assert await job.run(6099, ttl) == {"a", "b"}
    assert await job.run(6100, ttl) == set()


async def test_a_later_one_goes_by_the_time_of_writing_where_there_is_one(job: Job) -> None:
    """That of the first one, under which it was written."""
    ttl = sb.TimeToLive(100)
    assert await job.run(0, ttl, "a") == {"a"}
    assert await job.run(5000, None, "b") == {"a", "b"}
    assert await job.run(5001, ttl) == {"b"}


@run_virtual
async def test_before_the_clock_has_begun_it_does_not_begin_either() -> None:
    """As in a first batch without rows: what is written then counts from the first time of the clock."""
    job, ttl = Job(settings_of(16)), sb.TimeToLive(100)
    async with sb.open_backend(job.settings, store=job.store) as backend:
        backend.advance_clock(float("-inf"))
        write(declare(backend, ttl), "a")
        await backend.checkpoint(0)
    for state in (await newest_commit(job.store)).states:
        assert state.lifetime is not None
        assert state.lifetime.untimed_since_s is None
    assert await job.run(500, ttl) == {"a"}
    assert await job.run(599, ttl) == {"a"}
    assert await job.run(600, ttl) == set()


@run_virtual
async def test_a_clock_of_its_own_is_asked_at_the_checkpoint() -> None:
    """Not when it is declared: a program may set it later."""
    job, times = Job(settings_of(16)), list[float]()
    ttl = sb.TimeToLive(100, now=lambda: times[-1])
    await job.run(0, None, "a")
    async with sb.open_backend(job.settings, store=job.store) as backend:
        states = declare(backend, ttl)
        times.append(7000.0)
        await backend.checkpoint(backend.next_checkpoint_id)
        times.append(7099.0)
        assert keys_of(states) == {"a"}
        times.append(7100.0)
        assert keys_of(states) == set()


@run_virtual
async def test_owners_with_clocks_of_their_own_agree_on_the_later_time() -> None:
    """Each reads it a little later than the one before."""
    store, settings = MemoryStore(), settings_of(12)
    parts = [KeyGroupRange(0, 4), KeyGroupRange(5, 11)]
    times = iter(range(1000, 2000))
    since = set[float | None]()
    for turn, ttl in enumerate((None, sb.TimeToLive(10, now=lambda: float(next(times))))):
        async with sb.owners.open_coordinator(settings, store=store) as coordinator:
            snapshots: list[sb.owners.SnapshotResult] = []
            for part in parts:
                async with sb.open_backend(settings, store=store, key_groups=part, owners=parts) as owner:
                    owner.value_state("n", int, ttl=ttl)
                    snapshots.append(await owner.snapshot(turn))
            lifetimes = [state.lifetime for snapshot in snapshots for state in snapshot.states]
            since = {each.untimed_since_s for each in lifetimes if each is not None}
            await coordinator.commit(turn, snapshots)
    assert len(since) == 2
    (state,) = (await newest_commit(store)).states
    assert state.lifetime is not None
    assert state.lifetime.untimed_since_s == max(each for each in since if each is not None)
