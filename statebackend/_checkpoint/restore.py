"""Restores state from a commit.

The commit decides what is needed; a local file only replaces bytes that are known to be equal. A local copy that is
missing or bad costs time, never correctness, and is repaired from the primary. Which copies are stale,
`_local/registry.py` says.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import anyio
import msgspec

from statebackend._changelog.changelog_reader import BaseRead, SegmentRead, changes_of, plan_reads
from statebackend._checkpoint.fetch import (
    FETCHED_BYTES_MAX,
    Apply,
    Fetched,
    Fetcher,
    FileDone,
    Frames,
    Tally,
    files_at_once,
    frames_in,
    ignore_file,
    try_repair,
)
from statebackend._checkpoint.materialization.layers import tail
from statebackend._checkpoint.rescale import range_of
from statebackend._checkpoint.rocksdb_restore import RocksDBRestore
from statebackend._checkpoint.run_files import RunsOf
from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.commit import Commit
from statebackend._local.rocksdb_copies import RocksDBCopies
from statebackend._local.segments import LocalSegments
from statebackend._runs.open_base import OpenBase
from statebackend._tasks import in_order
from statebackend._threads import WorkerThreads
from statebackend.abc import Clock, Fallback, RestoreReport
from statebackend.ids import ChangeSetHandle, Handle, KeyGroupRange, RangeState, RocksDBBase
from statebackend.settings import MiB

GROUP_FILES_MAX: Final = 32
GROUP_BYTES_MAX: Final = 1 * MiB
"""Small neighbours are read, verified and applied by one hop to a thread each: a hop costs more than a small file.

