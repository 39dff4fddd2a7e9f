"""The history of one key: which kept commits changed it, when, and from what to what.

    log, newest first, a window at a time -> of each commit the change sets that it added -> those of the key's group
    -> the changes of the key -> the value before all of them, read once -> applied one after the other

So each entry of the kept log is read once, and of the state no more than the part of one key group. That part is read
again at each commit whose changes do not explain it: one that was made as a whole, such as a seed or a transformation.
"""

from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np

from statebackend._backend.stores import local_to_read
from statebackend._changelog.changelog_reader import SegmentRead, changes_of, plan_reads
from statebackend._checkpoint.chain import added_by
from statebackend._checkpoint.fetch import Fetcher, Frames, frames_in
from statebackend._codec.change_sets.changes import GROUP, Changes
from statebackend._codec.commit import Claim, Commit, Entry
from statebackend._codec.plain import key_of_shown, plain
from statebackend._log.moments import ROUNDED_S, Moment, moment_s
from statebackend._log.names import entry_key
from statebackend._reading.asked_of_state import state_in
from statebackend._reading.feed import made_as_a_whole, own_change_sets, retained_from
from statebackend._reading.opened_state import told_if_swept
from statebackend._reading.reading_reports import KeyChange, KeyHistory
from statebackend._reading.rows.merged_rows import form_of
from statebackend._state.declared import KeyedStates
from statebackend._tables.key_groups import key_group
from statebackend._tasks import in_order
from statebackend._upkeep.job_primary import JobPrimary, open_job_primary
from statebackend._upkeep.plain_rows import keyed_rows, keys_in, of_key
from statebackend._upkeep.read_commit import open_commit
from statebackend.abc import ObjectStore
from statebackend.abc.clock import SystemClock
from statebackend.errors import DataError, InputError, KeyTypeError, ObjectNotFoundError
from statebackend.ids import Key, KeyGroupRange, StateDescriptor
from statebackend.settings import Settings

WINDOW: Final = 64
"""Entries of the log that are read at a time: their bytes are in memory together."""


class _Made(NamedTuple):
    """A commit on the branch, its bytes, and the one before it: `None` before the first of the job."""

    commit: Commit
    body: bytes
    parent: Commit | None


class _ToRead(NamedTuple):
    """A file with change sets of a commit."""

    made: _Made
    read: SegmentRead


class _Touched(NamedTuple):
    """The changes that a commit made to the key in the state that is asked for, and all states where it made some.

    `is_whole`: they do not explain the state of the commit, which has to be read.
    """

    commit: Commit
    changes: Sequence[Changes]
    states: tuple[str, ...]
    is_whole: bool


class ReadsOn(Protocol):
    """Knows of changes before the oldest commit that is kept: a mirror with a log."""

    async def read_on(
        self, settings: Settings, found: KeyHistory, key: Key, *, store: ObjectStore | None = None
    ) -> KeyHistory:
        """The history, with what is known before it."""
        ...


