"""A local disk that takes nothing stops no job: neither its copies nor its scratch files are needed for the state."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

import statebackend as sb
from statebackend._local import job_directories, scratch
from statebackend.errors import LocalRootError
from tests.knobs import settings_with

FAILING = [errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO]


def settings_of(tmp_path: Path, **changed: Any) -> sb.Settings:
    local = (f"{tmp_path}/bad", f"{tmp_path}/good")
    return settings_with(
        **{"job": "fleet", "primary": f"file://{tmp_path}/primary", "local": local, "inline_bytes_max": 0, **changed}
    )


def fail(monkeypatch: pytest.MonkeyPatch, module: Any, number: int, below: Path) -> None:
    """From now on nothing can be made below that directory."""
    really = module.make_directory

    def make_directory(path: Path) -> None:
        if path.is_relative_to(below):
            raise OSError(number, os.strerror(number), str(path))
        really(path)

    monkeypatch.setattr(module, "make_directory", make_directory)


def found(directory: Path, pattern: str) -> list[Path]:
    return list(directory.glob(pattern))


async def commit(settings: sb.Settings, numbers: range) -> list[bool]:
    async with sb.open_backend(settings) as backend:
        state = backend.value_state("n", int)
        local: list[bool] = []
        for number in numbers:
            state["k"] = number
            local.append((await backend.checkpoint(number)).local)
        return local


@pytest.mark.parametrize("number", FAILING)
async def test_a_root_that_takes_nothing_gets_no_copies_and_the_others_do(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Opening stopped the job. What lies in the root is still read."""
    settings = settings_of(tmp_path)
    await commit(settings, range(1, 9))
    fail(monkeypatch, job_directories, number, tmp_path / "bad")
    async with sb.open_backend(settings) as backend:
        assert backend.restored is not None
        assert backend.restored.files_primary == 0
        state = backend.value_state("n", int)
        assert state["k"] == 8
        for each in range(9, 25):
            state["k"] = each
            await backend.checkpoint(each)
    assert any(os.strerror(number) in record.getMessage() for record in caplog.records)
    assert found(tmp_path, "good/job_fleet/taskowned/segments/00000002-*")
    assert not found(tmp_path, "bad/job_fleet/taskowned/segments/00000002-*")
    await sb.sweep(settings, dry_run=False)


async def test_a_root_that_is_wrong_is_still_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rights and paths are the user's to mend: nobody would look at a warning."""
    fail(monkeypatch, job_directories, errno.EACCES, tmp_path / "bad")
    with pytest.raises(LocalRootError):
        await commit(settings_of(tmp_path), range(1, 2))


@pytest.mark.parametrize("number", FAILING)
@pytest.mark.parametrize("bad", ["tables", ""])
async def test_tables_lie_elsewhere_while_the_disk_of_table_dir_takes_nothing(
    bad: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the local roots, or else in the system's temporary directory."""
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path / "system"))
    (tmp_path / "system").mkdir()
    settings = settings_of(tmp_path, table="rocksdb", table_dir=f"{tmp_path}/tables", local=(f"{tmp_path}/good",))
    fail(monkeypatch, scratch, number, tmp_path / bad if bad else tmp_path / "good")
    if not bad:
        fail(monkeypatch, scratch, number, tmp_path / "tables")
    async with sb.open_backend(settings) as backend:
        backend.value_state("n", int)["k"] = 1
        await backend.checkpoint(1)
        where = "good/scratch/scratch-*/rocksdb" if bad else "system/*/scratch-*/rocksdb"
        assert found(tmp_path, where)
    async with sb.open_backend(settings, read_only=True) as backend:
        assert backend.value_state("n", int)["k"] == 1
    assert not found(tmp_path, "**/rocksdb")


@pytest.mark.parametrize("everywhere", [False, True])
async def test_a_cache_without_a_disk_of_its_own_reads_through_another_or_the_primary(
    everywhere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saves time, and decides nothing."""
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path / "system"))
    (tmp_path / "system").mkdir()
    settings = settings_of(tmp_path, local=(), cache_dir=f"{tmp_path}/cache")
    await commit(settings, range(1, 4))
    fail(monkeypatch, scratch, errno.ENOSPC, tmp_path if everywhere else tmp_path / "cache")
    async with sb.owners.open_download_cache(settings) as cache:
        async with sb.open_backend(settings, cache=cache) as backend:
            assert backend.value_state("n", int)["k"] == 3
        assert bool(cache.held_bytes) is not everywhere