Of a large file so many bytes of frames are decoded together, while those before them are applied.
"""

READ_BYTES_MAX: Final = 64 * MiB
"""Most bytes of changes, before compression, that one `read` returns."""

Ahead = Callable[[Iterator[Changes]], Iterator[Changes]]
"""Does ahead what needs no state: called in a thread, while another one applies earlier changes."""


def nothing_ahead(changes: Iterator[Changes]) -> Iterator[Changes]:
    """An `Ahead` that does nothing."""
    return changes


class LocalCopies(msgspec.Struct, frozen=True):
    """The secondary as a restore sees it: where to read, and whether bad copies may be replaced.

    `rocksdb`: the copies of RocksDB bases, `None` if they have no place. `shared`: other owners write here, too.
    """

    store: LocalSegments
    writable: bool
    rocksdb: RocksDBCopies | None = None
    shared: bool = False


class Restore:
    """One restore of the state of a range of key groups.

    Fetching is concurrent and bounded, applying is ordered, verifying and decoding run in worker threads, one step
    ahead of applying. A failed or cancelled restore has changed no stored state; repaired local files stay repaired.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        local: LocalCopies | None,
        *,
        at_hand_first: bool = False,
        clock: Clock,
        concurrency_max: int,
        threads: WorkerThreads,
        rocksdb: RocksDBRestore | None = None,
        runs: RunsOf | None = None,
    ) -> None:
        """`at_hand_first`: what the fetcher has at hand needs no local copy, and none is looked for.

        `rocksdb` restores RocksDB bases; without it there must be none. With `runs`, bases are opened and not read.
        """
        self._fetcher = fetcher
        self._local = local
        self._at_hand_first = at_hand_first
        self._clock = clock
        self._concurrency_max = concurrency_max
        self._downloads = anyio.Semaphore(concurrency_max)
        self._threads = threads
        self._rocksdb = rocksdb
        self._runs = runs
        self._tally = Tally()
        self._changed: set[int] = set()

    @property
    def changed(self) -> frozenset[int]:
        """The key groups that the changelog changed since their base, if they have one. Known after `run`."""
        return frozenset(self._changed)

    @property
    def adopted(self) -> RocksDBBase | None:
        """The RocksDB base whose files the tables took over, if any. Known after `run`."""
        return None if self._rocksdb is None else self._rocksdb.adopted

    async def run(
        self,
        commit: Commit,
        key_groups: KeyGroupRange,
        apply: Apply,
        file_done: FileDone = ignore_file,
        *,
        missing: Sequence[ChangeSetHandle] | None = None,
        ahead: Ahead = nothing_ahead,
    ) -> RestoreReport:
        """Apply every entry of the bases of `commit`, then every change since, in order, that concern `key_groups`.

        `missing`: apply only these change sets, to a state that lacks nothing else. `apply` is called from worker
        threads, one call at a time, and `ahead` beside it; `file_done` on the loop, after each file. Raises
        `CorruptSegmentError` or `MissingObjectError` if no copy of a file can be used.
        """
        begun = self._clock.monotonic()
        part = range_of(commit, key_groups) if missing is None else RangeState(key_groups, tuple(missing))

        def apply_since(changes: Sequence[Changes]) -> Collection[int]:
            groups = apply(changes)
            self._changed.update(groups)
            return groups

        await self._run_rocksdb(part, commit, apply, file_done)
        changelog: Sequence[ChangeSetHandle] = part.changelog
        if self._runs is None or missing is not None:
            await self._run_reads([BaseRead(base) for base in part.bases], apply, ahead, file_done)
        else:
            await self._open_runs(self._runs, part, apply, file_done)
            changelog = tail(changelog)
            of_layers = part.changelog[: len(part.changelog) - len(changelog)]
            self._changed.update(group for handle in of_layers for group in handle.key_groups)
        await self._run_reads(plan_reads(changelog, key_groups), apply_since, ahead, file_done)
        return self._tally.report(commit, seconds=self._clock.monotonic() - begun)

    async def read(
        self, change_sets: Sequence[ChangeSetHandle], key_groups: KeyGroupRange, but: Collection[int] = ()
    ) -> Sequence[Changes] | None:
        """The changes of these change sets, in order, of those key groups that their handles name.

        `but`: states whose changes are left out. `None` if the others take more than `READ_BYTES_MAX` in memory. Raises
        as `run`.
        """
        found: list[Changes] = []
        size_bytes = 0

        def collect(changes: Sequence[Changes]) -> Collection[int]:
            nonlocal size_bytes
            wanted = [each for each in changes if each.state_id not in but]
            size_bytes += sum(each.size_bytes for each in wanted)
            if size_bytes > READ_BYTES_MAX:
                raise _TooLargeError
            found.extend(wanted)
            return ()

        try:
            await self._run_reads(plan_reads(change_sets, key_groups), collect, nothing_ahead, ignore_file)
        except _TooLargeError:
            return None
        return found

    async def _run_rocksdb(self, part: RangeState, commit: Commit, apply: Apply, file_done: FileDone) -> None:
        if self._rocksdb is None:
            assert not part.rocksdb, "RocksDB bases, and nothing to restore them with"
            return
        await self._rocksdb.run(part, commit, apply, file_done)
        for found in self._rocksdb.fetched:
            self._tally.add(found)
        if self._local is not None and self._local.rocksdb is None:  # or the next checkpoint would be called local
            keys = (file.handle.key for base in part.rocksdb for file in base.files)
            self._tally.fallbacks += (Fallback(key, "RocksDB bases have no place here", repaired=False) for key in keys)
        self._tally.changes += self._rocksdb.changes

    async def _open_runs(self, runs: RunsOf, part: RangeState, apply: Apply, file_done: FileDone) -> None:
        """Have the tables look up in the pages of bases and layers, and apply what does not lie in pages."""

        async def take(found: Fetched[OpenBase]) -> None:
            changes = await self._threads.cpu(_apply, apply, [found.content.others()])
            self._tally.add(found)
            self._tally.changes += sum(changes)
            file_done(found.content.base.segment.key, found.size_bytes, sum(changes))

        self._tally.changes += await runs.open(part, take, concurrency_max=self._concurrency_max, threads=self._threads)

    async def _run_reads(
        self, reads: Sequence[SegmentRead | BaseRead], apply: Apply, ahead: Ahead, file_done: FileDone
    ) -> None:
        count = 0  # of changes applied of the file so far

        def applied(pieces: Sequence[_DecodedTogether], counts: Sequence[int]) -> None:
            nonlocal count
            for piece, more in zip(pieces, counts, strict=True):
                count += more
                if piece.is_last:
                    self._tally.add(piece.file)
                    self._tally.changes += count
                    file_done(piece.frames.read.segment.key, piece.file.size_bytes, count)
                    count = 0

        steps = _Steps(self._threads, partial(_decode, ahead), partial(_apply, apply), applied)

        async def consume(_: Sequence[SegmentRead | BaseRead], fetched: Sequence[Fetched[Frames]]) -> None:
            for pieces in _cut(fetched):
                await steps.take(pieces)

        groups = list(grouped(reads))
        sizes = (sum(read.segment.length for read in group) for group in groups)
        at_once = files_at_once(sizes, self._concurrency_max, FETCHED_BYTES_MAX)
        await in_order(groups, self._fetch, consume, concurrency_max=at_once)
        await steps.end()

    async def _fetch(self, group: Sequence[SegmentRead | BaseRead]) -> Sequence[Fetched[Frames]]:
        """Fetch the files of a group: the local copies together, those not expected to be there each by itself.

        So the primary delivers what has no copy while the disk with the other copies hangs.
        """
        found: dict[int, Fetched[Frames]] = {}

        async def fetch_part(part: Sequence[int]) -> None:
            copies = await self._local_copies({index: group[index] for index in part})
            rest: list[int] = []
            for index in part:
                if isinstance(copy := copies.get(index), bytes):
                    found[index] = Fetched(frames_in(group[index], copy), len(copy), local=True)
                else:
                    rest.append(index)

            async def fetch_one(index: int) -> Fetched[Frames]:
                fallback = copies.get(index)
                assert not isinstance(fallback, bytes)
                async with self._downloads:
                    return await self._fetch_from_primary(group[index], fallback)

            async def keep(index: int, fetched: Fetched[Frames]) -> None:
                found[index] = fetched

            if rest:
                await in_order(rest, fetch_one, keep, concurrency_max=self._concurrency_max)

        async def ended(_part: Sequence[int], _nothing: None) -> None:
            pass

        alone = [index for index, read in enumerate(group) if self._is_unexpected(read)]
        parts = [*([index] for index in alone), [index for index in range(len(group)) if index not in alone]]
        await in_order(parts, fetch_part, ended, concurrency_max=len(parts))
        return [found[index] for index in range(len(group))]

    async def _local_copies(self, reads: Mapping[int, SegmentRead | BaseRead]) -> Mapping[int, bytes | Fallback]:
        """The local copies of those that need one, or why one cannot be used."""
        wanted = {index: read.segment for index, read in reads.items() if not self._needs_no_copy(read)}
        if self._local is None or not wanted:
            return {}
        copies = await self._fetcher.local_copies([*wanted.values()], self._local.store)
        return dict(zip(wanted, copies, strict=True))

    def _is_unexpected(self, read: SegmentRead | BaseRead) -> bool:
        return (
            self._local is not None
            and not self._needs_no_copy(read)
            and not self._local.store.expects(read.segment.key)
        )

    def _needs_no_copy(self, read: SegmentRead | BaseRead) -> bool:
        return self._at_hand_first and self._fetcher.is_at_hand(read.segment)

    async def _fetch_from_primary(self, read: SegmentRead | BaseRead, fallback: Fallback | None) -> Fetched[Frames]:
        """Fetch what is wanted of a segment; or all of it, to repair its local copy, if that is at fault."""
        if self._local is None or fallback is None:
            return await self._fetcher.fetch_frames(read)
        whole = await self._fetcher.fetch(read.segment, None, _in_memory)
        fetched = Fetched(frames_in(read, whole.content), whole.size_bytes, whole.local, fallback)
        if self._local.writable:
            return fetched.with_repair(repaired=await self._repair(self._local.store, read.segment, whole.content))
        return fetched

    async def _repair(self, store: LocalSegments, segment: Handle, data: bytes) -> bool:
        return await try_repair(lambda: store.repair(segment.key, (data,)))


