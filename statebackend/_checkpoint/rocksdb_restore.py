"""Restores RocksDB bases: fetches their files into a directory, and hands that or its entries to the tables.

    same key groups, into RocksDB:    the files, linked or copied, become the database
    anything else:                    the files are opened for reading, and the wanted entries are applied

Files of columnar states, which lie beside them, are read and removed first, whatever becomes of the others.

A local copy that lacks a file, or has a bad one, is made anew as a whole from what was fetched.
"""

from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

import anyio
import msgspec

from statebackend._changelog.changelog_reader import BaseRead, changes_of, verify
from statebackend._checkpoint.fetch import (
    FETCHED_BYTES_MAX,
    Apply,
    Fetched,
    Fetcher,
    FileDone,
    files_at_once,
    frames_in,
    ignore_file,
    try_repair,
)
from statebackend._codec.commit import Commit
from statebackend._local.disk import remove_directory
from statebackend._local.rocksdb_copies import RocksDBCopies
from statebackend._tables.rocksdb_entries import open_entries
from statebackend._tables.snapshot import StatesSnapshot
from statebackend._tables.table import TableFiles
from statebackend._tasks import in_order
from statebackend._threads import WorkerThreads
from statebackend.errors import CorruptSegmentError, TableDiskError
from statebackend.ids import Base, RangeState, RocksDBBase, RocksDBFile, StateDescriptor

CORRUPTION: Final = "Corruption"
"""How RocksDB's own word begins for what is wrong in its files, and not with the disk."""


