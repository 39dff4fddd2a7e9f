"""Puts a backend together, once all is open that it is made of."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec
from anyio.abc import TaskGroup
from msgspec import UNSET

from statebackend._backend.copy_writers import Copies, needed
from statebackend._backend.job import Job
from statebackend._backend.stores import Primary, roots_with_copies
from statebackend._backend.tables import HEAP, Tables, rocksdb_bases, rocksdb_restore, run_files
from statebackend._cache.download_cache import DownloadCache
from statebackend._changelog.changelog_writer import ChangelogWriter
from statebackend._changelog.scheduler import UploadScheduler
from statebackend._changelog.segment_upload import SegmentSender
from statebackend._checkpoint.backend import Machinery
from statebackend._checkpoint.fetch import Fetcher
from statebackend._checkpoint.materialization.base_schedule import BaseSchedule, BaseTriggers
from statebackend._checkpoint.materialization.base_writer import BaseWriter
from statebackend._checkpoint.materialization.bases import base_segment_bytes
from statebackend._checkpoint.materialization.entry_bases import EntryBases
from statebackend._checkpoint.materialization.merged_change_sets import ChangeSetMerging, ReadChanges
from statebackend._checkpoint.rescale import range_of
from statebackend._checkpoint.restore import LocalCopies, Restore
from statebackend._checkpoint.run_files import AttachRuns, RunsOf
from statebackend._checkpoint.snapshots import InlineEncoder, Snapshots
from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.commit import Commit
from statebackend._local.removal import LocalRetention
from statebackend._log.coordinator import CheckpointCoordinator
from statebackend._log.names import is_ours, sequence_of
from statebackend._log.position import Position
from statebackend._log.sweeping.retention import left_behind
from statebackend._observers import Observers
from statebackend._retry import RetryPolicy
from statebackend._state.declared import KeyedStates
from statebackend._tables.table import OpenTable
from statebackend._threads import WorkerThreads
from statebackend.abc import Clock, ObjectStore, Observer, RestoreReport, StateChangeUploader
from statebackend.ids import ChangeSetHandle, Epoch, KeyGroupRange, RangeState, RocksDBBase
from statebackend.settings import Settings

_logger = logging.getLogger(__name__)


class Restored(msgspec.Struct, frozen=True):
    """`changed`: the key groups that the changelog has changed since their base.

    `adopted`: the RocksDB base whose files the tables have taken over.
    """

    report: RestoreReport | None = None
    changed: Collection[int] = frozenset[int]()
    adopted: RocksDBBase | None = None


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """All that a backend is made of, and how far it is: `states` are empty until they are restored.

    `epoch`: the epoch that what is uploaded belongs to, by `new_name`. `log_id`: the name of the changelog; of an
    attempt that may have others beside it, one that no other has. `held`: of tables that have the state already.
    """

    settings: Settings
    primary: Primary
    local: LocalCopies | None
    job: Job
    position: Position
    epoch: Epoch
    new_name: Callable[[], str]
    log_id: str
    states: KeyedStates
    tables: Tables = HEAP
    held: Restored | None = None
    copies: Copies
    threads: WorkerThreads
    tasks: TaskGroup
    clock: Clock
    observer: Observer


def empty_states(
    settings: Settings,
    owned: KeyGroupRange,
    base: Commit | None,
    *,
    reported: Sequence[RangeState],
    owners: Sequence[KeyGroupRange] | None,
    open_table: OpenTable,
) -> KeyedStates:
    """The states that `base` describes, empty. `reported`, `owners`: as for `KeyedStates`."""
    return KeyedStates(
        owned,
        settings.max_parallelism,
        base.states if base is not None else (),
        reported=reported,
        owners=owners,
        open_table=open_table,
        clock=None if base is None else base.clock,
    )


async def restore(opened: Opened, cache: DownloadCache | None) -> Restored:
    """Fill the states, and tell of it; nothing for a new job. Then no local copy stays that neither commit uses.

    If the job has no commit at all, its local copies stay: they may be all that is left of a lost primary.
    """
    base, local, restored = opened.position.base, opened.local, Restored()
    if opened.held is not None:
        restored = opened.held
    elif base is not None:
        at_hand = opened.job.log.take_body(base)
        restored = await fill(opened, base, at_hand=at_hand, cache=cache)
    if opened.position.newest is None:
        if left := await roots_with_copies(opened.settings, opened.threads):
            _logger.warning(
                "job %s has no commit in %s, but local copies in %s: is that its primary? They stay until it has one",
                opened.settings.job,
                opened.settings.primary,
                ", ".join(left),
            )
    elif local is not None and local.writable:
        await _prune(local, opened)
    return restored


async def _prune(local: LocalCopies, opened: Opened) -> None:
    newest, base, owned = opened.position.newest, opened.position.base, opened.states.key_groups
    keep = needed(newest, base)
    end = -1 if newest is None else newest.sequence
    if local.shared:
        await local.store.remove_some(lambda keys: left_behind(keys, keep, newest, opened.epoch))
    else:
        claim = opened.position.claim
        taken = None if claim is None else claim.sequence

        # A commit above the newest that can be read may be damaged in the primary, and its copy all that is left of it.
        # One in the place of our claim was never made: its writer was killed on the way.
        def may_be_the_last(key: str) -> bool:
            return (sequence := sequence_of(key)) is not None and sequence > end and sequence != taken

        await local.store.prune(keep, spare=may_be_the_last, is_ours=is_ours)
    if local.rocksdb is not None:
        ranges = [part for commit in (newest, base) if commit is not None for part in commit.ranges]
        bases = [each for part in ranges for each in part.rocksdb]
        await local.rocksdb.prune(bases, among=owned if local.shared else None)


async def fill(
    opened: Opened,
    base: Commit,
    *,
    at_hand: Mapping[str, bytes],
    at_hand_first: bool = False,
    cache: DownloadCache | None = None,
    missing: Sequence[ChangeSetHandle] | None = None,
) -> Restored:
    """Fill the states from `base`, or with what they are `missing` of it, and tell of it. As for `Restore`."""
    memory = opened.tables.memory
    if memory is not None and missing is None:
        memory.is_whole = await _may_be_whole(opened, base, at_hand, memory.bytes_max)
    once = restore_of(
        opened.settings,
        opened.primary.store,
        opened.local,
        cache=cache,
        at_hand=at_hand,
        at_hand_first=at_hand_first,
        tables=opened.tables,
        attach=None if memory is not None and memory.is_whole else opened.states.runs.attach,
        threads=opened.threads,
        clock=opened.clock,
    )
    states = opened.states
    report = await once.run(base, states.key_groups, states.replay, missing=missing, ahead=states.ahead)
    if memory is not None:
        states.runs.check_room()
    opened.primary.spending.tell()
    opened.observer.restored(report)
    return Restored(report, once.changed | states.runs.groups_in_no_run(), once.adopted)


async def _may_be_whole(opened: Opened, base: Commit, at_hand: Mapping[str, bytes], bytes_max: int) -> bool:
    fetcher = Fetcher(opened.primary.store, at_hand=at_hand, threads=opened.threads)
    files = run_files(opened.tables, fetcher, opened.local, threads=opened.threads)
    assert files is not None, "tables with a memory of their own are over runs"
    return await files.may_be_whole(range_of(base, opened.states.key_groups), bytes_max)


def base_schedule(settings: Settings, key_groups: KeyGroupRange, *, now_s: float) -> BaseSchedule:
    """When the bases of these key groups are due, by the settings."""
    triggers = BaseTriggers(
        interval_s=settings.materialize_interval_s,
        handles_max=settings.materialize_handles_max,
        changelog_ratio=settings.materialize_changelog_ratio,
        changelog_bytes_min=settings.materialize_changelog_bytes_min,
        changelog_changes_min=settings.materialize_changelog_changes_min,
        failures_max=settings.materialize_failures_max,
        retry_delay_s=settings.materialize_retry_delay_s,
    )
    return BaseSchedule(triggers, settings.job, key_groups, now_s=now_s)


def restore_of(
    settings: Settings,
    primary: ObjectStore,
    local: LocalCopies | None,
    *,
    at_hand: Mapping[str, bytes],
    at_hand_first: bool = False,
    tables: Tables = HEAP,
    attach: AttachRuns | None = None,
    cache: DownloadCache | None = None,
    threads: WorkerThreads,
    clock: Clock,
) -> Restore:
    """A restore of one commit. `tables`: they take over the files of a RocksDB base if they can.

    `attach`: has the tables look up in bases and layers, if they do so.
    """
    fetcher = Fetcher(primary, cache=cache, at_hand=at_hand, threads=threads)
    # What falls back to an older commit has to find damage before it is open; a cache shares whole files.
    far = None if settings.fall_back_to_older or cache is not None else primary
    files = run_files(tables, fetcher, local, primary=far, threads=threads)
    return Restore(
        fetcher,
        local,
        at_hand_first=at_hand_first,
        clock=clock,
        concurrency_max=settings.restore_concurrency_max,
        threads=threads,
        rocksdb=rocksdb_restore(fetcher, local, settings, threads=threads, tables=tables),
        runs=None if files is None or attach is None else RunsOf(files, attach),
    )


def upload_scheduler(
    settings: Settings,
    uploader: StateChangeUploader,
    *,
    files: StateChangeUploader | None = None,
    budget_wait_s: Callable[[], float] = lambda: 0.0,
    new_name: Callable[[], str],
    threads: WorkerThreads,
    tasks: TaskGroup,
    clock: Clock,
    observer: Observer,
) -> UploadScheduler:
    """A scheduler of uploads. `files`: the uploader for files of RocksDB bases, if that is another one.

    `budget_wait_s`: how long what is sent has to wait for the budget, as of now.
    """
    observer = Observers(observer)

    def sender_by(uploader: StateChangeUploader) -> SegmentSender:
        return SegmentSender(
            uploader,
            policy=RetryPolicy.of(settings.upload),
            compression=settings.compression,
            threads=threads,
            tasks=tasks,
            clock=clock,
            observer=observer,
            new_name=new_name,
        )

    sender = sender_by(uploader)
    return UploadScheduler(
        sender,
        files=sender if files is None else sender_by(files),
        persist_delay_s=settings.persist_delay_s,
        budget_wait_s=budget_wait_s,
        persist_size_threshold_bytes=settings.persist_size_threshold_bytes,
        in_flight_bytes_max=settings.in_flight_bytes_max,
        discard_concurrency_max=settings.discard_concurrency_max,
        close_timeout_s=settings.close_timeout_s,
        tasks=tasks,
        clock=clock,
        observer=observer,
    )


def machinery_of(
    opened: Opened, restored: Restored, *, retention: LocalRetention | None, history: bytes = b""
) -> Machinery:
    """The parts a backend runs on. It uploads and writes bases in `opened.tasks`. `history`: of the states."""
    states, base = opened.states, opened.position.base
    scheduler = _scheduler_of(opened)
    writer = ChangelogWriter(
        opened.log_id,
        scheduler,
        tasks=opened.tasks,
        preemptive_persist_threshold_bytes=opened.settings.preemptive_persist_threshold_bytes,
    )
    coordinator = opened.job.coordinator(opened.position, new_name=opened.new_name, copies=opened.copies.of_commits)
    base_writer = _base_writer_of(opened, restored, scheduler, coordinator)
    return Machinery(
        states=states,
        writer=writer,
        base_writer=base_writer,
        snapshots=Snapshots(
            states,
            writer,
            base_writer,
            retention,
            epoch=opened.epoch,
            base=None if base is None else base.checkpoint_id,
            committed=msgspec.structs.replace(range_of(base, states.key_groups), history=history or UNSET),
            restored=restored.report,
        ),
        coordinator=coordinator,
        epoch=opened.epoch,
        restored=restored.report,
    )


def _scheduler_of(opened: Opened) -> UploadScheduler:
    return upload_scheduler(
        opened.settings,
        opened.copies.uploader,
        files=opened.copies.of_files,
        budget_wait_s=opened.primary.spending.wait_s,
        new_name=opened.new_name,
        threads=opened.threads,
        tasks=opened.tasks,
        clock=opened.clock,
        observer=opened.observer,
    )


def _base_writer_of(
    opened: Opened, restored: Restored, scheduler: UploadScheduler, coordinator: CheckpointCoordinator
) -> BaseWriter:
    settings, states = opened.settings, opened.states
    in_runs = settings.table_memory_bytes if settings.table == "runs" else settings.state_memory_bytes
    segment_bytes_max = base_segment_bytes(settings.in_flight_bytes_max, in_runs)
    read = _read_again(opened, coordinator)
    return BaseWriter(
        states,
        scheduler,
        ChangeSetMerging(read, scheduler, fan_in=settings.materialize_fan_in),
        base_schedule(settings, states.key_groups, now_s=opened.clock.monotonic()),
        entries=EntryBases(read, scheduler, segment_bytes_max=segment_bytes_max, threads=opened.threads),
        changed=restored.changed,
        rocksdb=rocksdb_bases(
            opened.tables,
            settings,
            key_groups=states.key_groups,
            adopted=restored.adopted,
            scheduler=scheduler,
            primary=opened.primary.store,
            local=opened.local,
            threads=opened.threads,
            tasks=opened.tasks,
            observer=opened.observer,
        ),
        runs=run_files(
            opened.tables,
            Fetcher(opened.primary.store, at_hand={}, threads=opened.threads),
            opened.local,
            threads=opened.threads,
        ),
        threads=opened.threads,
        tasks=opened.tasks,
        clock=opened.clock,
        observer=opened.observer,
    )


def _read_again(opened: Opened, coordinator: CheckpointCoordinator) -> ReadChanges:
    """Reads change sets to merge them, without repairs: a copy that is not there may have found no room."""
    local = None if opened.local is None else msgspec.structs.replace(opened.local, writable=False)

    async def read(change_sets: Sequence[ChangeSetHandle], but: Collection[int]) -> Sequence[Changes] | None:
        once = restore_of(
            opened.settings,
            opened.primary.store,
            local,
            at_hand=coordinator.recent,
            at_hand_first=True,
            threads=opened.threads,
            clock=opened.clock,
        )
        return await once.read(change_sets, opened.states.key_groups, but)

    return read


def inline_encoder(opened: Opened) -> InlineEncoder:
    """Encodes small checkpoints for the commit to carry. It takes nothing if the user's uploader has to see all."""
    return InlineEncoder(
        bytes_max=opened.copies.inline_bytes_max,
        compression=opened.settings.compression,
        threads=opened.threads,
    )