def grouped(reads: Iterable[SegmentRead | BaseRead]) -> Iterator[Sequence[SegmentRead | BaseRead]]:
    """Cut `reads` into groups of neighbours: small files together, a large one alone."""
    group: list[SegmentRead | BaseRead] = []
    size_bytes = 0
    for read in reads:
        if group and (len(group) == GROUP_FILES_MAX or size_bytes + read.segment.length > GROUP_BYTES_MAX):
            yield group
            group, size_bytes = [], 0
        group.append(read)
        size_bytes += read.segment.length
    if group:
        yield group


class _TooLargeError(Exception):
    """More than `READ_BYTES_MAX`."""


async def _in_memory(data: bytes) -> bytes:
    return data


class _DecodedTogether(msgspec.Struct, frozen=True):
    """Frames of a fetched file that are decoded together; of small files all of them."""

    frames: Frames
    file: Fetched[Frames]
    is_last: bool = True


class _Steps:
    """Decodes pieces while those before them are applied: what is not applied yet is one step, whatever there is."""

    def __init__(
        self,
        threads: WorkerThreads,
        decode: Callable[[Sequence[_DecodedTogether]], Sequence[Iterator[Changes]]],
        apply: Callable[[Sequence[Iterator[Changes]]], Sequence[int]],
        applied: Callable[[Sequence[_DecodedTogether], Sequence[int]], None],
    ) -> None:
        self._threads = threads
        self._decode = decode
        self._apply = apply
        self._applied = applied
        self._pieces: Sequence[_DecodedTogether] = ()
        self._decoded: Sequence[Iterator[Changes]] = ()

    async def take(self, pieces: Sequence[_DecodedTogether]) -> None:
        """Decode these, and apply the ones taken before."""
        await self._run([partial(self._apply, self._decoded), partial(self._decode, pieces)])
        self._pieces = pieces

    async def end(self) -> None:
        """Apply the last ones."""
        await self._run([partial(self._apply, self._decoded)])

    async def _run(self, calls: Sequence[Callable[[], Any]]) -> None:
        async def call(number: int) -> Any:
            return await self._threads.cpu(calls[number])

        async def keep(number: int, result: Any) -> None:
            if number == 0:
                self._applied(self._pieces, result)
            else:
                self._decoded = result

        await in_order(range(0 if self._pieces else 1, len(calls)), call, keep, concurrency_max=len(calls))


