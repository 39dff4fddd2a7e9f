"""A checkpoint of 10,000 changed keys of 100,000, divided among 1 to 256 owners in one process.

    python -m benchmarks owners --sizes keys=2000,rows=200,checkpoints=3,owners=16     in seconds

Envelope. There is one commit, but each owner has a segment of its own: a file that is written, synced and renamed, some
of them at a time, for 1 ms of the disk's time and as much CPU for its steps on threads; and a drain, a frame and an
entry of the commit for another half. So 256 of them should take 500 ms more than one.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import anyio
import pyarrow as pa

import statebackend as sb
from benchmarks.contest import Line, Report
from benchmarks.jobs import directory
from benchmarks.totals import Traffic, ValueTotals, answer, check
from statebackend.owners import CheckpointCoordinator, KeyGroupRange, OwnerBackend, SnapshotResult, key_group

KEY_GROUPS: Final = 256
MORE_MS: Final = 500.0


def run(
    report: Report,
    *,
    keys: int = 100_000,
    rows: int = 10_000,
    checkpoints: int = 12,
    owners: int = 256,
    rounds: int = 3,
) -> None:
    """Milliseconds of a checkpoint for each number of owners. A minute."""
    counts = [count for count in (1, 4, 16, 64, 256) if count <= owners]
    samples = report.contest(
        "a checkpoint, by owners",
        "ms",
        {f"{count}": partial(_measure, count, Traffic(keys), rows, checkpoints) for count in counts},
        rounds=rounds,
        keys=keys,
    )
    most = samples[f"{counts[-1]}"]
    report.add(
        Line(
            f"a checkpoint of {rows:,} rows over {keys:,} keys, {counts[-1]} owners in one process, over one owner",
            f"at most {MORE_MS:g} ms more",
            most.median - samples["1"].median,
            "ms",
            MORE_MS,
            detail="; ".join(f"{count} owners {sample} ms" for count, sample in samples.items()),
        )
    )


def _measure(count: int, traffic: Traffic, rows: int, checkpoints: int) -> float:
    tables = [traffic.every_key(), *(traffic.rows(number, rows) for number in range(checkpoints))]
    with directory() as folder:
        return anyio.run(_checkpoints, folder, count, tables)


async def _checkpoints(folder: Path, count: int, tables: Sequence[Any]) -> float:
    settings = sb.Settings(job="bench", primary=f"file://{folder}/primary", max_parallelism=KEY_GROUPS)
    each, times_ms = KEY_GROUPS // count, list[float]()
    parts = [KeyGroupRange(first, first + each - 1) for first in range(0, KEY_GROUPS, each)]
    async with AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(sb.owners.open_coordinator(settings))
        opened = [await stack.enter_async_context(sb.open_backend(settings, key_groups=part)) for part in parts]
        totals = [ValueTotals(owner) for owner in opened]
        for table in tables:
            for number, part in _divided(table, each).items():
                totals[number].merge(part)
            begun = time.perf_counter()
            await checkpoint(coordinator, opened)
            times_ms.append((time.perf_counter() - begun) * 1000)
        check(f"{count} owners", pa.concat_tables([each.table() for each in totals]), answer(tables))
    return median(times_ms[1:])


async def checkpoint(coordinator: CheckpointCoordinator, owners: Sequence[OwnerBackend]) -> None:
    """Take one checkpoint of all owners."""
    checkpoint_id, results = coordinator.next_checkpoint_id, list[SnapshotResult]()

    async def snapshot(owner: OwnerBackend) -> None:
        results.append(await owner.snapshot(checkpoint_id))

    async with anyio.create_task_group() as tasks:
        for owner in owners:
            tasks.start_soon(snapshot, owner)
    await coordinator.commit(checkpoint_id, results)
    for owner in owners:
        await owner.notify_complete(checkpoint_id)


def _divided(table: Any, each: int) -> Mapping[int, Any]:
    """The rows of each owner."""
    numbers = pa.array([key_group(key, KEY_GROUPS) // each for key in table["key"].to_pylist()], pa.int64())
    return {number: table.filter(pa.compute.equal(numbers, number)) for number in set(numbers.to_pylist())}
