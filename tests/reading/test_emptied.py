"""A state whose keys are all gone is empty for every reader: of each kind, in each table, with and without bases."""

import random
from pathlib import Path
from typing import Any

import anyio
import pytest

import statebackend as sb
from statebackend import cli
from tests.knobs import settings_with
from tests.reading.odd_states import KINDS, text_of
from tests.reading.states import table_of
from tests.reading.test_every_reader import value_of
from tests.reading.test_feed import between, feed_of


def emptied(tmp_path: Path, table: str, bases: int) -> sb.Settings:
    """A job whose first checkpoint has keys in each state, and whose second has none."""
    settings = settings_with(
        job="fleet",
        primary=f"file://{tmp_path}/primary",
        max_parallelism=6,
        table=table,
        table_dir=f"{tmp_path}/tables",
        table_memory_bytes=4 << 20,
        checkpoints_retained=9,
        materialize_handles_max=bases,
        materialize_interval_s=0.0,
        materialize_changelog_ratio=0,
        persist_delay_s=0.0,
    )

    async def work() -> None:
        drawn = random.Random(f"{table} {bases}")
        async with sb.open_backend(settings) as backend:
            states = {name: kind.declare(backend) for name, kind in KINDS.items()}
            for checkpoint_id in (1, 2):
                for name, kind in KINDS.items():
                    model: dict[Any, Any] = {}
                    if checkpoint_id == 1:
                        while not model:
                            for key in kind.keys:
                                kind.write(states[name], model, key, drawn)
                    else:
                        remove_all(states[name], name)
                await backend.checkpoint(checkpoint_id)
                await backend._base_writer.settled()
            await backend.checkpoint(3)

    anyio.run(work)
    return settings


def remove_all(state: Any, name: str) -> None:
    """Every key of the state."""
    for key in list(state):
        if name == "timers":
            for at in list(state.registered(key)):
                state.delete(key, at)
        elif name == "list" or KINDS[name].is_map:
            state[key].clear()
        else:
            del state[key]


@pytest.mark.parametrize("bases", [0, 1])
@pytest.mark.parametrize("table", ["heap", "rocksdb", "runs"])
def test_every_reader_has_no_row(table: str, bases: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the differences and the feed have each key as removed, with the value that it had."""
    if table == "rocksdb":
        pytest.importorskip("rocksdict", reason="the extra rocksdb")
    settings = emptied(tmp_path, table, bases)

    async def check() -> None:
        found = await between(settings, None, 0)
        async with sb.read_rows(settings) as rows:
            assert list(rows) == []
        differences = [each async for each in sb.diff(settings, 1, 3)]
        for name, kind in KINDS.items():
            before = (await table_of(settings, name, checkpoint_id=1, key_as_json=kind.is_mixed)).to_pylist()
            assert before
            assert (await table_of(settings, name)).num_rows == 0
            assert (await table_of(settings, name, keys=kind.keys[:1])).num_rows == 0
            for form in ("csv", "parquet", "jsonl"):
                report = await sb.export(settings, name, tmp_path / f"{name}.{form}", format=form)
                assert report.rows == 0
            own = [each for each in differences if each.state == name]
            assert [each.change for each in own] == ["removed"] * len(before)
            asked = {"key_as_json": True} if kind.is_mixed else {"old_values": True}
            changes = (await feed_of(settings, None, name, found, **asked)).to_pylist()
            gone = [row for row in changes if row["checkpoint_id"] == 2]
            assert {row["change_type"] for row in gone} == {"delete"}
            assert len(gone) == len(before)
            if not kind.is_mixed:
                had = {text_of(row["key"]): kind.form(value_of(row)) for row in before}
                assert {text_of(row["key"]): kind.form(row["old_value"]) for row in gone} == had

    anyio.run(check)
    for command in (["dump"], *(["scan", name] for name in KINDS)):
        capsys.readouterr()
        assert cli.main([*command, "--primary", settings.primary, "--job", "fleet"]) == cli.OK
        assert not [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
