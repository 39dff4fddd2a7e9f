"""A primary far away, whose requests are counted, and which may damage what it answers; jobs that find no copies."""

import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

import statebackend as sb
from statebackend._codec.change_sets.paged_changes import is_paged
from statebackend._codec.segment import decode_segment
from statebackend._runs.far_pages import FarRange
from statebackend.errors import ObjectNotFoundError
from statebackend.objectstore import MemoryStore
from statebackend.testing.virtual_time import VirtualClock
from tests.runs.test_jobs_over_runs import Job

LATENCY_S = 0.03


class FarPrimary(MemoryStore):
    """Each request takes `LATENCY_S` of virtual time."""

    latency_s = LATENCY_S

    def __init__(self) -> None:
        super().__init__()
        self.ranges: list[FarRange] = []
        """Parts of segments that were asked for."""
        self.wholes: list[str] = []
        """Segments with pages that were asked for."""
        self.most_at_once = 0
        self.damage: Callable[[FarRange, bytes], bytes] = lambda _, data: data
        self.gate: anyio.Event | None = None
        """Whole segments with pages come when it is set."""
        self.error: Callable[[FarRange], None] = lambda _: None
        self._under_way = 0

    async def get(self, key: str) -> bytes:
        if not self.is_paged(key):
            return await super().get(key)
        self.wholes.append(key)
        if self.gate is not None:
            await self.gate.wait()
        await anyio.sleep(self.latency_s)
        data = await super().get(key)
        return self.damage(FarRange(key, 0, len(data)), data)

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        asked = FarRange(key, offset, length)
        self.ranges.append(asked)
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        try:
            for _ in range(200):  # so that all come that do not wait for another
                await anyio.lowlevel.checkpoint()
            await anyio.sleep(self.latency_s)
            self.error(asked)
            return self.damage(asked, await super().get_range(key, offset, length))
        finally:
            self._under_way -= 1

    def forget(self) -> None:
        """What was asked for so far."""
        self.ranges.clear()
        self.wholes.clear()
        self.most_at_once = 0

    def remove(self, key: str) -> None:
        """As another process would."""
        if self._objects.pop(key, None) is None:
            raise ObjectNotFoundError("no object at that key", key=key)

    def is_paged(self, key: str) -> bool:
        """True for a segment with pages."""
        if "/segments/" not in key or key not in self._objects:
            return False
        return any(is_paged(each) for _, changes in decode_segment(self.bytes_of(key), key) for each in changes)

    @property
    def paged(self) -> list[str]:
        """The keys of segments with pages."""
        return [key for key in self._objects if self.is_paged(key)]

    def bytes_of(self, key: str) -> bytes:
        """An object."""
        return self._objects[key][0]


class Looking(FarPrimary):
    """The same objects, for look-ups: no virtual time passes on their loop."""

    latency_s = 0.0

    def __init__(self, of: FarPrimary) -> None:
        super().__init__()
        self._objects = of._objects


class Primary(FarPrimary):
    """One that can be opened apart: `looking` answers look-ups then."""

    def __init__(self) -> None:
        super().__init__()
        self.looking = Looking(self)
        self.opened = 0

    @asynccontextmanager
    async def apart(self) -> AsyncGenerator[FarPrimary]:
        self.opened += 1
        yield self.looking


class FarJob(Job):
    """A job in such a primary."""

    def __init__(self, directory: Path, store: FarPrimary | None = None, **changes: Any) -> None:
        super().__init__(directory, **changes)
        self.store = Primary() if store is None else store

    @property
    def looking(self) -> Looking:
        """What look-ups ask."""
        assert isinstance(self.store, Primary)
        return self.store.looking

    @asynccontextmanager
    async def unchecked(self, **options: Any) -> AsyncGenerator[sb.StateBackend]:
        """The backend, of which nothing was read."""
        options = {"clock": VirtualClock(), "store": self.store} | options
        async with sb.open_backend(options.pop("settings", self.settings), **options) as backend:
            yield backend

    @asynccontextmanager
    async def open(self, **changes: Any) -> AsyncGenerator[sb.StateBackend]:
        async with self.unchecked(**changes) as backend:
            self.check(backend)
            yield backend

    async def on_an_empty_host(self, keys: int = 2000) -> None:
        """It has a base, and no copy of that is left."""
        await self.with_a_base(keys)
        self.lose_copies()
        self.store.forget()

    def lose_copies(self) -> None:
        """All that lies on the host."""
        shutil.rmtree(self.directory / "local", ignore_errors=True)
