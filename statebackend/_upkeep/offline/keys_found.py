"""Finds every object of a job that has keys: those that the newest commit and savepoints need, and those superseded.

What is needed is searched exactly, in the frames of the keys' key groups. What is superseded will be swept, whatever it
has: it is searched too, smallest first, as far as that is little beside the state; of the rest it is said that it may
have them. If nothing that is needed has the keys, all of it is searched: a key that only older checkpoints have is not
one that never was.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from statebackend._codec.commit import Commit, Entry
from statebackend._log.log_reader import LogReader
from statebackend._log.names import entry_key, is_ours, sequence_of
from statebackend._log.savepoint_markers import SavepointInfo
from statebackend._log.sweeping.retention import ENTRY_AGE_MIN_S
from statebackend._tasks import in_order
from statebackend._upkeep.offline.key_search import UNBOUNDED, Allowance, KeySearch, Unknown
from statebackend._upkeep.offline.offline_commit import OfflineJob
from statebackend.abc import ObjectInfo
from statebackend.errors import MissingObjectError, ObjectNotFoundError
from statebackend.settings import MiB

SUPERSEDED_BYTES: Final = 4 * MiB
SUPERSEDED_SHARE: Final = 1 / 256
"""Of what is superseded so many bytes are read, or this share of what the newest commit needs, if that is more."""

Counts = Mapping[str, int | Unknown]
"""For each object, by its key, how many changes of the keys it has."""


class KeyHolder(msgspec.Struct, frozen=True):
    """An object that still has an erased key, or may. `key`: of the object, or the path of a local copy.

    `reason`: what it has, or why that is not known. `sweepable_from_s`: Unix time in seconds, by the store's clock,
    from which a sweep may delete it; `None` where no sweep will.
    """

    key: str
    size_bytes: int
    reason: str
    sweepable_from_s: float | None = None

    @classmethod
    def of(cls, key: str, size_bytes: int, found: int | Unknown, sweepable_from_s: float | None = None) -> "KeyHolder":
        """The holder of so many changes of the keys."""
        reason = str(found) if isinstance(found, Unknown) else f"{found} changes of the keys"
        return cls(key, size_bytes, reason, sweepable_from_s)


class KeysFound(msgspec.Struct, frozen=True):
    """The commit that was looked at, and its objects that have the keys. `rocksdb`: ranges whose RocksDB may have them.

    `holders`: what has them or may, is listed in the primary, and will be needed by nothing. `savepoints`: those with
    them.
    """

    commit: Commit
    objects: Mapping[str, int]
    rocksdb: frozenset[int]
    holders: Sequence[KeyHolder]
    savepoints: Sequence[SavepointInfo]
    is_closed: bool
    """No commit that needs one of the holders can be opened any more."""

    @property
    def is_done(self) -> bool:
        """True if there is nothing left to do for an erasure but to wait for a sweep."""
        return self.is_closed and not self.changes and not self.savepoints

    @property
    def changes(self) -> int:
        """How many changes of the keys the commit's objects have; of RocksDB files one, whatever they have."""
        return sum(self.objects.values()) + len(self.rocksdb)


async def entries_in(keys: Iterable[str], log: LogReader, concurrency_max: int = 8) -> Mapping[int, Entry]:
    """The entries among the objects with these keys, in order, but for those that are damaged, or gone by now."""
    found: dict[int, Entry] = {}
    sequences = [sequence for key in keys if (sequence := sequence_of(key)) is not None]
    await log.each(sequences, found.__setitem__, doomed=frozenset(sequences), concurrency_max=concurrency_max)
    return found


async def find_keys(opened: OfflineJob, search: KeySearch, groups: frozenset[int], commit: Commit) -> KeysFound:
    """Look at every object of the job that may have the keys of `search`, whose key groups are `groups`.

    `commit` is the newest. Raises `MissingObjectError` if something that it needs is gone, and what the store raises.
    """
    listed = {info.key: info async for info in opened.primary.store.list("")}
    entries = await entries_in(listed, opened.job.log)
    infos = [each for each in await opened.job.savepoints.all() if each.sequence <= commit.sequence]
    once = _JobSearch(
        search,
        groups,
        commit,
        listed=listed,
        entries=entries,
        concurrency_max=opened.settings.restore_concurrency_max,
    )
    await once.look(infos)
    floor, milestones = await opened.job.savepoints.milestones()
    return once.all_of(infos, floor, milestones)


