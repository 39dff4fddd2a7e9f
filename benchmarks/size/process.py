"""What the benchmark starts: a process that works on one job, prints its figures, and kills itself.

python -m benchmarks.size.process fill|open|batches|memory|pressed|churn|fits FOLDER TABLE KEYS BATCHES|SECONDS
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

import statebackend as sb
from benchmarks.jobs import Bases, Job, open_job
from benchmarks.totals import TIME, ZIPF, Traffic

MiB: Final = 1 << 20
FILLED_AT_ONCE: Final = 500_000
MERGED_AT_ONCE: Final = 5_000_000
"""Keys that are written before they go into a layer or base, while the state is written."""
TAIL: Final = (10, 50_000)
"""Checkpoints behind the bases, and rows of each."""
LOOKED_UP: Final = 33_000
IN_OVERLAY: Final = 1_000_000
OVERLAY_ROW_BYTES: Final = 190
"""As `RunTable` counts a row, with the room that its arrays have for more."""
WARM: Final = 500_000
"""One batch for so many keys before those that are measured: nearly every page was read then."""
CHURN_MAX: Final = 3_000_000

SHORT_OF_MEMORY: Final = {"MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
"""As the how-to has it for small containers: freed memory can be given back, whichever thread took it."""
PRESSED_BYTES: Final = 32 * MiB
"""For rows, in a quarter of the state of 20,000,000 keys. With 48 a process was killed after 12 minutes."""

Figures = Mapping[str, Sequence[float]]


class Written(Bases):
    """How much was written, and for what."""

    def __init__(self) -> None:
        self.log_bytes = self.changes = 0
        self.merged_bytes = 0
        self.merged_s = 0.0

    def checkpoint_committed(self, info: sb.CheckpointInfo) -> None:
        self.log_bytes += info.primary_bytes
        self.changes += info.changes

    def materialized(self, *, key_groups: int, segments: int, size_bytes: int, seconds: float) -> None:
        self.merged_bytes += size_bytes
        self.merged_s += seconds
        super().materialized(key_groups=key_groups, segments=segments, size_bytes=size_bytes, seconds=seconds)

    @property
    def figures(self) -> Figures:
        """All of it."""
        return {
            "changes": [self.changes],
            "log bytes": [self.log_bytes],
            "merged bytes": [self.merged_bytes],
            "merged s": [self.merged_s],
        }


def figures_of(
    what: str, folder: Path, table: str, keys: int, number: int = 0, *, group: Path | None = None
) -> Figures:
    """What a process prints that does this. `group`: the file of the cgroup that it begins in, as a container would."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.size.process",
        what,
        str(folder),
        table,
        str(keys),
        str(number),
    ]
    environment = dict(os.environ)
    if group is not None:
        command = ["/bin/sh", "-c", 'echo 0 > "$0" && exec "$@"', str(group), *command]
        environment |= SHORT_OF_MEMORY
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
    assert ended.returncode == -signal.SIGKILL, "the process failed before it could kill itself"
    if not ended.stdout:
        raise MemoryError("the system killed the process")
    figures: Figures = json.loads(ended.stdout)
    return figures


# ---------------------------------------------------------------------------------------------------------- the traffic


def distinct(keys: int, number: int) -> Any:
    """A batch of distinct keys, each as likely as the others."""
    return Traffic(keys).distinct(number, min(LOOKED_UP, keys))


def by_zipf(keys: int, number: int) -> Any:
    """A batch by Zipf's law, which takes no memory for each key: the sum of all shares is nearly an integral."""
    chance = np.random.default_rng((keys, number))
    power = 1 - ZIPF
    rank = (chance.random(TAIL[1]) * (keys**power - 1) + 1) ** (1 / power)
    scattered = rank.astype(np.int64) * 2_654_435_761 % keys
    return Traffic(keys).of(scattered, number)


def timed(job: Job, batch: Any) -> float:
    """Milliseconds of a batch with its checkpoint."""
    begun = time.perf_counter()
    job.totals.merge(batch)
    job.checkpoint()
    return 1000 * (time.perf_counter() - begun)


# ------------------------------------------------------------------------------------------------------- what it can do


@contextmanager
def opened(folder: Path, table: str, memory: int, written: Written | None = None, **changes: Any) -> Iterator[Job]:
    """The job, whose table may take so much memory."""
    observer = Written() if written is None else written
    with open_job(folder, "columns", observer, table=table, table_memory_bytes=memory, **changes) as job:
        yield job


def fill(folder: Path, table: str, keys: int, _number: int) -> None:
    """All keys, some at a time, and then a tail of changes that no layer takes in."""
    written = Written()
    merged = {"materialize_changelog_changes_min": max(TAIL[0] * TAIL[1] + 1, min(keys, MERGED_AT_ONCE))}
    with opened(folder, table, 2048 * MiB, written, **merged) as job:
        for start in range(0, keys, FILLED_AT_ONCE):
            numbers = np.arange(start, min(keys, start + FILLED_AT_ONCE))
            timed(job, Traffic(keys).of(numbers, -1))
            job.bases.wait()
        for number in range(TAIL[0]):
            timed(job, Traffic(keys).rows(number, TAIL[1]))
            job.bases.wait()
        _check_keys(job, keys)
        _end(written.figures)


