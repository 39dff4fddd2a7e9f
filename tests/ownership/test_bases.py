"""Bases, until a commit holds them, and their local copies after that."""

from pathlib import Path
from typing import Any

import pytest

import statebackend as sb
from statebackend.errors import InputError, OutcomeUnknownError
from statebackend.testing import Fail, Hold
from tests.ownership.disk import Disk, Watch, commit, settle
from tests.ownership.table import Fate, row

SEGMENTS = "*/segments/*"
AT_ONCE: dict[str, Any] = {"materialize_handles_max": 1, "materialize_interval_s": 0, "upload__timeout_s": 0}
ONE_BY_ONE: dict[str, Any] = AT_ONCE | {
    "in_flight_bytes_max": 4,
    "persist_size_threshold_bytes": 0,
    "upload__attempts_max": 1,
}
"""Every large key group in a segment of its own."""


def copies_of(disk: Disk, number: int) -> set[Path]:
    """Both copies of a segment, counted from 0 in the order in which they were made: their names sort like that."""
    name = sorted({path.name for path in disk.segments})[number]
    found = {path for path in disk.both if path.name == name}
    assert len(found) == 2
    return found


async def commit_two_large(backend: sb.StateBackend) -> None:
    """Two key groups that fill a base each."""
    backend.value_state("t", str).update({"a": "x" * 70_000, "b": "x" * 70_000})
    await backend.checkpoint(1)
    await settle()


@row("base-failed")
async def test_a_base_goes_when_another_one_cannot_be_written(disk: Disk) -> Fate:
    """The first of two is stored when the second fails; it goes with both copies."""
    hold = Hold(operation="put", key=SEGMENTS, nth=3)
    disk.primary.plan += [hold, Fail(operation="put", key=SEGMENTS, nth=3)]
    async with disk.backend(**ONE_BY_ONE) as backend:
        await commit_two_large(backend)
        watch = Watch(copies_of(disk, 1))
        hold.release()
        await settle()
        return watch.fate()


@row("base-left")
async def test_a_base_goes_when_the_backend_is_left_before_the_others_are_written(disk: Disk) -> Fate:
    """The first of two is stored, the second is on its way."""
    disk.primary.plan.append(Hold(operation="put", key=SEGMENTS, nth=3))
    async with disk.backend(**ONE_BY_ONE) as backend:
        await commit_two_large(backend)
        watch = Watch(copies_of(disk, 1))
    assert len(disk.both) == 2
    return watch.fate()


@row("base-unclaimed")
async def test_a_base_goes_when_the_backend_is_left_before_a_commit_takes_it(disk: Disk) -> Fate:
    """It is complete, and nobody will ever know of it."""
    async with disk.backend(**AT_ONCE) as backend:
        await commit(backend, 1)
        await settle()
        watch = Watch(copies_of(disk, 1))
    assert len(disk.both) == 2
    return watch.fate()


@row("base-refused")
async def test_a_base_stays_when_its_commit_is_refused_and_the_next_one_takes_it(disk: Disk) -> Fate:
    """A commit that cannot be encoded was never sent."""
    async with disk.backend(**AT_ONCE) as backend:
        await commit(backend, 1)
        await settle()
        watch = Watch(copies_of(disk, 1))
        with pytest.raises(InputError):
            await backend.checkpoint(2, source=sb.SourceMark("query", "no number"))  # type: ignore[arg-type]
        await backend.checkpoint(2)
    report = await disk.reopen()
    assert report is not None
    assert report.files_local == 1
    return watch.fate()


@row("base-unknown")
async def test_a_base_stays_when_its_commit_gets_no_answer(disk: Disk) -> Fate:
    """The commit was made, as the next open finds out, and is whole."""
    async with disk.backend(**AT_ONCE) as backend:
        await commit(backend, 1)
        await settle()
        watch = Watch(copies_of(disk, 1))
        disk.primary.plan += [Fail(operation="put_if_absent", moment="after"), Fail(operation="get")]
        with pytest.raises(OutcomeUnknownError):
            await backend.checkpoint(2)
    disk.primary.plan.clear()
    report = await disk.reopen()
    assert report is not None
    assert (report.checkpoint_id, report.files_local) == (2, 1)
    return watch.fate()


@row("base-replaced")
async def test_the_local_copy_of_a_base_goes_when_all_of_it_was_written_anew(disk: Disk) -> Fate:
    """With the commit that has the new one, and not the primary's: an older commit points into that."""
    async with disk.backend(**AT_ONCE) as backend:
        await commit(backend, 1)
        await settle()
        watch = Watch(copies_of(disk, 1) & disk.copies)
        await commit(backend, 2)
        await settle()
        assert watch.fate() == "stays"
        await backend.checkpoint(3)
        await settle()
        assert len(disk.copies) == 1
        return watch.fate()
