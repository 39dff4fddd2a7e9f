"""Opens a commit for reading only: its states, in tables of their own, and the restore that fills them."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

from statebackend._backend.assembly import restore_of
from statebackend._backend.stores import open_local
from statebackend._backend.tables import open_tables
from statebackend._checkpoint.restore import Restore
from statebackend._state.declared import KeyedStates
from statebackend._threads import WorkerThreads
from statebackend.abc import Clock, ObjectStore
from statebackend.ids import StateDescriptor, all_key_groups
from statebackend.settings import Settings


@asynccontextmanager
async def open_commit(
    settings: Settings,
    primary: ObjectStore,
    states: Sequence[StateDescriptor],
    *,
    at_hand: Mapping[str, bytes],
    threads: WorkerThreads,
    clock: Clock,
) -> AsyncGenerator[tuple[KeyedStates, Restore]]:
    """Yield `states`, empty, for all `settings.max_parallelism` key groups, and a restore that fills them once.

    The restore reads local copies first and repairs none. Nothing is written except in a scratch directory, if
    `settings.table` needs one. `at_hand`: as for `Restore`. Raises `SettingsError`.
    """
    owned = all_key_groups(settings.max_parallelism)
    async with (
        open_local(settings, None, threads, read_only=True) as local,
        open_tables(settings, owned, threads) as tables,
    ):
        # Without `tables`, so a RocksDB base is read entry by entry: to choose entries, or to place them anew.
        restore = restore_of(settings, primary, local, at_hand=at_hand, threads=threads, clock=clock)
        yield KeyedStates(owned, settings.max_parallelism, states, open_table=tables.open_table), restore
