"""Makes, lists and drops the savepoints of a job, and finds out how a stream goes on from one."""

import datetime as dt
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from statebackend._log.fresh_names import new_stamp
from statebackend._log.savepoint_markers import SavepointInfo
from statebackend._upkeep.arguments import check_number
from statebackend._upkeep.job_primary import check_exists, open_job_primary
from statebackend.abc import Clock, ObjectStore
from statebackend.abc.clock import SystemClock
from statebackend.errors import SavepointNotFoundError
from statebackend.ids import CommitSummary, Epoch
from statebackend.settings import Settings

_SERIES_TIME: Final = "%Y%m%dT%H%M%SZ"


async def savepoint(
    settings: Settings,
    name: str,
    *,
    checkpoint_id: int | None = None,
    keep_s: float | None = None,
    store: ObjectStore | None = None,
    clock: Clock | None = None,
) -> SavepointInfo:
    """Keep the newest checkpoint, or `checkpoint_id`, under this name until it is dropped. Nobody is fenced.

    With `keep_s` it is one of a series: the time is added to its name, `nightly-20261124T030000Z`, and when it is made,
    those of the series are dropped that were made more than so many seconds ago. Others are not touched.

    Raises `SavepointExistsError` if the name is taken, `CheckpointNotFoundError` if the checkpoint is not retained,
    `InputError` for an impossible name or `keep_s`, a store that cannot list or a job that does not exist; `DataError`,
    `StoreError`. A failed or cancelled call may have made the savepoint, and dropped some: `savepoints` tells.
    """
    now_s, series = (clock or SystemClock()).time(), name
    if keep_s is not None:
        check_number(keep_s, "keep_s must be a number of seconds above 0", above=0)
        name = f"{series}-{dt.datetime.fromtimestamp(now_s, dt.UTC):{_SERIES_TIME}}"
    async with open_job_primary(settings, store, reads_copies=False) as primary:
        commit, _ = await primary.find(checkpoint_id=checkpoint_id)
        kept = primary.positions.savepoints
        made = await kept.keep(name, commit, random=new_stamp())
        for each in await kept.all() if keep_s is not None else ():
            made_at_s = _made_at_s(series, each.name)
            if keep_s is not None and made_at_s is not None and made_at_s < now_s - keep_s:
                with suppress(SavepointNotFoundError):  # by another process, which does the same
                    await kept.drop(each.name)
        return made


def _made_at_s(series: str, name: str) -> float | None:
    """When the savepoint `name` of the series was made; `None` if it is none of it."""
    try:
        made_at = dt.datetime.strptime(name.removeprefix(f"{series}-"), _SERIES_TIME).replace(tzinfo=dt.UTC)
    except ValueError:
        return None
    return made_at.timestamp() if name == f"{series}-{made_at:{_SERIES_TIME}}" else None


async def savepoints(settings: Settings, *, store: ObjectStore | None = None) -> Sequence[SavepointInfo]:
    """Return every savepoint of the job, in the order of their commits.

    Raises `InputError` if the store cannot list or there is no such job, `DataError`, `StoreError`.
    """
    async with open_job_primary(settings, store) as primary:
        found = await primary.positions.savepoints.all()
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
        await primary.positions.savepoints.drop(name)


class StartingPoint(msgspec.Struct, frozen=True):
    """The savepoint `name` to start from, the commit that it has `kept`, and the newest of the job that can be read.

    `is_begun`: a stream has gone on from the savepoint already, up to that commit.
    """

    name: str
    kept: CommitSummary
    newest: CommitSummary
    is_begun: bool


async def find_start(settings: Settings, name: str, *, store: ObjectStore | None = None) -> StartingPoint:
    """Look at the savepoint and at the job. Raises as `open_backend` for a savepoint, and claims nothing."""
    async with open_job_primary(settings, store) as primary:
        kept = primary.positions.savepoints
        commit, end = await kept.find(name), await primary.log.end()
        newest = (None if end is None else await primary.log.readable(end.sequence)) or commit
        is_begun = await kept.is_begun(name, commit, newest.epoch)
        return StartingPoint(name, commit.summary, newest.summary, is_begun)


async def record_start(settings: Settings, name: str, epoch: Epoch, *, store: ObjectStore | None = None) -> None:
    """Record that the writer of `epoch` goes on from the savepoint. Raises as `find_start`."""
    async with open_job_primary(settings, store) as primary:
        await primary.positions.savepoints.begin(name, epoch)
