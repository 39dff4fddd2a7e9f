"""Makes one page on a job: its newest checkpoint by range, what else lies there, and what its PUTs cost a month."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from statebackend._backend.sweeping import open_sweep
from statebackend._checkpoint.materialization.tiers import members_in
from statebackend._checkpoint.put_budget import MONTH_S
from statebackend._codec.commit import Commit
from statebackend._log.mirror_steps import MirrorStep, newest_steps
from statebackend._log.names import data_name_of, sequence_of
from statebackend._log.savepoint_markers import SavepointInfo
from statebackend._log.sweeping.retention import ObjectReport
from statebackend._upkeep.inspect import place_of, totals
from statebackend._upkeep.job_primary import JobPrimary, open_job_primary
from statebackend._upkeep.sizes import SizeRow, size_rows
from statebackend.abc import Clock, ObjectStore
from statebackend.abc.clock import SystemClock
from statebackend.ids import Base, CommitSummary, RangeState, RocksDBBase, StateDescriptor
from statebackend.settings import Prices, Settings

COMMITS_BEHIND_MAX: Final = 1000
WINDOW_S_MIN: Final = 60.0
"""A log that spans less than this gives no rate for a month."""


class RangeRow(msgspec.Struct, frozen=True):
    """The bases and the changelog that make the state of one range.

    A base whose key groups were partly superseded counts with the share of its bytes that is live.
    """

    key_groups: str
    bases: int
    base_bytes: int
    change_sets: int
    changelog_bytes: int
    operator_bytes: int


class MirrorRow(msgspec.Struct, frozen=True):
    """A mirror, by its newest step. `commits_behind`, `seconds_behind`: that its table lacks, and for how long.

    `commits_behind` is at most 1,000. A step that is under way does not count.
    """

    name: str
    state: str
    target: str
    form: str
    checkpoint_id: int
    commits_behind: int
    seconds_behind: float


class RequestRate(msgspec.Struct, frozen=True):
    """How fast PUTs are spent: those of the objects that were made in the `seconds` that the log spans.

    `usd_month`: what 30 days cost at that rate. It is a lower bound: objects deleted since, other requests and storage
    are not counted.
    """

    puts: int
    seconds: float
    usd_month: float


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """A job, as it lies in the primary.

    `changelog_ratio`: bytes of the changelog divided by those of the bases, `None` without bases. `outputs`: batches
    whose output is committed and was not known to be published. `sizes`: those that the commit has; none were kept
    before this release. `places`, `verdicts`: the number of objects and their
    bytes, by the first part of the key and by a sweep's verdict. `pace`: `None` if the log spans less than a minute.
    """

    job: str
    newest: CommitSummary
    release: str
    max_parallelism: int
    states: tuple[StateDescriptor, ...]
    sizes: tuple[SizeRow, ...]
    ranges: tuple[RangeRow, ...]
    changelog_ratio: float | None
    outputs: int
    savepoints: tuple[SavepointInfo, ...]
    mirrors: tuple[MirrorRow, ...]
    places: Mapping[str, tuple[int, int]]
    verdicts: Mapping[str, tuple[int, int]]
    pace: RequestRate | None


async def report(settings: Settings, *, store: ObjectStore | None = None, clock: Clock | None = None) -> JobReport:
    """Make one page on the job. Nothing is written, and nobody is fenced.

    Raises `InputError` if the job has no checkpoint or the store cannot list, a `DataError` if an entry of the log that
    matters cannot be read, `StoreError`.
    """
    clock = clock or SystemClock()
    async with open_job_primary(settings, store, reads_copies=False) as primary:
        newest, _ = await primary.find()
        swept = await open_sweep(primary.store, settings, primary.threads, clock=clock).run(dry_run=True)
        found = await primary.positions.savepoints.all()
        mirrors = [
            await _mirror_row(primary, step, newest, now_s=clock.time())
            async for step in newest_steps(primary.store, [each.key for each in swept.objects])
        ]
    return _report(newest, swept.objects, found, mirrors, settings.prices)


def _report(
    newest: Commit,
    objects: Sequence[ObjectReport],
    savepoints: Iterable[SavepointInfo],
    mirrors: Iterable[MirrorRow],
    prices: Prices,
) -> JobReport:
    ranges = tuple(map(_range_row, newest.ranges))
    base_bytes = sum(row.base_bytes for row in ranges)
    return JobReport(
        job=newest.job,
        newest=newest.summary,
        release=newest.release,
        max_parallelism=newest.max_parallelism,
        states=newest.states,
        sizes=size_rows(newest),
        ranges=ranges,
        changelog_ratio=sum(row.changelog_bytes for row in ranges) / base_bytes if base_bytes else None,
        outputs=len(newest.outbox),
        savepoints=tuple(savepoints),
        mirrors=tuple(mirrors),
        places=totals((place_of(each.key), each.size_bytes) for each in objects),
        verdicts=totals((each.verdict.value, each.size_bytes) for each in objects),
        pace=_pace(objects, prices),
    )


async def _mirror_row(primary: JobPrimary, named: tuple[str, MirrorStep], newest: Commit, *, now_s: float) -> MirrorRow:
    name, step = named
    behind, since_s = 0, now_s
    async for commit in primary.log.branch(newest, count_max=COMMITS_BEHIND_MAX):
        if commit.sequence <= step.has_sequence:
            break
        behind, since_s = behind + 1, commit.committed_at_s
    seconds = max(0.0, now_s - since_s)
    return MirrorRow(name, step.state, step.target, step.form, step.checkpoint_id, behind, seconds)


def _range_row(part: RangeState) -> RangeRow:
    return RangeRow(
        key_groups=str(part.key_groups),
        bases=len(part.all_bases),
        base_bytes=sum(map(_live_bytes, part.all_bases)),
        change_sets=members_in(part.changelog),
        changelog_bytes=sum(handle.length for handle in part.changelog),
        operator_bytes=sum(len(cell) for reported in part.operator for cell in reported.elements),
    )


def _live_bytes(base: Base | RocksDBBase) -> int:
    size_bytes, written = base.size_bytes, base.key_groups_written
    return size_bytes * base.live // written if written else size_bytes


def _pace(objects: Iterable[ObjectReport], prices: Prices) -> RequestRate | None:
    made = [each for each in objects if sequence_of(each.key) is not None or data_name_of(each.key) is not None]
    entries = [each.modified_s for each in made if sequence_of(each.key) is not None]
    first_s, last_s = min(entries), max(entries)
    if last_s - first_s < WINDOW_S_MIN:
        return None
    puts = sum(first_s < each.modified_s <= last_s for each in made)
    return RequestRate(puts, last_s - first_s, prices.usd({"put": puts}) / (last_s - first_s) * MONTH_S)
