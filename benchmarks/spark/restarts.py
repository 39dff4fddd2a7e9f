"""Kills a query with SIGKILL, and measures how long the next process takes for its first batch.

    python -m benchmarks.spark.restarts CONTESTANT FOLDER KEYS ROWS BATCHES

Runs the query over the files in FOLDER until it has caught up, and checks its totals. Prints the seconds from its start
to the end of its first batch, which is when Spark writes the file `commits/<batch>`.

Envelope. The JVM is cold in both. The driver restores its keys in a second, and executors do so in their first task.
Spark opens RocksDB and reads its changelog. We should not take longer.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.contest import Line, Report, ratio
from benchmarks.spark.contestants import ROCKSDB, by_table, native, on_executors
from benchmarks.spark.workload import TIMEOUT_S, Contestant, Workload, open_session
from benchmarks.totals import Traffic, check

NATIVE: Final = "Spark's aggregation"
CONTESTANTS: Final = {"driver": by_table(), "executors": on_executors(), NATIVE: native(ROCKSDB)}
LOOK_S: Final = 0.002


def run(report: Report, *, keys: int = 100_000, rows: int = 50_000, batches: int = 10, rounds: int = 3) -> None:
    """Seconds to the first batch, over Spark's own. Four minutes."""
    sizes = [str(number) for number in (keys, rows, batches)]
    with tempfile.TemporaryDirectory() as name:
        times_s = report.contest(
            "the first batch after SIGKILL, on Spark",
            "s",
            {each: partial(_restart, each, Path(name), sizes) for each in CONTESTANTS},
            rounds=rounds,
            keys=keys,
        )
    for each, sample in times_s.items():
        if each != NATIVE:
            found = ratio(sample, times_s[NATIVE])
            report.add(
                Line(
                    f"{keys:,} keys, killed in the middle of {batches} batches: the first batch, {each}, over Spark's",
                    "at most 1x",
                    found.median,
                    "x",
                    1.0,
                    detail=f"{found}; {sample} s beside {times_s[NATIVE]} s",
                )
            )


def _restart(name: str, folder: Path, sizes: list[str]) -> float:
    """Kill a process half way through the files, and time another one."""
    command = [sys.executable, "-m", "benchmarks.spark.restarts", name, str(folder), *sizes]
    commits = folder / "work" / "checkpoint" / "commits"
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as killed:
            _wait(lambda: killed.poll() is not None or (commits / str(int(sizes[-1]) // 2)).exists())
            os.killpg(killed.pid, signal.SIGKILL)
        found = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=TIMEOUT_S, text=True)
        return float(found.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(folder / "work")


def _wait(happened: Callable[[], bool]) -> None:
    begun = time.perf_counter()
    while not happened():
        if time.perf_counter() - begun > TIMEOUT_S:
            raise TimeoutError("the query makes no progress")
        time.sleep(LOOK_S)


def _run(name: str, contestant: Contestant, workload: Workload, work: Path) -> float:
    commits = work / "checkpoint" / "commits"
    work.mkdir(exist_ok=True)
    following = len([path for path in commits.glob("*") if path.name.isdigit()]) if commits.exists() else 0
    workload.source()
    begun = time.perf_counter()
    query = workload.start(contestant, work)
    _wait(lambda: (commits / str(following)).exists() or not query.isActive)
    seconds = time.perf_counter() - begun
    query.awaitTermination(TIMEOUT_S)
    assert contestant.totals is not None
    check(name, contestant.totals(workload.spark, work), workload.answer())
    return seconds


if __name__ == "__main__":
    each, folder, (keys, rows, batches) = sys.argv[1], Path(sys.argv[2]), map(int, sys.argv[3:])
    with open_session(folder) as spark:
        workload = Workload(spark, folder, Traffic(keys), rows, batches)
        print(_run(each, CONTESTANTS[each], workload, folder / "work"))
