"""Ten hours of a job in a few minutes: a batch each 10 ms, all upkeep on, and nothing may grow.

    nox -s soak -- --minutes 10

The job's clock runs faster than the wall's, and so does that of its store, which dates the objects: an hour of the job
is a tenth of the run, however long that is. Entries of the log are kept for such an hour, and swept once in each.
Bases, sweeps, pruning and both copies work as they do by default.

What is measured is drawn over time: the files and bytes of both copies, the bytes of the newest commit, the memory,
descriptors and threads of the process, and the time to open the job beside the one that works. By the second quarter of
the run everything has come to stay; the command fails if the last quarter needs more.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import anyio

import statebackend as sb
from statebackend.abc import ObjectInfo
from statebackend.objectstore import LocalStore

HOURS: Final = 10
SAMPLES: Final = 40
BATCH_S: Final = 0.010
KEYS: Final = 1_000
KEYS_PER_BATCH: Final = 10
OPENINGS: Final = 3
"""Of which the fastest counts: other work on the machine only adds to the rest."""
BARS: Final = " ▁▂▃▄▅▆▇█"


class FastClock:
    """A clock that runs `speed` times as fast as the wall's, from now on."""

    def __init__(self, speed: float) -> None:
        self.speed: Final = speed
        self._begun_s = time.time()

    def time(self) -> float:
        """Seconds since the Unix epoch, in the job's time."""
        return self.of_wall(time.time())

    def monotonic(self) -> float:
        """Seconds of the job's time."""
        return time.monotonic() * self.speed

    def of_wall(self, wall_s: float) -> float:
        """The job's time at that moment of the wall's."""
        return self._begun_s + (wall_s - self._begun_s) * self.speed


class DatedStore(LocalStore):
    """A store whose objects are dated by the job's clock."""

    def __init__(self, directory: Path, clock: FastClock) -> None:
        super().__init__(directory)
        self._clock = clock

    async def head(self, key: str) -> ObjectInfo | None:
        """As the store."""
        info = await super().head(key)
        return None if info is None else self._dated(info)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """As the store."""
        async for info in super().list(prefix):
            yield self._dated(info)

    def _dated(self, info: ObjectInfo) -> ObjectInfo:
        return ObjectInfo(info.key, info.size_bytes, self._clock.of_wall(info.modified_s))


@dataclass(frozen=True)
class Sample:
    """What the job takes at one moment."""

    batches: int
    primary_files: int
    primary_bytes: int
    local_files: int
    local_bytes: int
    commit_bytes: int
    memory_bytes: int
    descriptors: int
    threads: int
    opening_ms: float


SLACK: Final = {
    "primary_files": 64,
    "primary_bytes": 1 << 20,
    "local_files": 64,
    "local_bytes": 1 << 20,
    "commit_bytes": 4 << 10,
    "memory_bytes": 16 << 20,
    "descriptors": 8,
    "threads": 4,
    "opening_ms": 50,
}
"""What the last quarter may need more than the second, besides a quarter of it: waves, and a busy machine."""


def grown(samples: Sequence[Sample]) -> dict[str, tuple[float, float]]:
    """What has grown from the second quarter of the run to the last, by name: the medians of both larger halves."""
    quarter = len(samples) // 4
    found: dict[str, tuple[float, float]] = {}
    for name, slack in SLACK.items():
        values = [float(getattr(sample, name)) for sample in samples]
        before, after = _high(values[quarter : 2 * quarter]), _high(values[-quarter:])
        if after > 1.25 * before + slack:
            found[name] = before, after
    return found


def drawn(samples: Sequence[Sample]) -> list[str]:
    """A line per figure: its smallest and largest value, and its course."""
    lines: list[str] = []
    for field in fields(Sample):
        values = [float(getattr(sample, field.name)) for sample in samples]
        top = max(values) or 1.0
        course = "".join(BARS[round(value / top * (len(BARS) - 1))] for value in values)
        lines.append(f"{field.name:<14}{min(values):>14,.0f}{max(values):>14,.0f}  {course}")
    return lines


async def soak(directory: Path, *, minutes: float, tell: Callable[[Sample], None] = lambda _: None) -> list[Sample]:
    """Run the job in `directory`, and measure it `SAMPLES` times."""
    clock = FastClock(HOURS * 60 / minutes)
    store = DatedStore(directory / "primary", clock)
    settings = sb.Settings(
        job="soak",
        primary=f"file://{directory}/primary",
        local=(f"{directory}/local",),
        sweep_interval_s=3600.0 / clock.speed,
    )
    samples: list[Sample] = []
    batch, begun_s = 0, time.monotonic()
    async with sb.open_backend(settings, store=store, clock=clock) as backend:
        totals = backend.value_state("totals", int)
        while len(samples) < SAMPLES:
            for number in range(KEYS_PER_BATCH):
                key = (batch * KEYS_PER_BATCH + number) * 7919 % KEYS
                totals[key] = totals.get(key, 0) + 1
            info = await backend.checkpoint(batch)
            batch += 1
            if time.monotonic() - begun_s >= (len(samples) + 1) * minutes * 60 / SAMPLES:
                opening_s = [await _opening_s(settings, store, clock) for _ in range(OPENINGS)]
                samples.append(_sample(directory, batch, info, min(opening_s)))
                tell(samples[-1])
            await anyio.sleep(max(0.0, begun_s + batch * BATCH_S - time.monotonic()))
    async with sb.open_backend(settings, store=store, clock=clock, read_only=True) as backend:
        assert sum(backend.value_state("totals", int).values()) == batch * KEYS_PER_BATCH, "lost or doubled"
    return samples


async def _opening_s(settings: sb.Settings, store: sb.ObjectStore, clock: FastClock) -> float:
    begun_s = time.perf_counter()
    async with sb.open_backend(settings, store=store, clock=clock, read_only=True):
        return time.perf_counter() - begun_s


def _sample(directory: Path, batch: int, info: sb.CheckpointInfo, opening_s: float) -> Sample:
    primary, local = _size(directory / "primary"), _size(directory / "local")
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    figures = {line.partition(":")[0]: line.split()[1] for line in status if line.startswith(("VmRSS", "Threads"))}
    return Sample(
        batches=batch,
        primary_files=primary[0],
        primary_bytes=primary[1],
        local_files=local[0],
        local_bytes=local[1],
        commit_bytes=info.primary_bytes,
        memory_bytes=int(figures["VmRSS"]) * 1024,
        descriptors=len(list(Path("/proc/self/fd").iterdir())),
        threads=int(figures["Threads"]),
        opening_ms=opening_s * 1e3,
    )


def _size(directory: Path) -> tuple[int, int]:
    """Files below a directory, and their bytes."""
    sizes: list[int] = []
    for path, _, names in os.walk(directory):
        for name in names:
            try:
                sizes.append(Path(path, name).stat().st_size)
            except FileNotFoundError:  # swept, or pruned
                continue
    return len(sizes), sum(sizes)


def _high(values: Sequence[float]) -> float:
    return statistics.median(sorted(values)[len(values) // 2 :])


def main() -> None:
    """Soak, draw, and fail if something has grown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    minutes = parser.parse_args().minutes

    def tell(sample: Sample) -> None:
        print(*(f"{field.name}={getattr(sample, field.name):,.0f}" for field in fields(Sample)), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        samples = anyio.run(lambda: soak(Path(folder), minutes=minutes, tell=tell))
    print(*drawn(samples), sep="\n")
    if found := grown(samples):
        raise SystemExit(f"grown, from the second quarter to the last: {found}")
    print(f"flat: {samples[-1].batches:,} batches")


if __name__ == "__main__":
    main()
