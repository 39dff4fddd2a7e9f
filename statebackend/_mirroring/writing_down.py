"""Writes a step of a mirror down while its rows are still being read."""

from typing import Final

import anyio
from anyio.abc import TaskGroup

from statebackend._log.mirror_steps import MirrorLog, MirrorStep


class WritingDown:
    """One step, written down once: by a task of `tasks`, or when it is asked for."""

    def __init__(self, log: MirrorLog, tasks: TaskGroup) -> None:
        self.step: MirrorStep | None = None
        """The step that is being written down, or was."""
        self._log: Final = log
        self._tasks: Final = tasks
        self._written: MirrorStep | None = None
        self._failure: Exception | None = None
        self._ended: Final = anyio.Event()

    def begin(self, step: MirrorStep) -> None:
        """Begin with it now."""
        self.step = step
        self._tasks.start_soon(self._run, step)

    async def end(self, step: MirrorStep) -> MirrorStep:
        """As `MirrorLog.write_down`; of what was begun before, its outcome."""
        if self.step is None:
            return await self._log.write_down(step)
        await self._ended.wait()
        if self._failure is not None:
            raise self._failure
        assert self._written is not None
        return self._written

    async def _run(self, step: MirrorStep) -> None:
        try:
            self._written = await self._log.write_down(step)
        except Exception as error:  # noqa: BLE001  # raised where the outcome is asked for
            self._failure = error
        self._ended.set()
