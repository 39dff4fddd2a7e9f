"""Invariants of a job and of the process that works on it, as assertions with names, for any test to use.

The objects of a job are a mapping from key, as seen from the job's root, to content, wherever they are stored. Nothing
here uses the code that restores a backend: commits are read by their format alone.
"""

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, cast

import msgspec
from msgspec import UNSET

from statebackend._codec.cells import unpack
from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.change_sets.keyed_changes import KeyedChanges
from statebackend._codec.change_sets.state_change import Operation, StateChange
from statebackend._codec.commit import Claim, Commit, Entry, decode_entry
from statebackend._codec.segment import checksum_of, decode_change_set, decode_segment
from statebackend._log.names import COMMITS, FLOORS, HINT_KEY, MIRRORS, SAVEPOINTS, entry_key, marker_of
from statebackend._tables.key_groups import key_group
from statebackend.ids import ChangeSetHandle, ClockMark, CommitSummary, Handle, Key, RangeState
from statebackend.settings import Settings
from statebackend.testing.crash_store import Write

Objects = Mapping[str, bytes]
Contents = Mapping[tuple[str, Key], object]
"""Every value of a job, by state name and key; of timers, the times of the key."""
TIMERS = "timers"
"""The kind of timers in commits."""


class Stamped(NamedTuple):
    """A value with a time-to-live, and the time at which it was written, by the job's clock."""

    value: object
    written_s: float


def read_log(objects: Objects, job: str) -> Sequence[Entry]:
    """The entries of a job's log, in order. Raises `CorruptCommitError` or `WrongJobError`."""
    return [decode_entry(objects[key], key, job=job) for key in sorted(objects) if key.startswith(COMMITS)]


def commits_of(log: Iterable[Entry]) -> Sequence[Commit]:
    """The commits among the entries."""
    return [entry for entry in log if isinstance(entry, Commit)]


def read_contents(commit: Commit, objects: Objects) -> Contents:
    """Every value that a restore of the commit has to bring back, from its bases and its change sets."""
    states = {state.state_id: state for state in commit.states}
    contents: dict[tuple[str, Key], object] = {}
    for change in _changes_of(commit, objects):
        place = (states[change.state_id].name, change.key)
        if change.operation == Operation.SET:
            contents[place] = _value_in(change.data, states[change.state_id].kind)
        else:
            contents.pop(place, None)
    return contents


def _value_in(data: bytes, kind: str) -> object:
    if kind == TIMERS:
        return struct.unpack(f"<{len(data) // 8}d", data)
    cell = unpack(data)
    value = msgspec.msgpack.decode(cell.value)
    return value if cell.stamp is None else Stamped(value, cell.stamp)


def living(contents: Contents, now_s: float, ttl_s: float) -> Contents:
    """The contents without the values that have expired, and without keys that have no timer left."""
    return {
        place: value
        for place, value in contents.items()
        if value != () and not (isinstance(value, Stamped) and value.written_s + ttl_s <= now_s)
    }


def _changes_of(commit: Commit, objects: Objects) -> Iterator[StateChange]:
    """The changes in the order in which a restore applies them, those of each range's own key groups."""
    for part in commit.ranges:
        for base in part.bases:
            for change in _entries_of(objects[base.segment.key], base.segment.key):
                if any(change.key_group in each for each in base.key_groups):
                    yield change
        for handle in part.changelog:
            for change in _changes_at(objects[handle.segment.key], handle):
                if change.key_group in handle.key_groups:
                    yield change


def handles_of(commit: Commit) -> Iterable[ChangeSetHandle]:
    """The changelog of the commit, in the order of its application."""
    return (handle for part in commit.ranges for handle in part.changelog)


def segments_of(commit: Commit) -> Iterable[Handle]:
    """Every object that the commit points into, once each: segments of change sets and of bases."""
    return {handle for part in commit.ranges for handle in part.objects()}


# ---------------------------------------------------------------------------------------------------- the commit log


