"""Kills a query with SIGKILL, and measures how long the next process takes for its first batch.

    python -m benchmarks.spark.restarts CONTESTANT FOLDER FILES ROWS KEYS

Runs the query over the files in FOLDER until it has caught up. Prints the seconds from its start to the end of its
first batch, which is when Spark writes the file `commits/<batch>`.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.spark.contestants import Contestant, by_table, by_table_on_executors, sparks_own
from benchmarks.spark.workload import TIMEOUT_S, Workload, open_session

RESTARTED = {"driver": by_table, "executors": by_table_on_executors, "spark": sparks_own}
LOOK_S = 0.002


def seconds_to_first_batch(name: str, folder: Path, *, files: int, rows: int, keys: int) -> float:
    """Kill a process half way through the files, and time another one. `folder` is new, or contains only the files."""
    command = [sys.executable, "-m", "benchmarks.spark.restarts", name, str(folder), str(files), str(rows), str(keys)]
    commits = folder / "work" / "checkpoint" / "commits"
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as killed:
        _wait(lambda: killed.poll() is not None or (commits / str(files // 2)).exists())
        os.killpg(killed.pid, signal.SIGKILL)
    found = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=TIMEOUT_S, text=True)
    return float(found.stdout.splitlines()[-1])


def _wait(happened: Callable[[], bool]) -> None:
    begun = time.perf_counter()
    while not happened():
        if time.perf_counter() - begun > TIMEOUT_S:
            raise TimeoutError("the query makes no progress")
        time.sleep(LOOK_S)


def _run(contestant: Contestant, workload: Workload, work: Path) -> float:
    commits = work / "checkpoint" / "commits"
    work.mkdir(exist_ok=True)
    following = len([path for path in commits.glob("*") if path.name.isdigit()]) if commits.exists() else 0
    rows = workload.stream()
    begun = time.perf_counter()
    query = contestant(rows, work)
    _wait(lambda: (commits / str(following)).exists() or not query.isActive)
    seconds = time.perf_counter() - begun
    query.awaitTermination(TIMEOUT_S)
    return seconds


if __name__ == "__main__":
    folder, (files, rows, keys) = Path(sys.argv[2]), map(int, sys.argv[3:])
    with open_session(folder) as spark:
        workload = Workload(spark, folder, files=files, rows=rows, keys=keys)
        print(_run(RESTARTED[sys.argv[1]], workload, folder / "work"))
