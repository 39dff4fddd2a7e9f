"""Fetches the files that a commit needs: each from its local copy if that verifies, else from the primary, verified.

    at hand, or local copy -> download cache, or primary -> verified

Two kinds of files come through here: segments, whose content is wanted in memory, and files of RocksDB bases, which are
wanted in a directory. The callers say where the local copy is and where a download goes, and repair local copies that
could not be used.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from statebackend._cache.download_cache import DownloadCache
from statebackend._changelog.changelog_reader import BaseRead, SegmentRead, fetch_frames, frames_of, verify
from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.commit import Commit
from statebackend._local.segments import LocalSegments
from statebackend._threads import WorkerThreads
from statebackend.abc import Fallback, ObjectStore, RestoreReport
from statebackend.errors import DataError, MissingObjectError, ObjectNotFoundError, StoreError
from statebackend.ids import Handle
from statebackend.settings import MiB

T = TypeVar("T")

Apply = Callable[[Sequence[Changes]], Collection[int]]
"""Applies changes. Returns those of their key groups that the owner has."""
FileDone = Callable[[str, int, int], None]
"""Called after each file: its key, the bytes that were read of it, and the number of changes applied from it."""


FETCHED_BYTES_MAX: Final = 128 * MiB
"""Most bytes of files that are fetched at a time, or wait to be applied. A larger file is fetched alone."""


def files_at_once(sizes: Iterable[int], concurrency_max: int, bytes_max: int) -> int:
    """How many of these files may be fetched at a time: by the largest, no more bytes than that, unless it is alone."""
    return max(1, min(concurrency_max, bytes_max // max(1, max(sizes, default=1))))


def ignore_file(_key: str, _size_bytes: int, _changes: int) -> None:
    """A `FileDone` that does nothing."""


class Fetched(msgspec.Struct, Generic[T], frozen=True):
    """A file, or the wanted part of it, that has been fetched.

    `local`: from the local copy, or from the primary; `None` for a file at hand, which counts as neither. `fallback`:
    why the local copy was not used, if one was looked for.
    """

    content: T
    size_bytes: int
    local: bool | None
    fallback: Fallback | None = None

    def with_repair(self, *, repaired: bool) -> "Fetched[T]":
        """The same, with a fallback that says whether its local copy was repaired."""
        if self.fallback is None:
            return self
        return msgspec.structs.replace(self, fallback=msgspec.structs.replace(self.fallback, repaired=repaired))


class Frames(msgspec.Struct, frozen=True):
    """The frames that a restore wants of a segment: `views` are the bytes of those that `read` names."""

    read: SegmentRead
    views: Sequence[memoryview]


class Fetcher:
    """Fetches files for one restore.

    `at_hand`: objects of the primary that were read and verified before, by key: the commit, which may carry changes.
    """

    def __init__(
        self,
        primary: ObjectStore,
        *,
        cache: DownloadCache | None = None,
        at_hand: Mapping[str, bytes],
        threads: WorkerThreads,
    ) -> None:
        self._primary = primary
        self._cache = cache
        self._at_hand = at_hand
        self._threads = threads

    def is_at_hand(self, file: Handle) -> bool:
        """True if the file was read before."""
        return file.key in self._at_hand

    async def fetch(
        self,
        file: Handle,
        local_copy: Callable[[], Awaitable[T]] | None,
        place: Callable[[bytes], Awaitable[T]],
        from_afar: Callable[[], Awaitable[Fetched[T] | None]] | None = None,
    ) -> Fetched[T]:
        """Fetch the whole file: `local_copy` returns its verified local copy, `place` takes it from the primary.

        `from_afar` may have something in place of the whole, where there is no copy. Raises
        `CorruptSegmentError` or `MissingObjectError` if no copy of the file can be used.
        """
        fallback = None
        if local_copy is not None:
            try:
                return Fetched(await local_copy(), file.length, local=True)
            except (StoreError, DataError) as error:  # whatever is wrong with it: the primary has the file
                fallback = _fallback(file, error)
        if from_afar is not None and not self.is_at_hand(file) and (far := await from_afar()) is not None:
            return msgspec.structs.replace(far, fallback=fallback)
        content = await place(await self.download(file))
        return Fetched(content, file.length, None if self.is_at_hand(file) else False, fallback)

    async def local_copies(self, files: Sequence[Handle], local: LocalSegments) -> Sequence[bytes | Fallback]:
        """The verified local copies of small segments, read together; or why one cannot be used."""
        found = await local.get_many([file.key for file in files])
        return await self._threads.cpu(_verified, found, files)

    async def fetch_frames(self, read: SegmentRead | BaseRead) -> Fetched[Frames]:
        """Fetch the wanted frames from the primary. Of a segment shared with many others only those are read.

        With a cache the whole segment is read: the others are expected to want the rest of it, and one download serves
        them all. Raises as `fetch`.
        """
        segment = read.segment
        if self._cache is not None or not read.is_sparse or self.is_at_hand(segment):
            data = await self.download(segment)
            return Fetched(frames_in(read, data), len(data), None if self.is_at_hand(segment) else False)
        try:
            found = await read.find_frames(self._primary)
            views = await fetch_frames(self._primary, found)
        except ObjectNotFoundError as error:
            raise _missing(segment) from error
        return Fetched(Frames(found, views), sum(map(len, views)), local=False)

    async def verify(self, data: bytes, file: Handle) -> None:
        """Raise `CorruptSegmentError` unless `data` is the file."""
        await self._threads.cpu(verify, data, file)

    async def download(self, file: Handle) -> bytes:
        """The whole file from the primary, or what stands for it, verified. Raises as `fetch`."""
        if (data := self._at_hand.get(file.key)) is not None:
            return data
        try:
            if self._cache is not None:
                return await self._cache.get(file)  # it verifies
            data = await self._primary.get(file.key)
        except ObjectNotFoundError as error:
            raise _missing(file) from error
        await self.verify(data, file)
        return data


def frames_in(read: SegmentRead | BaseRead, data: bytes) -> Frames:
    """The wanted frames of a verified segment."""
    found = read.frames_in(data)
    return Frames(found, frames_of(data, found))


async def try_repair(repair: Callable[[], Awaitable[None]]) -> bool:
    """Repair a local copy; true if that worked. A failure is only reported: the state itself came from the primary."""
    try:
        await repair()
    except StoreError:
        return False
    return True


def _verified(copies: Sequence[bytes | StoreError], files: Sequence[Handle]) -> Sequence[bytes | Fallback]:
    found: list[bytes | Fallback] = []
    for copy, file in zip(copies, files, strict=True):
        try:
            if isinstance(copy, StoreError):
                raise copy
            verify(copy, file)
            found.append(copy)
        except (StoreError, DataError) as error:
            found.append(_fallback(file, error))
    return found


def _fallback(file: Handle, error: StoreError | DataError) -> Fallback:
    reason = "missing" if isinstance(error, ObjectNotFoundError) else str(error)
    return Fallback(file.key, reason, repaired=False)


def _missing(file: Handle) -> MissingObjectError:
    return MissingObjectError("a file that the commit needs is gone", object=file.key)


class Tally:
    """Adds up what a restore fetched and applied."""

    def __init__(self) -> None:
        self.changes = 0
        self.fallbacks: list[Fallback] = []
        self._files = {True: 0, False: 0}  # by whether they came from the local copy
        self._bytes = {True: 0, False: 0}

    def add(self, fetched: Fetched[Any]) -> None:
        """Count a file."""
        if fetched.local is not None:
            self._files[fetched.local] += 1
            self._bytes[fetched.local] += fetched.size_bytes
        if fetched.fallback is not None:
            self.fallbacks.append(fetched.fallback)

    def report(self, commit: Commit, *, seconds: float) -> RestoreReport:
        """The counts, of a restore of that commit."""
        return RestoreReport(
            checkpoint_id=commit.checkpoint_id,
            sequence=commit.sequence,
            files_local=self._files[True],
            files_primary=self._files[False],
            bytes_local=self._bytes[True],
            bytes_primary=self._bytes[False],
            changes=self.changes,
            seconds=seconds,
            fallbacks=tuple(self.fallbacks),
        )
