"""Columns over runs on a host without copies, from a primary that is 30 ms away: the first value, and the first batch.

    python -m benchmarks empty_host --sizes keys=200000,rounds=1       in half a minute

A process writes all keys and then ten checkpoints of 50,000 rows, as in `size`. Each round opens the job on a host that
has nothing, reads a key, merges a batch of 33,000 distinct keys, and waits until the last copy has come in. The other
contestant has a store that cannot be opened apart, so that all is fetched when the job is opened.

Envelope. Opening takes some round trips of 30 ms: the commit, the ends of segments, what lies between their frames, the
tail of the changelog. Of 64 requests at a time for parts of 1 MiB, 20,000,000 keys need 16 times 30 ms. So a second is
enough, and the whole takes as long as the disk and the copying: only latency is counted, every byte comes at once.
"""

import logging
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
import pyarrow as pa
from anyio.from_thread import start_blocking_portal

import statebackend as sb
from benchmarks.contest import Line, Report
from benchmarks.jobs import directory, settings_of
from benchmarks.size.process import figures_of
from benchmarks.totals import ColumnTotals, Traffic
from statebackend.objectstore import LocalStore
from statebackend.objectstore.scoped import ScopedStore

LATENCY_S: Final = 0.030
SIZES: Final = (200_000, 2_000_000, 20_000_000)
FIRST_VALUE_S: Final = 1.0
ALL_S: Final = 600.0
BATCH: Final = 33_000


def run(report: Report, *, keys: int = 0, rounds: int = 3) -> None:
    """Each size, or that of `keys`."""
    pa.array([0])  # which imports pandas, if it is there: imports do not count
    for count in (keys,) if keys else SIZES:
        with directory() as folder:
            figures_of("fill", folder, "runs", count)
            _measure(report, folder, count, rounds)


def _measure(report: Report, folder: Path, keys: int, rounds: int) -> None:
    figures: dict[str, list[str]] = {"by ranges": [], "whole first": []}

    def again(name: str, store: Callable[[Path], sb.abc.ObjectStore]) -> float:
        found = _figures(folder, keys, store)
        figures[name].append(", ".join(f"{what} {figure}" for what, figure in found.items()))
        return float(found["first value"].split()[0])

    turns = {"by ranges": partial(again, "by ranges", FarApart), "whole first": partial(again, "whole first", Far)}
    samples = report.contest("the first value on an empty host", "s", turns, rounds=rounds, keys=keys)
    for name, each in figures.items():
        for figure in each:
            print(f"  {keys:,} keys, {name}: {figure}", flush=True)
    sample = samples["by ranges"]
    report.add(
        Line(
            f"first value on an empty host, {keys:,} keys, store {1000 * LATENCY_S:.0f} ms away",
            f"at most {FIRST_VALUE_S:g} s",
            sample.median,
            "s",
            FIRST_VALUE_S,
            detail=f"{sample} s; whole first: {samples['whole first']} s; last round: {figures['by ranges'][-1]}",
        )
    )


class Far(ScopedStore):
    """A directory whose reads take `LATENCY_S`, counted."""

    def __init__(self, root: Path, counts: Counter[str] | None = None) -> None:
        super().__init__(LocalStore(root), "")
        self.root = root
        self.counts = Counter[str]() if counts is None else counts

    async def get(self, key: str) -> bytes:
        await anyio.sleep(LATENCY_S)
        return self._counted("wholes", await super().get(key))

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        await anyio.sleep(LATENCY_S)
        return self._counted("ranges", await super().get_range(key, offset, length))

    def _counted(self, what: str, data: bytes) -> bytes:
        self.counts[what] += 1
        self.counts["bytes"] += len(data)
        return data


class FarApart(Far):
    """One that look-ups can read."""

    @asynccontextmanager
    async def apart(self) -> AsyncGenerator[sb.abc.ObjectStore]:
        yield Far(self.root, self.counts)


def _figures(folder: Path, keys: int, open_store: Callable[[Path], Any]) -> Mapping[str, str]:
    """What an opening comes to, on a host of its own."""
    settings = settings_of(folder, "columns", table="runs", table_memory_bytes=256 << 20)
    store = open_store(Path(settings.primary.removeprefix("file://")))
    with tempfile.TemporaryDirectory(dir=folder) as host, _copies() as (began, ended):
        settings = msgspec.structs.replace(settings, local=(f"{host}/local",))
        begun = time.perf_counter()
        backend = sb.open_backend(settings, store=store)
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(backend) as opened:
            totals = ColumnTotals(opened)
            opened_s, opening = time.perf_counter() - begun, store.counts.copy()
            totals.first()
            first_s = time.perf_counter() - begun
            merging, before = time.perf_counter(), store.counts.copy()
            totals.merge(Traffic(keys).distinct(time.time_ns() % 1_000_000, min(BATCH, keys)))
            batch_s, batch = time.perf_counter() - merging, store.counts - before
            if began.is_set():
                assert ended.wait(ALL_S), "the copies do not come in"
            all_s = time.perf_counter() - begun
    return {
        "first value": f"{first_s:.3f} s",
        "opening": f"{opened_s:.3f} s, {_traffic(opening)}",
        "first batch": f"{batch_s:.3f} s, {_traffic(batch)} with what came in meanwhile",
        "all has come in after": f"{all_s:.3f} s, {_traffic(store.counts)}",
    }


def _traffic(counts: Counter[str]) -> str:
    return f"{counts['ranges']} ranges, {counts['wholes']} wholes, {counts['bytes'] / 1e6:.1f} MB"


@contextmanager
def _copies() -> Generator[tuple[threading.Event, threading.Event]]:
    """Set when the log says that copies come in, and that no more do."""
    began, ended = threading.Event(), threading.Event()

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("copies come in"):
                began.set()
            if record.getMessage().startswith("no more copies come in"):
                ended.set()

    logger, handler = logging.getLogger("statebackend._checkpoint.incoming_runs"), Listening()
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        yield began, ended
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