async def history_of(
    settings: Settings,
    state: str,
    key: Key,
    *,
    since: Moment | None = None,
    mirror: ReadsOn | None = None,
    store: ObjectStore | None = None,
) -> KeyHistory:
    """Find every kept commit that changed this key of a state, newest first, with the values before and after.

    It goes back over the commits that led to the newest one, as far as they are kept without a gap: savepoints that
    lie before that tell nothing. `since`: no further back than the newest commit that is not later.

    `mirror`: an `sb.Mirror` of the state with a log, in a folder, Delta or Iceberg. What it has written since it last
    began anew is told behind what the job keeps: of such a change `sequence` is -1, and its source has the batch alone.
    Where the job was taken back, the commits that were abandoned are told, and then the one that took them back.

    Values are shown as by `read_rows`, without the classes. Of the log each kept entry is read once, and of the changes
    and the state what belongs to the key's group. Nothing is written, and nobody is fenced.

    Raises `InputError` for a job without a checkpoint, a state that is not there, or operator state, which has no keys;
    `KeyTypeError`; and `CheckpointNotFoundError` if a sweep was faster: ask again.
    """
    key = key_of_shown(key)
    since_s = None if since is None else moment_s(since, now_s=SystemClock().time())
    async with open_job_primary(settings, store) as primary:
        newest, at_hand = await primary.find()
        described = state_in(newest, state)
        if described.kind.startswith("operator"):
            raise InputError("operator state belongs to no key, so no key has a history", state=state)
        search = _Search(primary, newest, described, key)
        async with aclosing(_branch(primary, newest, at_hand, await retained_from(primary))) as branch:
            touched, before, oldest = await _touched_since(since_s, branch, search, newest)
        value, changes = await search.applied(before, touched)
        if not changes and value is None and search.forms and form_of(key) not in search.forms:
            raise KeyTypeError(
                "the state has keys of another type: convert this one",
                types=sorted(search.forms),
                type_wanted=form_of(key),
            )
        begin = before or oldest
        found = KeyHistory(
            state=state,
            key=plain(key),
            changes=tuple(changes),
            checkpoint_id=begin.checkpoint_id,
            since_s=begin.committed_at_s,
            value=value,
            is_whole=before is None,
        )
    if mirror is None or found.is_whole or (since_s is not None and found.since_s <= since_s + ROUNDED_S):
        return found
    return _until(await mirror.read_on(settings, found, key, store=store), since_s)


async def _touched_since(
    since_s: float | None, branch: AsyncGenerator[_Made], search: "_Search", newest: Commit
) -> tuple[Sequence[_Touched], Commit | None, Commit]:
    """The commits of the branch that touched the key, newest first, as far as they are told.

    Then the one behind which they are told, `None` before the first of the job; and the oldest that was looked at.
    """
    touched: list[_Touched] = []
    oldest = newest
    before: Commit | None = newest
    waiting: list[_Made] = []  # read together
    async for made in branch:
        before, is_first = made.commit, made.commit.parent is None
        is_oldest = made.parent is None and not is_first
        if is_oldest or (since_s is not None and before.committed_at_s <= since_s + ROUNDED_S):
            break
        waiting.append(made)
        if len(waiting) == WINDOW:
            touched += await search.changes_in(waiting)
            waiting = []
        oldest, before = made.commit, made.parent
    if waiting:
        touched += await search.changes_in(waiting)
    return touched, before, oldest


def _until(found: KeyHistory, since_s: float | None) -> KeyHistory:
    """The history back to the newest change that is not later than that."""
    place = next(
        (place for place, each in enumerate(found.changes) if since_s is not None and each.committed_at_s <= since_s),
        None,
    )
    if place is None:
        return found
    begin = found.changes[place]
    return msgspec.structs.replace(
        found,
        changes=found.changes[:place],
        checkpoint_id=begin.checkpoint_id,
        since_s=begin.committed_at_s,
        value=begin.after,
    )


async def _branch(
    primary: JobPrimary, newest: Commit, at_hand: Mapping[str, bytes], floor: int
) -> AsyncGenerator[_Made]:
    """The commits that led to the newest, newest first. The last has no parent, or one that is not kept any more."""
    window: dict[int, tuple[Entry, bytes]] = {}

    async def load(sequence: int) -> tuple[Entry, bytes] | None:
        try:
            body = await primary.store.get(entry_key(sequence))
        except ObjectNotFoundError:
            return None  # swept, or a hole
        return await primary.log.load(sequence, body=body), body

    async def at(sequence: int) -> tuple[Commit, bytes] | None:
        if sequence not in window:
            window.clear()

            async def take(sequence: int, found: tuple[Entry, bytes] | None) -> None:
                if found is not None:
                    window[sequence] = found

            wanted = range(sequence, max(floor, sequence - WINDOW) - 1, -1)
            await in_order(wanted, load, take, concurrency_max=primary.settings.restore_concurrency_max)
        entry, body = window.get(sequence, (None, b""))
        if isinstance(entry, Claim):
            raise DataError("a claim where a commit should be", object=entry_key(sequence))
        return None if entry is None else (entry, body)

    commit, body = newest, at_hand.get(entry_key(newest.sequence), b"")
    while True:
        parent = None if commit.parent is None or commit.parent < floor else await at(commit.parent)
        yield _Made(commit, body, None if parent is None else parent[0])
        if parent is None:
            return
        commit, body = parent


