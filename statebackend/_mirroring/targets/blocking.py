"""The base of targets whose libraries block: their calls are made one after the other, in a thread."""

import importlib
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

from statebackend._columns.arrow import RecordBatch
from statebackend._mirroring.target import MirrorMark, MirrorRows, MirrorTable, MirrorTarget, reads_no_rows_back
from statebackend._tasks import finish
from statebackend._threads import FileThreads
from statebackend.errors import SettingsError, StoreUnavailableError, WrongMirrorError, needs_extra


class BlockingTarget(MirrorTarget):
    """Calls `_find`, `_fit` and `_write` in a thread."""

    def __init__(self) -> None:
        self._threads: Final = FileThreads(1)

    async def find(self) -> MirrorMark:
        return await finish(self._threads.io, self._find)

    async def fit(self, table: MirrorTable) -> None:
        await finish(self._threads.io, self._fit, table)

    async def write(self, rows: MirrorRows) -> None:
        await finish(self._threads.io, self._write, rows)

    async def read_back(self, generation: int, key_group: int) -> AsyncIterator[RecordBatch]:
        batches = self._read_back(generation, key_group)
        while (batch := await finish(self._threads.io, _next_of, batches)) is not None:
            yield batch

    def _read_back(self, generation: int, key_group: int) -> Iterator[RecordBatch]:
        raise reads_no_rows_back(self)
        yield

    @abstractmethod
    def _find(self) -> MirrorMark: ...

    @abstractmethod
    def _fit(self, table: MirrorTable) -> None: ...

    @abstractmethod
    def _write(self, rows: MirrorRows) -> None: ...

    def _has_step(self, mark: MirrorMark, rows: MirrorRows) -> bool:
        """True if a table with that mark has the step. Raises as `write` for one that cannot be taken there."""
        if mark.mirror_id not in (None, rows.mirror_id):
            raise WrongMirrorError("another mirror has begun to write this table", target=self.place)
        if mark.number is not None and mark.number >= rows.number:
            return True
        if not rows.is_whole and mark.number not in (None, rows.number - 1):
            raise StoreUnavailableError("the table was put back meanwhile: look again", target=self.place)
        return False


def _next_of(batches: Iterator[RecordBatch]) -> RecordBatch | None:
    return next(batches, None)


def imported(name: str, what: str, extra: str) -> Any:
    """The module. Raises `SettingsError`, which names the extra that brings it, if it is not there."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise SettingsError(needs_extra(what, extra), missing=error.name) from error


def told(error: BaseException) -> str:
    """The message of a library's error, without the details below it."""
    return str(error).strip().partition("\n")[0]
