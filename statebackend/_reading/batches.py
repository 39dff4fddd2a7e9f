"""Reads one state of a commit in batches: step by step, and in each step the changelog backwards, then the bases.

    changelog, newest first -> what is newest of each key -> batches
    bases                   -> keys that the changelog does not have -> batches

Decoding and laying out run in worker threads. Files are fetched a few ahead, whole or, where little of them is wanted,
by ranged reads. In memory are the files being fetched, one frame, and the keys of the changelog of a step; of lists and
maps its values too.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

from statebackend._changelog.changelog_reader import BaseRead, SegmentRead, changes_of, plan_reads
from statebackend._checkpoint.fetch import Fetcher, Frames, files_at_once, frames_in
from statebackend._checkpoint.restore import LocalCopies
from statebackend._checkpoint.rocksdb_restore import RocksDBRestore
from statebackend._codec.change_sets.changes import Changes, Only
from statebackend._codec.commit import Commit
from statebackend._columns.arrow import RecordBatch, pa
from statebackend._reading.asked_of_state import ReadingStep
from statebackend._reading.pages_of_keys import PagesOfKeys
from statebackend._reading.rows.layouts import Layout
from statebackend._reading.rows.merged_rows import Merge, NewestRows
from statebackend._tables.snapshot import StatesSnapshot
from statebackend._tasks import in_order
from statebackend._threads import WorkerThreads
from statebackend._upkeep.progress import Meter
from statebackend.ids import Base, RocksDBBase, StateDescriptor
from statebackend.settings import KiB, MiB

KEYS_BYTES_MAX: Final = 48 * MiB
"""About as much memory as what is held of a step's changelog takes: its keys, and of lists and maps its values."""
FETCHED_BYTES_MAX: Final = 32 * MiB
"""Bytes of files that are fetched ahead. A larger file is fetched alone."""
BATCH_ROWS_MIN: Final = 1024
"""Smaller batches are put together: a changelog of small checkpoints has many."""
HOP_BYTES: Final = 2 * MiB
"""About as much is laid out in one hop to a thread."""
STRETCH_BYTES: Final = 512 * KiB
"""Frames of a base that are decoded in one hop have about as many stored bytes."""
STRETCHES_AT_ONCE: Final = 2

Consume = Callable[[Sequence[RecordBatch]], Awaitable[None]]


class _EnoughError(Exception):
    """All keys that were asked for are found."""


class _Laid(NamedTuple):
    batches: list[RecordBatch]
    is_ended: bool


class _OpenBases:
    """The RocksDB bases that are open. Each is fetched once, however many steps read some of its key groups."""

    def __init__(
        self,
        open_base: Callable[[RocksDBBase], AbstractAsyncContextManager[StatesSnapshot]],
        steps: Iterable[ReadingStep],
        stack: AsyncExitStack,
    ) -> None:
        """`stack` closes those that are left after an error."""
        self._open = open_base
        self._stack = stack
        self._uses_left = Counter(_files_of(base) for step in steps for base in step.part.rocksdb)
        self._opened: dict[RocksDBBase, tuple[AsyncExitStack, StatesSnapshot]] = {}

    @asynccontextmanager
    async def entries(self, base: RocksDBBase) -> AsyncGenerator[StatesSnapshot]:
        """The entries of the base, which is closed after its last step. Raises as `RocksDBRestore.opened`."""
        files = _files_of(base)
        if files not in self._opened:
            own = await self._stack.enter_async_context(AsyncExitStack())
            self._opened[files] = own, await own.enter_async_context(self._open(base))
        closing, found = self._opened[files]
        yield found
        self._uses_left[files] -= 1
        if not self._uses_left[files]:
            del self._opened[files]
            await closing.aclose()


