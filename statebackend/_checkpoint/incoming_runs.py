"""Brings in the copies of far runs, behind the batches: a few at a time, while the disk takes them."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import msgspec

from statebackend._runs.open_file import OpenFile
from statebackend._runs.run_file import OpenRun
from statebackend.errors import TableDiskError

AT_ONCE: Final = 2
"""Segments that come in at a time: each is in memory as a whole."""

_logger = logging.getLogger(__name__)


class BroughtIn(msgspec.Struct, frozen=True):
    """A copy of a run that has come in. `is_local`: as its local copy."""

    file: OpenFile
    is_local: bool


class FarRun(msgspec.Struct, frozen=True):
    """A far run. `bring_in` makes a copy of it here, verified."""

    run: OpenRun
    bring_in: Callable[[], Awaitable[BroughtIn]]

    @property
    def key(self) -> str:
        """The object that it lies in."""
        return self.run.segment.key


class IncomingRuns:
    """The far runs of one backend whose copies have not come in yet, the newest layers last: they come in first."""

    def __init__(self) -> None:
        self._waiting: list[FarRun] = []
        self._bytes_left = 0
        self._files = 0
        self._full: TableDiskError | None = None
        self._ended = anyio.Event()
        self._ended.set()

    @property
    def files_left(self) -> int:
        """Runs that are far."""
        return self._files

    @property
    def bytes_left(self) -> int:
        """Bytes of these."""
        return self._bytes_left

    def add(self, far: FarRun) -> None:
        """A run whose copy is wanted. Before `run`."""
        self._waiting.append(far)
        self._files += 1
        self._bytes_left += far.run.segment.length
        if self._ended.is_set():
            self._ended = anyio.Event()

    async def run(self, came_in: Callable[[str], None]) -> None:
        """Bring in all; `came_in` is called with the key of each object that has a local copy then.

        No base or layer takes the place of a far run before this has ended. Raises nothing: what cannot be brought in
        stays far. A cancelled call leaves whole copies, or none.
        """
        _logger.info("copies come in behind the batches: files=%d bytes=%d", self._files, self._bytes_left)
        try:
            async with anyio.create_task_group() as tasks:
                for _ in range(AT_ONCE):
                    tasks.start_soon(self._work, came_in)
        finally:
            self._ended.set()
        if self._full is not None:
            _logger.warning(
                "there is no room for copies of the state, which is read from the primary by the page, and slowly:"
                " make room and open the job again: files=%d bytes=%d reason=%s",
                self._files,
                self._bytes_left,
                self._full,
            )
        _logger.info("no more copies come in: far_files=%d bytes=%d", self._files, self._bytes_left)

    async def ended(self) -> None:
        """Wait until nothing comes in any more."""
        await self._ended.wait()

    async def _work(self, came_in: Callable[[str], None]) -> None:
        while self._waiting:
            far = self._waiting.pop()
            try:
                found = await far.bring_in()
            except TableDiskError as error:
                self._waiting.clear()
                self._full = error
            except Exception as error:  # noqa: BLE001  # a page that is needed raises it again, for its batch
                _logger.warning("a copy did not come in, and is read by the page: key=%s reason=%r", far.key, error)
            else:
                self._files -= 1
                self._bytes_left -= far.run.segment.length
                far.run.move_to(found.file)
                if found.is_local:
                    came_in(far.key)
