"""Looks for keys in stored objects: in segments, and in the change sets that commits carry.

An object is looked through as it lies there, whatever a commit still wants of it: a base that stands for other key
groups now has the old entries nevertheless, and a change set that was superseded has its changes.
"""

import importlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, cast

import msgspec
import numpy as np

from statebackend._changelog.changelog_reader import (
    TAIL_BYTES,
    BaseRead,
    SegmentRead,
    changes_of,
    fetch_frames,
    frames_of,
)
from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.change_sets.keyed_changes import KeyedChanges
from statebackend._codec.commit import Commit
from statebackend._codec.segment import HEAD, decode_segment
from statebackend._log.log_reader import LogReader
from statebackend._log.names import OUTBOX, entry_key, sequence_of
from statebackend._tables.key_groups import key_group
from statebackend._threads import WorkerThreads
from statebackend._upkeep.arguments import check_list
from statebackend.abc import ObjectStore
from statebackend.errors import CorruptSegmentError, DataError, InputError
from statebackend.ids import Base, ChangeSetHandle, Handle, Key, ranges_of
from statebackend.settings import KiB, MiB

WHOLE_BYTES_MAX: Final = 128 * KiB
"""An object of up to this size is read at once: to ask for its index and then for a few frames takes longer."""

KEPT_BYTES_MAX: Final = 64 * MiB
"""Of frames that have the keys so much is kept, for those who write their objects again."""
Frames = Mapping[int, memoryview]
"""Frames of one object by their offsets in it."""


class Unknown(StrEnum):
    """Why it is not known whether an object has the keys. It counts as one that may."""

    ROCKSDB = "a RocksDB file: its key group may be in it"
    DAMAGED = "it cannot be read"
    UNREAD = "superseded, and larger than what is read of such: it may have changes of the keys"


class Allowance:
    """How many bytes may be read of some objects together."""

    def __init__(self, size_bytes: float) -> None:
        self._left = size_bytes

    def take(self, size_bytes: int) -> bool:
        """True if so many may be read."""
        if size_bytes > self._left:
            return False
        self._left -= size_bytes
        return True


UNBOUNDED: Final = Allowance(math.inf)


class WantedKeys(msgspec.Struct, frozen=True):
    """The keys to look for, in the states with these ids, or in all."""

    keys: frozenset[Key]
    states: frozenset[int] | None = None

    @classmethod
    def of(cls, keys: Iterable[Key], states: Iterable[int] | None = None) -> "WantedKeys":
        """Raises `InputError` for no key, and `KeyTypeError` for what cannot be one."""
        check_list(keys, "keys")  # of text each character would be one
        found = list(keys)
        for key in found:
            key_group(key, 1)
        if not found:
            raise InputError("give at least one key")
        return cls(frozenset(found), None if states is None else frozenset(states))

    def groups(self, max_parallelism: int) -> frozenset[int]:
        """The key groups of the keys in a job with so many of them."""
        return frozenset(key_group(key, max_parallelism) for key in self.keys)

    def are_in(self, changes: Changes) -> Any:
        """For each change whether it is of one of the keys: an array of bools."""
        if self.states is not None and changes.state_id not in self.states:
            return np.zeros(changes.records, dtype=np.bool_)
        return np.fromiter((key in self.keys for key in keys_of(changes)), dtype=np.bool_, count=changes.records)

    def count(self, parts: Iterable[Changes]) -> int:
        """How many of these changes are of one of the keys."""
        return sum(int(self.are_in(each).sum()) for each in parts)

    def without(self, parts: Iterable[Changes]) -> Iterator[Changes]:
        """These changes without those of the keys, in the same order."""
        for each in parts:
            kept = np.flatnonzero(~self.are_in(each))
            if len(kept) == each.records:
                yield each
            elif len(kept):
                yield each.taken(kept)


def keys_of(changes: Changes) -> Sequence[Any]:
    """The key of each change."""
    if isinstance(changes, KeyedChanges):
        return changes.keys
    columns: Any = importlib.import_module("statebackend._state.columnar.plain_columns")  # needs an extra
    return cast("Sequence[Any]", columns.keys_in(changes))


