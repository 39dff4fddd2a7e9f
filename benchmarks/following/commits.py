"""From a commit to the answer of a follower that looks every 100 ms, and what it asks the store for.

Envelope. Half a look on average, at most one, until the entry is seen. Then three requests of a millisecond on this
disk, 50,000 changes decoded on a thread, and applied in pieces: 0.3 us for each to find, keep and set an entry in a
dictionary, which is 15 ms. Columns take a third of that.
"""

import asyncio
import time
from collections import Counter
from typing import Any

import statebackend as sb
from benchmarks.contest import Line, Report, Sample
from benchmarks.following.job import KINDS, declared, settings_of, working
from benchmarks.jobs import directory
from statebackend.objectstore import LocalStore
from statebackend.testing import FaultyStore

LOOK_S = 0.1
LIMIT_MS = LOOK_S * 1000 + 20


class Applied(sb.Observer):
    """Notes when commits were applied."""

    def __init__(self) -> None:
        self.moments_s: list[float] = []
        self.seconds: list[float] = []

    def commits_followed(self, commits: int, *, changes: int, size_bytes: int, seconds: float) -> None:
        self.moments_s += [time.monotonic()] * commits
        self.seconds.append(seconds)


def run(report: Report, *, keys: int = 1_000_000, changes: int = 50_000, commits: int = 20) -> None:
    """Milliseconds from the end of a checkpoint to the answer, and requests. Two minutes."""
    samples: dict[str, Sample] = {}
    for kind in KINDS:
        delays_ms, applying_ms, requests, read = asyncio.run(_follow(kind, keys, changes, commits))
        samples[kind] = Sample(delays_ms)
        report.add(
            Line(
                f"from a commit of {changes:,} of {keys:,} keys to a follower's answer, {kind}, looking every 100 ms",
                f"at most {LIMIT_MS:g} ms",
                max(delays_ms),
                "ms",
                LIMIT_MS,
                detail=f"{samples[kind]} ms; read and applied in {Sample(applying_ms)} ms",
            )
        )
        report.add(
            Line(
                f"requests of a look that finds nothing, {kind}",
                "one GET, and at most 1 % of other requests to find the end of the log now and then",
                requests,
                "requests",
                1.1,
            )
        )
        report.add(Line(f"bytes read of the changes, {kind}", "once what was written", read, "x", 1.01))
    report.keep("from a commit to a follower's answer", "ms", samples, keys=keys, changes=changes)


async def _follow(kind: str, keys: int, changes: int, commits: int) -> tuple[list[float], list[float], float, float]:
    with directory() as folder, working(folder, kind, keys=keys, changes=changes, commits=commits, every_s=1.0) as job:
        settings, applied = settings_of(folder), Applied()
        store: Any = FaultyStore(LocalStore(folder / "primary"))
        async with sb.follow(settings, every_s=LOOK_S, observer=applied, store=store) as follower:
            state = declared(follower, kind)
            store.calls.clear()
            job.go_on()
            said = await asyncio.to_thread(job.said)
            await follower.wait_for(batch_id=commits, timeout_s=60)
            assert len(state) == keys
            position, calls = follower.position, list(store.calls)
            store.calls.clear()
            await asyncio.sleep(100 * LOOK_S)  # an idle job
            idle = Counter(operation for operation, _ in store.calls)
    assert position.jumps == 0
    assert len(calls) > commits
    delays_ms = [(at - moment) * 1000 for at, (moment, _) in zip(applied.moments_s, said, strict=True)]
    written = sum(size for _, size in said)
    applying_ms = [each * 1000 for each in applied.seconds]
    return delays_ms, applying_ms, sum(idle.values()) / idle["get"], position.size_bytes / written