class _Search:
    """Looks for one key of a state, as the newest commit describes it."""

    def __init__(self, primary: JobPrimary, newest: Commit, state: StateDescriptor, key: Key) -> None:
        self._primary = primary
        self._state = state
        self._key = key
        self._max_parallelism = newest.max_parallelism
        self._group = key_group(key, newest.max_parallelism)
        self.forms: Final = set[str]()
        """Of keys of the state that were seen on the way."""
        self._clock = SystemClock()
        self._local = local_to_read(primary.settings, primary.threads)
        self._fetcher = Fetcher(primary.store, at_hand={}, threads=primary.threads)

    async def changes_in(self, some: Sequence[_Made]) -> Sequence[_Touched]:
        """The changes of these commits to the key, of those that made some. Raises `CheckpointNotFoundError`."""
        at_hand: list[_ToRead] = []
        elsewhere: list[_ToRead] = []
        for made in some:
            for read in self._reads(made):
                is_at_hand = made.body and read.segment.key == entry_key(made.commit.sequence)
                (at_hand if is_at_hand else elsewhere).append(_ToRead(made, read))
        found = defaultdict[int, list[Changes]](list)
        for (made, _), changes in zip(at_hand, await self._primary.threads.cpu(self._decoded, at_hand), strict=True):
            found[made.commit.sequence] += changes

        async def take(each: _ToRead, frames: Frames) -> None:
            found[each.made.commit.sequence] += await self._primary.threads.cpu(self._of_frames, each.made, frames)

        async def reading() -> None:
            concurrency_max = self._primary.settings.restore_concurrency_max
            await in_order(elsewhere, self._fetch, take, concurrency_max=concurrency_max)

        await told_if_swept(self._primary, some[-1].commit, reading())
        touched = (self._touched(made, found[made.commit.sequence]) for made in some)
        return [each for each in touched if each is not None]

    def _reads(self, made: _Made) -> Sequence[SegmentRead]:
        """The files to read for what the commit has added to the key's group, in order."""
        wanted = self._group_in(made.commit)
        parts = (part for part in made.commit.ranges if part.key_groups.intersection(wanted))
        own = [each for part in parts for each in own_change_sets(made.commit, made.parent, part.key_groups)]
        return plan_reads(own, wanted)

    async def _fetch(self, each: _ToRead) -> Frames:
        read = each.read
        if self._local is not None:
            (copy,) = await self._fetcher.local_copies([read.segment], self._local.store)
            if isinstance(copy, bytes):
                return frames_in(read, copy)
        return (await self._fetcher.fetch_frames(read)).content

    def _decoded(self, at_hand: Sequence[_ToRead]) -> Sequence[Sequence[Changes]]:
        """In a thread: the changes of the key in what the entries carry themselves."""
        return [self._of_frames(made, frames_in(read, made.body)) for made, read in at_hand]

    def _of_frames(self, made: _Made, frames: Frames) -> Sequence[Changes]:
        """The changes of the key in these frames, in all states."""
        wanted, ids = (self._group_in(made.commit),), self._ids_in(made.commit)
        found: list[Changes] = []
        for each in changes_of(frames.views, frames.read.change_sets):
            if each.state_id in ids and not self.forms:
                self.forms.add(form_of(keys_in(each.between(0, 1))[0]))
            if (part := each.of_groups(wanted)) is not None:
                found += of_key((part,), self._key)
        return found

    def _touched(self, made: _Made, found: Sequence[Changes]) -> _Touched | None:
        commit, is_whole = made.commit, self._is_whole(made)
        ids = self._ids_in(commit)
        mine = [self._placed(each) for each in found if each.state_id in ids]
        if not mine and not is_whole:
            return None
        names = {each.state_id: each.name for each in commit.states}
        states = dict.fromkeys(names[each.state_id] for each in found) | ({} if mine else {self._state.name: None})
        return _Touched(commit, mine, tuple(states), is_whole)

    def _is_whole(self, made: _Made) -> bool:
        """True for a commit that may hold for the key's group what no change tells."""
        if made.parent is None:
            return made_as_a_whole(made.commit, self._state.name)
        parent, commit = (msgspec.structs.replace(each, states=()) for each in (made.parent, made.commit))
        return isinstance(added_by(parent, [commit], self._group_in(commit)), str)

    async def applied(self, before: Commit | None, touched: Sequence[_Touched]) -> tuple[Any, Sequence[KeyChange]]:
        """The value as of the commit before, nothing for `None`, and the changes behind it, newest first."""
        values: list[Any] = []  # before all of them, and after each
        begin, behind = before, list[_Touched]()
        for each in (*reversed(touched), None):
            if each is None or each.is_whole:
                values += await self._values(begin, behind)
                begin, behind = each and each.commit, []
            else:
                behind.append(each)
        changes = [
            KeyChange(
                checkpoint_id=each.commit.checkpoint_id,
                sequence=each.commit.sequence,
                committed_at_s=each.commit.committed_at_s,
                source=each.commit.source,
                before=former,
                after=value,
                states=each.states,
            )
            for each, (former, value) in zip(reversed(touched), pairwise(values), strict=True)
            if each.changes or not _are_alike(former, value)
        ]
        return values[0], changes[::-1]

    async def _values(self, before: Commit | None, touched: Sequence[_Touched]) -> Sequence[Any]:
        """The value as of that commit, nothing for `None`, and after each that is applied to it, oldest first."""
        settings = msgspec.structs.replace(self._primary.settings, max_parallelism=self._max_parallelism)
        store, threads = self._primary.store, self._primary.threads
        opening = open_commit(settings, store, [self._state], at_hand={}, threads=threads, clock=self._clock)
        async with opening as (tables, restore):
            if before is not None and (ids := self._ids_in(before)):

                def apply(changes: Sequence[Changes]) -> Collection[int]:
                    chosen = of_key((each for each in changes if each.state_id in ids), self._key)
                    return tables.replay(map(self._placed, chosen))

                async def reading() -> None:
                    await restore.run(before, self._group_in(before), apply)

                await told_if_swept(self._primary, before, reading())
            values = [self._value_in(tables)]
            for each in touched:
                tables.replay(each.changes)
                values.append(self._value_in(tables))
        return values

    def _value_in(self, tables: KeyedStates) -> Any:
        """The value of the key, the only one there."""
        groups = [self._group]
        placed = tables.snapshot().placed(frozenset(groups))
        rows = keyed_rows(placed.changes(groups, one_by_one=True), [self._state])
        return next((row.value for row in rows), None)

    def _ids_in(self, commit: Commit) -> frozenset[int]:
        """The id of the state, if the commit has it in the kind that it has now."""
        mine = (self._state.name, self._state.kind)
        return frozenset(each.state_id for each in commit.states if (each.name, each.kind) == mine)

    def _group_in(self, commit: Commit) -> KeyGroupRange:
        group = key_group(self._key, commit.max_parallelism)
        return KeyGroupRange(group, group)

    def _placed(self, changes: Changes) -> Changes:
        """The changes of the key in the group that it has in the newest commit."""
        return changes.with_groups(np.full(changes.records, self._group, GROUP))


def _are_alike(one: Any, other: Any) -> bool:
    return one == other or repr(one) == repr(other)  # a NaN is equal to none