class _JobSearch:
    """Looks once at the objects that were `listed`, and knows the changes of the keys in each that it has searched."""

    def __init__(
        self,
        search: KeySearch,
        groups: frozenset[int],
        commit: Commit,
        *,
        listed: Mapping[str, ObjectInfo],
        entries: Mapping[int, Entry],
        concurrency_max: int,
    ) -> None:
        self._search = search
        self._groups = groups
        self._commit = commit
        self._needed = commit.segments()
        self._listed = listed
        self._entries = entries
        self._commits = {sequence: entry for sequence, entry in entries.items() if isinstance(entry, Commit)}
        self._files = {
            file.handle.key
            for each in self._commits.values()
            for part in each.ranges
            for base in part.rocksdb
            for file in base.files
        }
        self._concurrency_max = concurrency_max
        self._counts: dict[str, int | Unknown] = {}

    async def look(self, savepoints: Sequence[SavepointInfo]) -> None:
        """Search what is needed, and then of the rest what may be read."""
        kept = [self._commits[each.sequence] for each in savepoints if each.sequence in self._commits]
        needed = self._needed.union(*(each.segments() for each in kept))
        data = [info for key, info in self._listed.items() if is_ours(key)]
        await self._look([info for info in data if info.key in needed], UNBOUNDED)
        is_there = any(self._has(each) for each in (self._commit, *kept))
        state_bytes = sum(self._listed[key].size_bytes for key in self._needed if key in self._listed)
        allowance = Allowance(max(SUPERSEDED_BYTES, SUPERSEDED_SHARE * state_bytes)) if is_there else UNBOUNDED
        rest = [info for info in data if info.key not in needed]
        await self._look(sorted(rest, key=lambda info: info.size_bytes), allowance)

    async def _look(self, infos: Sequence[ObjectInfo], allowance: Allowance) -> None:
        async def count(info: ObjectInfo) -> int | Unknown:
            try:
                return await self._count(info, allowance)
            except ObjectNotFoundError as error:  # swept since
                if info.key in self._needed:
                    raise MissingObjectError("a file that the commit needs is gone", object=info.key) from error
                return 0

        async def note(info: ObjectInfo, found: int | Unknown) -> None:
            self._counts[info.key] = found

        await in_order(infos, count, note, concurrency_max=self._concurrency_max)

    async def _count(self, info: ObjectInfo, allowance: Allowance) -> int | Unknown:
        if info.key in self._files:
            return Unknown.ROCKSDB
        entry = self._entries.get(-1 if (sequence := sequence_of(info.key)) is None else sequence)
        if entry is None:
            return await self._search.count(info.key, info.size_bytes, self._groups, allowance=allowance)
        return await self._search.count_carried(entry, self._groups) if isinstance(entry, Commit) else 0

    def all_of(self, savepoints: Sequence[SavepointInfo], floor: int, milestones: Collection[int]) -> KeysFound:
        """All that was found. Below `floor`, of commits only `milestones` can be opened."""
        commit = self._commit
        objects = {key: found for key in self._needed if (found := self._changes_in(key))}
        rocksdb = self._rocksdb_of(commit)
        doomed = {key for place in rocksdb for key in commit.ranges[place].segments()}
        kept = self._needed - objects.keys() - doomed
        holders = [
            KeyHolder.of(key, self._listed[key].size_bytes, found, self._sweepable_from_s(key))
            for key, found in sorted(self._counts.items())
            if found != 0 and key not in kept
        ]
        held_by = {holder.key for holder in holders}
        users = [sequence for sequence, each in self._commits.items() if not held_by.isdisjoint(each.segments())]
        is_closed = max(users, default=-1) < floor and not any(user in milestones for user in users)
        held = [each for each in savepoints if self._has(self._commits.get(each.sequence))]
        return KeysFound(commit, objects, rocksdb, holders, held, is_closed)

    def _changes_in(self, key: str) -> int:
        found = self._counts.get(key, 0)
        return 0 if isinstance(found, Unknown) else found

    def _rocksdb_of(self, commit: Commit) -> frozenset[int]:
        """The places of the ranges whose RocksDB may have the keys."""
        return frozenset(
            place
            for place, part in enumerate(commit.ranges)
            if any(not self._groups.isdisjoint(base.owner) for base in part.rocksdb)
        )

    def _has(self, commit: Commit | None) -> bool:
        return commit is not None and (any(map(self._changes_in, commit.segments())) or bool(self._rocksdb_of(commit)))

    def _sweepable_from_s(self, key: str) -> float:
        """When a sweep may delete it: an hour after it, and after the last commit that needs it, was made."""
        users = [entry_key(sequence) for sequence, each in self._commits.items() if key in each.segments()]
        made_s = max(self._listed[each].modified_s for each in (key, *users) if each in self._listed)
        return made_s + ENTRY_AGE_MIN_S
