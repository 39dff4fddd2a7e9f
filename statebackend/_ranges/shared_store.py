"""The store that the attempts of a process share, open from one attempt to the next."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import anyio
from anyio.abc import TaskGroup, TaskStatus

from statebackend._backend.stores import open_store
from statebackend._threads import WorkerThreads
from statebackend.abc import ObjectStore
from statebackend.settings import Settings


class SharedStore:
    """The primary of the job that this process works on. It stays open until an attempt works on another job.

    It is the whole store, by `open_store`: each attempt opens a `Primary` of its own in it, to count its own requests.
    """

    def __init__(self, instead: ObjectStore | None, tasks: TaskGroup) -> None:
        self._instead = instead
        self._tasks = tasks
        self._opening = anyio.Lock()
        self._newest: _OpenStore | None = None

    @asynccontextmanager
    async def store_of(self, settings: Settings, threads: WorkerThreads) -> AsyncGenerator[ObjectStore]:
        """The store, for one attempt. Raises as `open_store`."""
        if self._instead is not None:
            yield self._instead
            return
        async with self._opening:  # attempts that begin together share one store, and none is opened twice
            found = self._newest
            if found is None or found.settings != settings:
                found = await self._tasks.start(_stay_open, settings, threads)
                if self._newest is not None:
                    self._newest.retire()
                self._newest = found
            found.users += 1
        try:
            yield found.store
        finally:
            found.users -= 1
            if found is not self._newest:
                found.retire()


class _OpenStore:
    """A store that stays open until a newer one has replaced it and its last user has gone."""

    def __init__(self, settings: Settings, store: ObjectStore) -> None:
        self.settings: Final = settings
        self.store: Final = store
        self.users = 0
        self.unused = anyio.Event()

    def retire(self) -> None:
        """Close it if nobody uses it. Called by what replaces it, and by each user that leaves after that."""
        if not self.users:
            self.unused.set()


async def _stay_open(settings: Settings, threads: WorkerThreads, *, task_status: TaskStatus[_OpenStore]) -> None:
    """Open a store and close it in the same task: an attempt that opened it may be gone long before."""
    async with open_store(settings, threads, commits=False) as store:
        opened = _OpenStore(settings, store)
        task_status.started(opened)
        await opened.unused.wait()
