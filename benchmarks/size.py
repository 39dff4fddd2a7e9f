"""Columns in memory and over runs, as the state grows: opening after SIGKILL, batches with checkpoints, own memory.

    python -m benchmarks size --sizes keys=100000,batches=5,rounds=1       in a minute
    python -m benchmarks size --sizes keys=60000000                        over runs alone: more than memory takes
    python -m benchmarks.size fill|again FOLDER TABLE KEYS BATCHES         what it starts

A process writes all keys and then ten checkpoints of 50,000 rows, and kills itself. The next one is measured from
before it opens the job until it has read a key. Then come batches of 33,000 distinct keys, uniform, and of 50,000 rows
by Zipf's law, each with its checkpoint; and its anonymous memory at the end, which no file backs.

Envelope. In memory 20,000,000 keys open in 8.6 s and take 1.7 GB, a batch 24 ms. Over runs an opening reads the heads
of segments and the tail: 0.5 s whatever the size. A page is read by a system call of 2 to 3 us, and proved in 1.4 when
it is new: 33,000 of them are 100 ms at first, and 70 once they are proved, beside what a batch takes in memory.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa

from benchmarks.contest import Line, Report, Sample
from benchmarks.jobs import Job, directory, open_job
from benchmarks.totals import Traffic

SIZES: Final = (10_000, 100_000, 1_000_000, 2_000_000, 20_000_000)
IN_MEMORY_MAX: Final = 20_000_000
TABLES: Final = {"in memory": "heap", "over runs": "runs"}
FILLED_AT_ONCE: Final = 500_000
TAIL: Final = (10, 50_000)
"""Checkpoints behind the base, and rows of each."""
FILL_BYTES: Final = 2 << 30
"""Memory of the overlay while the keys are written: fewer bases. What is measured has 256 MiB."""
FIGURES: Final = ("opening", "uniform", "zipf", "memory")
EXPECTED: Final = {
    ("opening", "over runs"): ("s", 0.5),
    ("uniform", "over runs"): ("ms", 40.0),
    ("zipf", "over runs"): ("ms", 36.0),
    ("memory", "over runs"): ("MB", 300.0),
}


def run(report: Report, *, keys: int = 0, batches: int = 20, rounds: int = 3) -> None:
    """Each figure of both tables, at each size or at `keys`."""
    for count in (keys,) if keys else SIZES:
        _measure(report, count, batches, rounds)


def _measure(report: Report, keys: int, batches: int, rounds: int) -> None:
    tables = {name: table for name, table in TABLES.items() if table == "runs" or keys <= IN_MEMORY_MAX}
    found: dict[str, list[list[float]]] = {name: [] for name in tables}

    def again(folder: Path, name: str) -> float:
        figures = [float(each) for each in _ended("again", folder, tables[name], keys, batches).split()]
        found[name].append(figures)
        return figures[0]

    with directory() as folder:
        for name, table in tables.items():
            _ended("fill", folder / name, table, keys, batches)
        turns = {name: partial(again, folder / name, name) for name in tables}
        report.contest("opening by size", "s", turns, rounds=rounds, keys=keys)
    for name in tables:
        for number, what in enumerate(FIGURES):
            if (expected := EXPECTED.get((what, name))) is not None:
                unit, limit = expected
                sample = Sample([figures[number] for figures in found[name]])
                claim = f"{what}, {keys:,} keys, {name}"
                report.add(
                    Line(claim, f"at most {limit:g} {unit}", sample.median, unit, limit, detail=f"{sample} {unit}")
                )
            else:
                figures = Sample([each[number] for each in found[name]])
                print(f"  {what}, {keys:,} keys, {name}: {figures}", flush=True)


def _ended(what: str, folder: Path, table: str, keys: int, batches: int) -> str:
    command = [sys.executable, "-m", "benchmarks.size", what, str(folder), table, str(keys), str(batches)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, "the process failed before it could kill itself"
    return ended.stdout


def _fill(job: Job, traffic: Traffic, keys: int) -> None:
    whole = traffic.every_key()
    for start in range(0, keys, FILLED_AT_ONCE):
        job.totals.merge(whole.slice(start, FILLED_AT_ONCE))
        job.checkpoint()
        job.bases.wait()
    for number in range(TAIL[0]):
        job.totals.merge(traffic.rows(number, TAIL[1]))
        job.checkpoint()
        job.bases.wait()


def _batches_ms(job: Job, rows: Sequence[pa.Table]) -> float:
    times: list[float] = []
    for table in rows:
        begun = time.perf_counter()
        job.totals.merge(table)
        job.checkpoint()
        times.append(1000 * (time.perf_counter() - begun))
        job.bases.wait()
    return Sample(times).median


def _anonymous_mb() -> float:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def _main(what: str, folder: Path, table: str, keys: int, batches: int) -> None:
    traffic = Traffic(keys)
    pa.array([0])  # which imports pandas, if it is there: imports do not count
    memory = FILL_BYTES if what == "fill" else 256 << 20
    begun = time.perf_counter()
    with open_job(folder, "columns", table=table, table_memory_bytes=memory) as job:
        if what == "fill":
            _fill(job, traffic, keys)
        else:
            job.totals.first()
            opened_s = time.perf_counter() - begun
            count, first = min(33_000, keys), time.time_ns() % 1_000_000  # other keys each time
            uniform = _batches_ms(job, [traffic.distinct(first + number, count) for number in range(batches)])
            drawn = Traffic(keys, zipf=True)
            zipf = _batches_ms(job, [drawn.rows(first + number, 50_000) for number in range(batches)])
            print(opened_s, uniform, zipf, _anonymous_mb(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
