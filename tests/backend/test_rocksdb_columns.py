"""Columnar states beside states in RocksDB: a base has their rows in files beside RocksDB's own."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import statebackend as sb
from statebackend._backend import tables
from statebackend._codec.commit import Commit
from statebackend.errors import CorruptSegmentError
from statebackend.ids import RocksDBFile
from statebackend.testing import run_virtual
from tests.backend.rocksdb_job import MAX_PARALLELISM, RocksDBJob, commit, contents, numbered

pytest.importorskip("statebackend._tables.rocksdb", reason="the extra rocksdb", exc_type=ImportError)

SCHEMA = pa.schema([("n", pa.int64()), ("name", pa.string())])
HALVES = (sb.owners.KeyGroupRange(0, 4), sb.owners.KeyGroupRange(5, MAX_PARALLELISM - 1))
ROWS = {f"row {number}": {"n": number, "name": f"name {number}"} for number in range(40)}


@pytest.fixture
def job(tmp_path: Path) -> RocksDBJob:
    return RocksDBJob(tmp_path)


def columns(backend: sb.StateBackend) -> sb.ColumnarState:
    return backend.columnar_state("rows", SCHEMA, key=pa.string())


def put(backend: sb.StateBackend, rows: dict[str, dict[str, object]]) -> None:
    found = columns(backend).rows(pa.array(rows, pa.string()))
    found.scatter(pa.RecordBatch.from_pylist(list(rows.values()), SCHEMA))


def rows_in(backend: sb.StateBackend) -> dict[str, dict[str, object]]:
    state = columns(backend)
    return {key: dict(state[key]) for key in state}  # type: ignore[misc]


def column_files(job: RocksDBJob) -> list[RocksDBFile]:
    return [file for file in job.newest_of_all().files if file.is_columns]


async def with_a_base(job: RocksDBJob) -> dict[str, int]:
    """A job whose newest commit has a RocksDB base with columns beside it, and nothing else; and its other state."""
    state = numbered(range(100), 1)
    async with job.open() as backend:
        put(backend, ROWS)
        await commit(backend, state)
        await commit(backend)
    (part,) = job.commits()[-1].ranges
    assert (part.changelog, part.bases, len(part.rocksdb)) == ((), (), 1)
    return state


async def assert_restored(job: RocksDBJob, state: dict[str, int], **options: object) -> sb.RestoreReport:
    """Everything is there when the job is opened again."""
    async with job.open(**options) as backend:  # type: ignore[arg-type]
        assert backend.restored is not None
        assert (contents(backend), rows_in(backend)) == (state, ROWS)
        return backend.restored


@run_virtual
async def test_a_restart_opens_the_files_and_applies_nothing_but_rows(job: RocksDBJob) -> None:
    """All of it from this host. Then the next base shares RocksDB's files, and has columns of its own."""
    state = await with_a_base(job)
    (before,) = column_files(job)
    report = await assert_restored(job, state)
    assert (report.files_primary, report.changes, report.fallbacks) == (0, len(ROWS), ())
    tables_before = {file.handle for file in job.newest_base().files if file.is_table}
    changed = ROWS | {"row 3": {"n": -3, "name": None}}
    async with job.open() as backend:
        put(backend, {"row 3": changed["row 3"]})
        await commit(backend)
        await commit(backend)
    (after,) = column_files(job)
    assert after.name == before.name
    assert after.handle.key != before.handle.key
    assert tables_before <= {file.handle for file in job.newest_base().files}
    async with job.open() as backend:
        assert rows_in(backend) == changed