def assert_log_has_no_gap(log: Sequence[Entry], objects: Objects) -> None:
    """Each sequence follows the one before, each under its own key: so probing forward finds the end."""
    sequences = [entry.sequence for entry in log]
    assert sequences == list(range(sequences[0], sequences[0] + len(log)) if log else ()), f"gaps: {sequences}"
    assert all(entry_key(sequence) in objects for sequence in sequences), "an entry lies under another entry's key"


def assert_entry_follows(entry: Entry, log: Sequence[Entry]) -> None:
    """The entry is a legal next one. A claim raises the epoch and names the newest commit; a commit keeps the epoch.

    Checkpoint ids grow, and a commit's parent is an earlier commit; the first commit has none.
    """
    assert entry.sequence == len(log), f"entry {entry.sequence} after {len(log)} others"
    epoch = log[-1].epoch if log else 0
    commits = commits_of(log)
    newest = commits[-1] if commits else None
    if isinstance(entry, Claim):
        assert entry.epoch == epoch + 1, f"epoch {entry.epoch} claimed after {epoch}"
        assert entry.newest == (None if newest is None else newest.sequence), f"a claim on commit {entry.newest}"
        return
    assert log, "a commit before the first claim"
    assert entry.epoch == epoch, f"a commit of epoch {entry.epoch} in epoch {epoch}"
    if newest is None:
        assert entry.parent is None, f"the first commit has a parent: {entry.parent}"
        return
    assert entry.checkpoint_id > newest.checkpoint_id, f"id {entry.checkpoint_id} after {newest.checkpoint_id}"
    assert entry.parent in {commit.sequence for commit in commits}, f"no such parent: {entry.parent}"


def assert_savepoints_were_made(found: Iterable[tuple[str, int]], objects: Objects, job: str) -> None:
    """The savepoints, by name and sequence, are the commits that have a marker of their own, and no others."""
    commits = {(commit.sequence, commit.stamp) for commit in commits_of(read_log(objects, job))}
    marks = (mark for key in objects if (mark := marker_of(key)) is not None)
    made = sorted((mark.name, int(mark.sequence)) for mark in marks if (mark.sequence, mark.stamp) in commits)
    assert sorted(found) == made, f"the savepoints are {sorted(found)}, and {made} were made"


def assert_commit_is_whole(commit: Commit, objects: Objects) -> None:
    """Every segment that the commit points into is stored, byte for byte, with its frames; no key group is missing."""
    for segment in segments_of(commit):
        assert_is_stored(segment, objects)
    for output in commit.outbox:
        for staged in output.parts:
            assert_is_stored(staged, objects)
    for part in commit.ranges:
        assert_bases_do_not_overlap(part)
    for handle in handles_of(commit):
        assert handle.offset >= 0, f"a frame out of {handle}"
        assert handle.offset + handle.length <= handle.segment.length, f"a frame out of {handle}"
        assert _changes_at(objects[handle.segment.key], handle), f"an empty change set: {handle}"
    groups = [group for part in commit.ranges for group in part.key_groups]
    assert groups == list(range(commit.max_parallelism)), "the ranges do not cover every key group once"


def assert_bases_do_not_overlap(part: RangeState) -> None:
    """Each key group has at most one base, each base stands for at least one, and none lies outside its range."""
    groups = [group for base in part.all_bases for each in base.key_groups for group in each]
    assert len(groups) == len(set(groups)), f"key groups with two bases in {part.key_groups}"
    assert all(group in part.key_groups for group in groups), f"a base outside of {part.key_groups}"
    assert all(base.live > 0 for base in part.all_bases), "a base that stands for nothing"


def assert_is_stored(segment: Handle, objects: Objects) -> None:
    """The handle is right: the object, or the part of it, exists with that length and checksum."""
    assert segment.key in objects, f"committed but not stored: {segment.key}"
    data = objects[segment.key]
    if segment.offset:
        data = data[segment.offset : segment.offset + segment.length]
    assert len(data) == segment.length, f"{segment.key} has {len(data)} bytes, its handle says {segment.length}"
    assert checksum_of((data,)) == segment.checksum, f"{segment.key} has another checksum than its handle"


