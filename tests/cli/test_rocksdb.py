"""Every command on a job whose bases are files of RocksDB, written by its ranges."""

import json
import os
from pathlib import Path

import anyio
import msgspec
import pytest

import statebackend as sb
from statebackend import cli
from statebackend._codec.commit import Commit, decode_entry
from statebackend._ranges.range_owners import open_range_owners
from tests.cli.conftest import Place
from tests.ranges.parts import Changes, Model, add, open_run

pytest.importorskip("rocksdict", reason="the extra rocksdb")

SAVED, NEWEST = Model(), Model()
for number in range(4):
    for model in (SAVED, NEWEST) if number < 3 else (NEWEST,):
        model.apply([(key, number) for key in range(20)])


@pytest.fixture
def natives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    """A job of four batches in two ranges. The third is a savepoint; it and the newest have RocksDB bases."""
    place = Place(tmp_path, capsys)
    place.settings = sb.Settings(
        job="fleet",
        primary=place.settings.primary,
        local=place.settings.local,
        max_parallelism=12,
        table="rocksdb",
        table_dir=f"{tmp_path}/tables",
        table_memory_bytes=4 << 20,
        materialize_handles_max=1,
        materialize_interval_s=0.0,
        inline_bytes_max=0,
    )
    anyio.run(_work, place.settings)
    assert all(part.rocksdb for part in newest(place).ranges)
    return place


async def _work(settings: sb.Settings) -> None:
    async with open_run(settings, 2) as run, open_range_owners() as owners:
        for number in range(4):
            contributions = [
                await run.contribute(owners, task, [(key, number) for key in range(20)]) for task in run.tasks()
            ]
            await run.commit(contributions, savepoint="kept" if number == 2 else None)


def newest(place: Place) -> Commit:
    path = max(path for path in place.job.glob("commits/[!.]*"))
    entry = decode_entry(path.read_bytes(), f"commits/{path.name}", job="fleet")
    assert isinstance(entry, Commit)
    return entry


def restored(place: Place, *options: str) -> dict[sb.Key, list[int]]:
    """The lists, as `restore` prints them."""
    status, printed = place.run("dump", "--state", "rows", *options)
    assert status == cli.OK, printed
    rows = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return {row["key"]: row["value"] for row in rows}


@pytest.mark.parametrize("table", ["heap", "rocksdb"])
def test_it_is_looked_at_read_and_verified(natives: Place, table: str) -> None:
    """Into either table, from either checkpoint, as a whole or one key of it."""
    assert restored(natives, "--table", table) == NEWEST.rows
    assert restored(natives, "--table", table, "--key", "3") == {3: NEWEST.rows[3]}
    assert restored(natives, "--table", table, "--savepoint", "kept") == SAVED.rows
    for command in ("inspect", "report", "verify"):
        status, printed = natives.run(command)
        assert status == cli.OK, printed


@pytest.mark.parametrize("table", ["heap", "rocksdb"])
def test_it_is_rewritten_and_what_came_before_is_kept_or_swept(natives: Place, table: str) -> None:
    """The savepoint keeps its files and its number of key groups; the job continues, in the driver and in ranges."""
    status, printed = natives.run("rewrite", "--max-parallelism", "7", "--table", table)
    assert status == cli.OK, printed
    assert not any(part.rocksdb for part in newest(natives).ranges)
    for entry in natives.job.glob("commits/[!.]*"):
        os.utime(entry, (1.0, 1.0))
    status, printed = natives.run("sweep", "--delete", "--min-age-s", "0")
    assert status == cli.OK, printed
    status, printed = natives.run("verify")
    assert status == cli.OK, printed
    assert restored(natives) == NEWEST.rows
    assert restored(natives, "--savepoint", "kept") == SAVED.rows
    natives.settings = msgspec.structs.replace(natives.settings, max_parallelism=7)
    anyio.run(_go_on, natives.settings)


async def _go_on(settings: sb.Settings) -> None:
    await NEWEST.check(settings)
    expected = Model()
    expected.rows = {key: list(numbers) for key, numbers in NEWEST.rows.items()}
    for number in range(4, 6):
        changes: Changes = [(key, number) for key in range(20)]
        if number == 4:
            async with sb.open_backend(settings) as backend:
                add(backend, changes)
                await backend.checkpoint(backend.next_checkpoint_id)
        else:
            await _batch(settings, number)
        expected.apply(changes)
    await expected.check(settings)


async def _batch(settings: sb.Settings, number: int) -> None:
    async with open_run(settings, 3) as run, open_range_owners() as owners:
        await run.batch(owners, [(key, number) for key in range(20)])
