"""The tables of the states: on the heap, or in files of RocksDB that live as long as the backend.

Also makes what writes these files as RocksDB bases, and what restores such bases into tables of either kind.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import msgspec
from anyio.abc import TaskGroup

from statebackend._changelog.scheduler import UploadScheduler
from statebackend._checkpoint.far_runs import FarRuns
from statebackend._checkpoint.fetch import Fetcher
from statebackend._checkpoint.incoming_runs import IncomingRuns
from statebackend._checkpoint.materialization.bases import base_segment_bytes
from statebackend._checkpoint.materialization.rocksdb_bases import RocksDBBases
from statebackend._checkpoint.restore import LocalCopies
from statebackend._checkpoint.rocksdb_restore import RocksDBRestore
from statebackend._checkpoint.run_files import RunFiles
from statebackend._local.scratch import open_scratch_in, scratch_parents
from statebackend._runs.far_pages import ReadsApart
from statebackend._runs.overlay_memory import OverlayMemory
from statebackend._tables.heap import heap_table
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.table import OpenTable, Table, TableFiles
from statebackend._tasks import finish
from statebackend._threads import WorkerThreads
from statebackend.abc import ObjectStore, Observer
from statebackend.errors import SettingsError, TableDiskError, needs_extra
from statebackend.ids import KeyGroupRange, RocksDBBase
from statebackend.settings import Settings

if TYPE_CHECKING:
    from statebackend._tables.rocksdb import RocksStore


_logger = logging.getLogger(__name__)


class Tables(msgspec.Struct, frozen=True):
    """How the states get their tables. Those in RocksDB have `files`, and a `scratch` directory on the same disk."""

    open_table: OpenTable
    files: TableFiles | None = None
    scratch: Path | None = None
    are_over_runs: bool = False
    """Columnar states look up in their bases."""
    apart: ReadsApart | None = None
    """Over runs: reads the primary for look-ups, which cannot wait for the loop."""
    incoming: IncomingRuns | None = None
    """Over runs: those whose copies have to come in; `None` where all is fetched at the opening."""
    memory: OverlayMemory | None = None
    """Over runs: that of all tables together, if they are whole in it as long as they fit."""
    memory_bytes: int = 0
    """Over runs: what the rows may take."""
    parents: Sequence[Path] = ()
    """On the heap: where a restore may make a scratch directory, in order. Empty: where the settings say."""


HEAP: Final = Tables(heap_table)


@asynccontextmanager
async def open_tables(
    settings: Settings,
    key_groups: KeyGroupRange,
    threads: WorkerThreads,
    parents: Sequence[Path] = (),
    *,
    over_runs: bool = False,
    apart: ReadsApart | None = None,
) -> AsyncGenerator[Tables]:
    """The tables of one owner, with files below the first of `parents` that takes them: by default, of the settings.

    With `table="runs"`, or once they outgrow `state_memory_bytes`, columnar states look up in their bases if the caller
    takes these `over_runs`; else they are read into memory. Raises `SettingsError` where rocksdict is missing.
    """
    if settings.table != "rocksdb":
        if over_runs:
            yield tables_in_memory(settings, key_groups, parents, apart=apart)
        else:
            yield Tables(heap_table, parents=parents)
        return
    try:
        from statebackend._tables.rocksdb import RocksStore  # noqa: PLC0415  # an extra
        from statebackend._tables.rocksdb_tables import open_table  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise SettingsError(needs_extra("this table", "rocksdb"), table=settings.table) from error
    keys = OwnedKeys(key_groups, settings.max_parallelism)
    opened: list[RocksStore] = []

    async def open_files(directory: Path) -> Path:
        def append() -> None:
            opened.append(RocksStore(directory / "rocksdb", memory_bytes=settings.table_memory_bytes))

        await finish(threads.io, append)  # cancelled or not, the store is there to be closed
        return directory

    parents = parents or table_parents(settings)
    try:
        async with open_scratch_in(parents, threads, open_files) as directory:
            try:
                yield Tables(partial(open_table, opened[0], keys), opened[0], directory)
            finally:
                await _close(opened, threads)
    finally:
        await _close(opened, threads)


def tables_in_memory(
    settings: Settings,
    key_groups: KeyGroupRange,
    parents: Sequence[Path],
    *,
    apart: ReadsApart | None = None,
    fetches_whole: bool = False,
) -> Tables:
    """Tables that have no files of their own, also those over runs. `parents`, `apart`: as for `open_tables`.

    `fetches_whole`: nothing is looked up in the primary, which is asked for other copies of damaged files alone.
    """
    if settings.table != "runs" and not settings.state_memory_bytes:
        return Tables(heap_table, parents=parents)
    keys = OwnedKeys(key_groups, settings.max_parallelism)
    shared = OverlayMemory(settings.state_memory_bytes, is_whole=True) if settings.state_memory_bytes else None
    return Tables(
        partial(_over_runs, shared, settings.table_memory_bytes, keys),
        memory=shared,
        memory_bytes=settings.state_memory_bytes or settings.table_memory_bytes,
        are_over_runs=True,
        apart=apart,
        incoming=None if fetches_whole else IncomingRuns(),
        parents=parents or table_parents(settings),
    )


def _over_runs(
    shared: OverlayMemory | None, memory_bytes: int, keys: OwnedKeys, heap: Callable[[], Table], _state_id: int
) -> Table:
    """An empty table: over runs for columns, in `shared` memory or in so many bytes; in memory for other states."""
    table = heap()
    if isinstance(heap, type):
        return table
    from statebackend._columns.column_table import ColumnTable  # noqa: PLC0415  # an extra
    from statebackend._runs.run_table import RunTable  # noqa: PLC0415  # an extra

    assert isinstance(table, ColumnTable), "what is no class makes a table of columns"
    return RunTable(table.described, keys, memory=shared or OverlayMemory(memory_bytes))


def run_files(
    tables: Tables,
    fetcher: Fetcher,
    local: LocalCopies | None,
    *,
    primary: ObjectStore | None = None,
    threads: WorkerThreads,
) -> RunFiles | None:
    """Opens the bases for tables that look up in them; `None` where they are not over runs.

    `primary`: where bases without a local copy are looked up, until they have one; without it, they are fetched whole.
    """
    if not tables.are_over_runs:
        return None
    far: FarRuns | None = None
    if primary is not None and tables.apart is not None and tables.incoming is not None:
        far = FarRuns(primary, tables.apart, threads=threads)
    return RunFiles(
        fetcher,
        None if local is None else local.store,
        writable=local is not None and local.writable,
        parents=tables.parents,
        threads=threads,
        apart=tables.apart,
        far=far,
        incoming=tables.incoming,
        memory_bytes=tables.memory_bytes,
    )


def table_parents(settings: Settings) -> Sequence[Path]:
    """Where files of tables may lie, in order: each is for when the disk of the one before takes nothing."""
    return scratch_parents(settings.table_dir, settings.local)


def parents_left(parents: Sequence[Path], error: TableDiskError) -> Sequence[Path]:
    """The directories after the one that the error is about, to open on again. Raises it if there is none."""
    directory = Path(str(error.facts["directory"]))
    failed = [place for place, parent in enumerate(parents, 1) if directory.is_relative_to(parent)]
    if not failed or failed[-1] == len(parents):
        raise error
    _logger.warning("the disk of the tables failed while they were restored, and another one is used: %s", error)
    return parents[failed[-1] :]


async def _close(opened: "list[RocksStore]", threads: WorkerThreads) -> None:
    with anyio.CancelScope(shield=True):
        while opened:
            await threads.io(opened.pop().close)


def rocksdb_restore(
    fetcher: Fetcher,
    local: LocalCopies | None,
    settings: Settings,
    *,
    threads: WorkerThreads,
    tables: Tables,
) -> RocksDBRestore:
    """Restores RocksDB bases: as files if `tables` can take them over, otherwise entry by entry."""
    return RocksDBRestore(
        fetcher,
        None if local is None else local.rocksdb,
        tables=tables.files,
        open_scratch=partial(_scratch, tables, settings, threads),
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
        segment_bytes_max=base_segment_bytes(settings.in_flight_bytes_max),
        compression=settings.compression,
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
    parents = tables.parents or table_parents(settings)
    async with open_scratch_in(parents, threads, _unchanged) as directory:
        yield directory


async def _unchanged(directory: Path) -> Path:
    return directory
