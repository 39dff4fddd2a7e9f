"""RocksDB bases: who writes those of a backend, and who restores them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from anyio.abc import TaskGroup

from statebackend._backend.tables import HEAP, Tables
from statebackend._changelog.scheduler import UploadScheduler
from statebackend._checkpoint.fetch import Fetcher
from statebackend._checkpoint.restore import LocalCopies
from statebackend._checkpoint.rocksdb_bases import RocksDBBases
from statebackend._checkpoint.rocksdb_restore import RocksDBRestore
from statebackend._local.scratch import open_scratch, scratch_parent
from statebackend._threads import WorkerThreads
from statebackend.abc import ObjectStore, Observer
from statebackend.ids import KeyGroupRange, RocksDBBase
from statebackend.settings import Settings


def rocksdb_restore(
    fetcher: Fetcher,
    local: LocalCopies | None,
    settings: Settings,
    *,
    threads: WorkerThreads,
    tables: Tables = HEAP,
) -> RocksDBRestore:
    """Restores RocksDB bases: as files if `tables` can take them over, otherwise entry by entry."""
    return RocksDBRestore(
        fetcher,
        None if local is None else local.rocksdb,
        tables=tables.files,
        scratch=_scratch(tables, settings, threads),
        concurrency_max=settings.restore_concurrency_max,
        threads=threads,
    )


def rocksdb_bases(
    tables: Tables,
    settings: Settings,
    *,
    key_groups: KeyGroupRange,
    adopted: RocksDBBase | None,
    scheduler: UploadScheduler,
    primary: ObjectStore,
    local: LocalCopies | None,
    threads: WorkerThreads,
    tasks: TaskGroup,
    observer: Observer,
) -> RocksDBBases | None:
    """Writes the bases of `tables` as their files; `None` if bases are made of entries."""
    if tables.files is None or tables.scratch is None or not settings.rocksdb_bases:
        return None
    return RocksDBBases(
        tables.files,
        tables.scratch,
        key_groups=key_groups,
        adopted=adopted,
        scheduler=scheduler,
        primary=primary,
        copies=None if local is None else local.rocksdb,
        concurrency_max=settings.restore_concurrency_max,
        threads=threads,
        tasks=tasks,
        observer=observer,
    )


@asynccontextmanager
async def _scratch(tables: Tables, settings: Settings, threads: WorkerThreads) -> AsyncGenerator[Path]:
    """The scratch directory of the tables, or, on the heap, one for as long as the restore takes."""
    if tables.scratch is not None:
        yield tables.scratch
        return
    async with open_scratch(scratch_parent(settings.table_dir, settings.local), threads) as directory:
        yield directory
