"""Makes a backend of a follower: the ordinary opening of a job, but that the state is there already.

The order is what makes it safe: the job is claimed first, so nobody commits any more; then what lies between is
applied; then the first batch may come. Nothing but the claim is needed, and no lease: a lease says when, not whether.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

import msgspec

from statebackend._backend.asked_to_open import AskedToOpen
from statebackend._backend.assembly import Restored
from statebackend._backend.copy_writers import OpenUploader
from statebackend._backend.opening import open_restorable
from statebackend._backend.tables import Tables
from statebackend._checkpoint.backend import StateBackend
from statebackend._checkpoint.rescale import range_of
from statebackend._codec.commit import Commit
from statebackend._following.following import Following
from statebackend.abc import Fallback, RestoreReport, StateChangeUploader


@asynccontextmanager
async def promoted(
    following: Following, uploader: StateChangeUploader | OpenUploader | None
) -> AsyncGenerator[StateBackend]:
    """A backend that goes on with the state that is followed, which nobody else reads any more. As `open_backend`."""
    settings = following.primary.settings
    asked = AskedToOpen(
        msgspec.structs.replace(settings, max_parallelism=following.state.commit.max_parallelism),
        store=following.outer_store,
        uploader=uploader,
        clock=following.clock,
        observer=following.observer,
        warm=_Held(following),
    )
    async with open_restorable(asked) as backend:
        yield cast("StateBackend", backend)


class _Held:
    """The state that is followed, as a `Warm`."""

    def __init__(self, following: Following) -> None:
        self._following = following

    async def at(self, base: Commit | None) -> tuple[Tables, Restored]:
        """As `Warm.at`."""
        following, begun = self._following, self._following.clock.monotonic()
        before = following.progress.changes
        await following.catch_up(base)
        state = following.state
        part = range_of(state.commit, state.key_groups)
        report = RestoreReport(
            checkpoint_id=state.commit.checkpoint_id,
            sequence=state.commit.sequence,
            files_local=0,
            files_primary=0,
            bytes_local=0,
            bytes_primary=0,
            changes=following.progress.changes - before,
            seconds=following.clock.monotonic() - begun,
            # Of these the host may have no local copy, so a checkpoint that needs them is not called local.
            fallbacks=tuple(Fallback(key, "held by a follower", repaired=False) for key in sorted(part.segments())),
        )
        changed = frozenset(group for handle in part.changelog for group in handle.key_groups)
        tables = msgspec.structs.replace(state.opened, open_table=state.tables.plain)
        return tables, Restored(report, changed)
