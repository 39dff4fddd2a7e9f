"""Sweeps a job: classifies everything in its primary and in this host's local roots, and deletes the garbage."""

from collections.abc import Sequence

import msgspec

from statebackend._backend.sweeping import open_sweep
from statebackend._log.sweeping.local_sweep import LocalFile, sweep_roots
from statebackend._log.sweeping.log_sweep import MIN_AGE_S, SweepReport
from statebackend._log.sweeping.retention import CLOCK_SKEW_MAX_S, ENTRY_AGE_MIN_S, ObjectReport, SweepReason
from statebackend._log.sweeping.sweep_requests import SweepFailure
from statebackend._upkeep.arguments import check_number
from statebackend._upkeep.job_primary import check_exists, open_job_primary
from statebackend.abc import Clock, ObjectStore
from statebackend.abc.clock import SystemClock
from statebackend.objectstore import LocalStore
from statebackend.settings import Settings


async def sweep(
    settings: Settings,
    *,
    dry_run: bool = True,
    min_age_s: float = MIN_AGE_S,
    store: ObjectStore | None = None,
    clock: Clock | None = None,
) -> SweepReport:
    """Find what the job no longer needs, in the primary and in this host's local roots; delete it unless `dry_run`.

    A sweep keeps the newest `settings.checkpoints_retained` commits of the job's current branch, every savepoint, and
    everything that these point into. It is safe beside writers and other sweeps on any host. `min_age_s` is the least
    age, by the store's clock, of what is deleted; a commit object stays for an hour in any case, and everything that it
    points into stays with it.

    Raises `InputError` if the store cannot list or there is no such job. Raises a `DataError` if an entry of the log is
    damaged or was written by a newer release, so that it cannot be known what is needed: nothing is deleted then. The
    report names what could not be deleted. A cancelled sweep has deleted part of the garbage; the next one goes on.
    """
    check_number(min_age_s, "min_age_s must be a number of seconds, 0 or more")
    clock = clock or SystemClock()
    async with open_job_primary(settings, store) as primary:
        sweeping = open_sweep(primary.store, settings, primary.threads, clock=clock, min_age_s=min_age_s)
        if isinstance(primary.store.inside, LocalStore) and not dry_run:
            # Files of writers that were killed in the middle of a write: nobody can still be writing what is this old.
            # First, since a sweep may need their room.
            oldest_write_s = clock.time() - CLOCK_SKEW_MAX_S - max(min_age_s, ENTRY_AGE_MIN_S)
            await primary.store.inside.remove_leftovers(f"{settings.job}/", before_s=oldest_write_s)
        report = await sweeping.run(dry_run=dry_run)
        check_exists(settings, report.objects)
    needed = {each.key for each in report.objects if not each.verdict.is_garbage}  # commits have local copies, too
    delete_local = not dry_run and report.stopped is None
    files = [
        file
        async for file in sweep_roots(settings.local, settings.job, needed, primary.threads, dry_run=not delete_local)
    ]
    return _with_local(report, files, deleting=delete_local)


def _with_local(report: SweepReport, files: Sequence[LocalFile], *, deleting: bool) -> SweepReport:
    removed = [file for file in files if deleting and file.owned and not file.needed and not file.foreign]
    return msgspec.structs.replace(
        report,
        local=tuple(_classified(file) for file in files),
        deleted=(*report.deleted, *(file.path for file in removed if file.failure is None)),
        failures=(
            *report.failures,
            *(SweepFailure(file.path, file.failure) for file in removed if file.failure is not None),
        ),
    )


def _classified(file: LocalFile) -> ObjectReport:
    if file.needed:
        verdict, reason = SweepReason.NEEDED, "a copy of an object that stays in the primary"
    elif file.foreign:
        verdict, reason = SweepReason.FOREIGN, "not one of our names"
    elif not file.owned:
        verdict, reason = SweepReason.LIVE, "a living process owns this root"
    else:
        verdict, reason = SweepReason.ORPHAN, "a copy of no object that stays in the primary"
    return ObjectReport(file.path, file.info.size_bytes, file.info.modified_s, verdict, reason)
