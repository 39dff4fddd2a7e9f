"""Finds what a query is about: the commit of a batch, the state, the key groups of each partition, the feed's commits.

Each function opens the job's primary, looks, and closes it: in the driver's planning processes, which come and go.
"""

from bisect import bisect_right
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import Any, Final, cast

import msgspec
import pyarrow as pa

from statebackend._codec.commit import Commit
from statebackend._log.position import Pin
from statebackend._reading.asked_of_state import check_known, groups_of
from statebackend._reading.feed import (
    Stretch,
    made_as_a_whole,
    open_changes,
    own_change_sets,
    retained_from,
    stretch,
    stretch_after,
)
from statebackend._reading.opened_state import read_batches
from statebackend._reading.rows.layouts import KEY
from statebackend._reading.what_to_read import range_from
from statebackend._state.declared import COLUMNAR
from statebackend._state.time import timers
from statebackend._state.values import Upcast
from statebackend._upkeep.job_primary import JobPrimary, open_job_primary
from statebackend.abc import Capability
from statebackend.errors import CheckpointNotFoundError, InputError
from statebackend.ids import Base, KeyGroupRange, RocksDBBase, StateDescriptor
from statebackend.settings import MiB
from statebackend.spark.reading.read_options import FeedOptions, MetadataOptions, StateOptions

_pa: Any = pa  # it ships no types

PARTITION_BYTES: Final = 64 * MiB
"""Stored bytes of bases that one task reads by default."""
FEED_PARTITION_BYTES: Final = 16 * MiB
"""The same of a feed's change sets."""
LOOK_BACK_MAX: Final = 16
"""So many commits are looked at for the type of the keys that an emptied state had."""
BEGINNING: Final = -1
"""The place in the log before the first commit."""


async def commit_asked_for(options: StateOptions | MetadataOptions, primary: JobPrimary) -> Commit:
    """The commit that the options name, by default the newest. Raises `CheckpointNotFoundError`, `InputError`."""
    commit, _ = await primary.find(checkpoint_id=options.checkpoint_id, savepoint=options.savepoint, at=options.at)
    return commit if options.batch_id is None else await _with_batch(primary, commit, options.batch_id)


async def _with_batch(primary: JobPrimary, newest: Commit, batch_id: int) -> Commit:
    """The commit with this batch of the query that made the newest ones, also if only a savepoint keeps it."""
    found: list[int] = []
    count, savepoints = _Count(by_batch=True), primary.positions.savepoints
    floor = await savepoints.floor()
    async with aclosing(cast("AsyncGenerator[Commit]", primary.log.branch(newest))) as branch:
        async for commit in branch:
            if commit.sequence < floor:
                break
            if (number := count.of(commit)) is not None:
                found.append(number)
                if number == batch_id:
                    return commit
    if Capability.LIST in primary.store.capabilities:
        for savepoint in await savepoints.all():
            kept = await primary.log.load_commit(savepoint.sequence)
            if count.of(kept) == batch_id:
                return kept
    raise CheckpointNotFoundError(
        "no retained commit has that batch" if found else "the job's commits have no batches: use checkpointId",
        batch_id=batch_id,
        batch_ids=(found[-1], found[0]) if found else (),
    )


async def position(options: StateOptions) -> tuple[Commit, StateDescriptor]:
    """The state that is asked for, in the newest commit or the one that the options name. Raises `InputError`."""
    async with open_job_primary(options.settings, None) as primary:
        commit = await commit_asked_for(options, primary)
    return commit, state_asked_for(options, commit)


def state_asked_for(options: StateOptions, commit: Commit) -> StateDescriptor:
    """The state of the commit. Raises `InputError`, with the closest name."""
    known = {each.name: each for each in commit.states}
    if options.state is not None:
        check_known("state", [options.state], list(known))
        return known[options.state]
    fitting = [each for each in commit.states if not options.timers or each.kind == timers.KIND]
    if len(fitting) != 1:
        raise InputError(
            "name the state: option('stateVarName', ...)", timers=options.timers, states=[each.name for each in fitting]
        )
    return fitting[0]


