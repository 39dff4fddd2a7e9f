"""Opens the segments of bases as runs: a local copy where it lies, else a file without a name, filled from the primary.

What is open stays whole: a sweep, or another process, may delete its name. Nothing is left behind by a process that is
killed.
"""

import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec

from statebackend._changelog.changelog_reader import verify
from statebackend._checkpoint.fetch import Fetched, Fetcher, try_repair
from statebackend._checkpoint.materialization.layers import layers, segments_of
from statebackend._local.disk import make_directory
from statebackend._local.segments import LocalSegments
from statebackend._runs.open_base import OpenBase
from statebackend._runs.run_file import OpenFile, OpenRun, open_run
from statebackend._tasks import in_order
from statebackend._threads import WorkerThreads
from statebackend.errors import TableDiskError
from statebackend.ids import Base, Handle, RangeState


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


class AttachRuns(Protocol):
    """Has the tables look up in bases, or in the next layer: see `StatesInRuns.attach`."""

    def __call__(self, files: Sequence[OpenBase], *, is_base: bool) -> int: ...


class RunsOf(msgspec.Struct, frozen=True):
    """How a restore takes over bases and layers as runs: it opens them, and has the tables `attach` them."""

    files: RunFiles
    attach: AttachRuns

    async def open(
        self,
        part: RangeState,
        take: Callable[[Fetched[OpenBase]], Awaitable[None]],
        *,
        concurrency_max: int,
        threads: WorkerThreads,
    ) -> int:
        """Open the bases of a range, and the layers over them, in order. Returns how many rows could only be applied.

        `take` applies what a file has beside pages, before anybody looks up in it. Raises as `RunFiles.open`.
        """
        applied = 0
        opened: list[OpenBase] = []
        over = [[*segments_of(part.changelog[slice(*place)])] for place in layers(part.changelog)]
        steps = [
            _ToOpen(file, is_base=not number, is_last=file is files[-1])
            for number, files in enumerate([list(part.bases), *over])
            for file in files
        ]

        async def attach(*, is_base: bool) -> None:
            nonlocal applied
            applied += await threads.cpu(partial(self.attach, tuple(opened), is_base=is_base))
            opened.clear()

        async def opens(step: _ToOpen) -> Fetched[OpenBase]:
            return await self.files.open(step.file)

        async def takes(step: _ToOpen, found: Fetched[OpenBase]) -> None:
            await take(found)
            opened.append(found.content)
            if step.is_last:
                await attach(is_base=step.is_base)

        if not part.bases:
            await attach(is_base=True)
        await in_order(steps, opens, takes, concurrency_max=concurrency_max)
        return applied


class _ToOpen(msgspec.Struct, frozen=True):
    """A file to open, and whether it is the last of the bases, or of a layer."""

    file: Base
    is_base: bool
    is_last: bool


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
