"""Keeps a commit from sweeps while it is read. A pin has the lifetime of garbage, an hour, so it is renewed."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio

from statebackend._codec.commit import Commit
from statebackend._following.log_steps import ANSWER_S, in_time
from statebackend._log.fresh_names import new_stamp
from statebackend._log.names import SavepointMarker, SavepointPin
from statebackend._log.savepoint_markers import Savepoints
from statebackend._tasks import open_tasks
from statebackend._upkeep.job_primary import JobPrimary
from statebackend.errors import MissingObjectError, StateBackendError

RENEWED_EVERY_S: Final = 600.0
"""A sweep takes a pin for one that was left behind when it is `min_age_s` old, an hour unless it is told otherwise."""

_logger = logging.getLogger(__name__)


@asynccontextmanager
async def pinned(primary: JobPrimary, commit: Commit) -> AsyncGenerator[None]:
    """Keep the commit, and all that it points into, from sweeps meanwhile. It needs the right to write and delete.

    As for a savepoint of a commit that exists: a sweep either sees the pin, or its floor is seen here. Raises
    `MissingObjectError` where it was swept before, and what putting an object raises. A pin that cannot be deleted is
    swept.
    """
    stamp = new_stamp()
    marker = SavepointMarker(f"follower-{stamp}", commit.sequence, commit.stamp)
    pin, store = SavepointPin(marker, stamp), primary.store

    async def renew() -> None:
        while True:
            await anyio.sleep(RENEWED_EVERY_S)
            try:
                await in_time(store.put(pin.key, ()))
            except StateBackendError as error:
                _logger.warning("a pin could not be renewed, and will be tried again: %s", error)

    try:
        await in_time(store.put(pin.key, ()))
        if commit.sequence < await in_time(Savepoints(store, primary.log).floor()):
            raise MissingObjectError("a sweep was faster", sequence=commit.sequence)
        async with open_tasks() as tasks:
            tasks.start_soon(renew)
            yield
            tasks.cancel_scope.cancel()
    finally:
        with anyio.move_on_after(ANSWER_S, shield=True), suppress(StateBackendError):
            await store.delete(pin.key)