async def schema_of(options: StateOptions, name: str, pin: Pin, migrate: Sequence[Upcast]) -> Any:
    """The Arrow schema of the state's own batches, which depends on its keys.

    Where it has no key, those of the feed's changes tell it; else it has the parts that were named.
    """
    what = options.what(migrate)
    what["ttl"] = None  # a key that has expired tells the type, too
    async with read_batches(options.settings, name, pin=pin, **what) as batches:
        schema = batches.schema
        if batches.kind == COLUMNAR or options.keys_as_json or await batches.next() is not None:
            return schema
    type_ = None if options.feed is None else await _key_type_of_changes(options, options.feed, name, migrate)
    if (
        type_ is None
        and len(names := options.key_columns or ()) > 1
        and not _pa.types.is_struct(schema.field(KEY).type)
    ):
        type_ = _pa.struct([(each, _pa.string()) for each in names])
    return schema if type_ is None else schema.set(schema.get_field_index(KEY), _pa.field(KEY, type_))


async def _key_type_of_changes(
    options: StateOptions, feed: FeedOptions, name: str, migrate: Sequence[Upcast]
) -> Any | None:
    """The type of the keys in the feed's first changes; of a stream from now on, in those of the last commits."""
    async with open_job_primary(options.settings, None) as primary:
        if feed.start is not None:
            found, numbers = await _from_start(primary, feed.start, by_batch=feed.by_batch)
            if feed.end is not None:  # what comes later may be no change
                found = Stretch(found.before, found.commits[: bisect_right(numbers, feed.end)])
        else:
            branch = primary.log.branch(await _newest(primary), count_max=LOOK_BACK_MAX)
            floor = await retained_from(primary)
            retained = [commit async for commit in branch if commit.sequence >= floor][::-1]
            begins = retained[0].parent is None
            found = Stretch(None if begins else retained[0], retained if begins else retained[1:])
    before, commits = found
    for commit in found.commits:
        if feed.start is None and made_as_a_whole(commit, name):  # the feed begins behind it
            before, commits = commit, found.commits[found.commits.index(commit) + 1 :]
    if not commits:
        return None
    async with open_changes(
        options.settings,
        name,
        sequences=[commit.sequence for commit in commits],
        before=None if before is None else before.sequence,
        columns=options.columns,
        migrate=migrate,
    ) as changes:
        return None if (batch := await changes.next()) is None else batch.schema.field(KEY).type


async def key_group_ranges(options: StateOptions, pin: Pin) -> list[tuple[int, int]]:
    """The key groups of each partition: those of an owner each, cut so that a task has no more than its share.

    RocksDB's own files do not count: each task that reads some of their key groups fetches all of them.
    """
    async with open_job_primary(options.settings, None) as primary:
        commit, _ = await primary.find(pin=pin)
    asked_for = None if options.key_groups is None else range_from(options.key_groups)
    (wanted,) = groups_of(commit, asked_for, None)
    found: list[KeyGroupRange] = []
    for part in commit.ranges:
        if common := part.key_groups.intersection(wanted):
            size_bytes = sum(map(_divisible_bytes, part.all_bases))
            count = 1 + size_bytes // PARTITION_BYTES if options.partitions is None else 1
            found += cut(common, count)
    if options.partitions is not None:
        found = cut(wanted, options.partitions)
    return [(each.first, each.last) for each in found]


def _divisible_bytes(base: Base | RocksDBBase) -> int:
    """Stored bytes of which a task reads its key groups alone."""
    stored = base.columns_bytes if isinstance(base, RocksDBBase) else base.size_bytes
    return stored * base.live // max(1, base.key_groups_written)


