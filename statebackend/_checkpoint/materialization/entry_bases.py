"""Bases made of entries: encoded key group by key group in a worker thread, and uploaded segment by segment."""

from collections.abc import Callable

from statebackend._changelog.scheduler import UploadScheduler
from statebackend._checkpoint.materialization.bases import Bases, base_of, pack
from statebackend._tables.snapshot import StatesSnapshot
from statebackend._threads import WorkerThreads
from statebackend.abc import UploadedSegment
from statebackend.ids import Base


class EntryBases:
    """Writes the bases of one owner, in segments of about `segment_bytes_max`."""

    def __init__(self, scheduler: UploadScheduler, *, segment_bytes_max: int, threads: WorkerThreads) -> None:
        self._scheduler = scheduler
        self._segment_bytes_max = segment_bytes_max
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
        pieces = pack(snapshot.changes(key_groups, pause), key_groups, segment_bytes_max=self._segment_bytes_max)
        while (piece := await self._threads.background(next, pieces, None)) is not None:
            found = await self._scheduler.upload_alone(piece.frames, pause)
            uploaded.append(found)
            written.append(base_of(piece, found.primary))
        only_primary = frozenset(found.primary.key for found in uploaded if found.local is None)
        return Bases(tuple(written), key_groups, handles, only_primary)
