"""Brings state back from a commit: each file from its local copy if that verifies, from the primary otherwise.

The commit decides what is needed; a local file only replaces bytes that are known to be equal. A local copy that is
missing or bad costs time, never correctness, and is repaired from the primary.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from statebackend._cache.download_cache import DownloadCache
from statebackend._changelog.reader import (
    BaseRead,
    SegmentRead,
    changes_of,
    fetch_frames,
    frames_of,
    plan_reads,
    verify,
)
from statebackend._checkpoint.rescale import range_of
from statebackend._checkpoint.rocksdb_restore import RocksDBRestore
from statebackend._codec.commit import Commit
from statebackend._codec.records import StateChange
from statebackend._local.rocksdb_copies import RocksDBCopies
from statebackend._local.segments import LocalSegments
from statebackend._tasks import in_order
from statebackend._threads import WorkerThreads
from statebackend.abc import Clock, Fallback, ObjectStore, RestoreReport
from statebackend.errors import DataError, MissingObjectError, ObjectNotFoundError, StoreError
from statebackend.ids import ChangeSetHandle, Handle, KeyGroupRange, RangeState, RocksDBBase

Apply = Callable[[list[StateChange]], Collection[int]]
"""Applies changes, and gives the key groups that they are of, as far as those are the owner's."""
Applied = Callable[[str, int, int], None]
"""Told of each file that was applied: its key, the bytes of it that were read, and the changes in them."""


def tell_nobody(_key: str, _size_bytes: int, _changes: int) -> None:
    """An `Applied`."""


Read = SegmentRead | BaseRead


class LocalCopies(msgspec.Struct, frozen=True):
    """The secondary as a restore sees it: where to read, and whether bad copies may be replaced.

    `rocksdb`: the copies of RocksDB bases, `None` where they have no place.
    """

    store: LocalSegments
    writable: bool
    rocksdb: RocksDBCopies | None = None


class _Fetched(msgspec.Struct, frozen=True):
    """`local`: from the local copy, or from the primary; `None` for what was at hand, which is counted as neither."""

    read: SegmentRead
    frames: Sequence[memoryview]
    size_bytes: int
    local: bool | None
    fallback: Fallback | None = None


