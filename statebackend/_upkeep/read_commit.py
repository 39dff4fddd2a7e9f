"""Finds a commit, and opens it for reading only: states in tables of their own, and the restore that fills them."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

from statebackend._backend.assembly import restore_of
from statebackend._backend.job import Job
from statebackend._backend.stores import open_local, readable_copies
from statebackend._backend.tables import open_tables
from statebackend._checkpoint.restore import Restore
from statebackend._codec.commit import Commit
from statebackend._state.declared import KeyedStates
from statebackend._state.kinds.operator_state import gathered, mode_of
from statebackend._threads import WorkerThreads
from statebackend._upkeep.primary import JobPrimary
from statebackend.abc import Clock, ObjectStore
from statebackend.errors import InputError
from statebackend.ids import StateDescriptor, all_key_groups
from statebackend.settings import Settings


async def find_commit(
    settings: Settings, primary: JobPrimary, *, checkpoint_id: int | None, savepoint: str | None, clock: Clock
) -> tuple[Commit, Mapping[str, bytes]]:
    """The newest commit, that of `checkpoint_id` or of `savepoint`; and its bytes by its key, if they were just read.

    Raises `InputError` if the job has no checkpoint, and as `Job.look`.
    """
    job = Job(
        primary.store,
        settings,
        primary.threads,
        clock=clock,
        checkpoint_id=checkpoint_id,
        savepoint=savepoint,
        any_parallelism=True,
        copies=readable_copies(settings, None, primary.threads),
    )
    commit = (await job.look()).base
    if commit is None:
        raise InputError(
            "the job has no checkpoint yet: wait for one, or correct job or primary",
            job=settings.job,
            primary=settings.primary,
        )
    return commit, job.log.take_body(commit)


def operator_elements(commit: Commit, state: StateDescriptor) -> Sequence[bytes]:
    """The elements of a state of that kind, encoded, as one owner of the whole job would have them."""
    mode = mode_of(state.kind)
    assert mode is not None
    return gathered(commit.ranges, {state.state_id: mode}).get(state.state_id, ())


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