def first_value(folder: Path, table: str, _keys: int, _number: int) -> None:
    """Seconds until a key is read, and how many changes were replayed."""
    begun = time.perf_counter()
    with opened(folder, table, 256 * MiB) as job:
        job.totals.first()
        seconds = time.perf_counter() - begun
        report = job.backend.restored
        _end({"s": [seconds], "changes": [0 if report is None else report.changes]})


def batches(folder: Path, table: str, keys: int, number: int) -> None:
    """Batches of each kind, once every page was read."""
    with opened(folder, table, 256 * MiB) as job:
        for each in range(-(-keys // WARM)):
            timed(job, distinct(keys, 1000 + each))
        job.bases.wait()

        def alone(batch: Any) -> float:
            took = timed(job, batch)
            job.bases.wait()
            return took

        uniform = [alone(distinct(keys, 5000 + each)) for each in range(number)]
        zipf = [alone(by_zipf(keys, 7000 + each)) for each in range(2 * number)][number:]
        _check_keys(job, keys)
        _end({"uniform": uniform, "zipf": zipf})


def memory(folder: Path, table: str, keys: int, _number: int) -> None:
    """Own memory where a million rows fit into the overlay: those of the tail, and of batches that were looked up."""
    with opened(folder, table, IN_OVERLAY * OVERLAY_ROW_BYTES) as job:
        for each in range(min(keys, IN_OVERLAY) // LOOKED_UP + 1):
            timed(job, distinct(keys, 9000 + each))
            job.bases.wait()
        _end({"MB": [anonymous_mb()]})


def pressed(folder: Path, table: str, keys: int, number: int) -> None:
    """Batches of each kind, in turns, for so many seconds, in a process that is short of memory."""
    uniform, zipf = list[float](), list[float]()
    begun = time.perf_counter()
    with opened(folder, table, PRESSED_BYTES) as job:
        for each in range(1 << 30):
            uniform.append(timed(job, distinct(keys, 11_000 + each)))
            zipf.append(timed(job, by_zipf(keys, 11_000 + each)))
            if time.perf_counter() - begun > number:
                break
        memory = anonymous_mb()
        _check_keys(job, keys)
        _end({"uniform": uniform, "zipf": zipf, "MB": [memory]})


def churn(folder: Path, table: str, keys: int, _number: int) -> None:
    """Batches that change as many rows as there are keys, beside the merging that this asks for, and without."""
    written = Written()
    found: dict[bool, list[float]] = {True: [], False: []}
    with opened(folder, table, 256 * MiB, written) as job:
        for each in range(10):
            timed(job, distinct(keys, 20_000 + each))
        job.bases.wait()
        before = most = anonymous_mb()
        for each in range(min(keys, CHURN_MAX) // min(LOOKED_UP, keys)):
            batch = distinct(keys, 21_000 + each)
            is_beside = job.bases.in_progress
            took = timed(job, batch)
            if is_beside == job.bases.in_progress:  # from beginning to end
                found[is_beside].append(took)
            most = max(most, anonymous_mb())
        job.bases.wait()
        memory = {"MB": [before], "MB at most": [most]}
        _end({"alone": found[False], "beside": found[True], **memory, **written.figures})


def fits(folder: Path, table: str, keys: int, number: int) -> None:
    """Batches of distinct keys where every row is in memory, as long as it has room, or without such a bound."""
    bound = 2048 * MiB if table == "runs" else 0
    with opened(Path(tempfile.mkdtemp(dir=folder)), "heap", 128 * MiB, state_memory_bytes=bound) as job:
        for start in range(0, keys, FILLED_AT_ONCE):
            timed(job, Traffic(keys).of(np.arange(start, min(keys, start + FILLED_AT_ONCE)), -1))

        def alone(batch: Any) -> float:
            took = timed(job, batch)
            job.bases.wait()
            return took

        job.bases.wait()
        for each in range(5):
            alone(distinct(keys, 30_000 + each))
        _end({"uniform": [alone(distinct(keys, 30_005 + each)) for each in range(number)]})


def _check_keys(job: Job, keys: int) -> None:
    """One that was not found where it lies was added once more."""
    assert len(job.totals) == keys, f"{len(job.totals):,} keys where there are {keys:,}"


def anonymous_mb() -> float:
    """Memory that no file backs."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return float("nan")


TASKS: Final[Mapping[str, Callable[[Path, str, int, int], None]]] = {
    "fill": fill, "open": first_value, "batches": batches, "memory": memory, "pressed": pressed, "churn": churn,
    "fits": fits,
}  # fmt: skip


def _main(what: str, folder: str, table: str, keys: str, number: str) -> None:
    pa.array([0], TIME)  # which imports pandas, if it is there: imports do not count
    TASKS[what](Path(folder), table, int(keys), int(number))


def _end(figures: Figures) -> None:
    """Print them, and be killed while the job is open."""
    print(json.dumps(figures), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _main(*sys.argv[1:])
