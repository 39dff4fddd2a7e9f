"""Bases that a rewrite to other key groups has written, until a commit holds them."""

from pathlib import Path
from typing import Any

import anyio
import pytest

import statebackend as sb
from statebackend.errors import FencedError, OutcomeUnknownError, StoreUnavailableError
from statebackend.testing import Fail, Hold
from tests.ownership.disk import Disk, Watch, commit, settle
from tests.ownership.table import Fate, row

SEGMENTS = "*/segments/*"
ONE_BY_ONE: dict[str, Any] = {
    "in_flight_bytes_max": 4,
    "persist_size_threshold_bytes": 0,
    "upload__attempts_max": 1,
    "upload__timeout_s": 0,
    "max_parallelism": 64,
}
"""Every large key group in a segment of its own."""


async def commit_two_large(disk: Disk) -> set[Path]:
    """Two keys that fill a base each; the segments that there are then."""
    async with disk.backend() as backend:
        backend.value_state("t", str).update({"a": "x" * 70_000, "b": "x" * 70_000})
        await backend.checkpoint(1)
    return disk.segments


async def rewrite(disk: Disk) -> None:
    await sb.rewrite(disk.settings(**ONE_BY_ONE), store=disk.primary)


async def rewrite_until(disk: Disk, hold: Hold, then: str, before: set[Path]) -> tuple[Watch, list[Exception]]:
    """Begin a rewrite; when it has come so far, watch what it has stored, and let it go on, or cancel it."""
    failures: list[Exception] = []

    async def run() -> None:
        try:
            await rewrite(disk)
        except (StoreUnavailableError, FencedError) as error:
            failures.append(error)

    disk.primary.plan.insert(0, hold)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await hold.reached.wait()
        watch = Watch(disk.segments - before)
        if then == "cancel":
            tasks.cancel_scope.cancel()
        elif then == "open":
            async with disk.backend() as backend:
                await commit(backend, 2)
        hold.release()
    await settle()
    return watch, failures


@row("base-rewrite-failed")
async def test_a_base_of_a_rewrite_goes_when_another_one_cannot_be_written(disk: Disk) -> Fate:
    """The first of two is stored when the second fails."""
    before = await commit_two_large(disk)
    fail = Fail(operation="put", key=SEGMENTS, nth=2)
    disk.primary.plan.append(fail)
    watch, failures = await rewrite_until(disk, Hold(operation="put", key=SEGMENTS, nth=2), "go on", before)
    assert [type(error) for error in failures] == [StoreUnavailableError]
    assert disk.segments == before
    return watch.fate()


@row("base-rewrite-left")
async def test_a_base_of_a_rewrite_goes_when_that_is_cancelled(disk: Disk) -> Fate:
    """The first of two is stored, the second is on its way."""
    before = await commit_two_large(disk)
    watch, _ = await rewrite_until(disk, Hold(operation="put", key=SEGMENTS, nth=2), "cancel", before)
    assert disk.segments == before
    return watch.fate()


@row("base-rewrite-unknown")
async def test_a_base_of_a_rewrite_stays_when_its_commit_gets_no_answer(disk: Disk) -> Fate:
    """The commit was made, as the next open finds out."""
    before = await commit_two_large(disk)
    disk.primary.plan += [
        Fail(operation="put_if_absent", nth=2, moment="after"),
        Fail(operation="put_if_absent", nth=3, onwards=True),
    ]
    with pytest.raises(OutcomeUnknownError):
        await rewrite(disk)
    disk.primary.plan.clear()
    watch = Watch(disk.segments - before)
    report = await disk.reopen(max_parallelism=64)
    assert report is not None
    assert report.checkpoint_id == 2
    return watch.fate()


@row("base-rewrite-fenced")
async def test_a_base_of_a_rewrite_stays_when_that_was_fenced(disk: Disk) -> Fate:
    """Somebody opened the job, and committed, while it was at its second base."""
    before = await commit_two_large(disk)
    watch, failures = await rewrite_until(disk, Hold(operation="put", key=SEGMENTS, nth=2), "open", before)
    assert [type(error) for error in failures] == [FencedError]
    return watch.fate()
