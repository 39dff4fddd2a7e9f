"""Point reads of a follower, in its process: a value under 2 us, a row of three columns under 5 us.

Envelope. A value is a look at the follower, a lookup in a dictionary, and a decoding of a small struct: half a
microsecond. A row is a hash of the key, two lookups in arrays for its place and its key, and one for each column, each
of which makes a Python object: three to four.
"""

import asyncio
import random
import time
from functools import partial

import statebackend as sb
from benchmarks.contest import Line, Report
from benchmarks.following.job import KINDS, declared, key, settings_of, write
from benchmarks.jobs import directory

READS = 100_000
LIMITS_US = {"values": 2.0, "columns": 5.0}


def run(report: Report, *, keys: int = 1_000_000, rounds: int = 5) -> None:
    """Microseconds of CPU for a read, of keys in no order. A minute."""
    samples = report.contest(
        "a read of one key from a follower",
        "us",
        {kind: partial(_measure, kind, keys) for kind in KINDS},
        rounds=rounds,
        keys=keys,
    )
    for kind, sample in samples.items():
        limit = LIMITS_US[kind]
        claim = f"one of {keys:,} keys read from a follower, {kind}"
        report.add(Line(claim, f"at most {limit:g} us", sample.median, "us", limit, detail=f"{sample} us"))


def _measure(kind: str, keys: int) -> float:
    return asyncio.run(_read(kind, keys))


async def _read(kind: str, keys: int) -> float:
    names = [key(number) for number in random.Random(keys).choices(range(keys), k=READS)]
    with directory() as folder:
        async with sb.open_backend(settings_of(folder)) as backend:
            write(declared(backend, kind), kind, range(keys), 0)
            await backend.checkpoint(0)
        async with sb.follow(settings_of(folder)) as follower:
            state = declared(follower, kind)
            assert state[names[0]]
            begun_s = time.process_time()
            for name in names:
                state[name]
            return (time.process_time() - begun_s) / READS * 1e6
