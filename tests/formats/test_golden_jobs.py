"""Jobs that an earlier release left behind are read, continued, swept and verified by this one.

`golden_jobs/` has a directory for each generation, and `content_jobs` says what each job holds.
"""

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import statebackend as sb
from statebackend._ranges.range_owners import open_range_owners
from tests.formats import content_jobs
from tests.formats.make_golden_jobs import BATCHES, FLEET, GOLDEN_JOBS, WRITERS, declared, settings_of
from tests.ranges.parts import open_run

GENERATIONS = sorted(path.name for path in GOLDEN_JOBS.iterdir())
LONG_AGO_S = 86_400


def test_every_generation_has_every_job() -> None:
    """But for those that came later: `release-1` has the first four."""
    assert GENERATIONS
    for generation in GENERATIONS:
        jobs = {path.name for path in (GOLDEN_JOBS / generation).iterdir()}
        assert {"kinds", "rocksdb", "columns", "ranges"} <= jobs <= set(WRITERS)


@pytest.fixture(params=GENERATIONS)
def generation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def job() -> str:
    """Tests that are about another one have it as a parameter."""
    return "ranges"


@pytest.fixture
def left(generation: str, job: str, tmp_path: Path) -> sb.Settings:
    """The settings of a copy of the job, old enough for a sweep."""
    folder = tmp_path / job
    shutil.copytree(GOLDEN_JOBS / generation / job, folder)
    old_s = time.time() - LONG_AGO_S  # the store's clock is that of the file system
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
        os.utime(path, (old_s, old_s))
    return settings_of(folder, job, table_dir=str(tmp_path))


def without_local(settings: sb.Settings) -> sb.Settings:
    return msgspec.structs.replace(settings, local=())


def plain(name: str, value: Any) -> Any:
    """A value of a state, as `content_jobs` has it."""
    if name == "legs":
        return None if value is None else msgspec.to_builtins(value)
    if name == "hops":
        return list(value)
    return dict(value) if name == "seen" else value


def content(backend: sb.StateBackend) -> Mapping[str, Mapping[Any, Any]]:
    """What the states of a job of all kinds hold."""
    found: dict[str, dict[Any, Any]] = {}
    for name, state in declared(backend).items():
        if name == "due":
            found[name] = {key: list(state.registered(key)) for key in content_jobs.STATES["due"]}
        else:
            found[name] = {key: plain(name, state[key]) for key in state}
    return found


def columns(backend: sb.StateBackend) -> Mapping[Any, Any]:
    fleet = backend.columnar_state("fleet", FLEET, key=pa.string())
    return {key: dict(fleet[key]) for key in fleet}


def holds(backend: sb.StateBackend, job: str) -> None:
    """Assert that the job is as it was left."""
    if job == "columns":
        assert columns(backend) == content_jobs.COLUMNS
    elif job == "ranges":
        assert dict(backend.value_state("sum", int)) == content_jobs.SUMS
        rows = backend.list_state("rows", int)
        assert {key: list(rows[key]) for key in rows} == {
            f"key {number}": list(range(number, BATCHES, 6)) for number in range(6)
        }
    else:
        assert content(backend) == content_jobs.STATES
        assert list(backend.operator_state("offsets", str, "union")) == content_jobs.OFFSETS


def change(backend: sb.StateBackend, job: str) -> None:
    if job == "columns":
        backend.columnar_state("fleet", FLEET, key=pa.string())["new"] = {"n": 1, "dep": None, "name": "new"}
    else:
        backend.value_state("new", int)["new"] = 1


def changed(backend: sb.StateBackend, job: str) -> None:
    """Assert that it holds what it held and the change; and take the change back, to look at the rest."""
    if job == "columns":
        fleet = backend.columnar_state("fleet", FLEET, key=pa.string())
        assert fleet.pop("new") == {"n": 1, "dep": None, "name": "new"}
    else:
        assert dict(backend.value_state("new", int)) == {"new": 1}
    holds(backend, job)