class StateReading:
    """One read of one state. `rocksdb` opens RocksDB bases. `columns`: of a columnar state, those to decode."""

    def __init__(
        self,
        commit: Commit,
        state: StateDescriptor,
        layout: Layout,
        open_merge: Callable[[], Merge],
        *,
        columns: frozenset[str] | None,
        fetcher: Fetcher,
        local: LocalCopies | None,
        rocksdb: RocksDBRestore,
        concurrency_max: int,
        threads: WorkerThreads,
        meter: Meter,
        pages: PagesOfKeys | None = None,
    ) -> None:
        """`pages`: reads the rows of keys from bases in the primary, where that is less than all of them."""
        self._commit = commit
        self._state = state
        self._layout = layout
        self._open_merge = open_merge
        self._only = Only(state.state_id, columns)
        self._is_columnar = columns is not None
        self._fetcher = fetcher
        self._local = local
        self._rocksdb = rocksdb
        self._concurrency_max = concurrency_max
        self._threads = threads
        self._meter = meter
        self._hop_bytes = HOP_BYTES // 2  # the first hop is a short one, so that its consumer begins early
        self._pages = pages
        self._small: list[RecordBatch] = []

    async def run(self, steps: Iterable[ReadingStep], consume: Consume) -> None:
        """Hand all batches to `consume`, some at a time. Raises `CorruptSegmentError`, `MissingObjectError` and others.

        After an error some batches may have been handed over: they are no result.
        """
        plan = list(steps)
        async with AsyncExitStack() as stack:
            bases = _OpenBases(lambda base: self._rocksdb.opened(base, self._commit, self._state), plan, stack)
            for step in plan:
                await self._run_step(step, bases, consume)
        await self._flush(consume)

    async def _run_step(self, step: ReadingStep, bases: _OpenBases, consume: Consume) -> None:
        merge = self._open_merge()
        reads = [*plan_reads(step.part.changelog, step.part.key_groups)]

        async def newer(frames: Frames) -> None:
            await self._consume_all(self._newer(merge, step, frames), consume)

        async def base(frames: Frames) -> None:
            if merge.bases_apart:
                await self._bases_apart(merge, frames, consume)
            else:
                await self._consume_all(self._base(merge, frames), consume)

        try:
            await self._read(reads[::-1], newer, merge)
            segments = [*step.part.bases, *self._column_files(step.part.rocksdb)]
            left = [each for each in segments if not await self._read_pages(each, merge, consume)]
            await self._read([BaseRead(each) for each in left], base, merge)
            if not self._is_columnar:
                for rocksdb in step.part.rocksdb:
                    async with bases.entries(rocksdb) as entries:
                        await self._read_rocksdb(rocksdb, entries, merge, consume)
        except _EnoughError:
            return
        await self._consume_all(merge.rest(), consume)

    async def _read_pages(self, base: Base, merge: Merge, consume: Consume) -> bool:
        """Read the rows of the keys that are asked for by the page. False where it is better read as others are."""
        if self._pages is None or not isinstance(merge, NewestRows):
            return False
        found: Sequence[Changes] | None = () if merge.is_done else await self._pages.rows(base, merge)
        if found is None:
            return False
        await self._consume_all(chain.from_iterable(map(merge.base, found)), consume)
        self._meter.step(base.size_bytes, changes=sum(each.records for each in found), size_bytes=0)
        return True

    def _column_files(self, bases: Iterable[RocksDBBase]) -> Iterator[Base]:
        """The segments with rows of columnar states, which lie beside RocksDB's files."""
        if self._is_columnar:
            for base in bases:
                for file in base.files:
                    if file.is_columns:
                        yield Base(file.handle, base.key_groups, base.key_groups_written)

    async def _read(
        self, reads: Sequence[SegmentRead | BaseRead], take_frames: Callable[[Frames], Awaitable[None]], merge: Merge
    ) -> None:
        async def take(_: SegmentRead | BaseRead, frames: Frames) -> None:
            await take_frames(frames)
            if merge.is_done:
                raise _EnoughError
            size_bytes = sum(map(len, frames.views))
            self._meter.step(
                size_bytes, changes=sum(each.records for each in frames.read.change_sets), size_bytes=size_bytes
            )

        at_once = files_at_once((each.segment.length for each in reads), self._concurrency_max, FETCHED_BYTES_MAX)
        await in_order(reads, self._fetch, take, concurrency_max=at_once)

    async def _fetch(self, read: SegmentRead | BaseRead) -> Frames:
        if self._local is not None and not self._fetcher.is_at_hand(read.segment):
            (copy,) = await self._fetcher.local_copies([read.segment], self._local.store)
            if isinstance(copy, bytes):
                return frames_in(read, copy)
        return (await self._fetcher.fetch_frames(read)).content

    def _newer(self, merge: Merge, step: ReadingStep, frames: Frames) -> Iterator[Any]:
        """The rows of the frames, newest first, until all that were asked for are found."""
        for place in reversed(range(len(frames.views))):
            for part in _reversed(self._changes(frames, slice(place, place + 1))):
                if (found := part.of_groups(step.wanted)) is not None:
                    yield from merge.newer(found)
            if merge.is_done:
                return

    def _base(self, merge: Merge, frames: Frames) -> Iterator[Any]:
        for place in range(len(frames.views)):
            for part in self._changes(frames, slice(place, place + 1)):
                yield from merge.base(part)
            if merge.is_done:
                return
        yield from merge.base_ended()

    async def _bases_apart(self, merge: Merge, frames: Frames, consume: Consume) -> None:
        """Decode and lay out one stretch of the frames beside another: numpy, zstd and Arrow let other threads run."""

        async def lay_out(stretch: slice) -> list[RecordBatch]:
            return await self._threads.cpu(self._stretch_batches, merge, frames, stretch)

        async def take(_: slice, batches: list[RecordBatch]) -> None:
            await self._hand_over(batches, consume)

        stretches = list(_stretches(frames.views))
        await in_order(stretches, lay_out, take, concurrency_max=STRETCHES_AT_ONCE)

    def _stretch_batches(self, merge: Merge, frames: Frames, stretch: slice) -> list[RecordBatch]:
        return [self._layout.batch(rows) for part in self._changes(frames, stretch) for rows in merge.base(part)]

    def _changes(self, frames: Frames, some: slice) -> Iterator[Changes]:
        return changes_of(frames.views[some], frames.read.change_sets[some], frames.read.key_groups, only=self._only)

    async def _read_rocksdb(self, base: RocksDBBase, entries: StatesSnapshot, merge: Merge, consume: Consume) -> None:
        groups = frozenset(group for each in base.key_groups for group in each)
        await self._consume_all(chain.from_iterable(map(merge.base, entries.changes(groups))), consume)
        await self._consume_all(merge.base_ended(), consume)

    async def _consume_all(self, rows: Iterator[Any], consume: Consume) -> None:
        is_ended = False
        while not is_ended:
            batches, is_ended = await self._threads.cpu(self._some_batches, rows)
            await self._hand_over(batches, consume)

    def _some_batches(self, rows: Iterator[Any]) -> _Laid:
        """In a thread: decode and lay out as much as one hop is worth."""
        batches: list[RecordBatch] = []
        size_bytes = 0
        for each in rows:
            batches.append(self._layout.batch(each))
            size_bytes += batches[-1].nbytes
            if size_bytes >= self._hop_bytes:
                self._hop_bytes = HOP_BYTES
                return _Laid(batches, is_ended=False)
        return _Laid(batches, is_ended=True)

    async def _hand_over(self, batches: Sequence[RecordBatch], consume: Consume) -> None:
        """Small ones wait for others, unless few are among large ones."""
        batches = [batch for batch in batches if batch.num_rows]
        if not self._small and sum(batch.num_rows for batch in batches) >= BATCH_ROWS_MIN * len(batches):
            if batches:
                await consume(batches)
            return
        for batch in batches:
            if batch.num_rows >= BATCH_ROWS_MIN and not self._small:
                await consume([batch])
            else:
                self._small.append(batch)
                if sum(each.num_rows for each in self._small) >= BATCH_ROWS_MIN:
                    await self._flush(consume)

    async def _flush(self, consume: Consume) -> None:
        small, self._small = self._small, []
        if small:
            await consume(await self._threads.cpu(_joined, small))


def _files_of(base: RocksDBBase) -> RocksDBBase:
    """The base, whichever key groups it stands for."""
    return msgspec.structs.replace(base, key_groups=())


def _joined(batches: Sequence[RecordBatch]) -> list[RecordBatch]:
    if len(batches) == 1:
        return [*batches]
    found: list[RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return found


def _reversed(parts: Iterator[Changes]) -> Iterator[Changes]:
    """The parts from the last to the first, all decoded when the first of them is asked for."""
    yield from reversed(list(parts))


def _stretches(views: Sequence[memoryview]) -> Iterator[slice]:
    """Neighbours, together about as large as a hop is worth."""
    begin, size_bytes = 0, 0
    for end, view in enumerate(views, 1):
        size_bytes += len(view)
        if size_bytes >= STRETCH_BYTES or end == len(views):
            yield slice(begin, end)
            begin, size_bytes = end, 0
