"""What the states of a backend lie in: the heap, or files of RocksDB that live as long as the backend."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import anyio

from statebackend._local.scratch import open_scratch, scratch_parent
from statebackend._state.key_groups import OwnedKeys
from statebackend._state.keyed import heap_table
from statebackend._state.tables import OpenTable
from statebackend._tasks import in_thread
from statebackend.errors import SettingsError
from statebackend.ids import KeyGroupRange
from statebackend.settings import Settings


@asynccontextmanager
async def open_tables(settings: Settings, key_groups: KeyGroupRange) -> AsyncGenerator[OpenTable]:
    """How the states get their tables. Raises `SettingsError` where rocksdict is missing."""
    if settings.table == "heap":
        yield heap_table
        return
    try:
        from statebackend._state.rocks_tables import open_table  # noqa: PLC0415  # an extra
        from statebackend._state.rocksdb import RocksStore  # noqa: PLC0415  # as above
    except ImportError as error:
        raise SettingsError("this table needs the extra 'rocksdb'", table=settings.table) from error
    keys, limiter = OwnedKeys(key_groups, settings.max_parallelism), anyio.CapacityLimiter(1)
    opened: list[RocksStore] = []
    async with open_scratch(scratch_parent(settings.table_dir, settings)) as directory:

        def open_files() -> None:  # appended in the thread, so that a cancelled call cannot lose it
            opened.append(RocksStore(directory / "rocksdb", memory_bytes=settings.table_memory_bytes))

        try:
            await in_thread(open_files, limiter=limiter)
            yield partial(open_table, opened[0], keys)
        finally:
            with anyio.CancelScope(shield=True):
                for store in opened:
                    await in_thread(store.close, limiter=limiter)
