"""Opens what it takes to read a commit as a whole, for who does not go on from it as the job's backend."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from statebackend._backend.rocksdb import rocksdb_restore
from statebackend._backend.stores import open_local
from statebackend._backend.tables import open_tables
from statebackend._checkpoint.restore import Restore
from statebackend._codec.commit import Commit
from statebackend._log.commits import CommitLog
from statebackend._state.declared import KeyedStates
from statebackend.abc import Clock, ObjectStore
from statebackend.ids import StateDescriptor, all_key_groups
from statebackend.settings import Settings


@asynccontextmanager
async def open_reading(
    settings: Settings,
    primary: ObjectStore,
    log: CommitLog,
    base: Commit,
    states: Sequence[StateDescriptor],
    *,
    clock: Clock,
) -> AsyncGenerator[tuple[KeyedStates, Restore]]:
    """These states, empty, for all key groups of `settings.max_parallelism`; and what reads `base`, local copies first.

    Nothing is written but to a scratch directory, where `settings.table` wants one. Raises `SettingsError`.
    """
    owned = all_key_groups(settings.max_parallelism)
    async with (
        open_local(settings, None, read_only=True) as local,
        open_tables(settings, owned) as tables,
    ):
        restore = Restore(
            primary,
            local,
            at_hand=log.take_body(base),
            clock=clock,
            concurrency_max=settings.restore_concurrency_max,
            cpu_threads_max=settings.cpu_threads_max,
            rocksdb=rocksdb_restore(primary, local, settings),
        )
        yield KeyedStates(owned, settings.max_parallelism, states, open_table=tables.open_table), restore
