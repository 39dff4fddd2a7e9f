"""Resident bytes of a key with three integers: in a dictionary, in a value state, in columns; keys included.

    python -m benchmarks state.memory --sizes keys=100000     in seconds

Envelope. A key of 11 characters is an object of 60 bytes, a tuple of three integers 64 and up to 96 for the integers,
and an entry of a dictionary 40 to 90: 213 and 240. A value state has the same key and entry, and bytes of 45 to 60 for
the tuple: 200. Columns have 24 bytes for the integers, 11 and an offset for the key, 8 for its hash, and a place in a
table that is between a half and three quarters full, with room to grow in each: 90.

Each in a process of its own, by what the kernel says is resident before and after.
"""

import ctypes
import gc
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.contest import Line, Report
from benchmarks.jobs import directory, open_job
from benchmarks.restore.memory import status_bytes
from benchmarks.totals import Traffic

AT_ONCE: Final = 50_000
DICTIONARY: Final = "dictionary"
EXPECTED: Final = {"columns": 90.0, "heap": 210.0}
NO_BASES: Final = {"materialize_interval_s": 0, "materialize_changelog_ratio": 0, "materialize_handles_max": 0}


def run(report: Report, *, keys: int = 1_000_000) -> None:
    """Bytes per key of each. Half a minute."""
    found = {kind: _in_child(kind, keys) for kind in (*EXPECTED, DICTIONARY)}
    for kind, limit in EXPECTED.items():
        report.add(
            Line(
                f"bytes per key, 3 integers, {keys:,} keys, {kind}",
                f"at most {limit:g}",
                found[kind],
                "bytes",
                limit,
                detail=f"as tuples in a dictionary {found[DICTIONARY]:.0f}",
            )
        )


def _in_child(kind: str, keys: int) -> float:
    command = [sys.executable, "-m", "benchmarks.state.memory", kind, str(keys)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _main(kind: str, keys: int) -> None:
    every_key = Traffic(keys).every_key()
    tables = [every_key.slice(first, AT_ONCE) for first in range(0, keys, AT_ONCE)]
    with ExitStack() as stack:
        folder = stack.enter_context(directory())
        job = stack.enter_context(open_job(folder, "heap" if kind == DICTIONARY else kind, **NO_BASES))
        totals: dict[str, tuple[int, int, int]] = {}
        before = 0
        for number, table in enumerate(tables):
            if number == 1:  # threads, and what libraries keep, are there by now
                before = _resident_bytes()
            if kind == DICTIONARY:
                totals.update(_tuples(table))
            else:
                job.totals.merge(table)
                job.checkpoint()
        print((_resident_bytes() - before) / (keys - AT_ONCE))


def _tuples(table: Any) -> Sequence[tuple[str, tuple[int, int, int]]]:
    numbers = zip(table["amount"].to_pylist(), pc.cast(table["at"], "int64").to_pylist(), strict=True)
    return [(key, (1, amount, at)) for key, (amount, at) in zip(table["key"].to_pylist(), numbers, strict=True)]


def _resident_bytes() -> int:
    """Without what the allocators keep for later."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    return status_bytes("VmRSS")


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
