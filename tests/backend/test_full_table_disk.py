"""A disk that fills while the tables are restored: the next directory is taken, or the error says where no room is."""

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import statebackend as sb
from statebackend._local import scratch
from statebackend._ranges.range_owners import open_range_owners
from statebackend.errors import TableDiskError
from statebackend.objectstore import MemoryStore
from statebackend.testing import run_virtual
from tests.backend.rocksdb_job import RocksDBJob, commit, contents, numbered
from tests.ranges.parts import open_run

RocksFiles = pytest.importorskip("statebackend._tables.rocksdb_files", exc_type=ImportError).RocksFiles


def fill(monkeypatch: pytest.MonkeyPatch, below: Path) -> None:
    """From now on no file below that directory finds room: neither one of RocksDB's nor one that it is to take over."""
    write_bytes, write = Path.write_bytes, RocksFiles.write

    def check(path: Path) -> None:
        if path.is_relative_to(below):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def write_file(path: Path, data: bytes) -> int:
        check(path)
        return write_bytes(path, data)

    def write_rows(files: Any, keys: Sequence[bytes], data: Sequence[bytes | None]) -> None:
        with files.errors():
            check(files.directory)
        write(files, keys, data)

    monkeypatch.setattr(Path, "write_bytes", write_file)
    monkeypatch.setattr(RocksFiles, "write", write_rows)


def found(directory: Path, pattern: str) -> list[Path]:
    return list(directory.glob(pattern))


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary directory."""
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path / "system"))
    (tmp_path / "system").mkdir()
    return tmp_path / "system"


@pytest.mark.parametrize(("bases", "table"), [(True, "rocksdb"), (False, "rocksdb"), (True, "heap")])
@run_virtual
async def test_a_disk_that_fills_while_the_tables_are_restored_is_left_for_the_next(
    bases: bool, table: str, tmp_path: Path, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That opening failed, although the next directory had room. On the heap, files of bases are read from there."""
    job = RocksDBJob(tmp_path, roots=0, materialize_handles_max=1 if bases else 1000)
    state = numbered(range(100), 1)
    async with job.open() as backend:
        await commit(backend, state)
        await commit(backend)
    fill(monkeypatch, tmp_path / "tables")
    async with job.open(changes={"table": table}) as backend:
        assert contents(backend) == state
        assert bool(found(system, "*/scratch-*/**/CURRENT")) is (table == "rocksdb")
        assert not found(tmp_path, "tables/scratch-*")
        state["key 7"] = 2
        await commit(backend, {"key 7": 2})
    async with job.open(changes={"table": table}) as backend:
        assert contents(backend) == state
    assert not found(system, "*/scratch-*")


@pytest.mark.parametrize("table", ["rocksdb", "heap"])
@run_virtual
async def test_tables_that_find_room_nowhere_say_so(
    table: str, tmp_path: Path, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the last of the directories, and nothing is left there. With room, the job opens as it was."""
    job = RocksDBJob(tmp_path, roots=0)
    async with job.open() as backend:
        await commit(backend, numbered(range(100), 1))
        await commit(backend)
    with monkeypatch.context() as full:
        for directory in (tmp_path / "tables", system):
            fill(full, directory)
        with pytest.raises(TableDiskError) as caught:
            async with job.open(changes={"table": table}):
                pass
    assert str(system) in str(caught.value)
    assert not found(tmp_path, "*/**/scratch-*")
    async with job.open() as backend:
        assert contents(backend) == numbered(range(100), 1)


@run_virtual
async def test_an_attempt_at_a_range_goes_on_elsewhere(
    tmp_path: Path, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed, and so did every further one on that host. What it has there is not for the next attempt."""
    job, store = RocksDBJob(tmp_path, roots=0), MemoryStore()
    changes = [(number, number) for number in range(20)]
    seen: list[str] = []
    async with open_run(job.settings, 2, store) as run, open_range_owners(store=store) as owners:
        await run.batch(owners, changes)
        shutil.rmtree(tmp_path / "tables")
        with monkeypatch.context() as full:
            fill(full, tmp_path / "tables")
            seen += [contribution.found for contribution in await run.batch(owners, changes)]
        seen += [contribution.found for contribution in await run.batch(owners, changes)]
    assert seen == ["primary"] * 4
    assert not found(system, "*/scratch-*")
    async with sb.open_backend(job.settings, store=store) as backend:
        assert dict(backend.value_state("sum", int)) == {key: 3 * number for key, number in changes}