def assert_local_copy_is_complete(commit: Commit, local: Objects, primary: Objects) -> None:
    """A checkpoint called local can be restored without the primary: each segment has an identical local copy."""
    for segment in segments_of(commit):
        key = segment.key
        assert key in local, f"called local but not there: {key}"
        assert local[key] == primary[key], f"the copies differ: {key}"


def assert_nothing_is_left_over(stored: Iterable[str], commits: Iterable[Commit]) -> None:
    """A process leaves no garbage: each object it stored and did not delete is a commit, the hint, or in a commit.

    Applies to a process that left in order, whose stores carried out its deletions, and that learned the outcome of its
    commits. A killed process leaves its uncommitted objects. Savepoint markers, sweep floors and the steps
    of mirrors are left to sweeps.
    """
    reached = frozenset[str]().union(*(commit.segments() for commit in commits))
    others = (COMMITS, SAVEPOINTS, FLOORS, MIRRORS)
    left_over = sorted(key for key in stored if not key.startswith(others) and key != HINT_KEY and key not in reached)
    assert not left_over, f"stored, in no commit, and not deleted: {left_over}"


# ---------------------------------------------------------------------------------------------------------- the state


def assert_same_contents(found: Contents, expected: Contents, what: str) -> None:
    """The state is exactly the expected one: no change lost, applied twice, or from a batch outside it."""
    if found != expected:
        differences = [
            f"{place}: {found.get(place)!r} instead of {expected.get(place)!r}"
            for place in sorted(found.keys() | expected.keys(), key=repr)
            if found.get(place) != expected.get(place)
        ]
        raise AssertionError(f"{what} differs in {len(differences)} of {len(expected)}: {'; '.join(differences[:3])}")


def assert_clock_never_goes_back(clock: ClockMark | None, before: ClockMark | None) -> None:
    """The clock of a commit is not before that of its parent, and stays of its kind; one that had begun is not lost."""
    if before is not None:
        assert clock is not None, f"the clock is gone, it stood at {before.now_s}"
        assert clock.kind == before.kind, f"a clock of {clock.kind} time after one of {before.kind} time"
        assert clock.now_s >= before.now_s, f"the clock went back from {before.now_s} to {clock.now_s}"


def assert_replay_has_same_clock(clock: ClockMark | None, first: ClockMark | None, batch: int) -> None:
    """A batch moves the clock to the same time each time it is delivered, in every process."""
    assert clock == first, f"batch {batch} moved the clock to {first}, and now to {clock}"


def assert_no_timer_is_due(contents: Contents, timers: str, clock: ClockMark | None) -> None:
    """A commit leaves no timer that its own clock has reached: all have fired, also under keys that had no rows."""
    due = {key: at for key, at in _next_timers(contents, timers).items() if clock is not None and at <= clock.now_s}
    assert not due, f"timers are left that were due: {due}"


def assert_next_timers_are_told(commit: Commit, contents: Contents, timers: str) -> None:
    """No range of the commit has a timer before the one that it tells of: or the range would sleep when that is due."""
    first = _next_timers(contents, timers)
    for part in commit.ranges:
        times = [at for key, at in first.items() if key_group(key, commit.max_parallelism) in part.key_groups]
        told = part.next_timer_s
        assert not times or told is UNSET or (told is not None and told <= min(times)), (
            f"{part.key_groups} has a timer for {min(times)}, and tells of {told}"
        )


def _next_timers(contents: Contents, timers: str) -> Mapping[Key, float]:
    """The first timer of each key."""
    times = {key: cast("Sequence[float]", found) for (name, key), found in contents.items() if name == timers}
    return {key: found[0] for key, found in times.items() if found}


def assert_newest_of_its_time(sequence: int | None, *, newest_at_begin: int, newest_at_end: int) -> None:
    """Opening restored a commit that was the newest at some moment while it opened. -1 stands for none."""
    stands_on = -1 if sequence is None else sequence
    assert newest_at_begin <= stands_on <= newest_at_end, (
        f"opened on {stands_on}, while the newest went from {newest_at_begin} to {newest_at_end}"
    )


