"""A clone beside a copy of the files, and what an erasure of one key of many reads and writes.

    python -m benchmarks across                   four minutes
    python -m benchmarks across --quick           a quarter of a minute, with fewer keys

Envelope. On one file system a clone links each object: it writes a name and syncs a directory for each, and no data, so
it is quicker than any copy of the files. Where the bytes pass through here each object is read, checked by crc32 at
some GB/s, written and synced, as a copy that is to be durable does: that copy is the contestant, file by file with
fsync. An erasure reads the index of each base, 16 KiB, and the frames of one of 128 key groups. Of a million keys of a
KiB a group has 8 MiB, and a base of its own, which is written again: 1/128 of the bytes each, and of what changed since
all; 1/256 at most of what bases have superseded within the hour, which is here as much as the state. Of fewer or
smaller keys a base of 16 MiB has several groups, so that it is more: of 100 MiB a sixth.
"""

import asyncio
import os
import shutil
import time
from pathlib import Path

import msgspec
import numpy as np

import statebackend as sb
from benchmarks.contest import ROUNDS, Line, Report, Sample
from benchmarks.jobs import directory
from statebackend._upkeep.job_primary import open_job_primary
from statebackend.objectstore import LocalStore
from statebackend.testing import FaultyStore

CLONE_LIMIT = 1.2
ERASE_LIMIT = 1 / 64
VALUE_BYTES = 1024


def run(report: Report, *, keys: int = 1_000_000, rounds: int = ROUNDS) -> None:
    """Ratios of elapsed times, and shares of bytes. Four minutes."""
    with directory() as folder:
        settings = sb.Settings(job="source", primary=f"file://{folder}/primary", materialize_interval_s=3600.0)
        asyncio.run(_make(settings, keys))
        needed = asyncio.run(_needed(settings, folder))
        _clones(report, settings, folder, rounds, needed)
        _erasure(report, settings, keys, needed)


async def _make(settings: sb.Settings, keys: int) -> None:
    """A job with bases of random values, which do not compress, and some changes behind them."""
    rng = np.random.default_rng(1)
    async with sb.open_backend(msgspec.structs.replace(settings, max_parallelism=64)) as backend:
        state = backend.value_state("value", bytes)
        for first in range(0, keys, 50_000):
            some = range(first, min(first + 50_000, keys))
            state.put_many([f"key {number}" for number in some], [rng.bytes(VALUE_BYTES) for _ in some])
            await backend.checkpoint(backend.next_checkpoint_id)
    await sb.rewrite(settings)
    async with sb.open_backend(settings) as backend:
        state = backend.value_state("value", bytes)
        for number in range(10):
            state[f"key {number}"] = rng.bytes(VALUE_BYTES)
            await backend.checkpoint(backend.next_checkpoint_id)


async def _needed(settings: sb.Settings, folder: Path) -> list[Path]:
    """The files that the newest checkpoint needs."""
    async with open_job_primary(settings, None) as primary:
        commit, _ = await primary.find()
    return [folder / "primary" / settings.job / key for key in sorted(commit.segments())]


def _clones(report: Report, settings: sb.Settings, folder: Path, rounds: int, needed: list[Path]) -> None:
    store = LocalStore(folder / "primary")
    through = FaultyStore(LocalStore(folder / "primary"))  # which copies nothing by itself
    seconds: dict[str, list[float]] = {"copy": [], "linked": [], "through": []}
    for turn in range(rounds):
        for name in [*seconds][turn % 3 :] + [*seconds][: turn % 3]:
            begun = time.perf_counter()
            if name == "copy":
                _copied(needed, folder / "primary", folder / "copy")
            else:
                clone = msgspec.structs.replace(settings, job=name)
                into = store if name == "linked" else through
                asyncio.run(sb.clone(clone, from_=settings, store=into, from_store=into))
            seconds[name].append(time.perf_counter() - begun)
            shutil.rmtree(folder / "copy" if name == "copy" else folder / "primary" / name)
    samples = {name: Sample(each) for name, each in seconds.items()}
    for name in ("linked", "through"):
        ratio = samples[name].median / samples["copy"].median
        report.add(
            Line(
                f"a clone within one machine, {name}, to a durable copy of its files",
                f"at most {CLONE_LIMIT} x",
                ratio,
                "x",
                CLONE_LIMIT,
                detail=f"{samples[name]} s to {samples['copy']} s, {len(needed)} files",
            )
        )
    report.keep("a clone", "s", samples, files=len(needed))


def _copied(files: list[Path], root: Path, target: Path) -> None:
    for path in files:
        copy = target / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        with copy.open("rb") as file:
            os.fsync(file.fileno())


def _erasure(report: Report, settings: sb.Settings, keys: int, needed: list[Path]) -> None:
    size_bytes = sum(path.stat().st_size for path in needed)
    done = asyncio.run(sb.erase(settings, [f"key {keys // 2}"]))
    for what, count in (("read", done.bytes_read), ("written", done.bytes_written)):
        report.add(
            Line(
                f"bytes {what} to erase one of {keys:,} keys of {VALUE_BYTES} bytes",
                "at most 1/64 of the state",
                count / size_bytes,
                "of the state",
                ERASE_LIMIT,
                detail=f"{count:,} of {size_bytes:,} bytes, {done.requests} requests",
            )
        )
