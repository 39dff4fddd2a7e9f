"""Native bases: who writes those of a backend, and who restores them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from statebackend._backend.tables import HEAP, Tables, open_files
from statebackend._changelog.scheduler import UploadScheduler
from statebackend._checkpoint.native import NativeBases
from statebackend._checkpoint.native_restore import NativeRestore
from statebackend._checkpoint.restore import LocalCopies
from statebackend._local.cache import DownloadCache
from statebackend._local.scratch import open_scratch, scratch_parent
from statebackend.abc import ObjectStore, Observer
from statebackend.ids import KeyGroupRange, NativeBase
from statebackend.settings import Settings


def native_restore(
    primary: ObjectStore,
    local: LocalCopies | None,
    settings: Settings,
    *,
    tables: Tables = HEAP,
    cache: DownloadCache | None = None,
) -> NativeRestore:
    """Whoever restores native bases: into `tables`, if they can take over files, or entry by entry."""
    return NativeRestore(
        primary,
        None if local is None else local.native,
        tables=tables.files,
        scratch=_scratch(tables, settings),
        open_files=open_files,
        cache=cache,
        concurrency_max=settings.restore_concurrency_max,
        cpu=anyio.CapacityLimiter(settings.cpu_threads_max),
    )


def native_bases(
    tables: Tables,
    settings: Settings,
    *,
    key_groups: KeyGroupRange,
    adopted: NativeBase | None,
    scheduler: UploadScheduler,
    primary: ObjectStore,
    local: LocalCopies | None,
    tasks: TaskGroup,
    observer: Observer,
) -> NativeBases | None:
    """Whoever writes the bases of `tables` as their files, `None` where they are to be made of entries."""
    if tables.files is None or tables.scratch is None or not settings.native_bases:
        return None
    return NativeBases(
        tables.files,
        tables.scratch,
        key_groups=key_groups,
        adopted=adopted,
        scheduler=scheduler,
        primary=primary,
        copies=None if local is None else local.native,
        concurrency_max=settings.restore_concurrency_max,
        tasks=tasks,
        observer=observer,
    )


@asynccontextmanager
async def _scratch(tables: Tables, settings: Settings) -> AsyncGenerator[Path]:
    """The scratch directory of the tables, or, on the heap, one for as long as the restore takes."""
    if tables.scratch is not None:
        yield tables.scratch
        return
    async with open_scratch(scratch_parent(settings.table_dir, settings)) as directory:
        yield directory
