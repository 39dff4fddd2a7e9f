"""The primary for look-ups of all attempts of a process: asked for the other copy of a file that is damaged.

Tables go on from attempt to attempt, and their files with them. So what mends a file lives as long as the process.
"""

from typing import Final

from statebackend._backend.apart import Apart, apart_of
from statebackend._tasks import finish
from statebackend._threads import WorkerThreads
from statebackend.abc import ObjectStore
from statebackend.settings import Settings


class SharedApart:
    """One for each job that this process works on. Nothing is opened before a file is damaged.

    `instead`: a store that was given, in place of that of the settings.
    """

    def __init__(self, instead: ObjectStore | None) -> None:
        self._instead: Final = instead
        self._made: list[tuple[Settings, Apart | None, WorkerThreads]] = []

    def of(self, settings: Settings, threads: WorkerThreads) -> Apart | None:
        """That of a job; `None` for a store that was given and cannot be opened apart. `threads`: to close it in."""
        for known, apart, _ in self._made:
            if known == settings:
                return apart
        found = apart_of(settings, self._instead)
        self._made.append((settings, found, threads))
        return found

    async def close(self) -> None:
        """End the threads of those that were asked."""
        for _, apart, threads in self._made:
            if apart is not None and apart.has_begun:
                await finish(threads.io, apart.close)
