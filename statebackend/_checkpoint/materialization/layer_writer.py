"""Writes layers: what change sets have done in the end, its rows of columnar states in pages, to be looked up there."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from statebackend._changelog.scheduler import UploadScheduler
from statebackend._checkpoint.materialization.bases import Bases, pack
from statebackend._checkpoint.materialization.layers import begin_of, segments_of
from statebackend._checkpoint.materialization.merged_change_sets import ReadChanges
from statebackend._checkpoint.materialization.tiers import PAGES, REST, id_in_layer, mark_of
from statebackend._codec.change_sets.changes import ChangeSet, change_set
from statebackend._state.states_in_runs import NewLayer
from statebackend._tables.snapshot import StatesSnapshot
from statebackend._threads import WorkerThreads
from statebackend.abc import UploadedSegment
from statebackend.ids import Base, ChangeSetHandle


class WrittenLayer(NamedTuple):
    """A layer for the next commit to list, and its segments, as bases."""

    bases: Bases
    segments: Sequence[Base]


class LayerWriter:
    """Writes the layers of one owner, in segments of about `segment_bytes_max`. `read`: reads change sets again."""

    def __init__(
        self, read: ReadChanges, scheduler: UploadScheduler, *, segment_bytes_max: int, threads: WorkerThreads
    ) -> None:
        self._read = read
        self._scheduler = scheduler
        self._segment_bytes_max = segment_bytes_max
        self._threads = threads

    async def write(
        self,
        snapshot: StatesSnapshot,
        changelog: Sequence[ChangeSetHandle],
        first: int,
        *,
        key_groups: frozenset[int],
        in_runs: frozenset[int],
        uploaded: list[UploadedSegment],
        pause: Callable[[], None],
    ) -> WrittenLayer | None:
        """Make the changelog of a commit, from its layer `first` on, durable as one layer; the snapshot is of then.

        `key_groups`: all that have changed since their base. `in_runs`: the states whose rows lie in pages. `None` if
        the changes of the others are too many. `pause` and `uploaded`: as for `EntryBases.write`. Raises as
        `Restore.read`, and what an upload raises.
        """
        place = begin_of(changelog, first)
        members = changelog[place:]
        rest = await self._read([handle for handle in members if mark_of(handle) != PAGES], in_runs)
        if rest is None:
            return None
        new, mine = NewLayer(snapshot, first + 1), len(uploaded)
        rest = [*rest, *await self._threads.background(list, new.drops())]
        handles: list[ChangeSetHandle] = []
        if rest:
            handles += await self._upload([change_set(*id_in_layer(changelog, place, REST), rest)], uploaded, pause)
        pieces = pack(
            new.rows(key_groups, pause),
            key_groups,
            segment_bytes_max=self._segment_bytes_max,
            merged=id_in_layer(changelog, place, PAGES),
        )
        while (piece := await self._threads.background(next, pieces, None)) is not None:
            handles += await self._upload(piece.frames, uploaded, pause)
        only_primary = frozenset(found.primary.key for found in uploaded[mine:] if found.local is None)
        bases = Bases((), frozenset(), len(changelog), only_primary, first=place, merged=tuple(handles))
        return WrittenLayer(bases, list(segments_of(handles)))

    async def _upload(
        self, frames: list[ChangeSet], uploaded: list[UploadedSegment], pause: Callable[[], None]
    ) -> Sequence[ChangeSetHandle]:
        found, entries = await self._scheduler.upload_listed(frames, pause)
        uploaded.append(found)
        return [ChangeSetHandle(found.primary, *msgspec.structs.astuple(entry)) for entry in entries]
