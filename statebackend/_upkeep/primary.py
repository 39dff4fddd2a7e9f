"""Opens a job's primary to work on the job from outside. The job itself is not opened, and nobody is fenced."""

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager

import msgspec

from statebackend._backend.stores import open_store, open_threads
from statebackend._log.reader import LogReader
from statebackend._threads import WorkerThreads
from statebackend.abc import ObjectStore
from statebackend.errors import InputError
from statebackend.objectstore.scoped import ScopedStore
from statebackend.settings import Settings


class JobPrimary(msgspec.Struct, frozen=True):
    """A job's part of its primary, a reader of the log there, and the worker threads of the call that looks at it."""

    store: ScopedStore
    log: LogReader
    threads: WorkerThreads


@asynccontextmanager
async def open_job_primary(settings: Settings, store: ObjectStore | None) -> AsyncGenerator[JobPrimary]:
    """Open the job's primary, or use `store`, which its caller closes.

    Not by `open_primary`: it counts requests for an observer, and upkeep has none. A sweep also looks at the store
    inside, whose temporary files it removes if it is a `LocalStore`.
    """
    async with (
        open_threads(settings) as threads,
        open_store(settings, threads, commits=False, instead=store) as opened,
    ):
        scoped = ScopedStore(opened, f"{settings.job}/")
        yield JobPrimary(scoped, LogReader(scoped, settings.job, threads), threads)


def check_exists(settings: Settings, found: Collection[object]) -> None:
    """Raise `InputError` unless something was found under the job's name."""
    if not found:
        raise InputError(
            "the primary has no job of that name: correct job or primary", job=settings.job, primary=settings.primary
        )
