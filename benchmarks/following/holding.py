"""How long a follower keeps its loop while it applies a commit, in CPU time, for every kind of state and table.

Envelope. A piece has 1,024 changes in memory, 256 in RocksDB, 2,048 rows of columns: a microsecond or two for each to
find, keep and set. One that Python's collector interrupts takes a few more.
"""

import asyncio
import operator
import time
from asyncio.events import Handle
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa

import statebackend as sb
from benchmarks.contest import Line, Report, Sample
from benchmarks.following.job import COLUMNS
from statebackend.objectstore import MemoryStore

KINDS: Final = ("values", "lists", "maps", "reduced", "timers", "columns")
TABLES: Final = ("heap", "rocksdb", "runs")
LIMIT_MS: Final = 10.0
COMMITS: Final = 3


def run(report: Report, *, keys: int = 200_000, changes: int = 50_000) -> None:
    """The longest of the pieces, in milliseconds of CPU. Two minutes."""
    samples: dict[str, Sample] = {}
    for table, kind in product(TABLES, KINDS):
        if table == "runs" and kind != "columns":
            continue  # the others lie in dictionaries there
        held_ms = asyncio.run(_follow(kind, table, keys, changes))
        samples[f"{kind}, {table}"] = Sample(held_ms)
        what = f"the loop while {changes:,} changes of {keys:,} keys are applied, {kind}, {table}"
        detail = f"the ten longest: {samples[f'{kind}, {table}']} ms"
        report.add(Line(what, f"kept for at most {LIMIT_MS:g} ms of CPU", max(held_ms), "ms", LIMIT_MS, detail=detail))
    report.keep("the loop kept by a follower", "ms", samples, keys=keys, changes=changes)


async def _follow(kind: str, table: Any, keys: int, changes: int) -> list[float]:
    """The ten longest of all commits."""
    settings = sb.Settings(job="fleet", primary="memory://unused", table=table, inline_bytes_max=0)
    store, names, held_ms = MemoryStore(), [f"N{number}" for number in range(keys)], list[float]()
    async with sb.open_backend(settings, store=store) as backend:
        state = _declared(backend, kind)
        _write(state, kind, names, 0)
        await backend.checkpoint(0, source=sb.SourceMark("query", 0))
        async with sb.follow(settings, store=store, every_s=0.05) as follower:
            for batch in range(1, COMMITS + 1):
                _write(state, kind, [*names[batch : batch + changes], *(f"M{batch}.{n}" for n in range(500))], batch)
                await backend.checkpoint(batch, source=sb.SourceMark("query", batch))
                with _timed(held_ms):
                    await follower.wait_for(batch_id=batch, timeout_s=300)
                await asyncio.sleep(0)  # or the next write would count
            assert follower.position.jumps == 0
    return sorted(held_ms)[-10:]


@contextmanager
def _timed(held_ms: list[float]) -> Generator[None]:
    """Time every callback of the loop."""
    run_handle = vars(Handle)["_run"]

    def timed(handle: Any) -> None:
        begun = time.thread_time()
        run_handle(handle)
        held_ms.append((time.thread_time() - begun) * 1000)

    with patch.object(Handle, "_run", timed):
        yield


def _declared(states: Any, kind: str) -> Any:
    declare = {
        "values": lambda: states.value_state("s", int),
        "lists": lambda: states.list_state("s", int),
        "maps": lambda: states.map_state("s", int, int),
        "reduced": lambda: states.reducing_state("s", int, operator.add),
        "timers": lambda: states.timers("s"),
        "columns": lambda: states.columnar_state("s", COLUMNS, key=pa.string()),
    }
    return declare[kind]()


def _write(state: Any, kind: str, keys: Sequence[str], batch: int) -> None:
    if kind == "values":
        state.put_many(keys, [batch] * len(keys))
    elif kind == "columns":
        columns = [pa.array([batch] * len(keys)), pa.array(range(len(keys)), pa.int64()), pa.array(["EWR"] * len(keys))]
        state.rows(pa.array(keys)).scatter(pa.RecordBatch.from_arrays(columns, schema=COLUMNS))
    for key in keys if kind not in ("values", "columns") else ():
        if kind == "lists":
            state[key].append(batch)
        elif kind == "maps":
            state[key][batch] = batch
        elif kind == "reduced":
            state.add(key, batch)
        else:
            state.register(key, 1000.0 + batch)
