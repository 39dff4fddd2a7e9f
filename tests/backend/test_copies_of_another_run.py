"""Local copies that another run of the job has left: they are told apart from damaged ones."""

from pathlib import Path
from typing import Any

import pytest

import statebackend as sb
from statebackend._local.snapshot_directories import SNAPSHOT_NAME
from statebackend._log.names import entry_key
from statebackend.testing import run_virtual
from tests.backend.rocksdb_job import RocksDBJob, commit
from tests.knobs import replaced


async def two_runs(tmp_path: Path, **changes: Any) -> tuple[RocksDBJob, sb.Settings]:
    """A run that has left local copies, and the settings with which another one goes on that never had these roots."""
    if changes.get("table") != "heap":
        pytest.importorskip("rocksdict", reason="the extra rocksdb")
    left, other = RocksDBJob(tmp_path / "left", **changes), RocksDBJob(tmp_path / "other", **changes)
    for job, value in ((left, 1), (other, 2)):
        settings = replaced(job.settings, local=()) if job is other else job.settings
        async with job.open(changes={"local": settings.local}) as backend:
            await commit(backend, {f"k{number}": value * number for number in range(100)})
            await commit(backend)
    return left, replaced(other.settings, local=left.settings.local)


def cut(tmp_path: Path, name: str) -> None:
    """Take the last byte of the files of that name among the copies."""
    found = list((tmp_path / "left" / "local0").rglob(name))
    assert found
    for path in found:
        path.write_bytes(path.read_bytes()[:-1])


@run_virtual
async def test_copies_of_rocksdb_files_are_another_runs_or_damaged(tmp_path: Path) -> None:
    """Both runs have the same checkpoint. What its directory does not vouch for is damage."""
    left, settings = await two_runs(tmp_path)
    assert (await sb.verify(left.settings)).local_of_others == 0
    report = await sb.verify(settings)
    assert report.damages == ()
    assert report.local_of_others > 0
    cut(tmp_path, SNAPSHOT_NAME)
    report = await sb.verify(settings)
    assert {each.copy for each in report.damages} == {"local"}
    assert report.local_of_others == 0


@run_virtual
async def test_copies_of_commits_are_another_runs_or_damaged(tmp_path: Path) -> None:
    """A commit that carries its changes has a copy, in the same place of the log."""
    changes = {"table": "heap", "inline_bytes_max": 1 << 16, "materialize_handles_max": 64}
    left, settings = await two_runs(tmp_path, **changes)
    assert (await sb.verify(left.settings)).local_of_others == 0
    report = await sb.verify(settings)
    assert report.damages == ()
    assert report.local_of_others > 0
    cut(tmp_path, entry_key(1))
    report = await sb.verify(settings)
    assert {(each.key, each.copy) for each in report.damages} == {(entry_key(1), "local")}
