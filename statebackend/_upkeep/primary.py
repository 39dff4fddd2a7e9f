"""Opens a job's primary to work on the job from outside. The job itself is not opened, and nobody is fenced."""

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager

from statebackend._backend.stores import open_store
from statebackend._log.inventory import check_can_list
from statebackend._log.reader import LogReader
from statebackend._threads import WorkerThreads
from statebackend.abc import ObjectStore
from statebackend.errors import InputError
from statebackend.objectstore.scoped import ScopedStore
from statebackend.settings import Settings


@asynccontextmanager
async def open_primary(
    settings: Settings, threads: WorkerThreads, store: ObjectStore | None
) -> AsyncGenerator[ScopedStore]:
    """The job's part of its primary, or of `store`, which its caller closes."""
    async with open_store(settings, threads, commits=False, instead=store) as primary:
        yield ScopedStore(primary, f"{settings.job}/")


def log_of(primary: ObjectStore, settings: Settings) -> LogReader:
    """A reader of the job's log. Raises `InputError` for a store that cannot list."""
    check_can_list(primary)
    return LogReader(primary, settings.job)


def check_exists(settings: Settings, found: Collection[object]) -> None:
    """Raise `InputError` unless something was found under the job's name."""
    if not found:
        raise InputError("the primary has no job of that name", job=settings.job, primary=settings.primary)
