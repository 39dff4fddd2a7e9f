"""What is done to a job from outside, without opening it: look, read, verify, sweep, mind its savepoints.

Like `_backend/` it puts the rooms together; unlike there, nothing lives on afterwards. Nobody is fenced.
"""

from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain

import msgspec

from statebackend._backend.job import Job, open_sweep
from statebackend._backend.stores import local_stores_of, open_store, rocksdb_copies
from statebackend._clock import SystemClock
from statebackend._codec.records import StateChange, key_of
from statebackend._cost import Prices
from statebackend._local.segments import LocalSegments
from statebackend._log.inventory import Surveyor
from statebackend._log.local_sweep import LocalFile, sweep_roots
from statebackend._log.retention import CLOCK_SKEW_MAX_S, ENTRY_AGE_MIN_S, Classified, Verdict
from statebackend._log.savepoints import SavepointInfo, Savepoints
from statebackend._log.sweep import MIN_AGE_S, SweepFailure, SweepReport
from statebackend._tables.key_groups import key_group
from statebackend._upkeep.inspect import Inspection
from statebackend._upkeep.inspect import inspect as inspect_job
from statebackend._upkeep.progress import Tell, reading
from statebackend._upkeep.reading import open_reading
from statebackend._upkeep.report import JobReport, report_of
from statebackend._upkeep.rows import Row, operator_rows, rows_of, wanted_states
from statebackend._upkeep.verify import Verification, VerifyReport
from statebackend.abc import Clock, ObjectStore
from statebackend.errors import InputError
from statebackend.ids import Key, KeyGroupRange, all_key_groups
from statebackend.objectstore import LocalStore
from statebackend.objectstore.scoped import ScopedStore
from statebackend.settings import Settings


async def sweep(
    settings: Settings,
    *,
    dry_run: bool = True,
    min_age_s: float = MIN_AGE_S,
    store: ObjectStore | None = None,
    clock: Clock | None = None,
) -> SweepReport:
    """Find what nobody needs any more of the job, in the primary and in this host's local roots; delete it if asked to.

    Kept are the newest `settings.checkpoints_retained` commits of the branch that the job is on, every savepoint, and
    all that they point into. Safe beside writers and other sweeps, on whatever hosts. `min_age_s` is by the store's
    clock; whatever it says, a commit object stays for an hour, and as long as it is there all that it points into.

    Raises `InputError` for a store that cannot list, or where there is no such job, and `DataError`s where a damaged
    entry of the log, or one of a newer release, leaves open what is needed: nothing is deleted then. What could not be
    deleted is in the report. A cancelled sweep has deleted some of the garbage, and the next one goes on.
    """
    clock = clock or SystemClock()
    async with _primary(settings, store) as primary:
        report = await open_sweep(primary, settings, clock=clock, min_age_s=min_age_s).run(dry_run=dry_run)
        _check_exists(settings, report.objects)
        if isinstance(primary.inside, LocalStore) and not dry_run:
            oldest_write_s = clock.time() - CLOCK_SKEW_MAX_S - max(min_age_s, ENTRY_AGE_MIN_S)
            await primary.inside.remove_leftovers(f"{settings.job}/", before_s=oldest_write_s)
    needed = {each.key for each in report.objects if not each.verdict.is_garbage}  # commits have local copies, too
    held_back = dry_run or report.stopped is not None
    files = [file async for file in sweep_roots(settings.local, settings.job, needed, dry_run=held_back)]
    return _with_local(report, files, deleting=not held_back)


async def savepoints(settings: Settings, *, store: ObjectStore | None = None) -> Sequence[SavepointInfo]:
    """Every savepoint of the job, in the order of their commits. Raises `InputError`, `DataError`, `StoreError`."""
    async with _primary(settings, store) as primary:
        return await Savepoints(primary, settings.job).all()


async def drop_savepoint(settings: Settings, name: str, *, store: ObjectStore | None = None) -> None:
    """Let go of a savepoint: the next sweep may delete what it kept. Raises `SavepointNotFoundError`."""
    async with _primary(settings, store) as primary:
        await Savepoints(primary, settings.job).drop(name)


async def inspect(settings: Settings, *, store: ObjectStore | None = None) -> Inspection:
    """What the job consists of. Raises `InputError` where there is no such job, `WrongJobError`, `StoreError`."""
    async with _primary(settings, store) as primary:
        found = await inspect_job(primary, settings.job, _surveyor(primary, settings))
    _check_exists(settings, found.places)
    return found


async def report(settings: Settings, *, store: ObjectStore | None = None, clock: Clock | None = None) -> JobReport:
    """One page on the job. Raises `InputError` where it has no checkpoint, `DataError`s, `StoreError`."""
    clock = clock or SystemClock()
    async with _primary(settings, store) as primary:
        position = await Job(primary, settings, clock=clock, any_parallelism=True).look()
        if position.newest is None:
            raise InputError("the job has no checkpoint", job=settings.job, primary=settings.primary)
        swept = await open_sweep(primary, settings, clock=clock).run(dry_run=True)
        kept = await Savepoints(primary, settings.job).all()
    return report_of(position.newest, swept.objects, kept, Prices(settings))


