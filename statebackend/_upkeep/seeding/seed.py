"""Writes the first state of a job: all of it in bases, and in one commit.

    read, encode and sort every row -> look for keys that come twice -> claim -> write bases -> commit

Every row is checked before the job is claimed, so a wrong one has changed nothing. The commit is the switch: before it
nothing of the seed is visible, after it all of it is.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, cast, get_args

import msgspec

from statebackend._backend.copy_writers import OpenUploader
from statebackend._checkpoint.materialization.bases import base_segment_bytes
from statebackend._log.position import Position
from statebackend._upkeep.arguments import check_number, check_settings
from statebackend._upkeep.offline.offline_commit import Contents, OfflineJob, Uploads, open_offline
from statebackend._upkeep.progress import Tell
from statebackend._upkeep.seeding.duplicates import CHOICES, Duplicates
from statebackend._upkeep.seeding.seeded_states import Declares, SeededStates
from statebackend._upkeep.seeding.sorted_runs import open_runs
from statebackend._upkeep.seeding.sources import source_of
from statebackend.abc import Clock, ObjectStore, StateChangeUploader
from statebackend.errors import InputError
from statebackend.ids import CheckpointId, ClockKind, RangeState, SourceMark, all_key_groups
from statebackend.settings import Settings


class SeedReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a seed, or of a dry run. `keys`: the number of keys in each state; `rows`: those that were read.

    `checkpoint_id` is `None` for a dry run. `source`: the batch of Spark's that it stands for, if it was imported.
    """

    job: str
    dry_run: bool
    checkpoint_id: CheckpointId | None = None
    source: SourceMark | None = None
    keys: Mapping[str, int] = {}
    rows: Mapping[str, int] = {}
    segments: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    requests: int = 0
    usd: float = 0.0


Writes = Callable[[Uploads], Awaitable[Sequence[RangeState]]]
"""Writes the bases of a seed, and returns its ranges."""


class Origin(msgspec.Struct, frozen=True):
    """Where a stream goes on from the state: behind a batch, if it is the state of one, or at a place of its input."""

    source: SourceMark | None = None
    starts_from: Any = None


async def seed(
    settings: Settings,
    states: Declares,
    sources: Mapping[str, Any],
    *,
    key: str | Sequence[str] | Mapping[str, str | Sequence[str]] = "key",
    duplicates: Duplicates = "refuse",
    starts_from: Any = None,
    clock_s: float | None = None,
    clock_kind: ClockKind = "event",
    dry_run: bool = False,
    store: ObjectStore | None = None,
    uploader: StateChangeUploader | OpenUploader | None = None,
    clock: Clock | None = None,
    tell: Tell = lambda _: None,
) -> SeedReport:
    """Make the first state of a job out of rows that lie elsewhere, as one commit. The job must have none yet.

        await sb.seed(settings, Customers(), {"customers": "customers.parquet"}, key="customer")

    `states` declares the states as the stream does: a `KeyedProcessor`, or a function that is given an object with the
    methods of a backend. `sources` has the rows of some of them, one row for each key:

    - a `pyarrow.Table`, a reader, or anything else with Arrow's stream interface; the path of a file of Parquet, or of
      a directory of them; a DataFrame of Spark, whose rows come partition by partition. `key` names the column of the
      key, or several; a mapping names those of each state. What a key is set to lies in a column `value`, a list for a
      list state and a map for a map state; where there is no such column, the others are the fields of the value. A
      columnar state takes its columns by name. So what `export` wrote can be read;
    - an iterable of pairs of a key and what it is set to: a value, a list, a dict, the accumulator of an aggregate, the
      times of timers, the row of a columnar state. A dict is one.

    It may be larger than memory: rows are sorted in a scratch directory. `duplicates`: what to do with a key that comes
    twice, "refuse" by default. `starts_from`: where the stream has to begin, such as the offsets up to which the rows
    go, as anything that JSON has; the commit keeps it, and a sink refuses to begin elsewhere. `clock_s`: where the
    job's clock begins, and from when a time-to-live on it counts. `dry_run`: read and check everything, claim and write
    nothing. `tell` is called on the loop with how far it is.

    Raises `InputError` for a job that has commits, no source, an unknown state, a key that comes twice, a generator
    that was begun, a generator or reader without rows, which may have been read before, by a dry run for example, and
    for the first row that does not fit, as `KeyTypeError` or `ValueEncodeError` where it is one. Nothing was written
    then, nor claimed; but a commit that another writer makes while the rows are read may be found only behind the
    claim, which has fenced that writer. Raises what an iterable raises, `FencedError` if another writer opened the job
    meanwhile, and as `open_backend` and `StateBackend.checkpoint` do. A failed or cancelled call may leave a claim, and
    has deleted what it stored unless a commit may hold it; a killed one leaves that to a sweep.
    """
    return await seed_from(
        settings,
        states,
        sources,
        origin=Origin(starts_from=as_json(starts_from)),
        key=key,
        duplicates=duplicates,
        clock_s=clock_s,
        clock_kind=clock_kind,
        dry_run=dry_run,
        store=store,
        uploader=uploader,
        clock=clock,
        tell=tell,
    )


