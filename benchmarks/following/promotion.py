"""How long a takeover takes, beside a cold start from local copies on the same host.

Envelope. A promotion claims the job, asks what the end of the log is, and opens what a backend needs beside its state:
some ten requests of a millisecond on this disk, and no work that grows with the state. A cold start decodes the state:
a second for a million keys.
"""

import asyncio
import time
from functools import partial

import statebackend as sb
from benchmarks.contest import Line, Report, Sample
from benchmarks.following.job import declared, key, settings_of, write
from benchmarks.jobs import directory

LIMIT_MS = 200.0
FLAT = 3.0


def run(report: Report, *, keys: int = 1_000_000, rounds: int = 5) -> None:
    """Milliseconds until the heir may process its first batch. Three minutes."""
    promoted: dict[int, Sample] = {}
    for size in (keys // 100, keys // 10, keys):
        samples = report.contest(
            "until the next driver goes on",
            "ms",
            {"a follower": partial(_take_over, size, warm=True), "cold": partial(_take_over, size)},
            rounds=rounds,
            keys=size,
        )
        promoted[size] = samples["a follower"]
        report.add(
            Line(
                f"a follower of {size:,} keys is promoted",
                f"at most {LIMIT_MS:g} ms beyond the claim's requests",
                promoted[size].median,
                "ms",
                LIMIT_MS,
                detail=f"{promoted[size]} ms; cold, from local copies: {samples['cold']} ms",
            )
        )
    growth = promoted[keys].median / promoted[keys // 100].median
    report.add(Line(f"{keys:,} keys over {keys // 100:,}, promoted", f"at most {FLAT:g}x: flat", growth, "x", FLAT))


def _take_over(keys: int, *, warm: bool = False) -> float:
    return asyncio.run(_next_driver(keys, warm))


async def _next_driver(keys: int, warm: bool) -> float:
    with directory() as folder:
        settings = settings_of(folder)
        async with sb.open_backend(settings) as backend:
            write(declared(backend, "values"), "values", range(keys), 0)
            await backend.checkpoint(0)
        if not warm:
            begun_s = time.perf_counter()
            async with sb.open_backend(settings) as backend:
                return _milliseconds(backend, keys, begun_s)
        async with sb.follow(settings) as follower:
            begun_s = time.perf_counter()
            return _milliseconds(await follower.promote(), keys, begun_s)


def _milliseconds(backend: sb.StateBackend, keys: int, begun_s: float) -> float:
    state = declared(backend, "values")
    assert state[key(keys - 1)].miles == keys - 1
    return (time.perf_counter() - begun_s) * 1000
