"""Counts the worker threads that are at work, by functions that do not return before they may."""

import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from statebackend._threads import WorkerThreads

SAFETY_NET_S: Final = 20.0  # ends a test that would otherwise hang; no test depends on it


def plenty(*roots: Path) -> WorkerThreads:
    """Worker threads for a test that is about something else."""
    return WorkerThreads(cpu_threads_max=8, io_threads_max=8, roots=roots)


class AtWork:
    """Threads that are at work now, and the most that were at a time."""

    def __init__(self) -> None:
        self.may_end: Final = threading.Event()
        self.now = 0
        self.most = 0
        self.gave_up = False
        self._turn = threading.Lock()

    @contextmanager
    def counted(self) -> Generator[None]:
        """Within, this thread is at work."""
        with self._turn:
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            yield
        finally:
            with self._turn:
                self.now -= 1

    def work(self) -> None:
        """Be at work until `may_end`."""
        with self.counted():
            self.gave_up = not self.may_end.wait(SAFETY_NET_S) or self.gave_up

    async def all_begun(self) -> int:
        """How many are at work, when no more can begin."""
        await anyio.wait_all_tasks_blocked()
        for _ in range(50):  # threads of others come and go meanwhile: one that had been sent to work would be there
            await anyio.to_thread.run_sync(int)
        return self.now


async def begun_of(*calls: Callable[[Callable[[], None]], Awaitable[None]]) -> int:
    """How many of these calls are at work at a time, when all of them are made at once. All have ended then."""
    at_work = AtWork()
    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(call, at_work.work)
        try:
            begun = await at_work.all_begun()
        finally:
            at_work.may_end.set()
    assert at_work.most == begun, "others have begun before the first ended"
    assert not at_work.gave_up
    return begun
