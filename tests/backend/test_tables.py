"""A job whose entries lie in dictionaries in one run and in RocksDB in the next."""

import operator
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

import statebackend as sb
from statebackend.errors import BackendClosedError, SettingsError
from statebackend.settings import TableKind
from statebackend.testing import run_virtual
from statebackend.testing.virtual_time import VirtualClock, settle
from tests.backend.conftest import tree_of
from tests.checkpoint.bases import Watcher

pytest.importorskip("rocksdict", reason="the extra rocksdb")

RUNS: list[list[TableKind]] = [["heap", "rocksdb", "heap"], ["rocksdb", "heap", "rocksdb"], ["rocksdb", "rocksdb"]]


def on(settings: sb.Settings, table: TableKind) -> sb.Settings:
    return msgspec.structs.replace(settings, table=table, table_memory_bytes=4 << 20)


def write(backend: sb.StateBackend, run: int) -> dict[str, object]:
    """A change to every kind of state, and what there is afterwards."""
    values, lists = backend.value_state("values", int), backend.list_state("lists", str)
    maps, totals = backend.map_state("maps", str, int), backend.reducing_state("totals", int, operator.add)
    timers = backend.timers("timers")
    for key in range(100):
        values[key + 10 * run] = run
        lists[key].append(f"run {run}")
        maps[key][f"run {run}"] = run
        totals.add(key, 1)
    del values[10 * run]
    timers.register("key", float(run))
    return contents(backend)


def contents(backend: sb.StateBackend) -> dict[str, object]:
    return {
        "values": dict(backend.value_state("values", int)),
        "lists": {key: list(found) for key, found in backend.list_state("lists", str).items()},
        "maps": {key: dict(found) for key, found in backend.map_state("maps", str, int).items()},
        "totals": dict(backend.reducing_state("totals", int, operator.add)),
        "timers": list(backend.timers("timers")),
    }


async def written(settings: sb.Settings, tables: list[TableKind]) -> list[dict[str, object]]:
    seen: list[dict[str, object]] = []
    for run, table in enumerate(tables):
        async with sb.open_backend(on(settings, table)) as backend:
            assert (backend.restored is None) == (run == 0)
            seen.append(write(backend, run))
            await backend.checkpoint(run)
    return seen


@pytest.mark.parametrize("tables", RUNS, ids="-".join)
async def test_the_table_may_change_between_two_runs(
    settings: sb.Settings, tmp_path: Path, tables: list[TableKind]
) -> None:
    """The changelog is the truth, and knows no tables: every run sees what it would have seen on the heap."""
    on_heap = msgspec.structs.replace(settings, primary=f"file://{tmp_path}/other", local=())
    assert await written(settings, tables) == await written(on_heap, ["heap"] * len(tables))


@pytest.mark.parametrize("table", get_args(TableKind))
@run_virtual
async def test_a_base_of_one_table_is_restored_into_the_other(
    settings: sb.Settings, tmp_path: Path, table: TableKind
) -> None:
    """A base is made of a copy, in other threads, while the state is written on."""
    watcher = Watcher()
    seen: dict[str, object] = {}
    settings = msgspec.structs.replace(settings, materialize_handles_max=1, materialize_retry_delay_s=0.0)
    async with sb.open_backend(on(settings, table), clock=VirtualClock(), observer=watcher) as backend:
        for run in range(3):
            seen = write(backend, run)
            await backend.checkpoint(run)
            await settle()
    assert watcher.written
    assert not watcher.failed
    other = next(each for each in get_args(TableKind) if each != table)
    async with sb.open_backend(on(settings, other), clock=VirtualClock()) as backend:
        assert contents(backend) == seen


async def test_its_files_are_gone_with_the_backend(settings: sb.Settings, tmp_path: Path) -> None:
    """While it is open they lie below the first local root; a killed process's go with the next (`test_scratch.py`)."""
    scratch = tmp_path / "local" / "scratch"
    async with sb.open_backend(on(settings, "rocksdb")) as backend:
        write(backend, 0)
        assert any("rocksdb" in name for name in tree_of(scratch))
    assert set(tree_of(scratch)) == {"lock"}


async def test_what_was_kept_of_a_closed_backend_says_so(settings: sb.Settings) -> None:
    """Its entries were in the files, and the files are gone. On the heap they would be there for ever."""
    async with sb.open_backend(on(settings, "rocksdb")) as backend:
        values = backend.value_state("values", int)
        values["key"] = 1
        assert dict(values) == {"key": 1}
    with pytest.raises(BackendClosedError):
        values["key"]


async def test_they_lie_where_the_settings_say(settings: sb.Settings, tmp_path: Path) -> None:
    """Not every disk that is good for copies is good for this."""
    elsewhere = msgspec.structs.replace(on(settings, "rocksdb"), table_dir=f"{tmp_path}/elsewhere")
    async with sb.open_backend(elsewhere):
        assert any("rocksdb" in name for name in tree_of(tmp_path / "elsewhere"))


async def test_without_the_extra_it_is_a_wrong_setting(settings: sb.Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said when the backend is opened, with the name of what to install."""
    for module in ("_tables.rocksdb", "_tables.rocksdb_files", "_tables.rocksdb_tables"):
        monkeypatch.delitem(sys.modules, f"statebackend.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(SettingsError, match="rocksdb"):
        async with sb.open_backend(on(settings, "rocksdb")):
            pass