@run_virtual
async def test_a_damaged_file_of_columns_comes_from_the_primary(job: RocksDBJob) -> None:
    """And is repaired; if it is damaged there too, nothing is opened."""
    state = await with_a_base(job)
    (file,) = column_files(job)
    copy, original = job.copies[0] / file.name, job.directory / "primary" / "fleet" / file.handle.key
    for path in (copy, original):
        content = bytearray(copy.read_bytes())
        content[len(content) // 2] ^= 1
        copy.unlink()
        copy.write_bytes(content)
        if path is original:
            original.write_bytes(content)
            break
        report = await assert_restored(job, state)
        assert [(each.name, each.repaired) for each in report.fallbacks] == [(file.handle.key, True)]
        assert (await assert_restored(job, state)).fallbacks == ()
    with pytest.raises(CorruptSegmentError) as raised:
        await assert_restored(job, state)
    assert raised.value.facts["object"] == file.handle.key


@run_virtual
async def test_columns_are_not_shared_by_name(tmp_path: Path) -> None:
    """Nor by their length: each base has a file of that name, and here also of that many bytes."""
    job = RocksDBJob(tmp_path, compression="none")
    await with_a_base(job)
    (before,) = column_files(job)
    async with job.open() as backend:
        put(backend, {"row 3": {"n": 9, "name": "name 9"}})
        await commit(backend)
        await commit(backend)
    (after,) = column_files(job)
    assert (after.name, after.handle.length) == (before.name, before.handle.length)
    assert after.handle.key != before.handle.key


@run_virtual
async def test_rows_that_a_newer_base_has_not_do_not_come_back(job: RocksDBJob) -> None:
    """One of two owners drops its rows and has a base without them; of the older base the other's groups count."""
    await with_a_base(job)
    async with job.open_parts(*HALVES) as parts:
        kept = rows_in(parts.owners[0])
        dropped = list(rows_in(parts.owners[1]))
        columns(parts.owners[1]).rows(pa.array(dropped, pa.string())).drop()
        for _ in range(2):
            await parts.checkpoint({})
            await parts.owners[1]._base_writer.settled()
    assert len({base.checkpoint_id for part in job.commits()[-1].ranges for base in part.rocksdb}) == 2
    async with job.open() as backend:
        assert rows_in(backend) == kept


@run_virtual
async def test_columns_are_divided_and_joined_with_their_key_groups(job: RocksDBJob) -> None:
    """Two owners read the same files, and each takes its own rows; so does one that has both parts again."""
    state = await with_a_base(job)
    async with job.open_parts(*HALVES) as parts:
        found = [rows_in(owner) for owner in parts.owners]
        assert all(found)
        assert found[0] | found[1] == ROWS
        assert len(found[0]) + len(found[1]) == len(ROWS)
        assert parts.contents == state
        await parts.checkpoint({})
    await assert_restored(job, state)


@run_virtual
async def test_many_columns_are_in_several_files(job: RocksDBJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is larger than what is in memory at a time; and the heap reads them as well."""
    monkeypatch.setattr(tables, "base_segment_bytes", lambda _: 1)
    monkeypatch.setattr("statebackend._checkpoint.materialization.bases.FRAME_BYTES_MIN", 1)
    monkeypatch.setattr("statebackend._tables.snapshot.TOGETHER_BYTES", 1)
    state = await with_a_base(job)
    assert len(column_files(job)) > 3
    await assert_restored(job, state)
    shutil.rmtree(job.directory / "local0")
    await assert_restored(job, state, changes={"table": "heap"})


@run_virtual
async def test_outside_of_the_job_columns_are_verified_and_read(job: RocksDBJob) -> None:
    """Beside RocksDB's entries."""
    state = await with_a_base(job)
    report = await sb.verify(job.settings)
    assert report.damages == ()
    async with sb.read_rows(job.settings) as rows:
        found = [(row.state, row.key, row.value) for row in rows]
    assert {key: value for name, key, value in found if name == "rows"} == ROWS
    assert {key: value for name, key, value in found if name == "n"} == state


@run_virtual
async def test_without_a_state_in_rocksdb_bases_are_entries(job: RocksDBJob) -> None:
    """Of the key groups that have changed: there would be nothing in the files."""
    async with job.open() as backend:
        put(backend, ROWS)
        for _ in range(2):
            await commit_columns(backend)
    (part,) = job.commits()[-1].ranges
    assert part.rocksdb == ()
    assert part.bases
    async with job.open() as backend:
        assert rows_in(backend) == ROWS


async def commit_columns(backend: sb.StateBackend) -> None:
    """A checkpoint of a backend that has columns only."""
    await backend.checkpoint(backend.next_checkpoint_id)
    await backend._base_writer.settled()


@run_virtual
async def test_a_commit_counts_the_columns_and_estimates_what_is_in_rocksdb(job: RocksDBJob) -> None:
    """Of all its states together, and nearly right once they lie in files; also for a backend that adopts these."""
    state = await with_a_base(job)
    async with job.open() as backend:
        backend.timers("idle").register("x", 1.0)
        await commit(backend)
    for made in job.commits()[-2:]:
        sizes = made.ranges[0].sizes
        assert isinstance(sizes, tuple)
        found = {tuple(names_of(made, size.states)): size for size in sizes}
        rows = found.pop(("rows",))
        assert (rows.keys, rows.is_estimate) == (len(ROWS), False)
        assert rows.size_bytes == sum(8 + len(str(row["name"])) for row in ROWS.values())
        ((names, others),) = found.items()
        assert others.is_estimate
        assert len(state) <= others.keys <= len(state) + len(names)
        assert others.size_bytes > 0
    assert len(names) > 1, "the timers too"


def names_of(made: Commit, states: tuple[int, ...]) -> list[str]:
    return [state.name for state in made.states if state.state_id in states]