class KeySearch:
    """Looks for `wanted` in the objects of `store`: one job's part of its primary, or local copies of it."""

    def __init__(self, store: ObjectStore, log: LogReader, wanted: WantedKeys, threads: WorkerThreads) -> None:
        self._store = store
        self._log = log
        self._wanted = wanted
        self._threads = threads
        self.kept: dict[str, Frames] = {}
        """Frames of objects that have the keys."""

    async def count(
        self,
        key: str,
        size_bytes: int,
        groups: Collection[int] | None = None,
        *,
        allowance: Allowance = UNBOUNDED,
    ) -> int | Unknown:
        """How many changes of the keys the object has.

        `groups`: their key groups, if it is known of how many the object was made: then other frames are not read.
        `allowance`: what may be read. Raises what the store raises, `ObjectNotFoundError` included.
        """
        if key.startswith(OUTBOX):  # rows of output, under no key
            return 0
        if (sequence := sequence_of(key)) is not None:
            return await self._count_entry(sequence, key)
        try:
            if groups is None or size_bytes <= WHOLE_BYTES_MAX:
                if not allowance.take(size_bytes):
                    return Unknown.UNREAD
                data = await self._store.get(key)
                return await self._threads.cpu(self._count_whole, data, key)
            return await self._count_in(key, size_bytes, groups, allowance)
        except CorruptSegmentError:
            return Unknown.DAMAGED

    async def _count_in(
        self, key: str, size_bytes: int, groups: Collection[int], allowance: Allowance
    ) -> int | Unknown:
        """As `count`, in the frames of these key groups alone."""
        if not allowance.take(len(HEAD) + TAIL_BYTES):
            return Unknown.UNREAD
        found = await BaseRead(Base(Handle(key, 0, size_bytes, 0), ranges_of(groups))).find_frames(self._store)
        if not allowance.take(sum(each.length for each in found.change_sets)):
            return Unknown.UNREAD
        views = await fetch_frames(self._store, found)
        if counted := await self._threads.cpu(self._count_frames, views, found):
            self._keep(key, {each.offset: view for each, view in zip(found.change_sets, views, strict=True)})
        return counted

    async def _count_entry(self, sequence: int, key: str) -> int | Unknown:
        data = await self._store.get(key)
        try:
            entry = await self._log.load(sequence, body=data)
            handles = carried_by(entry, key) if isinstance(entry, Commit) else ()
            if not handles:
                return 0
            read = SegmentRead(handles[0].segment, tuple(handles))
            return await self._threads.cpu(self._count_frames, frames_of(data, read), read)
        except DataError:
            return Unknown.DAMAGED

    async def count_carried(self, commit: Commit, groups: Collection[int]) -> int | Unknown:
        """As `count`, of a commit that was read before: it says which of its parts have changes of these key groups."""
        wanted, carried = ranges_of(groups), carried_by(commit, entry_key(commit.sequence))
        handles = [each for each in carried if any(each.key_groups.intersection(groups) for groups in wanted)]
        if not handles:
            return 0
        read = SegmentRead(handles[0].segment, tuple(handles))
        try:
            return await self._threads.cpu(self._count_frames, await fetch_frames(self._store, read), read)
        except CorruptSegmentError:
            return Unknown.DAMAGED

    def _keep(self, key: str, frames: Frames) -> None:
        size_bytes = sum(len(view) for each in (frames, *self.kept.values()) for view in each.values())
        if size_bytes <= KEPT_BYTES_MAX:
            self.kept[key] = frames

    def _count_whole(self, data: bytes, name: str) -> int:
        return sum(self._wanted.count(changes) for _, changes in decode_segment(data, name))

    def _count_frames(self, views: Sequence[memoryview], read: SegmentRead) -> int:
        return self._wanted.count(changes_of(views, read.change_sets, read.key_groups))


def carried_by(commit: Commit, key: str) -> Sequence[ChangeSetHandle]:
    """The change sets of a commit that lie in the object at `key`, each once."""
    found = (handle for part in commit.ranges for handle in part.changelog if handle.segment.key == key)
    return list(dict.fromkeys(found))
