"""A process that seeds, clones or transforms gets SIGKILL: all of it is there, or nothing, and the next one ends it.

`test_seed_killed.py` and its like for clones kill at every request, within a process; here what dies is real, with its
threads, files and locks. `EDIT_KILLS=40` kills more often.
"""

import asyncio
import os
import random
from pathlib import Path
from typing import Any

import pytest

import statebackend as sb
from statebackend.errors import InputError
from statebackend.objectstore import LocalStore
from statebackend.testing import Fail, FaultyStore
from tests import invariants
from tests.clone.test_clone import COPY, named
from tests.erase.persons import ADA, BOB, writes
from tests.mortals import last_word
from tests.rewrite.jobs import JOB, objects_of, opened, work
from tests.seed.edit_children import DONE, EDITS, ROWS, SETTINGS, live, values

KILLS = int(os.environ.get("EDIT_KILLS", "2"))


async def prepare(directory: Path, edit: str) -> None:
    """The job that is edited; a seed needs none."""
    (directory / "scratch").mkdir(parents=True)
    if edit != "seed":
        await work(SETTINGS, LocalStore(directory / "primary"), writes(1, ADA, BOB), writes(2, BOB), writes(3, ADA))


async def found(directory: Path, edit: str) -> Any:
    """What can be read of what the edit makes; `None` if there is none."""
    store = LocalStore(directory / "primary")
    if edit == "seed":
        async with sb.open_backend(SETTINGS, store=store, read_only=True) as backend:
            return dict(values(backend)) or None
    try:
        async with opened(named(SETTINGS, COPY if edit == "clone" else JOB), store, read_only=True) as (
            backend,
            states,
        ):
            return None if backend.newest is None else states.read()
    except InputError:
        return None


async def requests_of(directory: Path, edit: str) -> int:
    """How many requests an edit makes that nobody kills; it is there then."""
    fault = Fail(nth=10**9)
    await prepare(directory, edit)
    await EDITS[edit](directory, FaultyStore(LocalStore(directory / "primary"), [fault]))
    return fault.matched


async def check_swept(directory: Path, job: str) -> None:
    """Once all is old, a sweep leaves what the newest commits need, and nothing else."""
    store, settings = LocalStore(directory / "primary"), named(SETTINGS, job)
    async with sb.open_backend(settings, store=store) as backend:
        await backend.checkpoint(backend.next_checkpoint_id)
    for path in (directory / "primary").rglob("*"):
        os.utime(path, (1.0, 1.0))
    await sb.sweep(settings, dry_run=False, min_age_s=0.0, store=store)
    objects = await objects_of(store, job)
    commits = invariants.commits_of(invariants.read_log(objects, job))
    invariants.assert_nothing_is_left_over([key for key in objects if key.startswith("segments/")], commits)


@pytest.mark.parametrize("edit", EDITS)
def test_no_sigkill_tears_an_edit(edit: str, tmp_path: Path) -> None:
    """At requests that are drawn, before and after they took effect; a seed also while it reads its rows."""
    whole = tmp_path / "whole"
    requests = asyncio.run(requests_of(whole, edit))
    expected = asyncio.run(found(whole, edit))
    assert requests > 6
    chance = random.Random(edit)
    middle = chance.sample(range(1, requests), min(KILLS, requests - 1))
    deaths: list[dict[str, Any]] = [
        {"nth": nth, "moment": chance.choice(("before", "after"))} for nth in (*middle, requests, requests + 1)
    ]
    if edit == "seed":
        deaths.append({"row": chance.randrange(len(ROWS))})
    outcomes = set[bool]()
    for number, death in enumerate(deaths):
        directory = tmp_path / str(number)
        asyncio.run(prepare(directory, edit))
        before = asyncio.run(found(directory, edit))
        is_done = last_word(live, directory, edit, **death) == DONE
        after = asyncio.run(found(directory, edit))
        assert after in ((expected,) if is_done else (expected, before)), death
        outcomes.add(after == expected)
        if after != expected:
            assert last_word(live, directory, edit) == DONE
            assert asyncio.run(found(directory, edit)) == expected, death
            assert {path.name for path in (directory / "scratch").iterdir()} <= {"lock"}
        asyncio.run(check_swept(directory, COPY if edit == "clone" else JOB))
    assert outcomes == {True, False}
