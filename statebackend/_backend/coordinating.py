"""Opens a job whose key groups have several owners, for the coordinator that commits what they contribute."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import anyio

from statebackend._backend.job import Job, tell_opened, tell_passed_over
from statebackend._backend.stores import open_primary, open_threads, readable_copies, telling_requests
from statebackend._backend.sweeping import SweepBeside
from statebackend._checkpoint.spending import Spending
from statebackend._clock import SystemClock
from statebackend._log.coordinator import CheckpointCoordinator
from statebackend._observers import Observers
from statebackend._tasks import open_tasks
from statebackend.abc import Clock, ObjectStore, Observer
from statebackend.settings import Settings


@asynccontextmanager
async def open_coordinator(
    settings: Settings,
    *,
    checkpoint_id: int | None = None,
    savepoint: str | None = None,
    store: ObjectStore | None = None,
    clock: Clock | None = None,
) -> AsyncGenerator[CheckpointCoordinator, None]:
    """Claim the job in order to commit what the owners of its key groups contribute, each in a process of its own.

    Open the owners after this, with `open_backend(key_groups=...)`, so that what they upload belongs to this epoch.
    The coordinator continues from the newest checkpoint, from `checkpoint_id` or from `savepoint`; the owners must
    continue from the same one. Raises as `open_backend`. After the context is left, the coordinator raises
    `BackendClosedError`.
    """
    async with open_counted_coordinator(
        settings, checkpoint_id=checkpoint_id, savepoint=savepoint, store=store, clock=clock
    ) as (coordinator, _):
        yield coordinator


@asynccontextmanager
async def open_counted_coordinator(
    settings: Settings,
    *,
    checkpoint_id: int | None = None,
    savepoint: str | None = None,
    store: ObjectStore | None = None,
    clock: Clock | None = None,
    observer: Observer | None = None,
) -> AsyncGenerator[tuple[CheckpointCoordinator, Spending], None]:
    """As `open_coordinator`, with the count of the coordinator's requests, of which `observer` is told."""
    clock, observer = clock or SystemClock(), Observers(observer or Observer())
    begun_s = clock.monotonic()
    async with (
        open_threads(settings) as threads,
        open_primary(settings, threads, commits=True, instead=store, clock=clock, observer=observer) as primary,
        telling_requests(primary.spending),
        open_tasks() as tasks,
    ):
        job = Job(
            primary.store,
            settings,
            threads,
            clock=clock,
            checkpoint_id=checkpoint_id,
            savepoint=savepoint,
            copies=readable_copies(settings, None, threads),
        )
        position = await job.claim(await job.look())
        tell_passed_over(position, observer)
        tell_opened(settings, position, None, clock.monotonic() - begun_s)
        sweep = SweepBeside(primary.store, settings, threads, epoch=position.epoch, tasks=tasks, clock=clock)
        at_hand: Mapping[str, bytes] = job.log.take_body(position.base) if position.base is not None else {}
        coordinator = job.coordinator(position, base_body=next(iter(at_hand.values()), b""))
        is_left = False
        try:
            yield coordinator, primary.spending
            is_left = True
        finally:
            coordinator.close()
            with anyio.move_on_after(settings.close_timeout_s, shield=True):
                await coordinator.write_hint()
                if is_left:
                    await sweep.first()
