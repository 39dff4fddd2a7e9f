"""Opens the tables of the states: on the heap, or in files of RocksDB that live as long as the backend."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import msgspec

from statebackend._local.scratch import open_scratch, scratch_parent
from statebackend._tables.heap import heap_table
from statebackend._tables.key_groups import OwnedKeys
from statebackend._tables.table import OpenTable, TableFiles
from statebackend._threads import WorkerThreads
from statebackend.errors import SettingsError
from statebackend.ids import KeyGroupRange
from statebackend.settings import Settings


class Tables(msgspec.Struct, frozen=True):
    """How the states get their tables. Those in RocksDB have `files`, and a `scratch` directory on the same disk."""

    open_table: OpenTable
    files: TableFiles | None = None
    scratch: Path | None = None


HEAP: Final = Tables(heap_table)


@asynccontextmanager
async def open_tables(settings: Settings, key_groups: KeyGroupRange, threads: WorkerThreads) -> AsyncGenerator[Tables]:
    """The tables of one owner. Raises `SettingsError` where rocksdict is missing."""
    if settings.table == "heap":
        yield HEAP
        return
    try:
        from statebackend._tables.rocksdb import RocksStore  # noqa: PLC0415  # an extra
        from statebackend._tables.rocksdb_tables import open_table  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise SettingsError("this table needs the extra 'rocksdb'", table=settings.table) from error
    keys = OwnedKeys(key_groups, settings.max_parallelism)
    opened: list[RocksStore] = []
    async with open_scratch(scratch_parent(settings.table_dir, settings.local), threads) as directory:

        def open_files() -> None:  # appended in the thread, so that a cancelled call cannot lose it
            opened.append(RocksStore(directory / "rocksdb", memory_bytes=settings.table_memory_bytes))

        try:
            await threads.io(open_files)
            yield Tables(partial(open_table, opened[0], keys), opened[0], directory)
        finally:
            with anyio.CancelScope(shield=True):
                for store in opened:
                    await threads.io(store.close)