def cut(key_groups: KeyGroupRange, count: int) -> list[KeyGroupRange]:
    """The range in so many parts of equal size; no more than it has groups."""
    count = min(count, len(key_groups))
    ends = [key_groups.first + len(key_groups) * place // count for place in range(count + 1)]
    return [KeyGroupRange(first, end - 1) for first, end in pairwise(ends)]


class FeedPart(msgspec.Struct, frozen=True):
    """Commits for one task, oldest first, by their places in the log, and the one before them."""

    before: int | None
    sequences: tuple[int, ...]


async def feed_between(options: StateOptions, feed: FeedOptions) -> list[FeedPart]:
    """The feed of a batch query. Raises `CheckpointNotFoundError`, and `InputError` for an end that is not there."""
    assert feed.start is not None
    async with open_job_primary(options.settings, None) as primary:
        found, numbers = await _from_start(primary, feed.start, by_batch=feed.by_batch)
    end = numbers[-1] if feed.end is None else feed.end
    if not found.commits or end > numbers[-1]:
        raise InputError("the feed goes beyond the newest commit", start=feed.start, end=feed.end, newest=numbers[-1])
    commits = [commit for commit, number in zip(found.commits, numbers, strict=True) if number <= end]
    return _parts(found.before, commits, options.partitions)


async def first_offset(options: StateOptions, feed: FeedOptions) -> int:
    """The place in the log behind which a stream begins: by default that of the newest commit.

    A stream may begin by the batch that comes next. Raises as `feed_between`.
    """
    async with open_job_primary(options.settings, None) as primary:
        if feed.start is None:
            return (await _newest(primary)).sequence
        found, numbers = await _from_start(primary, feed.start, by_batch=feed.by_batch)
    if feed.start > numbers[-1] + 1:
        raise InputError("the feed begins beyond the newest commit", start=feed.start, newest=numbers[-1])
    return BEGINNING if found.before is None else found.before.sequence


async def last_offset(options: StateOptions, start: int | None = None, commits_max: int | None = None) -> int:
    """The place of the newest commit; or of the last of at most `commits_max` commits behind `start`.

    `start`: a place that was the newest before.
    """
    async with open_job_primary(options.settings, None) as primary:
        newest = (await primary.find(at_least=start)).commit  # asked all the time: by no listing
        if start is None or commits_max is None:
            return newest.sequence
        found = (await stretch_after(primary, start, newest)).commits[:commits_max]
        return found[-1].sequence if found else start


async def feed_after(options: StateOptions, start: int, end: int) -> list[FeedPart]:
    """The feed between two offsets of a stream. Raises `CheckpointNotFoundError`, `RewindError`."""
    if start == end:
        return []
    async with open_job_primary(options.settings, None) as primary:
        found = await stretch_after(primary, start, (await primary.find(at_least=end)).commit)
    return _parts(found.before, [commit for commit in found.commits if commit.sequence <= end], options.partitions)


async def _newest(primary: JobPrimary) -> Commit:
    return (await primary.find()).commit


async def _from_start(primary: JobPrimary, start: int, *, by_batch: bool) -> tuple[Stretch, Sequence[int]]:
    """The commits from there on with their numbers; if there are none, the number of the newest one."""
    newest, count = await _newest(primary), _Count(by_batch=by_batch)
    try:
        found = await stretch(primary, newest, is_before=lambda commit: count.is_below(commit, start))
    except CheckpointNotFoundError:
        count.check()
        raise
    count.check()
    numbers: list[int] = []
    for commit in found.commits or [newest]:
        number = count.of(commit)
        numbers.append((numbers[-1] if numbers else start) if number is None else number)
    return found, numbers


class _Count:
    """Numbers commits by their checkpoints, or by the batches of the query that made the newest of them."""

    def __init__(self, *, by_batch: bool) -> None:
        self._by_batch = by_batch
        self._query_id: str | None = None

    def of(self, commit: Commit) -> int | None:
        """The commit's number, `None` for one by another hand. The newest commit comes first."""
        source = commit.source
        if not self._by_batch:
            return commit.checkpoint_id
        if source is None:
            return None
        self._query_id = self._query_id or source.query_id
        return source.batch_id if source.query_id == self._query_id else None

    def is_below(self, commit: Commit, start: int) -> bool:
        """True if the commit has a number below `start`."""
        number = self.of(commit)
        return number is not None and number < start

    def check(self) -> None:
        """Raise `InputError` if no commit had a batch."""
        if self._by_batch and self._query_id is None:
            raise InputError("the job's commits have no batches: begin the feed by changeStartCheckpointId")


def _parts(before: Commit | None, commits: Sequence[Commit], count: int | None) -> list[FeedPart]:
    """Neighbours for one task each: `count` parts, or as many as their bytes ask for."""
    if not commits:
        return []
    parents = [before, *commits]
    sizes = [_size_of(commit, parent) for commit, parent in zip(commits, parents, strict=False)]
    share = max(1, sum(sizes) / count if count is not None else FEED_PARTITION_BYTES)
    found: list[FeedPart] = []
    room = 0.0
    for commit, parent, size_bytes in zip(commits, parents, sizes, strict=False):
        if room <= 0 or not found:
            found.append(FeedPart(None if parent is None else parent.sequence, ()))
            room += share
        found[-1] = FeedPart(found[-1].before, (*found[-1].sequences, commit.sequence))
        room -= size_bytes
    return found


def _size_of(commit: Commit, parent: Commit | None) -> int:
    return sum(each.length for part in commit.ranges for each in own_change_sets(commit, parent, part.key_groups))
