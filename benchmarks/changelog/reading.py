"""One change set out of a 64 MiB segment.

Envelope. The handle says where the frame lies in the stored object and how long it is, and a frame is complete in
itself: what is fetched is the frame, once.
"""

import anyio

from benchmarks.changelog.parts import columns_of, made_up, open_log, sets_of, settings
from benchmarks.contest import Line, Report
from statebackend._changelog.changelog_reader import SegmentRead, changes_of, fetch_frames
from statebackend.objectstore import MemoryStore
from statebackend.objectstore.scoped import ScopedStore
from statebackend.settings import MiB, UploadSettings
from statebackend.uploaders import PrimaryUploader

CHANGE_SETS = 64


class _Metered(ScopedStore):
    """Counts the bytes that are read."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, "")
        self.read_bytes = 0

    async def get(self, key: str) -> bytes:
        data = await super().get(key)
        self.read_bytes += len(data)
        return data

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        data = await super().get_range(key, offset, length)
        self.read_bytes += len(data)
        return data


def run(report: Report) -> None:
    """Bytes fetched over the frame's."""
    fetched, frame, segment = anyio.run(_read_one)
    report.add(
        Line(
            f"bytes fetched for one change set of a {segment / MiB:.0f} MiB segment, over its frame",
            "at most 2x",
            fetched / frame,
            "x",
            2.0,
            detail=f"fetched {fetched}, frame {frame}",
        )
    )


async def _read_one() -> tuple[int, int, int]:
    store = _Metered(MemoryStore())
    per_set = 64 * MiB // CHANGE_SETS // 88
    job = settings(
        compression="none",
        persist_size_threshold_bytes=100 * MiB,
        preemptive_persist_threshold_bytes=100 * MiB,
        upload=UploadSettings(timeout_s=0.0),
    )
    async with open_log(job, lambda tasks: PrimaryUploader(store)) as open_writer:
        writer = open_writer("log")
        for number in range(CHANGE_SETS):
            writer.append(sets_of(columns_of(made_up(per_set, seed=number))))
            writer.next_sequence_number()
        uploaded = await writer.persist(0)  # type: ignore[arg-type]  # a plain number is the first one
        handle = uploaded[CHANGE_SETS // 2].handle
        parts = changes_of(await fetch_frames(store, SegmentRead(handle.segment, (handle,))), [handle])
        assert sum(part.records for part in parts) == per_set
        return store.read_bytes, handle.length, handle.segment.length
