"""A million changes, appended and persisted to a file primary with a local copy.

    python -m benchmarks changelog.writing --sizes changes=50000     in a second

Envelope. The changes are in columns, as a state drains them. A change is its share of a few calls for eight thousand of
them: a size, 25 ns; two columns encoded, 75; a checksum and zstd at 600 MB/s, 150; and two file writes of 50 bytes: 0.3
µs of CPU in all. Half of that runs on threads without the interpreter, so the wall takes 0.25 s for a million. The raw
contestant only writes: 0.07 s, bound by the disk. That is 3.6 times as long.
"""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio

from benchmarks.changelog.parts import Columns, columns_of, directory, made_up, open_log, sets_of, settings
from benchmarks.contest import Line, Report, ratio
from statebackend.ids import CheckpointId, SequenceNumber
from statebackend.objectstore import LocalStore
from statebackend.settings import UploadSettings
from statebackend.uploaders import DuplicatingUploader

STEP = 8192  # as a backend drains its states


def run(report: Report, *, changes: int = 1_000_000, rounds: int = 5) -> None:
    """CPU per change, and wall time against the same bytes written raw."""
    made = made_up(changes)
    pieces = [columns_of(made[first : first + STEP]) for first in range(0, changes, STEP)]
    cpu_s: list[float] = []
    blobs: list[Sequence[bytes]] = []

    def ours() -> float:
        with directory() as path:
            begun, cpu_begun = time.perf_counter(), time.process_time()
            anyio.run(_append_and_persist, path, pieces)
            cpu_s.append(time.process_time() - cpu_begun)
            seconds = time.perf_counter() - begun
            blobs[:] = [[file.read_bytes() for file in sorted((path / "primary/segments").iterdir())]]
            return seconds

    def raw() -> float:
        with directory() as path:
            begun = time.perf_counter()
            _write_raw(path, blobs[0])
            return time.perf_counter() - begun

    samples = report.contest("writing", "s", {"statebackend": ours, "raw": raw}, rounds=rounds)
    cpu_us = sorted(cpu_s)[len(cpu_s) // 2] / changes * 1e6
    report.add(Line(f"{changes:,} changes appended and persisted, CPU per change", "at most 0.3 µs", cpu_us, "µs", 0.3))
    wall = ratio(samples["statebackend"], samples["raw"])
    size = sum(map(len, blobs[0])) / 2**20
    report.add(
        Line(
            "the same, wall over the same bytes written raw to both files with fsync",
            "at most 3.6x",
            wall.median,
            "x",
            3.6,
            detail=f"seconds: ours {samples['statebackend']}, raw {samples['raw']}; {size:.0f} MiB in each copy; "
            f"our CPU alone is {cpu_us * changes / 1e6 / samples['raw'].median:.1f}x raw",
        )
    )


async def _append_and_persist(path: Path, pieces: Sequence[Columns]) -> None:
    job = settings(upload=UploadSettings(timeout_s=0.0))

    def open_uploader(tasks: anyio.abc.TaskGroup) -> DuplicatingUploader:
        primary, local = LocalStore(path / "primary"), LocalStore(path / "local")
        return DuplicatingUploader(primary, local, secondary_grace_s=60, dropped=_must_not_drop, tasks=tasks)

    async with open_log(job, open_uploader) as open_writer:
        writer = open_writer("log")
        for piece in pieces:
            writer.append(sets_of(piece))
            await writer.room()
        uploaded = await writer.persist(0)  # type: ignore[arg-type]  # a plain number is the first one
        assert sum(each.handle.records for each in uploaded) == sum(len(keys) for _, keys, _ in pieces)
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
