"""Opens the segments of bases as runs: a local copy where it lies, else a file without a name, filled from the primary.

What is open stays whole: a sweep, or another process, may delete its name. Nothing is left behind by a process that is
killed.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from statebackend._changelog.changelog_reader import verify
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
        again: Callable[[Handle], bytes] | None = None,
    ) -> None:
        """`local`: the local copies, which are repaired if they are `writable`.

        `again` gets an object of the primary, in any thread and without a loop, when a page turns out to be damaged.
        """
        self._again = again
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
        if self._again is not None:
            found.content.mended_by(partial(_mended, self._again, self._parent, segment))
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
    return open_run(OpenFile(_nameless(parent, content), parent / segment.key.rpartition("/")[2]), segment)


def _mended(again: Callable[[Handle], bytes], parent: Path, segment: Handle) -> int:
    """A file with the primary's copy, verified."""
    content = again(segment)
    verify(content, segment)
    return _nameless(parent, content)


def _nameless(parent: Path, content: bytes) -> int:
    """The descriptor of a new file with this content, which has no name."""
    try:
        make_directory(parent)
        with tempfile.TemporaryFile(dir=parent) as file:
            file.write(content)
            file.flush()
            return os.dup(file.fileno())
    except OSError as error:
        raise TableDiskError(
            "the disk of the tables takes no more files", directory=str(parent), reason=error.strerror
        ) from error
