"""Opens a commit for reading only: states in tables of their own, and the restore that fills them."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

from statebackend._backend.assembly import restore_of
from statebackend._backend.stores import local_to_read
from statebackend._backend.tables import open_tables
from statebackend._checkpoint.restore import Restore
from statebackend._codec.commit import Commit
from statebackend._state.declared import KeyedStates
from statebackend._state.kinds.operator_state import gathered, mode_of
from statebackend._threads import WorkerThreads
from statebackend.abc import Clock, ObjectStore
from statebackend.ids import StateDescriptor, all_key_groups
from statebackend.settings import Settings


def operator_elements(commit: Commit, state: StateDescriptor) -> Sequence[bytes]:
    """The elements of a state of that kind, encoded, as one owner of the whole job would have them."""
    mode = mode_of(state.kind)
    assert mode is not None
    (found,) = gathered([commit.ranges], {state.state_id: mode})
    return found.get(state.state_id, ())


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
    local = local_to_read(settings, threads)
    async with open_tables(settings, owned, threads) as tables:
        # Without `tables`, so a RocksDB base is read entry by entry: to choose entries, or to place them anew.
        restore = restore_of(settings, primary, local, at_hand=at_hand, threads=threads, clock=clock)
        yield KeyedStates(owned, settings.max_parallelism, states, open_table=tables.open_table), restore
