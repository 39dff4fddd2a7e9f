"""The job that is followed, in a process of its own: it commits changes at a steady pace, and says when it has.

    python -m benchmarks.following.job FOLDER KIND KEYS CHANGES COMMITS EVERY_S

The first commit has every key. A line for each commit: its batch, the monotonic time, and the bytes of its changes.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

import statebackend as sb

COLUMNS: Final = pa.schema({"legs": pa.int64(), "miles": pa.int64(), "at": pa.string()})
KINDS: Final = ("values", "columns")


class Leg(msgspec.Struct):
    """The value of a key."""

    legs: int
    miles: int
    at: str


def settings_of(folder: Path) -> sb.Settings:
    """Both copies in the folder."""
    return sb.Settings(job="fleet", primary=f"file://{folder}/primary", local=(f"{folder}/local",))


def declared(states: Any, kind: str) -> Any:
    """The state of the job, in a backend or in a follower."""
    if kind == "columns":
        return states.columnar_state("fleet", COLUMNS, key=pa.string())
    return states.value_state("fleet", Leg)


def key(number: int) -> str:
    """A key of the job."""
    return f"N{number}"


def write(state: Any, kind: str, numbers: Sequence[int], batch: int) -> None:
    """Write a row of these keys."""
    names = list(map(key, numbers))
    if kind == "columns":
        columns = [pa.array([batch] * len(names)), pa.array(numbers, pa.int64()), pa.array(["EWR"] * len(names))]
        state.rows(pa.array(names)).scatter(pa.RecordBatch.from_arrays(columns, schema=COLUMNS))
    else:
        state.put_many(names, [Leg(batch, number, "EWR") for number in numbers])


async def work(folder: Path, kind: str, sizes: Sequence[str]) -> None:
    """Be the job."""
    keys, changes, commits = map(int, sizes[:3])
    chance = np.random.default_rng(keys)
    async with sb.open_backend(settings_of(folder)) as backend:
        state = declared(backend, kind)
        for batch in range(commits + 1):
            numbers = range(keys) if batch == 0 else chance.choice(keys, changes, replace=False).tolist()
            write(state, kind, numbers, batch)
            info = await backend.checkpoint(batch, source=sb.SourceMark("query", batch))
            print(batch, time.monotonic(), info.primary_bytes, flush=True)
            if batch == 0:
                sys.stdin.readline()  # until the follower is there
            await asyncio.sleep(float(sizes[3]))


@contextmanager
def working(folder: Path, kind: str, **sizes: float) -> Generator["Job"]:
    """The job, which waits behind its first commit until it is told to go on."""
    numbers = [str(sizes[name]) for name in ("keys", "changes", "commits", "every_s")]
    command = [sys.executable, "-m", "benchmarks.following.job", str(folder), kind, *numbers]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Job(process)
        finally:
            process.kill()


class Job:
    """The process of the job."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout
        if not self._out.readline():
            raise RuntimeError("the job did not begin")

    def go_on(self) -> None:
        """Make the other commits."""
        self._in.write("\n")
        self._in.flush()

    def said(self) -> list[tuple[float, int]]:
        """The moment of each commit but the first, and its bytes. Waits for the end of the job."""
        lines = [line.split() for line in self._out]
        return [(float(moment), int(size)) for _, moment, size in lines]


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
