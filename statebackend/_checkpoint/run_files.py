"""Opens the segments of bases as runs: a local copy where it lies, else far away, or as a file without a name.

A far run is read from the primary until its copy has come in. A file without a name is filled from the primary. What is
open stays whole: a sweep, or another process, may delete its name. Nothing is left behind by a process that is killed.
"""

import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import anyio
import msgspec

from statebackend._changelog.changelog_reader import verify
from statebackend._changelog.limiter import ByteLimiter
from statebackend._checkpoint.far_runs import FarRuns
from statebackend._checkpoint.fetch import Fetched, Fetcher, try_repair
from statebackend._checkpoint.incoming_runs import BroughtIn, FarRun, IncomingRuns
from statebackend._checkpoint.materialization.layers import layers, segments_of
from statebackend._checkpoint.materialization.tiers import mark_of
from statebackend._local.disk import make_directory
from statebackend._local.segments import LocalSegments
from statebackend._runs.far_pages import ReadsApart
from statebackend._runs.open_base import OpenBase
from statebackend._runs.open_file import OpenFile
from statebackend._runs.run_file import OpenRun, open_run
from statebackend._tasks import in_order
from statebackend._threads import WorkerThreads
from statebackend.errors import CorruptSegmentError, ObjectNotFoundError, StoreError, TableDiskError
from statebackend.ids import Base, Handle, RangeState

COPIES_AT_ONCE: Final = 2
"""Local copies are opened so many at a time: to open one is computing, in small steps, once the disk has answered."""
WHOLE_SHARE: Final = 8
"""Of its memory a state takes so small a part in pages when it is read into memory as a whole again."""


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
        apart: ReadsApart | None = None,
        far: FarRuns | None = None,
        incoming: IncomingRuns | None = None,
        memory_bytes: int,
    ) -> None:
        """`local`: the local copies, which are repaired if they are `writable`.

        `apart` gets an object of the primary when a page turns out to be damaged. `far` opens what has no local copy
        where it lies, and then it is added to what is `incoming`.

        `memory_bytes`: what the rows may take. Segments that are fetched whole take no more of it together, since there
        are no rows yet at the opening; those that come in behind batches, half.
        """
        self._room = ByteLimiter(memory_bytes)
        self._opening = anyio.Semaphore(COPIES_AT_ONCE)
        self._apart = apart
        self._far = far
        self.incoming: Final = IncomingRuns() if incoming is None else incoming
        self._fetcher = fetcher
        self._local = local
        self._writable = writable
        self._parents: Final = parents
        self._threads = threads

    async def open(self, base: Base) -> Fetched[OpenBase]:
        """Open the segment of a base. Of its local copy only the pages go unread, and a bad one is repaired.

        Raises as `Fetcher.fetch`, and `TableDiskError` where the disk takes no file.
        """
        segment, local = base.segment, self._local
        is_repaired = False

        async def copy() -> OpenRun:
            assert local is not None
            async with self._opening:
                return await local.open_copy(segment.key, lambda path: open_run(path, segment))

        async def place(content: bytes) -> OpenRun:
            nonlocal is_repaired
            run = await self._threads.io(_in_nameless_file, self._parents[0], content, segment)
            if local is not None and self._writable:  # the copy could not be used
                is_repaired = await _repaired(local, segment, content)
            return run

        from_primary = partial(self._from_primary, segment, place)
        found = await self._fetcher.fetch(segment, None if local is None else copy, place, from_primary)
        if self._apart is not None:
            found.content.mended_by(self._mend_of(segment))
        found = found.with_repair(repaired=is_repaired)
        return Fetched(OpenBase(found.content, base), found.size_bytes, found.local, found.fallback)

    async def may_be_whole(self, state: RangeState, bytes_max: int) -> bool:
        """True if the state may be read into memory of which there is `bytes_max`; raises as `open`.

        What has left the memory lies in pages, and is there again once it takes an eighth of `bytes_max` in them, which
        in memory may be a half: much less than what made it leave. What has not left yet does so when it grows.
        """
        stored = sum(each.size_bytes for each in state.bases)
        stored += sum(each.length for each in state.changelog if mark_of(each))
        if stored <= bytes_max // WHOLE_SHARE:
            return True
        if layers(state.changelog):
            return False
        return not state.bases or not (await self.open(state.bases[0])).content.file.parts

    def _mend_of(self, segment: Handle) -> Callable[[], int] | None:
        return None if self._apart is None else partial(_mended, self._apart.get, self._parents[0], segment)

    async def _from_primary(self, segment: Handle, place: Callable[[bytes], Awaitable[OpenRun]]) -> Fetched[OpenRun]:
        if self._far is not None and (found := await self._from_afar(self._far, segment, place)) is not None:
            return found
        async with self._room.held(segment.length):
            return Fetched(await place(await self._fetcher.download(segment)), segment.length, local=False)

    async def _from_afar(
        self, far: FarRuns, segment: Handle, place: Callable[[bytes], Awaitable[OpenRun]]
    ) -> Fetched[OpenRun] | None:
        """The segment as a far run; `None` where it has to be fetched: then the whole says what is wrong with it."""
        try:
            found = await far.open(segment)
            if found is None:
                return None
            if isinstance(found, bytes):
                await self._fetcher.verify(found, segment)
                return Fetched(await place(found), segment.length, local=False)
        except (CorruptSegmentError, ObjectNotFoundError):
            return None
        run, size_bytes = found
        self.incoming.add(FarRun(run, partial(self._bring_in, segment)))
        return Fetched(run, size_bytes, local=False)

    async def _bring_in(self, segment: Handle) -> BroughtIn:
        """A copy of a segment: if possible the local one. Raises as `Fetcher.fetch`, and `TableDiskError`."""
        async with self._room.held(segment.length, spare=True):
            try:
                data = await self._fetcher.download(segment)
            except CorruptSegmentError:  # on its way, perhaps
                data = await self._fetcher.download(segment)
            found: BroughtIn | None = None
            if self._local is not None and self._writable and await _repaired(self._local, segment, data):
                with suppress(StoreError, OSError):
                    found = BroughtIn(await self._local.open_copy(segment.key, OpenFile.at), is_local=True)
            if found is None:
                found = BroughtIn(await self._threads.io(_in_any, self._parents, data, segment), is_local=False)
        found.file.mend = self._mend_of(segment)
        return found


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
    return open_run(_nameless_file(parent, content, segment), segment)


def _nameless_file(parent: Path, content: bytes, segment: Handle) -> OpenFile:
    return OpenFile(_nameless(parent, content), parent / segment.key.rpartition("/")[2])


def _in_any(parents: Sequence[Path], content: bytes, segment: Handle) -> OpenFile:
    """A file without a name in the first of these directories that takes it. Raises `TableDiskError`."""
    for parent in parents[:-1]:
        with suppress(TableDiskError):
            return _nameless_file(parent, content, segment)
    return _nameless_file(parents[-1], content, segment)


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
