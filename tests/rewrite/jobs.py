"""A job with every kind of state, and everything that can be read from it."""

import operator
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa

import statebackend as sb
from statebackend._codec.commit import Commit
from statebackend._tables.key_groups import key_group
from tests import invariants
from tests.aggregates import Mean
from tests.knobs import settings_with

JOB = "fleet"
BATCH = sb.SourceMark("query", 7, "run")
Write = tuple[str, sb.Key, int]
KINDS = ("value", "list", "map", "total", "mean", "timers", "recent", "columns", "dropped")


def settings_of(max_parallelism: int, **changed: Any) -> sb.Settings:
    plain: dict[str, Any] = {"persist_delay_s": 0.0, "upload__retry_delay_s": 0.0, "upload__primary_outage_s": 0.0}
    return settings_with(
        **({"job": JOB, "primary": "memory://unused", "max_parallelism": max_parallelism} | plain | changed)
    )


class States:
    """Every kind, declared. Time stands still; only negative numbers, which were written long ago, have expired."""

    def __init__(self, backend: sb.StateBackend) -> None:
        self.now_s = 1000.0
        ttl = sb.TimeToLive(10.0, now=lambda: self.now_s)
        self.value = backend.value_state("value", int)
        self.list = backend.list_state("list", int)
        self.map = backend.map_state("map", int, int)
        self.total = backend.reducing_state("total", int, operator.add)
        self.mean = backend.aggregating_state("mean", Mean())
        self.timers = backend.timers("timers")
        self.recent = backend.value_state("recent", int, ttl=ttl)
        self.columns = backend.columnar_state("columns", pa.schema({"sum": pa.int64()}), key=pa.string())
        self.offsets = backend.operator_state("offsets", int)

    def write(self, writes: Sequence[Write]) -> None:
        """Write to each kind in its own way; `dropped` removes the key from those that can."""
        for kind, key, number in writes:
            if kind == "value":
                self.value[key] = number
            elif kind == "list":
                self.list[key].append(number)
            elif kind == "map":
                self.map[key][number] = number
            elif kind == "total":
                self.total.add(key, number)
            elif kind == "mean":
                self.mean.add(key, number)
            elif kind == "timers":
                self.timers.register(key, number)
            elif kind == "recent":
                self.now_s = 500.0 if number < 0 else 1000.0
                self.recent[key] = number
                self.now_s = 1000.0
            elif kind == "columns":
                self.columns.merge(pa.table({"k": [repr(key)], "n": [number]}), on="k", how={"sum": ("sum", "n")})
            else:
                self.value.pop(key, None)
                self.list[key].clear()
                self.map[key].clear()
                self.columns.rows([repr(key)]).drop()

    def read(self) -> dict[str, Any]:
        """Everything."""
        return {
            "value": dict(self.value),
            "list": {key: list(found) for key, found in self.list.items()},
            "map": {key: dict(found) for key, found in self.map.items()},
            "total": dict(self.total),
            "mean": dict(self.mean),
            "timers": {key: self.timers.registered(key) for key in self.timers},
            "recent": dict(self.recent),
            "columns": dict(self.columns),
            "offsets": list(self.offsets),
        }


SAMPLE: Sequence[Write] = [
    (kind, key, number)
    for number in (1, -2, 3)
    for kind in KINDS[:-1]
    for key in ("a", "b", 7, b"c", ("d", 1), f"key {number}")
]


@asynccontextmanager
async def opened(
    settings: sb.Settings, store: sb.ObjectStore, **options: Any
) -> AsyncGenerator[tuple[sb.StateBackend, States]]:
    """The job, with every state declared."""
    async with sb.open_backend(settings, store=store, **options) as backend:
        yield backend, States(backend)


async def work(settings: sb.Settings, store: sb.ObjectStore, *batches: Sequence[Write]) -> dict[str, Any]:
    """Commit these batches, the last of them as `BATCH`; return what can be read then."""
    async with opened(settings, store) as (backend, states):
        for number, writes in enumerate(batches or (SAMPLE,)):
            states.write(writes)
            states.offsets.append(number)
            mark = sb.SourceMark("query", 8 + number - len(batches or (SAMPLE,)), "run")
            await backend.checkpoint(backend.next_checkpoint_id, source=mark)
        return states.read()


async def read(settings: sb.Settings, store: sb.ObjectStore, **options: Any) -> dict[str, Any]:
    """Everything that a new process reads."""
    async with opened(settings, store, read_only=True, **options) as (_, states):
        return states.read()


async def objects_of(store: sb.ObjectStore, job: str = JOB) -> dict[str, bytes]:
    """The objects of the job, by their keys below it."""
    keys = [info.key async for info in store.list(f"{job}/")]
    return {key.removeprefix(f"{job}/"): await store.get(key) for key in keys}


async def newest_commit(store: sb.ObjectStore) -> Commit:
    """The newest commit, after checking that it is whole."""
    objects = await objects_of(store)
    commit = invariants.commits_of(invariants.read_log(objects, JOB))[-1]
    invariants.assert_commit_is_whole(commit, objects)
    return commit


async def assert_placed(store: sb.ObjectStore, max_parallelism: int) -> None:
    """The newest commit has that many key groups, and every key in it lies in the right one."""
    commit, objects = await newest_commit(store), await objects_of(store)
    assert commit.max_parallelism == max_parallelism
    for change in invariants._changes_of(commit, objects):
        key = tuple(change.key) if isinstance(change.key, list) else change.key
        assert change.key_group == key_group(key, max_parallelism)
