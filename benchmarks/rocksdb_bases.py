"""How much an incremental checkpoint of state in RocksDB uploads after 1 % of the keys changed, ten times in a row.

Envelope. A hundredth of the keys is a hundredth of the bytes in new files. RocksDB then merges them with the level
below, and that with the next one: with levels that are four times as large as the one before, each byte that moves down
rewrites some four others, on two levels. So 4 to 9 % of all bytes are new each time, and not 1 % three times and then
30 %. What moves is decided by the keys: they are drawn anew each time, from all of them.

`STATEBACKEND_BENCH_TABLE_MIB` is the size of the state. It should be several times the memory that RocksDB uses.
"""

import os
import random
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final

import anyio

import statebackend as sb
from benchmarks.contest import Line, Report
from statebackend._codec.commit import Commit, decode_entry
from statebackend.settings import MiB, UploadSettings

TABLE_MIB: Final = int(os.environ.get("STATEBACKEND_BENCH_TABLE_MIB", "256"))
VALUE_BYTES: Final = 1000
CHECKPOINTS: Final = 10
SETTLING: Final = 3
"""The base of the table as it was filled, and the next ones: RocksDB puts all of that in order meanwhile."""
AT_ONCE: Final = 20_000
JOB: Final = "rocksdb"


class Bases(sb.Observer):
    """Records the bytes uploaded for each base."""

    def __init__(self) -> None:
        self.uploaded: list[int] = []
        self._written = anyio.Event()

    def materialized(self, *, key_groups: int, segments: int, size_bytes: int, seconds: float) -> None:
        self.uploaded.append(size_bytes)
        self._written.set()

    def materialization_failed(self, error: Exception, *, failures: int) -> None:
        raise SystemExit(f"a base could not be written: {error}")

    async def wait(self, count: int) -> None:
        """Wait until that many bases were written."""
        while len(self.uploaded) < count:
            await self._written.wait()
            self._written = anyio.Event()


def run(report: Report) -> None:
    """Ten checkpoints in a row, each of which has to hold; then a restart from the files."""
    with tempfile.TemporaryDirectory() as directory:
        anyio.run(partial(_measure, Path(directory), report))


async def _measure(directory: Path, report: Report) -> None:
    settings = sb.Settings(
        job=JOB,
        primary=f"file://{directory}/primary",
        local=(f"{directory}/local",),
        table="rocksdb",
        table_memory_bytes=max(4 * MiB, min(128, TABLE_MIB // 16) * MiB),
        materialize_handles_max=1,
        materialize_interval_s=0.0,
        secondary_grace_s=600.0,
        upload=UploadSettings(timeout_s=0.0),  # what is slow here is the disk, and another attempt would use it, too
        compression="none",
    )
    chance, bases = random.Random(7), Bases()
    keys = range(TABLE_MIB * MiB // 1024)
    shares: list[float] = []  # of each base
    took_s: list[float] = []
    async with sb.open_backend(settings, observer=bases) as backend:
        cells = backend.value_state("cells", bytes)
        order = chance.sample(keys, len(keys))
        for begin in range(0, len(order), AT_ONCE):
            some = order[begin : begin + AT_ONCE]
            cells.put_many(some, [chance.randbytes(VALUE_BYTES) for _ in some])
        await backend.checkpoint(0)
        await bases.wait(1)
        for checkpoint_id in range(1, SETTLING + CHECKPOINTS + 1):
            touched = chance.sample(keys, len(keys) // 100)
            cells.put_many(touched, [chance.randbytes(VALUE_BYTES) for _ in touched])
            begun_s = time.perf_counter()
            await backend.checkpoint(checkpoint_id)
            took_s.append(time.perf_counter() - begun_s)
            shares.append(bases.uploaded[checkpoint_id - 1] / _base_bytes(directory))  # that of the commit before
            await bases.wait(checkpoint_id + 1)
    settling, steady = shares[:SETTLING], shares[SETTLING:]
    report.add(
        Line(
            f"bytes uploaded for a base of {TABLE_MIB} MiB after touching 1 % of the keys, the most of {len(steady)}",
            "at most 10 %",
            max(steady) * 100,
            "%",
            10.0,
            detail=f"in a row: {_shown(steady)}; after filling the table: {_shown(settling)}; "
            f"checkpoints took {min(took_s):.2f} to {max(took_s):.2f} s",
        )
    )
    await _restart(settings, len(keys), report)


def _shown(shares: list[float]) -> str:
    return ", ".join(f"{share:.1%}" for share in shares)


async def _restart(settings: sb.Settings, keys: int, report: Report) -> None:
    begun_s = time.perf_counter()
    async with sb.open_backend(settings) as backend:
        seconds = time.perf_counter() - begun_s
        restored = backend.restored
        assert restored is not None
        found = len(backend.value_state("cells", bytes))
    assert found == keys, (found, keys)
    assert restored.files_primary == 0, restored
    report.add(
        Line(
            f"restart from the local copy of {TABLE_MIB} MiB, bytes read and checked in a second",
            "at least 200 MiB/s",
            restored.bytes_local / MiB / seconds,
            "MiB/s",
            200.0,
            at_least=True,
            detail=f"{seconds:.2f} s, {restored.files_local} files, {restored.changes} changes applied",
        )
    )


def _base_bytes(directory: Path) -> int:
    """Bytes of the base in the newest commit."""
    path = max(each for each in directory.glob(f"primary/{JOB}/commits/*") if not each.name.startswith("."))
    commit = decode_entry(path.read_bytes(), path.name, job=JOB)
    assert isinstance(commit, Commit)
    ((base,),) = (part.rocksdb for part in commit.ranges)
    return base.size_bytes
