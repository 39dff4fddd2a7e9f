"""A job in memory, on a clock that is set by hand, and what of it must be there."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import statebackend as sb
from statebackend._codec.commit import Commit, decode_entry
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fault, FaultyStore
from tests.committed import stand_on
from tests.knobs import replaced, settings_with

JOB = "swept"


SETTINGS = settings_with(
    job=JOB,
    primary="memory://unused",
    persist_delay_s=0.0,
    inline_bytes_max=0,
    upload__retry_delay_s=0.0,
    max_parallelism=2,
    checkpoints_retained=2,
)
HOUR_S = 3600.0


class HandClock:
    """Stands still unless somebody moves it."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s


class Job:
    """One job, its store, and the time of both the store and everybody who uses it."""

    def __init__(self, **changes: Any) -> None:
        self.clock = HandClock()
        self.store = MemoryStore(clock=self.clock)
        self.settings = replaced(SETTINGS, **changes)

    @asynccontextmanager
    async def backend(self, *faults: Fault, **options: Any) -> AsyncGenerator[sb.StateBackend]:
        """The job, opened."""
        store = FaultyStore(self.store, faults)
        async with sb.open_backend(self.settings, store=store, clock=self.clock, **options) as backend:
            yield backend

    async def commit(self, *values: int, **options: Any) -> None:
        """Open the job, and commit each of these values under the next id."""
        async with self.backend(**options) as backend:
            for value in values:
                await put(backend, value)

    async def read(self, **options: Any) -> Any:
        """The value as a fresh process finds it."""
        async with self.backend(read_only=True, **options) as backend:
            return backend.value_state("n", int).get("k")

    async def sweep(self, *faults: Fault, dry_run: bool = False, min_age_s: float = 0.0) -> sb.reports.SweepReport:
        store = FaultyStore(self.store, faults)
        return await sb.sweep(self.settings, dry_run=dry_run, min_age_s=min_age_s, store=store, clock=self.clock)

    def pass_time(self, seconds: float = HOUR_S) -> None:
        self.clock.now_s += seconds

    async def keys(self, prefix: str = "") -> list[str]:
        """What lies under the job, by keys that are seen from there."""
        return [info.key.removeprefix(f"{JOB}/") async for info in self.store.list(f"{JOB}/{prefix}")]

    async def commits(self) -> dict[int, Commit]:
        """The commits that are there, by checkpoint id."""
        found: dict[int, Commit] = {}
        for key in await self.keys("commits/"):
            entry = decode_entry(await self.store.get(f"{JOB}/{key}"), key, job=JOB)
            if isinstance(entry, Commit):
                found[entry.checkpoint_id] = entry
        return found


async def put(backend: sb.StateBackend, value: int, **options: Any) -> None:
    """Commit one value under the next id."""
    backend.value_state("n", int)["k"] = value
    await backend.checkpoint(backend.next_checkpoint_id, **options)


def forget(backend: sb.StateBackend) -> None:
    """The next commit points into nothing that earlier ones do: what materializing leaves behind."""
    stand_on(backend)
