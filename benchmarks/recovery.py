"""From SIGKILL to state again: 1,000,000 keys and half a minute of changes since the last base, by default settings.

    python -m benchmarks recovery --sizes keys=20000,rows=1000,seconds=4,pause_ms=0     in seconds
    python -m benchmarks.recovery fill|again FOLDER KIND KEYS ROWS SECONDS PAUSE_MS     what it starts

A process writes all keys, then a checkpoint of 48,800 of them each second, and kills itself after the thirtieth. The
next one is measured from before it opens the job until it has read a key; it kills itself too, and leaves the same work
to the one after it. All kinds are filled at the same time, and take turns after that.

Envelope. Bases are due by what there is to replay, so of 1.46 million changes most are in a base by then. A heap's base
is decoded into a dictionary: half a second for a million keys, which alone take 0.2 in a dictionary of bytes; and as
much for the changes since: 1.0 s. RocksDB links its files, and what is left is a few seconds of log: 0.6 s. Columns are
read as they are, the table of places included: 0.3 s. Flink takes 2.8 s with its heap, 0.9 to 1.2 with RocksDB.
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

from benchmarks.contest import Line, Report
from benchmarks.jobs import KINDS, directory, open_job
from benchmarks.totals import Traffic, answer, check

SIZES: Final = (100_000, 1_000_000)
EXPECTED_S: Final = {"heap": 1.0, "RocksDB": 0.6, "columns": 0.3}


def run(
    report: Report,
    *,
    keys: int = 0,
    rows: int = 50_000,
    seconds: int = 30,
    pause_ms: int = 1000,
    rounds: int = 3,
) -> None:
    """Seconds of each kind of table from before the job is opened to the first value, at each size or at `keys`."""
    for count in (keys,) if keys else SIZES:
        _measure(report, count, rows, seconds, pause_ms, rounds)


def _measure(report: Report, keys: int, rows: int, seconds: int, pause_ms: int, rounds: int) -> None:  # noqa: PLR0917
    sizes = [str(number) for number in (keys, rows, seconds, pause_ms)]
    with directory() as folder:
        filling = [_start("fill", folder / kind, kind, sizes) for kind in KINDS]
        for process in filling:
            _ended(process)
        times_s = report.contest(
            "recovery after SIGKILL",
            "s",
            {kind: partial(_again, folder / kind, kind, sizes) for kind in KINDS},
            rounds=rounds,
            keys=keys,
        )
    for kind, sample in times_s.items():
        report.add(
            Line(
                f"recovery after SIGKILL, {keys:,} keys and {seconds} s of log, {kind}",
                f"at most {EXPECTED_S[kind]:g} s",
                sample.median,
                "s",
                EXPECTED_S[kind],
                detail=f"{sample} s",
            )
        )


def _start(what: str, folder: Path, kind: str, sizes: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.recovery", what, str(folder), kind, *sizes]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _ended(process: subprocess.Popen[str]) -> str:
    printed, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, "the process failed before it could kill itself"
    return printed


def _again(folder: Path, kind: str, sizes: list[str]) -> float:
    return float(_ended(_start("again", folder, kind, sizes)))


def _die() -> None:
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def _main(what: str, folder: Path, kind: str, sizes: Sequence[int]) -> None:
    keys, rows, seconds, pause_ms = sizes
    traffic = Traffic(keys)
    pa.array([0])  # which imports pandas, if it is there: imports do not count
    begun = time.perf_counter()
    with open_job(folder, kind) as job:
        if what == "fill":
            job.totals.merge(traffic.every_key())
            job.checkpoint()
            for number in range(seconds):
                begun = time.perf_counter()
                job.totals.merge(traffic.rows(number, rows))
                job.checkpoint()
                time.sleep(max(0.0, begun + pause_ms / 1000 - time.perf_counter()))
        else:
            job.totals.first()
            print(time.perf_counter() - begun)
            expected = answer([traffic.every_key(), *(traffic.rows(number, rows) for number in range(seconds))])
            check(kind, job.totals.table(), expected)
        _die()


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], [int(size) for size in sys.argv[4:]])
