"""SIGKILL to a process between its commit and its publication, within that and after it; then another goes on."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import statebackend as sb
from tests.log.outbox_child import BATCHES, main, settings_in

ROOT = Path(__file__).parents[2]


async def committed_in(directory: Path) -> dict[sb.Key, bytes]:
    async with sb.open_backend(settings_in(directory), read_only=True) as backend:
        return dict(backend.value_state("rows", bytes))


@pytest.mark.parametrize("place", ["committed", "half", "published"])
def test_rows_are_received_as_they_were_committed_wherever_the_process_dies(place: str, tmp_path: Path) -> None:
    """Each batch whole and once, though no process would have given the same rows again."""
    (tmp_path / "received").mkdir()
    command = [sys.executable, "-m", "tests.log.outbox_child", str(tmp_path), place]
    killed = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert sorted(path.name for path in (tmp_path / "received").iterdir()) == (
        ["0"] if place == "committed" else ["0", "1"]
    )
    asyncio.run(main(tmp_path, "nowhere"))
    committed = asyncio.run(committed_in(tmp_path))
    assert list(committed) == list(range(BATCHES))
    assert {int(path.name): path.read_bytes() for path in (tmp_path / "received").iterdir()} == committed
