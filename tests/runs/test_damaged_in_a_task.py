"""Pages that are damaged on an executor's disk: the task goes on with the primary's copy, or its retry does."""

import zlib
from pathlib import Path

import pytest

import statebackend as sb
from statebackend._ranges.range_owners import open_range_owners
from statebackend._runs.run_file import open_run as open_file
from statebackend.errors import CorruptSegmentError
from statebackend.ids import Handle
from statebackend.objectstore import LocalStore
from statebackend.objectstore.scoped import ScopedStore
from tests.ranges.parts import Run, open_run
from tests.runs.test_jobs_over_runs import Model, has_pages
from tests.runs.test_ranges_over_runs import Batch, check, commit, contribute, keys_of, settings_in

PAGE = 4096


@pytest.fixture
def settings(tmp_path: Path) -> sb.Settings:
    return settings_in(tmp_path)


def flip_pages(root: Path) -> list[Path]:
    """A bit of each page of the copies that lie there, in place: whoever has them open sees it."""
    found = [path for path in root.rglob("segments/*") if path.is_file() and has_pages(path)]
    for path in found:
        data = bytearray(path.read_bytes())
        for part in open_file(path, Handle(path.name, 0, len(data), zlib.crc32(data))).parts:
            for page in range(part.head.pages):
                data[part.offset + page * PAGE + 100] ^= 1
        with path.open("r+b") as file:
            file.write(data)
    assert found
    return found


async def with_layers(run: Run, model: Model) -> None:
    """A base and layers of each range, by a process that is gone then."""
    async with open_range_owners() as owners:
        for number in range(3):
            await commit(run, owners, Batch(number, keys_of(3000 // (number + 1) ** 3)), model)


async def test_a_task_goes_on_with_the_primarys_copy(settings: sb.Settings, tmp_path: Path) -> None:
    """Whether its process has opened the files just now, or goes on with those of the task before."""
    model: Model = {}
    async with open_run(settings, 2) as run:
        await with_layers(run, model)
        for is_opened_before in (False, True):
            async with open_range_owners() as owners:
                if is_opened_before:
                    await commit(run, owners, Batch(10, ["k1"]), model)
                damaged = flip_pages(tmp_path / "local")
                found = await commit(run, owners, Batch(11, keys_of(3000), ["k7"]), model)
                assert {each.found for each in found} == {"process" if is_opened_before else "host"}
            left = [path for path in damaged if path.exists()]
            assert len(left) < len(damaged), "nobody opens a damaged copy again; others were not needed"
            await check(settings, model)
            await with_layers(run, model)


async def test_the_retry_of_a_task_takes_the_other_copy(settings: sb.Settings, tmp_path: Path) -> None:
    """Where a store is given that cannot be opened apart, the page ends the task, and nothing is changed by it."""
    model: Model = {}
    given = ScopedStore(LocalStore(tmp_path / "primary"), "")
    async with open_run(settings, 1) as run:
        await with_layers(run, model)
        async with open_range_owners(store=given) as owners:
            flip_pages(tmp_path / "local")
            batch, (task,) = Batch(10, keys_of(3000), ["k7"]), run.tasks()
            retries = 0
            while retries < 4:  # a page of one file after the other
                try:
                    await contribute(owners, task, batch)
                except CorruptSegmentError:
                    retries += 1
                else:
                    break
            assert 0 < retries < 4
            await commit(run, owners, batch, model)
    await check(settings, model)
