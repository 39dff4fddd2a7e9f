"""Gives a job another number of key groups: what is opened for that, and closed again."""

from typing import Final

import msgspec

from statebackend._backend.copy_writers import OpenUploader, choose_copies
from statebackend._backend.job import Job, Position
from statebackend._backend.stores import Primary, open_store, primary_of
from statebackend._changelog.scheduler import UploadScheduler
from statebackend._clock import SystemClock
from statebackend._log.names import new_names
from statebackend._tasks import open_tasks
from statebackend._upkeep.progress import Tell
from statebackend._upkeep.reading import open_reading
from statebackend._upkeep.rewrite import Rewrite, RewriteReport
from statebackend.abc import Clock, ObjectStore, Observer, StateChangeUploader
from statebackend.errors import InputError
from statebackend.settings import Settings

NOBODY: Final = Observer()


async def rewrite(
    settings: Settings,
    *,
    checkpoint_id: int | None = None,
    savepoint: str | None = None,
    dry_run: bool = False,
    store: ObjectStore | None = None,
    uploader: StateChangeUploader | OpenUploader | None = None,
    clock: Clock | None = None,
    tell: Tell = lambda _: None,
) -> RewriteReport:
    """Commit the job's state anew with `settings.max_parallelism`: every key in the group that it has then.

    Of its newest checkpoint, of `checkpoint_id` or of `savepoint`. Stop the stream first: who has the job open is
    fenced. It goes on after the last batch that it has committed, with these settings. One commit is the switch; older
    checkpoints stay, and are opened with the number that they were made with. A checkpoint that has this number
    already is left alone, so that a second run does no harm. `dry_run`: read everything, claim and write nothing.

    Local copies are read where there are some, and not written. All of the state is held in a table, of the kind that
    `settings.table` says. `tell` is called on the loop with how far it is, once for each file. `store` and `uploader`
    are those of `open_backend`.

    Raises `InputError` where the job has no checkpoint, `FencedError` where somebody else has opened it meanwhile, and
    as `open_backend` and its `checkpoint` do: then call it again. Failed or cancelled, it has left a claim, and has
    deleted what it has stored unless a commit may hold it; killed, it leaves that to a sweep.
    """
    clock = clock or SystemClock()
    async with open_store(settings, commits=not dry_run, instead=store) as opened:
        primary = primary_of(settings, opened, clock=clock, observer=NOBODY)
        begun_s, requests = clock.monotonic(), primary.spending.requests
        job = Job(
            primary.store, settings, clock=clock, checkpoint_id=checkpoint_id, savepoint=savepoint, any_parallelism=True
        )
        position = await job.look()
        if not dry_run and _report(position, settings, dry_run=dry_run).is_needed:
            position = await job.claim(position)  # and look at what was committed just before it
        report = _report(position, settings, dry_run=dry_run)
        if report.is_needed:
            report = await _carry_out(
                report, settings, primary=primary, job=job, position=position, uploader=uploader, clock=clock, tell=tell
            )
        spent = primary.spending.since(requests)
    return msgspec.structs.replace(
        report, seconds=clock.monotonic() - begun_s, requests=spent.requests.total(), usd=spent.usd
    )


async def _carry_out(
    report: RewriteReport,
    settings: Settings,
    *,
    primary: Primary,
    job: Job,
    position: Position,
    uploader: StateChangeUploader | OpenUploader | None,
    clock: Clock,
    tell: Tell,
) -> RewriteReport:
    """Read `position.base` and, unless it is a dry run, commit it anew; the report with what that came to."""
    base = position.base
    assert base is not None, "the report needs one"
    async with (
        open_reading(settings, primary.store, job.log, base, base.states, clock=clock) as (states, restore),
        open_tasks() as tasks,
    ):
        once = Rewrite(base, states, settings, tell=tell)
        bytes_read = await once.read(restore)
        report = msgspec.structs.replace(report, bytes_read=bytes_read, keys=states.sizes)
        if report.dry_run:
            return report
        copies = choose_copies(uploader, primary.store, None, settings=settings, tasks=tasks, observer=NOBODY)
        scheduler = UploadScheduler(
            copies.uploader, settings, tasks=tasks, clock=clock, observer=NOBODY, new_name=new_names(position.epoch)
        )
        new_id = await once.write(job.coordinator(position), scheduler)
        await job.log.write_hint()
    segments, bytes_written = once.written
    return msgspec.structs.replace(report, checkpoint_id=new_id, segments=segments, bytes_written=bytes_written)


def _report(position: Position, settings: Settings, *, dry_run: bool) -> RewriteReport:
    if position.base is None:
        raise InputError("the job has no checkpoint to rewrite", job=settings.job, primary=settings.primary)
    return RewriteReport(
        job=settings.job,
        read_id=position.base.checkpoint_id,
        max_parallelism_before=position.base.max_parallelism,
        max_parallelism=settings.max_parallelism,
        dry_run=dry_run,
    )
