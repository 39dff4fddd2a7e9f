"""Bases made of entries, and layers over bases: encoded in a worker thread, and uploaded segment by segment."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from statebackend._changelog.scheduler import UploadScheduler
from statebackend._checkpoint.materialization.bases import Bases, Piece, base_of, pack
from statebackend._checkpoint.materialization.layers import begin_of, segments_of
from statebackend._checkpoint.materialization.merged_change_sets import ReadChanges
from statebackend._checkpoint.materialization.tiers import PAGES, REST, ChangeSetId, id_in_layer, mark_of
from statebackend._codec.change_sets.changes import Changes, change_set
from statebackend._codec.segment import SealedSet
from statebackend._state.states_in_runs import NewLayer
from statebackend._tables.snapshot import StatesSnapshot
from statebackend._tasks import one_ahead
from statebackend._threads import WorkerThreads
from statebackend.abc import UploadedSegment
from statebackend.ids import Base, ChangeSetHandle


class WrittenLayer(NamedTuple):
    """A layer for the next commit to list, and its segments, as bases."""

    bases: Bases
    segments: Sequence[Base]


class EntryBases:
    """Writes the bases and layers of one owner, in segments of about `segment_bytes_max`.

    `read`: reads change sets again, for a layer.
    """

    def __init__(
        self, read: ReadChanges, scheduler: UploadScheduler, *, segment_bytes_max: int, threads: WorkerThreads
    ) -> None:
        self._read = read
        self._scheduler = scheduler
        self._segment_bytes_max: Final = segment_bytes_max
        self._threads = threads

    async def write(
        self,
        snapshot: StatesSnapshot,
        key_groups: frozenset[int],
        handles: int,
        uploaded: list[UploadedSegment],
        pause: Callable[[], None],
    ) -> Bases:
        """Make every entry of `key_groups` durable, as of a commit with `handles` handles in its changelog.

        `pause` is called in the thread again and again: it lets others run, or raises to end the call. Whatever was
        stored is in `uploaded` and belongs to the caller, also after a failed or cancelled call.
        """
        written: list[Base] = []

        async def upload(piece: Piece) -> None:
            found = await self._scheduler.upload_alone(piece.frames, pause)
            uploaded.append(found)
            written.append(base_of(piece, found.primary))

        await self._in_pieces(upload, snapshot.changes(key_groups, pause), key_groups)
        return Bases(tuple(written), key_groups, handles, _only_primary(uploaded))

    async def write_layer(
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

        What its change sets have done in the end: rows of columnar states in pages, to be looked up there.
        `key_groups`: all that have changed since their base. `in_runs`: the states whose rows lie in pages. `None` if
        the changes of the others are too many. `pause` and `uploaded`: as for `write`. Raises as `Restore.read`, and
        what an upload raises.
        """
        place = begin_of(changelog, first)
        members, new = changelog[place:], NewLayer(snapshot, first + 1)
        rest = await self._read([handle for handle in members if mark_of(handle) != PAGES], in_runs)
        if rest is None:
            return None
        rest = [*rest, *await self._threads.background(list, new.drops())]
        handles: list[ChangeSetHandle] = []

        async def upload(piece: Piece) -> None:
            handles.extend(await self._listed(piece.frames, uploaded, pause))

        if rest:
            handles += await self._listed([change_set(*id_in_layer(changelog, place, REST), rest)], uploaded, pause)
        in_pages = id_in_layer(changelog, place, PAGES)
        await self._in_pieces(upload, new.rows(key_groups, pause), key_groups, in_pages)
        bases = Bases((), frozenset(), len(changelog), _only_primary(uploaded), first=place, merged=tuple(handles))
        return WrittenLayer(bases, list(segments_of(handles)))

    async def _in_pieces(
        self,
        upload: Callable[[Piece], Awaitable[None]],
        changes: Iterable[Changes],
        key_groups: frozenset[int],
        merged: ChangeSetId | None = None,
    ) -> None:
        """Upload all of it, a segment at a time, while the next one is made: the store may be slow."""
        pieces = pack(changes, key_groups, segment_bytes_max=self._segment_bytes_max, merged=merged)
        await one_ahead(lambda: self._threads.background(next, pieces, None), upload)

    async def _listed(
        self, frames: list[SealedSet], uploaded: list[UploadedSegment], pause: Callable[[], None]
    ) -> Sequence[ChangeSetHandle]:
        found, entries = await self._scheduler.upload_listed(frames, pause)
        uploaded.append(found)
        return [ChangeSetHandle(found.primary, *msgspec.structs.astuple(entry)) for entry in entries]


def _only_primary(uploaded: Iterable[UploadedSegment]) -> frozenset[str]:
    return frozenset(found.primary.key for found in uploaded if found.local is None)
