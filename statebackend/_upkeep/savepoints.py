"""Lists and drops the savepoints of a job."""

from collections.abc import Sequence

from statebackend._log.savepoints import SavepointInfo, Savepoints
from statebackend._upkeep.primary import check_exists, open_job_primary
from statebackend.abc import ObjectStore
from statebackend.settings import Settings


async def savepoints(settings: Settings, *, store: ObjectStore | None = None) -> Sequence[SavepointInfo]:
    """Return every savepoint of the job, in the order of their commits.

    Raises `InputError` if the store cannot list or there is no such job, `DataError`, `StoreError`.
    """
    async with open_job_primary(settings, store) as primary:
        found = await Savepoints(primary.store, primary.log).all()
        if not found:
            check_exists(settings, [end for end in [await primary.log.end()] if end is not None])
        return found


async def drop_savepoint(settings: Settings, name: str, *, store: ObjectStore | None = None) -> None:
    """Drop a savepoint: the next sweep may delete the checkpoint that it protected.

    Raises `SavepointNotFoundError`, also where there is no such job, `StoreError`, or `InputError` for an impossible
    name or a store that cannot list.
    After a failed or cancelled call it is dropped or not: call again.
    """
    async with open_job_primary(settings, store) as primary:
        await Savepoints(primary.store, primary.log).drop(name)
