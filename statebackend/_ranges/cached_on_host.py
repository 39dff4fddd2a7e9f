"""The state of a range, cached on the host's disk in RocksDB's files: the next process takes it.

The manifest beside the files says what they are. It is removed before a file is touched, and written when all of them
are closed. So a process that is killed leaves files without a manifest, which nobody believes.
"""

import logging
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from statebackend._backend.tables import Tables, open_tables
from statebackend._checkpoint.lineage import Lineage, missing
from statebackend._codec.commit import Commit
from statebackend._local.disk import is_failing
from statebackend._local.range_directories import RangeDirectory, RangeManifest, open_range_directory, remove_ranges
from statebackend._local.scratch import scratch_parent
from statebackend._ranges.cached_in_process import CachedRange, CachedTables, Start
from statebackend._tables.key_groups import OwnedKeys
from statebackend._threads import WorkerThreads
from statebackend.errors import LocalRootError, SettingsError, StoreUnavailableError, TableDiskError, needs_extra
from statebackend.ids import ChangeSetHandle, Epoch, KeyGroupRange, RocksDBBase
from statebackend.settings import Settings

if TYPE_CHECKING:
    from statebackend._tables.rocksdb import RocksStore

_logger = logging.getLogger(__name__)


class _Content(msgspec.Struct, frozen=True):
    """The part of a manifest that describes the state; `RangeManifest` says which job it belongs to."""

    lineage: Lineage
    bases: bytes
    changed: tuple[int, ...]
    rocksdb: RocksDBBase | None = msgspec.field(name="native")


@asynccontextmanager
async def start_from_host(
    settings: Settings,
    key_groups: KeyGroupRange,
    owners: Collection[KeyGroupRange],
    epoch: Epoch,
    base: Commit | None,
    *,
    parents: Sequence[Path],
    threads: WorkerThreads,
) -> AsyncGenerator[Start]:
    """The state that this host has cached, if it leads to `base`; otherwise empty tables in the same directory.

    If another process is working in that directory, or its disk takes nothing, the tables lie in a directory of our own
    and nothing is cached; so, too, with `parents`, below which it lies then.
    Raises `LocalRootError`, `SettingsError` if rocksdict is missing, `StoreUnavailableError` if the disk fails.
    """
    parent = scratch_parent(settings.table_dir, settings.local)
    await remove_ranges(parent, settings.job, epoch, threads, but=owners, timeout_s=settings.local_read_timeout_s)
    async with AsyncExitStack() as stack:
        files = start = None
        try:
            opening = open_range_directory(parent, settings.job, key_groups, threads)
            if not parents and (directory := await stack.enter_async_context(opening)) is not None:
                files = _RangeFiles(settings, key_groups, directory)
                start = await threads.io(files.open, base)
        except (LocalRootError, StoreUnavailableError) as error:
            if not (isinstance(error, StoreUnavailableError) or is_failing(error)):
                raise
            _logger.warning("the disk of a range takes nothing, and its files lie elsewhere: reason=%s", error)
        if files is None or start is None:
            await stack.aclose()
            async with open_tables(settings, key_groups, threads, parents) as opened:
                yield Start(opened)  # `cache` has no effect here
            return
        try:
            yield start
            if start.left is not None and start.left.tables.are_in_files:
                await threads.io(files.cache, start.left)
        finally:
            with anyio.CancelScope(shield=True):
                await threads.io(files.close)


class _RangeFiles:
    """RocksDB in the directory of a range. All methods block on the disk."""

    def __init__(self, settings: Settings, key_groups: KeyGroupRange, directory: RangeDirectory) -> None:
        try:
            from statebackend._tables import rocksdb, rocksdb_tables  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise SettingsError(needs_extra("this table", "rocksdb"), table=settings.table) from error
        self._settings = settings
        self._key_groups = key_groups
        self._directory = directory
        self._open_table = rocksdb_tables.open_table
        self._open_store = partial(rocksdb.RocksStore, directory.files, memory_bytes=settings.table_memory_bytes)
        self._store: RocksStore | None = None

    def open(self, base: Commit | None) -> Start:
        """The cached state with what it lacks of `base`, or empty tables. Raises `StoreUnavailableError`."""
        manifest = self._directory.take_manifest()
        usable = self._usable(manifest, base)
        if usable is not None:
            try:
                self._directory.make_scratch()
                store = self._store = self._open_store(reopen=True)
            except OSError as error:  # a `StoreUnavailableError` is one
                _logger.warning("the files of a range cannot be used, and are made anew: reason=%s", error)
            else:
                content, lacks = usable
                opened = self._tables(store)
                cached = CachedRange(
                    lineage=content.lineage,
                    tables=CachedTables(opened.open_table),
                    states=None,
                    epoch=Epoch(0),  # goes with `states`: there are none to use again
                    bases=content.bases,
                    changed=frozenset(content.changed),
                    rocksdb=content.rocksdb,
                )
                return Start(opened, cached, lacks, "host")
        self._make_empty()
        store = self._store = self._open_store()
        return Start(self._tables(store))

    def cache(self, left: CachedRange) -> None:
        """Write out and close the files, then the manifest. If the disk fails, the next attempt only starts empty."""
        assert self._store is not None
        content = _Content(left.lineage, left.bases, tuple(sorted(left.changed)), left.rocksdb)
        manifest = RangeManifest(
            primary=self._settings.primary,
            max_parallelism=self._settings.max_parallelism,
            epoch=left.epoch,
            content=msgspec.msgpack.encode(content),
        )
        try:
            self._store.write_out()
            self._store.close()
            self._directory.settle(self._store.directory)
            self._directory.put_manifest(manifest)
        except OSError as error:
            _logger.warning("the files of a range could not be cached: reason=%s", error)

    def close(self) -> None:
        """Close the files. Closing twice is fine."""
        if self._store is not None:
            self._store.close()

    def _usable(
        self, manifest: RangeManifest | None, base: Commit | None
    ) -> tuple[_Content, Sequence[ChangeSetHandle]] | None:
        whose = (self._settings.primary, self._settings.max_parallelism)
        if manifest is None or (manifest.primary, manifest.max_parallelism) != whose:
            return None
        content = msgspec.msgpack.decode(manifest.content, type=_Content)
        lacks = missing(content.lineage, base, self._key_groups)
        return None if lacks is None else (content, lacks)

    def _tables(self, store: "RocksStore") -> Tables:
        keys = OwnedKeys(self._key_groups, self._settings.max_parallelism)
        return Tables(partial(self._open_table, store, keys), store, self._directory.scratch)

    def _make_empty(self) -> None:
        try:
            self._directory.clear()
            self._directory.make_scratch()
        except OSError as error:
            raise TableDiskError(
                "the disk of the tables failed", directory=str(self._directory.files), reason=str(error)
            ) from error