class Restore:
    """One restore of the state of `key_groups`.

    `at_hand`: objects of the primary that were read and verified before, by key: the commit, which may carry changes.
    `at_hand_first`: they need no local copy, and none is looked for.

    Fetching is concurrent and bounded, applying is ordered, verifying and decoding run in worker threads. A failed or
    cancelled restore has changed no stored state; repaired local files stay repaired.
    """

    def __init__(
        self,
        primary: ObjectStore,
        local: LocalCopies | None,
        *,
        cache: DownloadCache | None = None,
        at_hand: Mapping[str, bytes],
        at_hand_first: bool = False,
        clock: Clock,
        concurrency_max: int,
        threads: WorkerThreads,
        rocksdb: RocksDBRestore | None = None,
    ) -> None:
        """`rocksdb` restores RocksDB bases; without it there must be none."""
        self._rocksdb = rocksdb
        self._primary = primary
        self._local = local
        self._cache = cache
        self._at_hand = at_hand
        self._at_hand_first = at_hand_first
        self._clock = clock
        self._concurrency_max = concurrency_max
        self._threads = threads
        self._files = {True: 0, False: 0}  # by whether they came from the local copy
        self._bytes = {True: 0, False: 0}
        self._changes = 0
        self._fallbacks: list[Fallback] = []
        self._changed: set[int] = set()

    @property
    def changed(self) -> frozenset[int]:
        """Key groups that the changelog has changed since their base, if they have one. Known when `run` has ended."""
        return frozenset(self._changed)

    @property
    def adopted(self) -> RocksDBBase | None:
        """The RocksDB base whose files the tables have taken over. Known when `run` has ended."""
        return None if self._rocksdb is None else self._rocksdb.adopted

    async def run(
        self,
        commit: Commit,
        key_groups: KeyGroupRange,
        apply: Apply,
        applied: Applied = tell_nobody,
        *,
        missing: Sequence[ChangeSetHandle] | None = None,
    ) -> RestoreReport:
        """Apply every entry of the bases of `commit`, then every change since, in order, that concern `key_groups`.

        `missing`: only these change sets, to a state that lacks nothing else.
        `apply` is called from worker threads, one call at a time; `applied` on the loop, behind each file. Raises
        `CorruptSegmentError` or `MissingObjectError` where no copy of a file can be used.
        """
        begun = self._clock.monotonic()
        part = range_of(commit, key_groups) if missing is None else RangeState(key_groups, tuple(missing))

        def apply_since(changes: list[StateChange]) -> Collection[int]:
            groups = apply(changes)
            self._changed.update(groups)
            return groups

        await self._run_rocksdb(part, commit, apply, applied)
        await self._run_reads([BaseRead(base) for base in part.bases], apply, applied)
        await self._run_reads(plan_reads(part.changelog, key_groups), apply_since, applied)
        return RestoreReport(
            checkpoint_id=commit.checkpoint_id,
            sequence=commit.sequence,
            files_local=self._files[True],
            files_primary=self._files[False],
            bytes_local=self._bytes[True],
            bytes_primary=self._bytes[False],
            changes=self._changes,
            seconds=self._clock.monotonic() - begun,
            fallbacks=tuple(self._fallbacks),
        )

    async def _run_rocksdb(self, part: RangeState, commit: Commit, apply: Apply, applied: Applied) -> None:
        if self._rocksdb is None:
            assert not part.rocksdb, "RocksDB bases, and nobody to restore them"
            return
        await self._rocksdb.run(part, commit, apply, applied)
        for found in self._rocksdb.fetched:
            self._files[found.local] += 1
            self._bytes[found.local] += found.size_bytes
            if found.fallback is not None:
                self._fallbacks.append(found.fallback)
        if self._local is not None and self._local.rocksdb is None:  # so that nobody calls the next checkpoint local
            keys = (file.handle.key for base in part.rocksdb for file in base.files)
            self._fallbacks += (Fallback(key, "RocksDB bases have no place here", repaired=False) for key in keys)
        self._changes += self._rocksdb.changes

    async def _run_reads(self, reads: Sequence[Read], apply: Apply, applied: Applied) -> None:
        async def consume(read: Read, fetched: _Fetched) -> None:
            if fetched.local is not None:
                self._files[fetched.local] += 1
                self._bytes[fetched.local] += fetched.size_bytes
            if fetched.fallback is not None:
                self._fallbacks.append(fetched.fallback)
            changes = await self._threads.cpu(_apply, fetched, apply)
            self._changes += changes
            applied(read.segment.key, fetched.size_bytes, changes)

        await in_order(reads, self._fetch, consume, concurrency_max=self._concurrency_max)

    async def _fetch(self, read: Read) -> _Fetched:
        if self._local is None or (self._at_hand_first and read.segment.key in self._at_hand):
            return await self._fetch_wanted(read)
        try:
            data = await self._local.store.get(read.segment.key)
            await self._verify(data, read.segment)
        except (StoreError, DataError) as error:
            data = await self._fetch_whole(read.segment)
            repaired = await self._repair(self._local, read.segment, data)
            fallback = Fallback(read.segment.key, _reason(error), repaired)
            return _fetched(read, data, local=self._source(read), fallback=fallback)
        return _fetched(read, data, local=True)

    async def _fetch_wanted(self, read: Read) -> _Fetched:
        """From the primary, and nothing to repair: of a segment shared with many others only what is wanted.

        With a cache the others are expected to come, and to want the rest: one download of the whole serves them all.
        """
        if self._cache is not None or not read.is_sparse or read.segment.key in self._at_hand:
            return _fetched(read, await self._fetch_whole(read.segment), local=self._source(read))
        try:
            found = await read.find_frames(self._primary)
            frames = await fetch_frames(self._primary, found)
        except ObjectNotFoundError as error:
            raise MissingObjectError("a segment that the commit needs is gone", object=read.segment.key) from error
        return _Fetched(found, frames, sum(map(len, frames)), local=False)

    def _source(self, read: Read) -> bool | None:
        return None if read.segment.key in self._at_hand else False

    async def _fetch_whole(self, segment: Handle) -> bytes:
        if (data := self._at_hand.get(segment.key)) is not None:
            return data
        try:
            if self._cache is not None:
                return await self._cache.get(segment)
            data = await self._primary.get(segment.key)
        except ObjectNotFoundError as error:
            raise MissingObjectError("a segment that the commit needs is gone", object=segment.key) from error
        await self._verify(data, segment)
        return data

    async def _verify(self, data: bytes, segment: Handle) -> None:
        await self._threads.cpu(verify, data, segment)

    async def _repair(self, local: LocalCopies, segment: Handle, data: bytes) -> bool:
        if not local.writable:
            return False
        try:
            await local.store.repair(segment.key, (data,))
        except StoreError:
            return False  # reported as not repaired; the state itself came from the primary
        return True


def _fetched(read: Read, data: bytes, *, local: bool | None, fallback: Fallback | None = None) -> _Fetched:
    found = read.frames_in(data)
    return _Fetched(found, frames_of(data, found), len(data), local, fallback)


def _apply(fetched: _Fetched, apply: Apply) -> int:
    count = 0
    for changes in changes_of(fetched.frames, fetched.read.change_sets, fetched.read.key_groups):
        apply(changes)
        count += len(changes)
    return count


def _reason(error: Exception) -> str:
    return "missing" if isinstance(error, ObjectNotFoundError) else str(error)