async def seed_from(
    settings: Settings,
    states: Declares,
    sources: Mapping[str, Any],
    *,
    origin: Origin,
    key: str | Sequence[str] | Mapping[str, str | Sequence[str]] = "key",
    duplicates: Duplicates = "refuse",
    clock_s: float | None = None,
    clock_kind: ClockKind = "event",
    dry_run: bool = False,
    store: ObjectStore | None = None,
    uploader: StateChangeUploader | OpenUploader | None = None,
    clock: Clock | None = None,
    tell: Tell = lambda _: None,
) -> SeedReport:
    """As `seed`, for a stream that goes on from `origin`."""
    if duplicates not in CHOICES:
        raise InputError("choose what becomes of a key that comes twice", duplicates=duplicates, choices=CHOICES)
    seeded = await declared_for(sources, states, settings, clock_s, clock_kind)
    encoders = {name: seeded.encoder(name) for name in sources}
    found = {name: source_of(given, key_of(key, name)) for name, given in sources.items()}
    owned = all_key_groups(settings.max_parallelism)

    async def seeding(opened: OfflineJob) -> SeedReport:
        async with open_runs(settings, owned, opened.threads) as runs:

            async def write(uploads: Uploads) -> Sequence[RangeState]:
                bases = await runs.write(uploads, base_segment_bytes(settings.in_flight_bytes_max), tell)
                return [RangeState(owned, (), tuple(bases))]

            await runs.read(found, encoders, tell)
            await runs.check(duplicates)
            report = SeedReport(job=settings.job, dry_run=dry_run, source=origin.source, keys=runs.keys, rows=runs.rows)
            return report if dry_run else await committed(report, opened, seeded, write, origin=origin)

    opening = open_offline(settings, commits=not dry_run, store=store, uploader=uploader, clock=clock)
    return await carried_out(seeding, opening)


async def declared_for(
    sources: Mapping[str, Any], states: Declares, settings: Settings, clock_s: float | None, clock_kind: ClockKind
) -> SeededStates:
    """The states of a seed from these sources. Raises `InputError`, and what declares the states."""
    check_settings(settings)
    if not isinstance(cast("object", sources), Mapping):
        raise InputError("sources are a mapping from the names of states to their rows", sources=repr(sources)[:80])
    if clock_s is not None:
        check_number(clock_s, "clock_s is where the job's clock begins: a number of seconds since 1970")
    if not sources:
        raise InputError("give the rows of at least one state; [] stands for none", sources=repr(sources))
    if clock_kind not in get_args(ClockKind):
        raise InputError("a clock is of one of these kinds", clock_kind=clock_kind, choices=get_args(ClockKind))
    return await SeededStates.declared(states, settings.max_parallelism, clock_s, clock_kind)


async def carried_out(
    seeding: Callable[[OfflineJob], Awaitable[SeedReport]], opening: AbstractAsyncContextManager[OfflineJob]
) -> SeedReport:
    """Open the job, which must be empty, for a seed. Its report, with what this took added to what it has.

    Raises `InputError` if the job has a commit, and what the two raise.
    """
    async with opening as opened:
        begun_s, requests = opened.clock.monotonic(), opened.primary.spending.requests
        check_empty(await opened.job.look(), opened.settings)
        report = await seeding(opened)
        spent, seconds = opened.primary.spending.since(requests), opened.clock.monotonic() - begun_s
    return msgspec.structs.replace(
        report, seconds=seconds, requests=report.requests + spent.requests.total(), usd=report.usd + spent.usd
    )


def check_empty(position: Position, settings: Settings) -> None:
    """Raise `InputError` if the job has a commit: a seed is the first."""
    if position.newest is not None or position.base is not None:
        raise InputError(
            "the job has a state already: seed another job, or remove this one",
            job=settings.job,
            primary=settings.primary,
        )


def as_json(starts_from: Any) -> Any:
    """The same as it will be read. Raises `InputError` for what JSON has no place for."""
    try:
        return msgspec.json.decode(msgspec.json.encode(starts_from))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError("`starts_from` must be something that JSON has", starts_from=repr(starts_from)[:80]) from error


def key_of(key: str | Sequence[str] | Mapping[str, str | Sequence[str]], name: str) -> str | Sequence[str]:
    """The key's columns of one state. Raises `InputError`."""
    if not isinstance(key, Mapping):
        return key
    if name not in key:
        raise InputError("name the key's column of each state that has a source", state=name)
    return key[name]


async def committed(
    report: SeedReport, opened: OfflineJob, seeded: SeededStates, write: Writes, *, origin: Origin
) -> SeedReport:
    """Claim the job, and commit the ranges that `write` returns. Raises as `seed`, and what `write` raises."""
    position = await opened.job.claim(await opened.job.look())
    check_empty(position, opened.settings)  # a commit may have been made while the rows were read

    async def contents(uploads: Uploads) -> Contents:
        return Contents(await write(uploads), seeded.descriptors)

    checkpoint_id, uploads = await opened.commit(
        position, contents, source=origin.source, clock=seeded.clock, starts_from=origin.starts_from
    )
    segments, bytes_written = uploads.written
    return msgspec.structs.replace(report, checkpoint_id=checkpoint_id, segments=segments, bytes_written=bytes_written)