class RocksDBRestore:
    """One restore of RocksDB bases. `tables` may take over whole files; `None` if they are not RocksDB's.

    `open_scratch` opens a directory for what is fetched, as often as there is something. A failed or cancelled restore
    has changed no stored state, except for local copies that it repaired.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        copies: RocksDBCopies | None,
        *,
        tables: TableFiles | None,
        open_scratch: Callable[[], AbstractAsyncContextManager[Path]],
        concurrency_max: int,
        threads: WorkerThreads,
    ) -> None:
        self._fetcher = fetcher
        self._copies = copies
        self._tables = tables
        self._open_scratch = open_scratch
        self._concurrency_max = concurrency_max
        self._threads = threads
        self.fetched: Final[list[Fetched[None]]] = []
        self.changes = 0
        self.adopted: RocksDBBase | None = None

    async def run(self, part: RangeState, commit: Commit, apply: Apply, file_done: FileDone) -> None:
        """Apply the entries of the RocksDB bases of `part`, or have the tables take over their files.

        Raises `CorruptSegmentError` or `MissingObjectError` if no copy of a file can be used, or if names are wrong,
        `TableDiskError` where the disk takes no files, `SettingsError` if RocksDB is not installed.
        """
        if not part.rocksdb:
            return
        async with self._open_scratch() as scratch:
            for number, base in enumerate(part.rocksdb):
                directory = scratch / f"restored-{number}"
                await self._fetch(base, directory, file_done)
                for file in base.files:
                    if file.is_columns:
                        rows = await self._threads.cpu(self._apply_columns, base, file, directory, apply)
                        file_done(file.handle.key, 0, rows)
                if self._tables is not None and is_whole(base, part):
                    with _database_of(base):
                        await self._threads.io(self._tables.adopt, directory)
                    self.adopted = base
                else:
                    with _database_of(base):
                        entries = await self._threads.cpu(self._apply, base, directory, commit, apply)
                    file_done(base.files[0].handle.key, 0, entries)
                    await self._threads.io(remove_directory, directory)

    @asynccontextmanager
    async def opened(self, base: RocksDBBase, commit: Commit, state: StateDescriptor) -> AsyncGenerator[StatesSnapshot]:
        """The entries of one keyed state in the files of a base, which are fetched for as long as the context lasts.

        For reading only, in a thread. Several bases may be open at once. Raises as `run`.
        """
        tables = msgspec.structs.replace(base, files=tuple(file for file in base.files if not file.is_columns))
        async with self._open_scratch() as scratch:
            directory = scratch / "opened"
            await self._fetch(tables, directory, ignore_file)
            opening = open_entries(directory, [state], base.owner, max_parallelism=commit.max_parallelism)
            with _database_of(base):
                entries = await self._threads.io(opening.__enter__)
            try:
                yield entries
            finally:
                with anyio.CancelScope(shield=True):
                    await self._threads.io(opening.__exit__, None, None, None)

    async def _fetch(self, base: RocksDBBase, directory: Path, file_done: FileDone) -> None:
        placed = await self._threads.io(_made, directory)
        fetched: list[Fetched[None]] = []

        async def take(file: RocksDBFile, found: Fetched[None]) -> None:
            fetched.append(found)
            file_done(file.handle.key, found.size_bytes, 0)

        at_once = files_at_once((each.handle.length for each in base.files), self._concurrency_max, FETCHED_BYTES_MAX)
        await in_order(base.files, partial(self._fetch_file, base, directory, placed), take, concurrency_max=at_once)
        await self._threads.io(_remove_if_possible, placed)
        if any(found.fallback is not None for found in fetched):
            repaired = await self._repair(base, directory)
            fetched = [found.with_repair(repaired=repaired) for found in fetched]
        self.fetched.extend(fetched)

    async def _fetch_file(self, base: RocksDBBase, directory: Path, placed: Path, file: RocksDBFile) -> Fetched[None]:
        """Fetch one file into `directory`. A local copy goes to `placed` first, and is moved from there.

        A thread that was abandoned on a hanging disk may write to `placed` later. It must never write to `directory`:
        by then the database may have the file open, or may have replaced it.
        """
        target, copies = directory / file.name, self._copies

        async def local_copy() -> None:
            assert copies is not None
            await copies.place(base, file, placed / file.name, verify)

        async def place(data: bytes) -> None:
            await self._threads.io(_write, target, data)

        found = await self._fetcher.fetch(file.handle, None if copies is None else local_copy, place)
        if found.local:
            await self._threads.io(_moved, placed / file.name, target)
        return found

    async def _repair(self, base: RocksDBBase, directory: Path) -> bool:
        copies = self._copies
        if copies is None or not copies.writable:
            return False
        return await try_repair(lambda: copies.store(base, directory))

    def _apply(self, base: RocksDBBase, directory: Path, commit: Commit, apply: Apply) -> int:
        count = 0
        with open_entries(directory, commit.states, base.owner, max_parallelism=commit.max_parallelism) as entries:
            for changes in entries.changes(frozenset(_groups(base))):
                apply((changes,))
                count += changes.records
        self.changes += count
        return count

    def _apply_columns(self, base: RocksDBBase, file: RocksDBFile, directory: Path, apply: Apply) -> int:
        """Apply what the base stands for of one file, which was verified when it was fetched, and remove the file."""
        path, count = directory / file.name, 0
        with _disk(directory):
            data = path.read_bytes()
            path.unlink()
        found = frames_in(BaseRead(Base(file.handle, base.key_groups, base.key_groups_written)), data)
        for changes in changes_of(found.views, found.read.change_sets, found.read.key_groups):
            apply((changes,))
            count += changes.records
        self.changes += count
        return count


def is_whole(base: RocksDBBase, part: RangeState) -> bool:
    """True if the files of a base hold exactly the entries of the owner of `part`."""
    return base.key_groups == (base.owner,) == (part.key_groups,)


@contextmanager
def _database_of(base: RocksDBBase) -> Generator[None]:
    """Raises `CorruptSegmentError` where files that were each verified are not one database: a name is wrong."""
    try:
        yield
    except TableDiskError as error:
        if not (reason := str(error.facts.get("reason"))).startswith(CORRUPTION):
            raise
        raise CorruptSegmentError(
            "each file of a RocksDB base is as it was stored, but under these names they are no database",
            checkpoint_id=base.checkpoint_id,
            files=[file.name for file in base.files],
            reason=reason,
        ) from error


def _groups(base: RocksDBBase) -> Iterator[int]:
    return (group for each in base.key_groups for group in each)


def _made(directory: Path) -> Path:
    """Make an empty directory, and return another one beside it, whose name is used only once."""
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


def _remove_if_possible(directory: Path) -> None:
    with suppress(OSError):  # it is removed with the scratch directory
        remove_directory(directory)


@contextmanager
def _disk(directory: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise TableDiskError(
            "the disk of the tables failed", directory=str(directory), reason=error.strerror
        ) from error
