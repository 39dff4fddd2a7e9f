"""48,800 changed keys of 1,000,000, both copies on one disk, beside `fsync` of as many bytes; and beside bases.

    python -m benchmarks checkpoint.disk --sizes keys=20000,rows=1000,checkpoints=4     in seconds

Envelope. The changes are 1.2 to 1.5 MB, compressed, twice: two files written and synced at once take 8 ms, and the
commit 2 to 5 ms more, in which the disk does what it likes. Draining a million-key heap for 48,800 changes is 5 ms of
bytes that are there already and 5 of hashing; encoding them takes 5, and zstd 4 on another thread: 33 ms in all.
RocksDB remembers what was touched, so it is the same and some copying: 38. Columns are sliced, narrowed and compressed
in a millisecond or two: 16. Flink does it in 38 ms, and in 50 with its local copy.

Bases are written in threads that share the interpreter with the checkpoints. What they do is in C, or in small steps,
so the slowest of a hundred checkpoints should take at most half as long again.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.contest import Line, Report, Sample, ratio
from benchmarks.jobs import KINDS, Job, directory, open_job
from benchmarks.totals import Traffic, answer, check

EXPECTED_MS: Final = {"heap": 33.0, "RocksDB": 38.0, "columns": 16.0}
SIZES: Final = (100_000, 1_000_000)
NEVER: Final = {"materialize_interval_s": 0, "materialize_changelog_ratio": 0, "materialize_handles_max": 0}
ALWAYS: Final = NEVER | {"materialize_handles_max": 1}
SLOWEST: Final = 0.99


class _Turns:
    """The checkpoints of one job, as many in each turn, and the time each took."""

    def __init__(self, job: Job, tables: Sequence[object], at_once: int, *, with_base: bool) -> None:
        self._job, self._tables, self._at_once, self._with_base = job, iter(tables), at_once, with_base
        self.times_ms: list[float] = []
        self.changes = self.size_bytes = 0

    def turn(self) -> float:
        """The median of its next checkpoints."""
        found: list[float] = []
        for _ in range(self._at_once):
            self._job.totals.merge(next(self._tables))
            alone = not self._job.bases.in_progress
            begun = time.perf_counter()
            info = self._job.checkpoint()
            took_ms = (time.perf_counter() - begun) * 1000
            self.changes, self.size_bytes = info.changes, info.primary_bytes
            if not (alone and self._with_base):
                found.append(took_ms)
        self._job.bases.wait()
        self.times_ms += found
        return statistics.median(found) if found else float("nan")


def run(report: Report, *, keys: int = 0, rows: int = 50_000, checkpoints: int = 120, rounds: int = 4) -> None:
    """The middle and the slowest of each kind of table, without bases and with, at each size or at `keys`."""
    for count in (keys,) if keys else SIZES:
        _measure(report, count, rows, checkpoints, rounds)


def _measure(report: Report, keys: int, rows: int, checkpoints: int, rounds: int) -> None:
    traffic, each = Traffic(keys), checkpoints // rounds
    tables = [traffic.rows(number, rows) for number in range(each * rounds)]
    with directory() as folder, ExitStack() as stack:
        turns: dict[str, _Turns] = {}
        jobs: dict[str, Job] = {}
        for kind in KINDS:
            for name, when in ((kind, NEVER), (f"{kind}, bases", ALWAYS)):
                jobs[name] = stack.enter_context(open_job(folder / name, kind, **when))
                jobs[name].totals.merge(traffic.every_key())
                jobs[name].checkpoint()
                turns[name] = _Turns(jobs[name], tables, each, with_base=when is ALWAYS)
        contestants: dict[str, Callable[[], float]] = {name: each.turn for name, each in turns.items()}
        contestants |= {f"{kind}, fsync": _fsync_of(folder, turns[kind]) for kind in KINDS}
        samples = report.contest("a checkpoint", "ms", contestants, rounds=rounds, keys=keys)
        expected = answer([traffic.every_key(), *tables])
        for name, job in jobs.items():
            check(name, job.totals.table(), expected)
    for kind in KINDS:
        _report(report, keys, kind, turns, samples)


def _report(report: Report, keys: int, kind: str, turns: Mapping[str, _Turns], samples: Mapping[str, Sample]) -> None:
    alone, beside = Sample(turns[kind].times_ms), Sample(turns[f"{kind}, bases"].times_ms)
    fsync = samples[f"{kind}, fsync"]
    report.add(
        Line(
            f"a checkpoint of {turns[kind].changes:,} of {keys:,} keys, both copies on one disk, {kind}, median",
            f"at most {EXPECTED_MS[kind]:g} ms",
            alone.median,
            "ms",
            EXPECTED_MS[kind],
            detail=f"{alone}, of each round {samples[kind]}; fsync of as many bytes ({turns[kind].size_bytes:,}) twice "
            f"{fsync}: {ratio(samples[kind], fsync)} of that",
        )
    )
    if not beside.figures:
        report.skip(f"{kind} writes its bases so fast that no checkpoint met one")
        return
    slowest, slowest_beside = alone.at(SLOWEST), beside.at(SLOWEST)
    report.add(
        Line(
            f"the same while bases are written, {kind}, over without: what 99 of 100 take at most",
            "at most 1.5x",
            slowest_beside / slowest,
            "x",
            1.5,
            detail=f"{slowest_beside:.3g} ms over {slowest:.3g} ms; medians {beside.median:.3g} ms over "
            f"{alone.median:.3g} ms; {len(beside.figures)} checkpoints beside bases",
        )
    )


def _fsync_of(folder: Path, turns: _Turns) -> Callable[[], float]:
    def measure() -> float:
        blob, times_ms = os.urandom(turns.size_bytes), list[float]()

        def write(name: str) -> None:
            with (folder / name).open("wb", buffering=0) as file:
                file.write(blob)
                os.fsync(file.fileno())

        with ThreadPoolExecutor(2) as pool:
            for _ in range(10):
                begun = time.perf_counter()
                list(pool.map(write, ("primary", "local")))
                times_ms.append((time.perf_counter() - begun) * 1000)
        return statistics.median(times_ms)

    return measure
