"""A million changes, appended and persisted to a file primary with a local copy.

Envelope. A change costs the making of a record, a list append, and its share of one bulk encode, one compression at
some 600 MB/s, and two file writes of 100 bytes: about 1 µs of CPU in all, most of it Python on one core. The raw
contestant only writes: it is bound by the disk.

Lost where the disk takes 50 MiB in less than half a second: the second of CPU is Python's, on one core. Most of it is
making records, counting their bytes and encoding them, which hold the interpreter, so threads have little to overlap;
writes and compression, which do not, are under way meanwhile.
"""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio

from benchmarks.changelog.parts import directory, made_up, open_log, sets_of, settings
from benchmarks.contest import Line, Report, contest, ratio
from statebackend.ids import CheckpointId, SequenceNumber
from statebackend.objectstore import LocalStore
from statebackend.settings import UploadSettings
from statebackend.uploaders import DuplicatingUploader

CHANGES = 1_000_000
STEP = 8192  # as a backend drains its states


def run(report: Report) -> None:
    """CPU per change, and wall time against the same bytes written raw."""
    changes = made_up(CHANGES)
    cpu_s: list[float] = []
    blobs: list[Sequence[bytes]] = []

    def ours() -> float:
        with directory() as path:
            begun, cpu_begun = time.perf_counter(), time.process_time()
            anyio.run(_append_and_persist, path, changes)
            cpu_s.append(time.process_time() - cpu_begun)
            seconds = time.perf_counter() - begun
            blobs[:] = [[file.read_bytes() for file in sorted((path / "primary/segments").iterdir())]]
            return seconds

    def raw() -> float:
        with directory() as path:
            begun = time.perf_counter()
            _write_raw(path, blobs[0])
            return time.perf_counter() - begun

    samples = contest({"statebackend": ours, "raw": raw})
    cpu_us = sorted(cpu_s)[len(cpu_s) // 2] / CHANGES * 1e6
    report.add(Line("append and persist, CPU per change", "at most 1.5 µs", cpu_us, "µs", 1.5))
    wall = ratio(samples["statebackend"], samples["raw"])
    size = sum(map(len, blobs[0])) / 2**20
    report.add(
        Line(
            "append and persist, wall over the same bytes written raw to both files with fsync",
            "at most 2x",
            wall.median,
            "x",
            2.0,
            detail=f"seconds: ours {samples['statebackend']}, raw {samples['raw']}; {size:.0f} MiB in each copy; "
            f"our CPU alone is {cpu_us * CHANGES / 1e6 / samples['raw'].median:.1f}x raw",
        )
    )


async def _append_and_persist(path: Path, changes: Sequence[tuple[int, bytes, bytes]]) -> None:
    job = settings(upload=UploadSettings(timeout_s=0.0))

    def open_uploader(tasks: anyio.abc.TaskGroup) -> DuplicatingUploader:
        primary, local = LocalStore(path / "primary"), LocalStore(path / "local")
        return DuplicatingUploader(primary, local, secondary_grace_s=60, dropped=_must_not_drop, tasks=tasks)

    async with open_log(job, open_uploader) as open_writer:
        writer = open_writer("log")
        for start in range(0, CHANGES, STEP):
            writer.append(sets_of(changes[start : start + STEP]))
            await writer.room()
        uploaded = await writer.persist(0)  # type: ignore[arg-type]  # a plain number is the first one
        assert sum(each.handle.records for each in uploaded) == CHANGES
        assert all(each.local for each in uploaded)
        writer.confirm(SequenceNumber(0), writer.next_sequence_number(), CheckpointId(1))


def _must_not_drop(name: str, reason: str) -> None:
    raise AssertionError(f"the local copy of {name} was dropped: {reason}")


def _write_raw(path: Path, blobs: Sequence[bytes]) -> None:
    """The same bytes into one file per copy, both at once, each with one fsync at the end."""

    def write(name: str) -> None:
        with (path / name).open("wb", buffering=0) as file:
            for blob in blobs:
                file.write(blob)
            os.fsync(file.fileno())

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, ("primary", "local")))
