"""Opens the segments of bases as runs: a local copy where it lies, else a file without a name, filled from the primary.

What is open stays whole: a sweep, or another process, may delete its name. Nothing is left behind by a process that is
killed.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from statebackend._checkpoint.fetch import Fetched, Fetcher, try_repair
from statebackend._local.disk import make_directory
from statebackend._local.segments import LocalSegments
from statebackend._runs.open_base import OpenBase
from statebackend._runs.run_file import OpenFile, OpenRun, open_run
from statebackend._threads import WorkerThreads
from statebackend.errors import TableDiskError
from statebackend.ids import Base, Handle


class RunFiles:
    """Opens runs for one owner. `parents`: where files without a name may lie, the first is used."""

    def __init__(
        self,
        fetcher: Fetcher,
        local: LocalSegments | None,
        *,
        writable: bool,
        parents: Sequence[Path],
        threads: WorkerThreads,
    ) -> None:
        """`local`: the local copies, which are repaired if they are `writable`."""
        self._fetcher = fetcher
        self._local = local
        self._writable = writable
        self._parent: Final = parents[0]
        self._threads = threads

    async def open(self, base: Base) -> Fetched[OpenBase]:
        """Open the segment of a base. Of its local copy only the pages go unread, and a bad one is repaired.

        Raises as `Fetcher.fetch`, and `TableDiskError` where the disk takes no file.
        """
        segment, local = base.segment, self._local
        data: bytes | None = None

        async def copy() -> OpenRun:
            assert local is not None
            return await local.open_copy(segment.key, lambda path: open_run(path, segment))

        async def place(content: bytes) -> OpenRun:
            nonlocal data
            data = content
            return await self._threads.io(_in_nameless_file, self._parent, content, segment)

        found = await self._fetcher.fetch(segment, None if local is None else copy, place)
        if found.fallback is not None and local is not None and self._writable:
            assert data is not None
            found = found.with_repair(repaired=await _repaired(local, segment, data))
        return Fetched(OpenBase(found.content, base), found.size_bytes, found.local, found.fallback)


class RunsOf(msgspec.Struct, frozen=True):
    """How a restore takes over bases as runs: it opens them, and has the tables `attach` them.

    `attach` returns how many rows it has applied, since they could not be looked up.
    """

    files: RunFiles
    attach: Callable[[Sequence[OpenBase]], int]


async def _repaired(store: LocalSegments, segment: Handle, data: bytes) -> bool:
    return await try_repair(lambda: store.repair(segment.key, (data,)))


def _in_nameless_file(parent: Path, content: bytes, segment: Handle) -> OpenRun:
    try:
        make_directory(parent)
        with tempfile.TemporaryFile(dir=parent) as file:
            file.write(content)
            file.flush()
            opened = OpenFile.of(file.fileno(), parent / segment.key.rpartition("/")[2])
    except OSError as error:
        raise TableDiskError(
            "the disk of the tables takes no more files", directory=str(parent), reason=error.strerror
        ) from error
    return open_run(opened, segment)
