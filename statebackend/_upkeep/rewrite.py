"""Rewrites a job with another `max_parallelism`: the same state, every key in the key group that it has then.

    read every base and change, each key placed anew -> write bases of the new key groups -> commit

The commit is the switch: before it nothing of the rewrite is visible, after it all of it is. The decision is told in
`docs/decisions/rewrite-in-the-log.md`.
"""

from collections.abc import Mapping, Sequence

import msgspec

from statebackend._backend.copy_writers import OpenUploader
from statebackend._backend.job import Job
from statebackend._checkpoint.materialization.bases import base_segment_bytes
from statebackend._checkpoint.restore import Restore
from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.commit import Commit
from statebackend._log.position import Position
from statebackend._state.declared import KeyedStates
from statebackend._state.kinds.operator_state import mode_of
from statebackend._tables.key_groups import OwnedKeys
from statebackend._threads import WorkerThreads
from statebackend._upkeep.key_group_change import regrouped, regrouped_owners
from statebackend._upkeep.offline.bases_of_owners import write_bases
from statebackend._upkeep.offline.offline_commit import Contents, OfflineJob, Uploads, open_offline
from statebackend._upkeep.progress import Meter, Tell, reading
from statebackend._upkeep.read_commit import open_commit
from statebackend.abc import Clock, ObjectStore, StateChangeUploader
from statebackend.abc.clock import SystemClock
from statebackend.errors import InputError
from statebackend.ids import CheckpointId, all_key_groups
from statebackend.settings import Settings


class RewriteReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a rewrite, or of a dry run. `keys`: the number of keys in each state.

    `checkpoint_id` is the id of the new commit. It is `None` for a dry run, and if nothing had to be done because
    `read_id`, the checkpoint that was read, has that `max_parallelism` already.
    """

    job: str
    read_id: CheckpointId
    max_parallelism_before: int
    max_parallelism: int
    dry_run: bool
    checkpoint_id: CheckpointId | None = None
    keys: Mapping[str, int] = {}
    bytes_read: int = 0
    segments: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    requests: int = 0
    usd: float = 0.0

    @property
    def is_needed(self) -> bool:
        """True if there was anything to do."""
        return self.max_parallelism_before != self.max_parallelism


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
    """Commit the job's state again with `settings.max_parallelism`: every key in the key group that it has then.

    The state is that of the newest checkpoint, of `checkpoint_id` or of `savepoint`. Stop the stream first: a rewrite
    fences a writer that has the job open. Then start it with these settings; it continues after the last batch that it
    committed. Older checkpoints stay, and are opened with the `max_parallelism` that they were made with. A checkpoint
    that has the new number already is left alone, so a second call does no harm. `dry_run`: read everything, claim and
    write nothing.

    Local copies are read first, and none are written. All of the state is read into a table of the kind that
    `settings.table` names. `tell` is called on the loop with how far it is, once for each file. `store` and `uploader`
    are as for `open_backend`.

    Raises `InputError` if the job has no checkpoint, `FencedError` if another writer opened the job meanwhile, and as
    `open_backend` and `StateBackend.checkpoint` do; then call it again. A failed or cancelled call leaves a claim in
    the log, and has deleted what it stored unless a commit may hold it; a killed one leaves that to a sweep.
    """
    clock = clock or SystemClock()
    opening = open_offline(
        settings,
        commits=not dry_run,
        checkpoint_id=checkpoint_id,
        savepoint=savepoint,
        any_parallelism=True,
        store=store,
        uploader=uploader,
        clock=clock,
    )
    async with opening as opened:
        begun_s, requests = clock.monotonic(), opened.primary.spending.requests
        position, report = await _plan(opened.job, settings, dry_run=dry_run)
        if report.is_needed:
            report = await _carry_out(report, opened, position, tell)
        spent = opened.primary.spending.since(requests)
    return msgspec.structs.replace(
        report, seconds=clock.monotonic() - begun_s, requests=spent.requests.total(), usd=spent.usd
    )


async def _plan(job: Job, settings: Settings, *, dry_run: bool) -> tuple[Position, RewriteReport]:
    """Where the job stands, claimed if it is to be rewritten, and the report before that is done."""
    position = await job.look()
    report = _planned(position, settings, dry_run=dry_run)
    if report.is_needed and not dry_run:
        position = await job.claim(position)
        report = _planned(position, settings, dry_run=dry_run)  # a commit may have been made just before the claim
    return position, report


def _planned(position: Position, settings: Settings, *, dry_run: bool) -> RewriteReport:
    """The report before anything is done: what is to be rewritten, into how many key groups."""
    if position.base is None:
        raise InputError("the job has no checkpoint to rewrite", job=settings.job, primary=settings.primary)
    return RewriteReport(
        job=settings.job,
        read_id=position.base.checkpoint_id,
        max_parallelism_before=position.base.max_parallelism,
        max_parallelism=settings.max_parallelism,
        dry_run=dry_run,
    )


async def _carry_out(report: RewriteReport, opened: OfflineJob, position: Position, tell: Tell) -> RewriteReport:
    """Read `position.base` and, unless it is a dry run, commit it again. Returns the report with the results."""
    base, settings = position.base, opened.settings
    assert base is not None, "the report needs one"
    body = opened.job.log.take_body(base)
    opening = open_commit(
        settings, opened.primary.store, base.states, at_hand=body, threads=opened.threads, clock=opened.clock
    )
    async with opening as (states, restore):
        once = Rewrite(
            base,
            states,
            max_parallelism=settings.max_parallelism,
            segment_bytes_max=base_segment_bytes(settings.in_flight_bytes_max),
            threads=opened.threads,
            tell=tell,
        )
        bytes_read = await once.read(restore)
        report = msgspec.structs.replace(report, bytes_read=bytes_read, keys=states.sizes)
        if report.dry_run:
            return report
        new_id, uploads = await opened.commit(position, once.write, source=base.source)
    segments, bytes_written = uploads.written
    return msgspec.structs.replace(report, checkpoint_id=new_id, segments=segments, bytes_written=bytes_written)


class Rewrite:
    """Rewrites `base` once, through `states`: empty, and declared for all of the new key groups."""

    def __init__(
        self,
        base: Commit,
        states: KeyedStates,
        *,
        max_parallelism: int,
        segment_bytes_max: int,
        threads: WorkerThreads,
        tell: Tell,
    ) -> None:
        self._base = base
        self._states = states
        self._max_parallelism = max_parallelism
        self._segment_bytes_max = segment_bytes_max
        self._tell = tell
        self._owners = regrouped_owners(
            base.ranges,
            {each.state_id: mode for each in base.states if (mode := mode_of(each.kind)) is not None},
            max_parallelism,
        )
        self._threads = threads

    async def read(self, restore: Restore) -> int:
        """Fill the states; return how many bytes were read. Raises as `Restore.run`, and for keys that are invalid."""
        keys = OwnedKeys(self._states.key_groups, self._max_parallelism)

        def apply(changes: Sequence[Changes]) -> frozenset[int]:
            return self._states.replay(regrouped(each, keys) for each in changes)

        owned = all_key_groups(self._base.max_parallelism)
        report = await restore.run(self._base, owned, apply, reading(self._base, self._tell))
        return report.bytes_local + report.bytes_primary

    async def write(self, uploads: Uploads) -> Contents:
        """Write the bases of each owner, and say what the owners would contribute if they were running."""
        meter = Meter("writing", self._max_parallelism, self._tell)
        ranges = await write_bases(
            self._states,
            self._owners,
            uploads,
            threads=self._threads,
            segment_bytes_max=self._segment_bytes_max,
            meter=meter,
        )
        return Contents(ranges, self._base.states)
