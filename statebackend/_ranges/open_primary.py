"""The primary of the job that a process works on, open from attempt to attempt."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import anyio
from anyio.abc import TaskGroup, TaskStatus

from statebackend._backend.stores import open_store
from statebackend._threads import WorkerThreads
from statebackend.abc import ObjectStore
from statebackend.settings import Settings


class HeldStores:
    """The primary of the job that is worked on, open from its first attempt until there is one at another job."""

    def __init__(self, instead: ObjectStore | None, tasks: TaskGroup) -> None:
        self._instead = instead
        self._tasks = tasks
        self._opening = anyio.Lock()
        self._newest: _HeldStore | None = None

    @asynccontextmanager
    async def store_of(self, settings: Settings, threads: WorkerThreads) -> AsyncGenerator[ObjectStore]:
        """Raises as `open_store`."""
        if self._instead is not None:
            yield self._instead
            return
        async with self._opening:
            held = self._newest
            if held is None or held.settings != settings:
                held = await self._tasks.start(_hold, settings, threads)
                if self._newest is not None:
                    self._newest.retire()
                self._newest = held
            held.users += 1
        try:
            yield held.store
        finally:
            held.users -= 1
            if held is not self._newest:
                held.retire()


class _HeldStore:
    """An open store, until nobody uses it and a newer one has taken its place."""

    def __init__(self, settings: Settings, store: ObjectStore) -> None:
        self.settings: Final = settings
        self.store: Final = store
        self.users = 0
        self.unused = anyio.Event()

    def retire(self) -> None:
        """Close it, unless somebody uses it; then he does."""
        if not self.users:
            self.unused.set()


async def _hold(settings: Settings, threads: WorkerThreads, *, task_status: TaskStatus[_HeldStore]) -> None:
    async with open_store(settings, threads, commits=False) as store:
        held = _HeldStore(settings, store)
        task_status.started(held)
        await held.unused.wait()
