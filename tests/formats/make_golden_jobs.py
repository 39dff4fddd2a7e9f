"""Writes golden jobs: directories as a release leaves them, for later releases to read, continue, sweep and verify.

    python -m tests.formats.make_golden_jobs release-2

Run it by hand from the project's root before a release, if anything that is stored has changed since the last one, and
commit what it wrote. A generation that exists is left alone. Each job lies in `golden_jobs/GENERATION/JOB`, with its
primary and a local root, and is what `content_jobs` says. The formats of single files have golden files of their own.

    kinds      all kinds of state on the heap, in bases, segments and commits; a savepoint; two claims
    rocksdb    the same states in RocksDB, with bases that are its files
    columns    a columnar state, in bases and in commits
    ranges     three ranges, written as executors do it, and output that was not published
"""

import asyncio
import operator
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import statebackend as sb
from statebackend._log.outbox import Output
from statebackend._ranges.range_owners import open_range_owners
from tests.aggregates import Mean
from tests.formats import content_jobs
from tests.formats.content_jobs import Leg
from tests.knobs import settings_with
from tests.ranges.parts import open_run

GOLDEN_JOBS: Final = Path(__file__).parent / "golden_jobs"
FLEET: Final = pa.schema({"n": pa.int64(), "dep": pa.float64(), "name": pa.string()})
PARTS: Final = 3
LAST_STEP: Final = 9
BATCHES: Final = 24
ROW: Final = pa.schema({"key": pa.string(), "legs": pa.int64()})


def settings_of(folder: Path, job: str, *, table_dir: str = "", **changes: Any) -> sb.Settings:
    """The settings of a golden job in `folder`. Bases soon, and little in a commit, so that there is everything."""
    return settings_with(
        job=job,
        primary=f"file://{folder}/primary",
        local=(f"{folder}/local",),
        table="rocksdb" if job == "rocksdb" else "heap",
        table_dir=table_dir,
        table_memory_bytes=4 * 2**20,
        max_parallelism=8,
        persist_delay_s=0.0,
        inline_bytes_max=1024 if job == "ranges" else 256,
        secondary_grace_s=10.0,
        materialize_handles_max=3,
        materialize_interval_s=0,
        sweep_interval_s=0,
        **changes,
    )


def write_states(backend: sb.StateBackend, step: int) -> None:
    """One of the steps in which the states come to be what they are."""
    legs, hops, total = declared(backend)["legs"], declared(backend)["hops"], declared(backend)["total"]
    if step == 0:
        for key, leg in content_jobs.SAVED_LEGS.items():
            legs[key] = Leg(**leg)
        return
    if step == 1:
        del legs["gone"]
        for name, entries in content_jobs.STATES.items():
            state = declared(backend)[name]
            for key, value in entries.items():
                fill(name, state, key, value)
        backend.operator_state("offsets", str, "union").replace(content_jobs.OFFSETS)
        return
    hops["passing"].append("x" * step)  # a change for each commit, undone by the last one
    total.add("passing", step)
    if step == LAST_STEP:
        del hops["passing"], total["passing"]


def declared(backend: Any) -> Mapping[str, Any]:
    """The states of `kinds` and `rocksdb`, of this backend."""
    return {
        "legs": backend.value_state("legs", Leg | None),
        "hops": backend.list_state("hops", str),
        "seen": backend.map_state("seen", str, int),
        "total": backend.reducing_state("total", int, operator.add),
        "mean": backend.aggregating_state("mean", Mean()),
        "due": backend.timers("due"),
    }


def fill(name: str, state: Any, key: Any, value: Any) -> None:
    """Make `value` the value of the key."""
    if name == "legs":
        state[key] = None if value is None else Leg(**value)
    elif name == "hops":
        state[key].extend(value)
    elif name == "seen":
        state[key].update(value)
    elif name == "total":
        state.add(key, value)
    elif name == "mean":
        state.add(key, 2)
        state.add(key, 3)
    else:
        for at_s in value:
            state.register(key, at_s)


class Bases(sb.Observer):
    """Waits for bases, so that the next commit lists them."""

    def __init__(self) -> None:
        self._written = asyncio.Event()
        self._written.set()

    def materialization_begun(self, key_groups: int) -> None:
        self._written.clear()

    def materialized(self, *, key_groups: int, segments: int, size_bytes: int, seconds: float) -> None:
        self._written.set()

    async def written(self) -> None:
        await self._written.wait()


async def write_kinds(settings: sb.Settings) -> None:
    """Two lives: the first one ends after the savepoint."""
    async with sb.open_backend(settings) as backend:
        write_states(backend, 0)
        await backend.checkpoint(1, savepoint="first", source=sb.SourceMark("6e2f", 0, "9c00"))
    bases = Bases()
    async with sb.open_backend(settings, observer=bases) as backend:
        for step in range(1, LAST_STEP + 1):
            write_states(backend, step)
            await backend.checkpoint(step + 1, source=sb.SourceMark("6e2f", step, "9c01"))
            await bases.written()


async def write_columns(settings: sb.Settings) -> None:
    """Rows that are written again and again, and one that is dropped."""
    bases = Bases()
    async with sb.open_backend(settings, observer=bases) as backend:
        fleet = backend.columnar_state("fleet", FLEET, key=pa.string())
        for step in range(LAST_STEP + 1):
            for key, row in content_jobs.COLUMNS.items():
                fleet[key] = row if step == LAST_STEP else {**row, "n": step}
            fleet["gone"] = {"name": "x" * step}
            if step == LAST_STEP:
                del fleet["gone"]
            await backend.checkpoint(step + 1, source=sb.SourceMark("6e2f", step, "9c01"))
            await bases.written()


async def write_ranges(settings: sb.Settings) -> None:
    """A run of three owners, and the output of its last two batches."""
    async with open_run(settings, PARTS) as run, open_range_owners() as owners:
        for batch in range(BATCHES):
            changes = [(f"key {batch % 6}", batch)]
            contributions = [
                await run.contribute(owners, task, changes) for task in run.tasks() if run.changes_of(task, changes)
            ]
            staged = None
            if batch >= BATCHES - len(content_jobs.OUTPUT):
                table = pa.Table.from_pylist(content_jobs.OUTPUT[batch - BATCHES], schema=ROW)
                staged = await run.coordinator.outbox.stage(
                    Output(bytes(ROW.serialize()), table.num_rows, (stream(table),))
                )
            await run.commit(contributions, source=sb.SourceMark("6e2f", batch, "9c00"), staged=staged)


def stream(table: Any) -> bytes:
    """The rows as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as opened:
        opened.write_table(table)
    return sink.getvalue().to_pybytes()


WRITERS: Final[Mapping[str, Callable[[sb.Settings], Awaitable[None]]]] = {
    "kinds": write_kinds,
    "rocksdb": write_kinds,
    "columns": write_columns,
    "ranges": write_ranges,
}


def make(generation: Path) -> None:
    """Write every job of a generation, in a directory that must not exist."""
    for job, write in WRITERS.items():
        with tempfile.TemporaryDirectory() as tables:
            settings = settings_of(generation / job, job, table_dir=tables)
            asyncio.run(write(settings))


if __name__ == "__main__":
    made = GOLDEN_JOBS / sys.argv[1]
    if made.exists():
        sys.exit(f"{made} exists: a released generation never changes")
    make(made)
    total = sum(path.stat().st_size for path in made.rglob("*") if path.is_file())
    print(f"{made}: {total} bytes")
