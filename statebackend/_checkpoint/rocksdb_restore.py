"""Brings RocksDB bases back: each file from its local copy if that verifies, from the primary otherwise.

    same key groups, into RocksDB:    the files, linked or copied, are the database from then on
    anything else:                    the files are opened to be read, and the entries that are wanted are applied

A local copy that lacks a file, or has a bad one, is made anew from what was fetched, as a whole.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

import msgspec

from statebackend._cache.download_cache import DownloadCache
from statebackend._changelog.reader import verify
from statebackend._codec.commit import Commit
from statebackend._codec.records import StateChange
from statebackend._local.disk import remove_directory
from statebackend._local.rocksdb_copies import RocksDBCopies
from statebackend._tables.rocksdb_entries import open_entries
from statebackend._tables.table import TableFiles
from statebackend._tasks import in_order
from statebackend._threads import WorkerThreads
from statebackend.abc import Fallback, ObjectStore
from statebackend.errors import (
    DataError,
    MissingObjectError,
    ObjectNotFoundError,
    StoreError,
    StoreUnavailableError,
)
from statebackend.ids import RangeState, RocksDBBase, RocksDBFile
from statebackend.settings import MiB

CHANGES_AT_ONCE: Final = 4096
"""Entries of a base that are applied in one call."""
IN_MEMORY_BYTES_MAX: Final = 128 * MiB
"""Of files that are being fetched at a time; a larger one is fetched alone."""

Apply = Callable[[list[StateChange]], object]
"""Applies changes. What it gives is of no use here."""
Applied = Callable[[str, int, int], None]
"""Told of a file that was fetched, by its key, its bytes, and the entries of it that were applied."""


class FetchedFile(msgspec.Struct, frozen=True):
    """A file that is in its place. `fallback`: why it is not the local copy's, where that was looked for."""

    size_bytes: int
    local: bool
    fallback: Fallback | None = None