async def verify(settings: Settings, *, store: ObjectStore | None = None, tell: Tell = lambda _: None) -> VerifyReport:
    """Read every byte that a retained checkpoint needs, in the primary and in this host's local roots.

    Damage is in the report, and no error. Raises `InputError` where there is no such job, `WrongJobError`,
    `StoreError`.
    """
    roots = local_stores_of(settings)
    async with _primary(settings, store) as primary:
        report = await Verification(
            primary,
            LocalSegments(roots, owned=[False] * len(roots)) if roots else None,
            _surveyor(primary, settings),
            retained=settings.checkpoints_retained,
            concurrency_max=settings.restore_concurrency_max,
            tell=tell,
            rocksdb=rocksdb_copies(settings),
        ).run()
    _check_exists(settings, (*report.checkpoints, *report.damages))
    return report


@asynccontextmanager
async def open_rows(
    settings: Settings,
    *,
    checkpoint_id: int | None = None,
    savepoint: str | None = None,
    states: Sequence[str] = (),
    key: Key | None = None,
    store: ObjectStore | None = None,
    tell: Tell = lambda _: None,
) -> AsyncGenerator[Iterator[Row]]:
    """The rows of the newest checkpoint, or of another one, in the order of their key groups; operator state is last.

    Those of these `states` and of this `key`, if they are given. What they take is held in a table, of the kind that
    `settings.table` says. `tell` is called with how far it is, once for each file. Local copies are read where there
    are some; nothing is written, and nobody is fenced. Raises `InputError` where the job has no checkpoint, or that no
    state of such a name, and as `open_backend` does.
    """
    clock = SystemClock()
    async with _primary(settings, store) as primary:
        job = Job(
            primary, settings, clock=clock, checkpoint_id=checkpoint_id, savepoint=savepoint, any_parallelism=True
        )
        base = (await job.look()).base
        if base is None:
            raise InputError("the job has no checkpoint", job=settings.job, primary=settings.primary)
        wanted, groups = wanted_states(base, states), all_key_groups(base.max_parallelism)
        if key is not None:
            groups = KeyGroupRange(group := key_group(key, base.max_parallelism), group)
        settings = msgspec.structs.replace(settings, max_parallelism=base.max_parallelism)
        async with open_reading(settings, primary, job.log, base, wanted, clock=clock) as (tables, restore):
            ids = frozenset(state.state_id for state in wanted)

            def apply(changes: list[StateChange]) -> frozenset[int]:
                chosen = (change for change in changes if change.state_id in ids)
                return tables.replay(chosen if key is None else (change for change in chosen if key_of(change) == key))

            await restore.run(base, groups, apply, reading(base, tell))
            keyed = rows_of(tables.snapshot().changes(frozenset(groups)), wanted)
            yield keyed if key is not None else chain(keyed, operator_rows(base, wanted))


def _surveyor(primary: ObjectStore, settings: Settings) -> Surveyor:
    return Surveyor(
        primary,
        settings.job,
        checkpoints_retained=settings.checkpoints_retained,
        concurrency_max=settings.restore_concurrency_max,
    )


def _check_exists(settings: Settings, found: Collection[object]) -> None:
    if not found:
        raise InputError("nothing of that job lies in the primary", job=settings.job, primary=settings.primary)


@asynccontextmanager
async def _primary(settings: Settings, store: ObjectStore | None) -> AsyncGenerator[ScopedStore]:
    """The job's part of its primary, or of `store`, which whoever opened it closes."""
    async with open_store(settings, commits=False, instead=store) as primary:
        yield ScopedStore(primary, f"{settings.job}/")


def _with_local(report: SweepReport, files: Sequence[LocalFile], *, deleting: bool) -> SweepReport:
    removed = [file for file in files if deleting and file.owned and not file.needed]
    return msgspec.structs.replace(
        report,
        local=tuple(_classified(file) for file in files),
        deleted=(*report.deleted, *(file.path for file in removed if file.failure is None)),
        failures=(
            *report.failures,
            *(SweepFailure(file.path, file.failure) for file in removed if file.failure is not None),
        ),
    )


def _classified(file: LocalFile) -> Classified:
    if file.needed:
        verdict, reason = Verdict.NEEDED, "a copy of what is kept in the primary"
    elif not file.owned:
        verdict, reason = Verdict.LIVE, "a living process owns this root"
    else:
        verdict, reason = Verdict.ORPHAN, "a copy of nothing that is kept in the primary"
    return Classified(file.path, file.info.size_bytes, file.info.modified_s, verdict, reason)
