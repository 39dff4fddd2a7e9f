"""A checkpoint of 1,000 changed keys, at 10,000 and at 1,000,000 keys of state, with bases being written behind it.

Envelope. A checkpoint drains, encodes and uploads 1,000 changes of about 100 bytes, then commits: some 8 ms of CPU, and
two round trips of 20 ms, whatever lies in the state. What grows with the state is the base, which is written behind
the checkpoints; one thread of it competes with them for the interpreter. So the median should be equal, and the
ratio at most 1.3. The checkpoint at which a base is begun copies a reference for each key: 1,000,000 of them take
some 30 ms, of which the ratio of the slowest says something.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final

import anyio

import statebackend as sb
from benchmarks.contest import Line, Report, ratio
from statebackend.objectstore import MemoryStore
from statebackend.objectstore.scoped import ScopedStore
from statebackend.observers import Metrics
from statebackend.settings import UploadSettings

LATENCY_S: Final = 0.020
SMALL, LARGE = 10_000, 1_000_000
CHANGED = 1_000
CHECKPOINTS = 60
FILL = 50_000


class _Distant(ScopedStore):
    """Each request that a checkpoint makes takes a round trip of 20 ms."""

    def __init__(self, store: sb.ObjectStore) -> None:
        super().__init__(store, "")

    async def put(self, key: str, body: sb.abc.Body) -> None:
        await anyio.sleep(LATENCY_S)
        await super().put(key, body)

    async def put_if_absent(self, key: str, body: sb.abc.Body) -> None:
        await anyio.sleep(LATENCY_S)
        await super().put_if_absent(key, body)


def run(report: Report) -> None:
    """Medians against each other, with bases and without, and the slowest checkpoints of each."""
    slowest: dict[int, list[float]] = {SMALL: [], LARGE: []}
    written: dict[int, list[int]] = {SMALL: [], LARGE: []}

    def measure(keys: int) -> Callable[[], float]:
        def one() -> float:
            seconds, bases = anyio.run(_checkpoints, keys)
            slowest[keys].append(max(seconds))
            written[keys].append(bases)
            return statistics.median(seconds)

        return one

    samples = report.contest(
        "a checkpoint, bases on", "s", {"small": measure(SMALL), "large": measure(LARGE)}, rounds=3
    )
    compared = ratio(samples["large"], samples["small"])
    report.add(
        Line(
            f"checkpoint of {CHANGED:,} changed keys, {LARGE:,} keys of state over {SMALL:,}, bases on",
            "at most 1.3x",
            compared.median,
            "x",
            1.3,
            detail=f"seconds: large {samples['large']}, small {samples['small']}; bases begun in a run of "
            f"{CHECKPOINTS}: large {written[LARGE]}, small {written[SMALL]}",
        )
    )
    report.add(
        Line(
            "the slowest checkpoint of a run, the same way",
            "at most 5x: it copies a million references, and runs beside the base's encoding",
            statistics.median(slowest[LARGE]) / statistics.median(slowest[SMALL]),
            "x",
            5.0,
            detail=f"seconds: large {_rounded(slowest[LARGE])}, small {_rounded(slowest[SMALL])}",
        )
    )


async def _checkpoints(keys: int) -> tuple[Sequence[float], int]:
    """Seconds of each checkpoint, and how often bases were begun meanwhile."""
    settings = sb.Settings(
        job="bench",
        primary="memory://unused",
        persist_delay_s=0.0,
        preemptive_persist_threshold_bytes=200 * 2**20,
        materialize_handles_max=10,
        materialize_interval_s=0,
        materialize_changelog_ratio=0,
        upload=UploadSettings(timeout_s=0.0),
    )
    metrics, chance, seconds = Metrics(), random.Random(keys), list[float]()
    async with sb.open_backend(settings, store=_Distant(MemoryStore()), observer=metrics) as backend:
        state = backend.value_state("text", str)
        for first in range(0, keys, FILL):
            state.update(
                {f"key {number:07d}": f"{'x' * 60} {number}" for number in range(first, min(keys, first + FILL))}
            )
        await backend.checkpoint(0)
        for checkpoint_id in range(1, CHECKPOINTS + 1):
            for _ in range(CHANGED):
                number = chance.randrange(keys)
                state[f"key {number:07d}"] = f"{chance.random()} {'y' * 50}"
            begun = time.perf_counter()
            await backend.checkpoint(checkpoint_id)
            seconds.append(time.perf_counter() - begun)
        return seconds, metrics.started_materializations


def _rounded(figures: Sequence[float]) -> Sequence[float]:
    return [round(figure, 3) for figure in figures]
