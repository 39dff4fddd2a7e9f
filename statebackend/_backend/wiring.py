"""Puts a backend together, once all is open that it is made of."""

from collections.abc import Collection, Sequence

import msgspec
from anyio.abc import TaskGroup

from statebackend._backend.copies import Copies, needed, retain
from statebackend._backend.job import Job, Position
from statebackend._backend.names import new_names
from statebackend._backend.native import native_bases, native_restore
from statebackend._backend.stores import Primary
from statebackend._backend.tables import Tables
from statebackend._changelog.scheduler import UploadScheduler
from statebackend._changelog.writer import ChangelogWriter
from statebackend._checkpoint.backend import StateBackend
from statebackend._checkpoint.inline import InlineEncoder
from statebackend._checkpoint.materializer import Materializer
from statebackend._checkpoint.restore import LocalCopies, Restore
from statebackend._codec.commit import Commit
from statebackend._local.cache import DownloadCache
from statebackend._state.keyed import KeyedStates
from statebackend._state.tables import OpenTable
from statebackend.abc import Clock, Observer, RestoreReport
from statebackend.ids import KeyGroupRange, NativeBase
from statebackend.settings import Settings


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """All that a backend is made of, and how far it is: `states` are empty until they are restored."""

    settings: Settings
    primary: Primary
    local: LocalCopies | None
    job: Job
    position: Position
    states: KeyedStates
    tables: Tables
    copies: Copies
    tasks: TaskGroup
    clock: Clock
    observer: Observer


class Restored(msgspec.Struct, frozen=True):
    """`changed`: the key groups that the changelog has changed since their base.

    `adopted`: the native base whose files the tables have taken over.
    """

    report: RestoreReport | None = None
    changed: Collection[int] = frozenset[int]()
    adopted: NativeBase | None = None


def empty_states(
    settings: Settings,
    owned: KeyGroupRange,
    base: Commit | None,
    *,
    owners: Sequence[KeyGroupRange] | None,
    open_table: OpenTable,
) -> KeyedStates:
    """What `base` says there is, and nothing in it yet."""
    return KeyedStates(
        owned,
        settings.max_parallelism,
        base.states if base is not None else (),
        reported=base.ranges if base is not None else (),
        owners=owners,
        open_table=open_table,
    )


async def restore(opened: Opened, cache: DownloadCache | None) -> Restored:
    """Fill the states, and tell of it; nothing for a new job. Then no local copy stays that neither commit uses."""
    base, local, restored = opened.position.base, opened.local, Restored()
    if base is not None:
        native = native_restore(opened.primary.store, local, opened.tables, opened.settings, cache)
        once = Restore(
            opened.primary.store,
            local,
            cache=cache,
            at_hand=opened.job.log.take_body(base),
            clock=opened.clock,
            concurrency_max=opened.settings.restore_concurrency_max,
            cpu_threads_max=opened.settings.cpu_threads_max,
            native=native,
        )
        report = await once.run(base, opened.states.key_groups, opened.states.replay)
        restored = Restored(report, once.changed, native.adopted)
        opened.primary.spending.tell()
        opened.observer.restored(report)
    if local is not None and local.writable:
        await local.store.prune(needed(opened.position.newest, base))
        if local.native is not None:
            await local.native.prune(needed(opened.position.newest, base))
    return restored


def put_together(opened: Opened, restored: Restored) -> StateBackend:
    """The backend. Its uploads, and the materializer's, run in `opened.tasks`."""
    settings, position, states, copies = opened.settings, opened.position, opened.states, opened.copies
    tasks, clock, observer = opened.tasks, opened.clock, opened.observer
    scheduler = UploadScheduler(
        copies.uploader,
        settings,
        tasks=tasks,
        clock=clock,
        observer=observer,
        new_name=new_names(position.epoch),
        persist_delay_s=opened.primary.spending.persist_delay_s,
        files=copies.of_files,
    )
    native = native_bases(
        opened.tables,
        settings,
        key_groups=states.key_groups,
        adopted=restored.adopted,
        scheduler=scheduler,
        primary=opened.primary.store,
        local=opened.local,
        tasks=tasks,
        observer=observer,
    )
    return StateBackend(
        states,
        ChangelogWriter(
            f"{states.key_groups.first}-{states.key_groups.last}",
            scheduler,
            tasks=tasks,
            preemptive_persist_threshold_bytes=settings.preemptive_persist_threshold_bytes,
        ),
        opened.job.coordinator(position, copies=copies.of_commits),
        opened.job.log,
        opened.primary.spending,
        materializer=Materializer(
            states,
            scheduler,
            settings,
            changed=restored.changed,
            native=native,
            tasks=tasks,
            clock=clock,
            observer=observer,
        ),
        epoch=position.epoch,
        inline=InlineEncoder(settings, bytes_max=copies.inline_bytes_max),
        retention=retain(opened.local, tasks, position.newest, position.base),
        restored=restored.report,
        clock=clock,
        observer=observer,
    )
