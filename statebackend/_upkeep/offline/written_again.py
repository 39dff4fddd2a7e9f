"""Writes objects that a commit needs again, without some of their changes; the other handles are taken over.

An object at a time is in memory. A range in RocksDB is read into tables as a whole, since RocksDB's files cannot be
changed one by one.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from statebackend._changelog.changelog_reader import (
    BaseRead,
    SegmentRead,
    changes_of,
    fetch_frames,
    frames_of,
    verify,
)
from statebackend._checkpoint.materialization.bases import base_segment_bytes, pack
from statebackend._checkpoint.materialization.tiers import last_id
from statebackend._codec.change_sets.changes import Changes, ChangeSet, change_set
from statebackend._codec.commit import Commit
from statebackend._threads import WorkerThreads
from statebackend._upkeep.offline.key_search import Frames, carried_by
from statebackend._upkeep.offline.offline_commit import Uploads
from statebackend._upkeep.read_commit import open_commit
from statebackend.abc import Clock, ObjectStore
from statebackend.ids import Base, ChangeSetHandle, Handle, RangeState
from statebackend.settings import Settings

Left = Callable[[Iterable[Changes]], Iterator[Changes]]
"""The changes that stay, in the same order. Called in a thread."""


class WrittenAgain:
    """The ranges of `commit`, whose objects lie in `source`, with those at `keys` and in the RocksDB of `places` anew.

    `places` are indexes of ranges. `settings`: those that the commit is read with.
    """

    def __init__(
        self,
        commit: Commit,
        source: ObjectStore,
        left: Left,
        *,
        keys: Collection[str],
        places: Collection[int],
        settings: Settings,
        threads: WorkerThreads,
        clock: Clock,
        read: Callable[[int], None] = lambda _: None,
        kept: Mapping[str, Frames] = MappingProxyType({}),
    ) -> None:
        """`read` is called with the bytes of each object that was read. `kept`: frames of some, read before."""
        self._commit = commit
        self._source = source
        self._left = left
        self._keys = keys
        self._places = places
        self._settings = settings
        self._threads = threads
        self._clock = clock
        self._read = read
        self._kept = kept
        self._segment_bytes_max: Final = base_segment_bytes(settings.in_flight_bytes_max)

    async def write(self, uploads: Uploads) -> list[RangeState]:
        """Write them; return the ranges. What was only known of all their changes together is left out of these."""
        handles = await self._change_sets(uploads)
        ranges: list[RangeState] = []
        for place, part in enumerate(self._commit.ranges):
            if place in self._places:
                changed = msgspec.structs.replace(
                    part, changelog=(), rocksdb=(), bases=tuple(await self._restored(part, uploads))
                )
            else:
                changelog = (handles.get(each, each) for each in part.changelog)
                bases = [again for each in part.bases for again in await self._base(each, uploads)]
                changed = msgspec.structs.replace(
                    part, changelog=tuple(each for each in changelog if each is not None), bases=tuple(bases)
                )
            ranges.append(
                msgspec.structs.replace(changed, history=msgspec.UNSET, sizes=msgspec.UNSET, restored=msgspec.UNSET)
            )
        return ranges

    async def _change_sets(self, uploads: Uploads) -> Mapping[ChangeSetHandle, ChangeSetHandle | None]:
        """For each change set in one of the objects: that which takes its place; `None` if nothing is left.

        Its id says that it stands for no change set of a writer: so nobody takes it for one that he knows, or for one
        that this commit has added.
        """
        replaced: dict[ChangeSetHandle, ChangeSetHandle | None] = {}
        for key in sorted(self._keys):
            old = [handle for handle in carried_by(self._commit, key) if handle.key_groups]
            if not old:
                continue
            left: list[ChangeSetHandle] = []
            sets: list[ChangeSet] = []
            _, views = await self._frames(SegmentRead(old[0].segment, tuple(old)))
            for handle, view in zip(old, views, strict=True):
                changes = await self._threads.cpu(self._left_in, view, handle)
                replaced[handle] = None
                if changes:
                    log_id, number = last_id(handle)
                    left.append(handle)
                    sets.append(change_set(f"+0 {log_id}", number, changes))
            if sets:
                replaced.update(zip(left, await uploads.change_sets(sets), strict=True))
        return replaced

    def _left_in(self, view: memoryview, handle: ChangeSetHandle) -> list[Changes]:
        return list(self._left(changes_of([view], [handle])))

    async def _base(self, base: Base, uploads: Uploads) -> Sequence[Base]:
        """The base itself, or what takes its place."""
        if base.segment.key not in self._keys:
            return [base]
        found, views = await self._frames(BaseRead(base))
        left = self._left(changes_of(views, found.change_sets, found.key_groups))
        groups = [group for each in base.key_groups for group in each]
        return await self._bases(left, groups, uploads)

    async def _frames(self, read: SegmentRead | BaseRead) -> tuple[SegmentRead, Sequence[memoryview]]:
        """The frames to read of a segment: those that are kept, and the others; all of it at once if none is kept."""
        kept = self._kept.get(read.segment.key)
        if kept is None:
            data = await self._get(read.segment)
            found = read.frames_in(data)
            return found, frames_of(data, found)
        found = await read.find_frames(self._source)
        others = tuple(each for each in found.change_sets if each.offset not in kept)
        views = await fetch_frames(self._source, msgspec.structs.replace(found, change_sets=others))
        self._read(sum(map(len, views)))
        of_all = {**kept, **dict(zip((each.offset for each in others), views, strict=True))}
        return found, [of_all[each.offset] for each in found.change_sets]

    async def _restored(self, part: RangeState, uploads: Uploads) -> Sequence[Base]:
        """The bases of a range that has RocksDB files: those cannot be written again one by one, so all of it is."""
        commit = self._commit
        opening = open_commit(
            self._settings, self._source, commit.states, at_hand={}, threads=self._threads, clock=self._clock
        )
        async with opening as (states, restore):

            def apply(changes: Sequence[Changes]) -> frozenset[int]:
                return states.replay(self._left(changes))

            await restore.run(commit, part.key_groups, apply, lambda _key, size_bytes, _changes: self._read(size_bytes))
            groups = list(part.key_groups)
            return await self._bases(states.snapshot().changes(frozenset(groups)), groups, uploads)

    async def _bases(self, changes: Iterable[Changes], groups: Sequence[int], uploads: Uploads) -> Sequence[Base]:
        pieces = pack(changes, groups, segment_bytes_max=self._segment_bytes_max)
        found: list[Base] = []
        while (piece := await self._threads.cpu(next, pieces, None)) is not None:
            found.append(await uploads.base(piece))
        return found

    async def _get(self, segment: Handle) -> bytes:
        data = await self._source.get(segment.key)
        await self._threads.cpu(verify, data, segment)
        self._read(len(data))
        return data