@pytest.mark.parametrize("job", WRITERS)
@pytest.mark.parametrize("source", ["local", "primary"])
async def test_it_is_read(left: sb.Settings, job: str, source: str) -> None:
    """From its local copies where there are some, from the primary without them; undamaged by `verify`."""
    settings = left if source == "local" else without_local(left)
    async with sb.open_backend(settings, read_only=True) as backend:
        holds(backend, job)
        assert backend.restored is not None
        lacks = ["commits/000000000024"] if (job, source) == ("ranges", "local") else []  # comes with the next task
        assert [each.name for each in backend.restored.fallbacks] == lacks
        assert bool(backend.restored.files_local) == (source == "local")
        assert backend.newest is not None
        assert backend.newest.source is not None
        assert [summary.source.batch_id async for summary in backend.history() if summary.source] == list(
            range(backend.newest.source.batch_id, -1, -1)
        )
    assert not (await sb.verify(settings)).damages


@pytest.mark.parametrize("job", WRITERS)
async def test_it_is_continued_swept_and_verified(left: sb.Settings, job: str) -> None:
    """Another commit on top, bases included; then a sweep takes what only old checkpoints needed, and all is well."""
    for batch in range(4):
        async with sb.open_backend(left) as backend:
            (changed if batch else holds)(backend, job)
        async with sb.open_backend(left) as backend:
            change(backend, job)
            await backend.checkpoint(backend.next_checkpoint_id)
    swept = await sb.sweep(left, dry_run=False, min_age_s=0)
    assert swept.deleted
    assert not swept.failures
    report = await sb.verify(left)
    assert not report.damages
    for settings in (left, without_local(left)):
        async with sb.open_backend(settings) as backend:
            changed(backend, job)


@pytest.mark.parametrize("job", ["kinds", "rocksdb"])
async def test_its_savepoint_is_opened_after_a_sweep(left: sb.Settings, job: str) -> None:
    """With what was dropped later."""
    await sb.sweep(left, dry_run=False, min_age_s=0)
    assert [each.name for each in await sb.savepoints(left)] == ["first"]
    async with sb.open_backend(left, savepoint="first") as backend:
        legs = declared(backend)["legs"]
        assert {key: plain("legs", legs[key]) for key in legs} == content_jobs.SAVED_LEGS


@pytest.mark.parametrize(("job", "table"), [("kinds", "rocksdb"), ("rocksdb", "heap")])
async def test_it_is_opened_in_tables_of_the_other_kind(left: sb.Settings, job: str, table: Any) -> None:
    """Entries in RocksDB, and files of RocksDB as entries."""
    async with sb.open_backend(msgspec.structs.replace(left, table=table)) as backend:
        holds(backend, job)


@pytest.mark.parametrize("job", WRITERS)
async def test_its_rows_are_read_without_its_classes(left: sb.Settings, job: str) -> None:
    """By the door that the command line uses."""
    async with sb.read_rows(left) as rows:
        found = list(rows)
    names = {"columns": {"fleet"}, "ranges": {"sum", "rows"}}.get(job, {*content_jobs.STATES, "offsets"})
    assert {row.state for row in found} == names
    if job == "columns":
        assert {row.key: row.value for row in found} == content_jobs.COLUMNS


@pytest.mark.parametrize("job", ["kinds", "rocksdb", "columns"])
async def test_its_number_of_key_groups_is_changed(left: sb.Settings, job: str) -> None:
    """It is read wholly and written anew."""
    wider = msgspec.structs.replace(left, max_parallelism=32)
    await sb.rewrite(wider)
    async with sb.open_backend(wider) as backend:
        holds(backend, job)


@pytest.mark.parametrize("parts", [2, 3])
async def test_its_ranges_are_continued(left: sb.Settings, parts: int) -> None:
    """By the same ranges and by others; and its output is still to be published, oldest first."""
    async with open_run(left, parts) as run, open_range_owners() as owners:
        for expected in content_jobs.OUTPUT:
            taken = await run.coordinator.take_output()
            assert taken is not None
            output, streams = taken
            assert output.rows == len(expected)
            assert [row for stream in streams for row in pa.ipc.open_stream(stream).read_all().to_pylist()] == expected
            run.coordinator.published(output)
        await run.batch(owners, [(f"key {number}", 1000) for number in range(6)])
    async with sb.open_backend(left) as backend:
        assert dict(backend.value_state("sum", int)) == {key: found + 1000 for key, found in content_jobs.SUMS.items()}
        assert not backend.outbox.pending
    assert not (await sb.verify(left)).damages