def _cut(files: Sequence[Fetched[Frames]]) -> Iterator[Sequence[_DecodedTogether]]:
    """Cut files into steps of decoding: a group of small files, or some frames of a large one."""
    file = files[0]
    if len(files) > 1 or file.size_bytes <= GROUP_BYTES_MAX or not file.content.views:
        yield [_DecodedTogether(each.content, each) for each in files]
        return
    views, read = file.content.views, file.content.read
    start, size_bytes = 0, 0
    for end, view in enumerate(views, 1):
        size_bytes += len(view)
        if size_bytes > GROUP_BYTES_MAX or end == len(views):
            some = msgspec.structs.replace(read, change_sets=read.change_sets[start:end])
            yield [_DecodedTogether(Frames(some, views[start:end]), file, is_last=end == len(views))]
            start, size_bytes = end, 0


def _decode(ahead: Ahead, pieces: Sequence[_DecodedTogether]) -> Sequence[Iterator[Changes]]:
    """Open the changes in these pieces, and do `ahead` what can be done."""
    return [
        ahead(changes_of(frames.views, frames.read.change_sets, frames.read.key_groups))
        for frames in (piece.frames for piece in pieces)
    ]


def _apply(apply: Apply, decoded: Sequence[Iterator[Changes]]) -> Sequence[int]:
    """Apply the changes of each piece, in order; return how many each has had."""
    return [sum(_applied(apply, changes) for changes in piece) for piece in decoded]


def _applied(apply: Apply, changes: Changes) -> int:
    apply((changes,))
    return changes.records