class RocksDBRestore:
    """One restore of RocksDB bases. `tables` may take over whole files, `None` where they are no RocksDB's.

    `scratch` is a directory for what is fetched; it is entered only where there is something to be. A failed or
    cancelled restore has changed no stored state, but for local copies that it has repaired.
    """

    def __init__(
        self,
        primary: ObjectStore,
        copies: RocksDBCopies | None,
        *,
        tables: TableFiles | None,
        scratch: AbstractAsyncContextManager[Path],
        cache: DownloadCache | None,
        concurrency_max: int,
        threads: WorkerThreads,
    ) -> None:
        self._primary = primary
        self._copies = copies
        self._tables = tables
        self._scratch = scratch
        self._cache = cache
        self._concurrency_max = concurrency_max
        self._threads = threads
        self.fetched: Final[list[FetchedFile]] = []
        self.changes = 0
        self.adopted: RocksDBBase | None = None

    async def run(self, part: RangeState, commit: Commit, apply: Apply, applied: Applied) -> None:
        """Apply the entries of the RocksDB bases of `part`, or have the tables take over their files.

        Raises `CorruptSegmentError` or `MissingObjectError` where no copy of a file can be used, `SettingsError` where
        there is no RocksDB to read them with.
        """
        if not part.rocksdb:
            return
        async with AsyncExitStack() as stack:
            scratch = await stack.enter_async_context(self._scratch)
            for number, base in enumerate(part.rocksdb):
                directory = scratch / f"restored-{number}"
                await self._fetch(base, directory, applied)
                if self._tables is not None and is_whole(base, part):
                    await self._threads.io(self._tables.adopt, directory)
                    self.adopted = base
                else:
                    entries = await self._threads.cpu(self._apply, base, directory, commit, apply)
                    applied(base.files[0].handle.key, 0, entries)
                    await self._threads.io(remove_directory, directory)

    async def _fetch(self, base: RocksDBBase, directory: Path, applied: Applied) -> None:
        placed = await self._threads.io(_made, directory)
        fetched: list[FetchedFile] = []

        async def take(file: RocksDBFile, found: FetchedFile) -> None:
            fetched.append(found)
            applied(file.handle.key, found.size_bytes, 0)

        largest = max(file.handle.length for file in base.files)
        at_once = max(1, min(self._concurrency_max, IN_MEMORY_BYTES_MAX // max(1, largest)))
        await in_order(base.files, partial(self._fetch_file, base, directory, placed), take, concurrency_max=at_once)
        await self._threads.io(_let_go, placed)
        if any(found.fallback is not None for found in fetched):
            repaired = await self._is_repaired(base, directory)
            fetched = [_with_repair(found, repaired=repaired) for found in fetched]
        self.fetched.extend(fetched)

    async def _fetch_file(self, base: RocksDBBase, directory: Path, placed: Path, file: RocksDBFile) -> FetchedFile:
        """`placed`: where local copies go first. A thread that was left behind may still write there."""
        target, fallback = directory / file.name, None
        if self._copies is not None:
            try:
                await self._copies.place(base, file, placed / file.name, verify)
            except (StoreError, DataError) as error:
                reason = "missing" if isinstance(error, ObjectNotFoundError) else str(error)
                fallback = Fallback(file.handle.key, reason, repaired=False)
            else:
                await self._threads.io(_moved, placed / file.name, target)
                return FetchedFile(file.handle.length, local=True)
        data = await self._download(file)
        await self._threads.io(_write, target, data)
        return FetchedFile(file.handle.length, local=False, fallback=fallback)

    async def _download(self, file: RocksDBFile) -> bytes:
        try:
            if self._cache is not None:
                return await self._cache.get(file.handle)
            data = await self._primary.get(file.handle.key)
        except ObjectNotFoundError as error:
            raise MissingObjectError("a file that the commit needs is gone", object=file.handle.key) from error
        await self._threads.cpu(verify, data, file.handle)
        return data

    async def _is_repaired(self, base: RocksDBBase, directory: Path) -> bool:
        if self._copies is None or not self._copies.writable:
            return False
        try:
            await self._copies.store(base, directory)
        except StoreError:
            return False  # reported as not repaired; the files themselves are all there
        return True

    def _apply(self, base: RocksDBBase, directory: Path, commit: Commit, apply: Apply) -> int:
        count = 0
        with open_entries(directory, commit.states, base.owner, max_parallelism=commit.max_parallelism) as entries:
            changes = entries.changes(frozenset(_groups(base)))
            while step := list(islice(changes, CHANGES_AT_ONCE)):
                apply(step)
                count += len(step)
        self.changes += count
        return count


def is_whole(base: RocksDBBase, part: RangeState) -> bool:
    """Whether the files of a base hold all entries of an owner, and of no other."""
    return base.key_groups == (base.owner,) == (part.key_groups,)


def _groups(base: RocksDBBase) -> Iterator[int]:
    return (group for each in base.key_groups for group in each)


def _with_repair(found: FetchedFile, *, repaired: bool) -> FetchedFile:
    if found.fallback is None:
        return found
    return msgspec.structs.replace(found, fallback=msgspec.structs.replace(found.fallback, repaired=repaired))


def _made(directory: Path) -> Path:
    """Make it anew, and another one beside it, which is returned and has a name that nobody knows."""
    with _disk(directory):
        remove_directory(directory)
        directory.mkdir()
        return Path(mkdtemp(prefix="placed-", dir=directory.parent))


def _moved(path: Path, target: Path) -> None:
    with _disk(target.parent):
        path.replace(target)


def _write(path: Path, data: bytes) -> None:
    with _disk(path.parent):
        path.write_bytes(data)


def _let_go(directory: Path) -> None:
    with suppress(OSError):  # it goes with the scratch directory
        remove_directory(directory)


@contextmanager
def _disk(directory: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailableError(
            "the disk of the tables failed", directory=str(directory), reason=error.strerror
        ) from error