def assert_as_old_as_it_says(staleness_s: float, unknown_s: float) -> None:
    """A follower may not know a commit yet, and says that it has not looked since. `unknown_s`: since it is there."""
    assert staleness_s >= unknown_s, f"said to be {staleness_s:.6f} s old, and is so for {unknown_s:.6f} s"


def assert_thinned_by_age(
    made_s: Mapping[int, float], retained: Collection[int], now_s: float, retained_s: float
) -> None:
    """Of each hour that is not older, the newest commit can be opened. `made_s`: of all, by place."""
    newest = {at_s // 3600: sequence for sequence, at_s in sorted(made_s.items()) if now_s - at_s <= retained_s}
    missing = sorted(set(newest.values()).difference(retained))
    assert not missing, f"the newest commits of their hours are not kept: {missing}"


def assert_same_history(history: Sequence[CommitSummary], commits: Sequence[Commit]) -> None:
    """The history is the newest commit, its parent, and so on to the first, or to the oldest that was not swept."""
    by_sequence = {commit.sequence: commit for commit in commits}
    expected: list[CommitSummary] = []
    commit = commits[-1] if commits else None
    while commit is not None:
        expected.append(commit.summary)
        commit = None if commit.parent is None else by_sequence.get(commit.parent)
    assert list(history) == expected, f"the history is {history}"


# -------------------------------------------------------------------------------------------------------- the process


def assert_in_flight_is_bounded(in_flight_bytes: int, settings: Settings, largest_bytes: int) -> None:
    """Admission is "below the limit": at most one upload goes beyond it, by at most `largest_bytes`."""
    bound = settings.in_flight_bytes_max + largest_bytes
    assert 0 <= in_flight_bytes < bound, f"{in_flight_bytes} bytes in flight, bound {bound}"


def assert_nothing_in_flight(in_flight_bytes: int, waiting: int) -> None:
    """A closed backend holds no bytes and no waiting uploads."""
    assert in_flight_bytes == 0, f"closed with {in_flight_bytes} bytes in flight"
    assert waiting == 0, f"closed with {waiting} uploads waiting"


def assert_budget_is_respected(write: Write, disk: Objects, bytes_max: int) -> None:
    """A write to a local root leaves at most `bytes_max` there; 0 means no limit."""
    if bytes_max and write.operation != "delete":
        others = sum(len(data) for key, data in disk.items() if key != write.key)
        assert others + len(write.data) <= bytes_max, f"{others + len(write.data)} local bytes, limit {bytes_max}"


def assert_left_in_time(seconds: float, bound_s: float) -> None:
    """Leaving a backend takes a bounded time, whatever the stores do."""
    assert seconds <= bound_s, f"leaving took {seconds:.3f} s, bound {bound_s:.3f} s"


@lru_cache(maxsize=2048)
def _changes_at(data: bytes, handle: ChangeSetHandle) -> Sequence[StateChange]:
    frame = data[handle.offset : handle.offset + handle.length]
    header, changes = decode_change_set(frame, handle.segment.key, handle.offset)
    assert (header.log_id, header.sequence_number) == (handle.log_id, handle.sequence_number), "another change set"
    return _rows_of(changes)


@lru_cache(maxsize=256)
def _entries_of(data: bytes, name: str) -> Sequence[StateChange]:
    return [row for _, changes in decode_segment(data, name) for row in _rows_of(changes)]


def _rows_of(changes: Iterable[Changes]) -> Sequence[StateChange]:
    return [
        row for each in changes for row in (each.rows() if isinstance(each, KeyedChanges) else _rows_in_columns(each))
    ]


def _rows_in_columns(changes: Changes) -> Iterator[StateChange]:
    """A change for each row and each dropped key. Imported here, because columns need an extra."""
    from statebackend._state.columnar.plain_columns import keys_in, rows_in  # noqa: PLC0415

    keys, groups, rows = keys_in(changes), changes.groups.tolist(), 0
    for group, key, row in rows_in(changes):
        yield StateChange(group, Operation.SET, changes.state_id, key, msgspec.msgpack.encode(row))
        rows += 1
    for group, key in zip(groups[rows:], keys[rows:], strict=True):
        yield StateChange(group, Operation.CLEAR, changes.state_id, key)
