"""Whole processes killed with SIGKILL: nothing acknowledged is lost, and no batch is applied twice."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import statebackend as sb
from statebackend._codec.commit import Claim
from statebackend.testing.invariants import read_log
from tests.backend.conftest import tree_of
from tests.backend.killed_child import apply, batch_changes, settings_in

ROOT = Path(__file__).parents[2]


def run_child(directory: Path, *args: str, acknowledgements: int | None = None) -> int:
    """Run the child until it dies, or kill it after so many acknowledgements; the last acknowledged batch, or -1."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.backend.killed_child", str(directory), *args],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert child.stdout is not None
    last = -1
    with child:
        for count, line in enumerate(child.stdout, start=1):
            last = int(line)
            if count == acknowledgements:
                child.kill()
    assert child.returncode == -signal.SIGKILL
    return last


async def check(directory: Path, acknowledged: int) -> sb.RestoreReport | None:
    """The state is that of a dictionary to which every batch up to the committed one was applied once."""
    async with sb.open_backend(settings_in(directory)) as backend:
        source = backend.newest.source if backend.newest is not None else None
        committed = -1 if source is None else source.batch_id
        assert committed >= acknowledged
        expected: dict[sb.Key, int] = {}
        for batch in range(committed + 1):
            apply(expected, batch_changes(batch))
        assert dict(backend.value_state("n", int)) == expected
        return backend.restored


@pytest.mark.parametrize("seed", [1, 2])
async def test_killed_from_outside_again_and_again(tmp_path: Path, seed: int) -> None:
    """Five lives of one job, each ended while it works: each continues where the last one was acknowledged."""
    chance = random.Random(seed)
    acknowledged = -1
    for _ in range(5):
        acknowledged = max(acknowledged, run_child(tmp_path, acknowledgements=chance.randrange(1, 12)))
        report = await check(tmp_path, acknowledged)
        assert report is not None
        # The local copy of a committed segment was durable before its commit: a kill costs no download.
        assert report.files_primary == 0


async def test_killed_at_every_request_of_the_protocol(tmp_path: Path) -> None:
    """One job, killed at each request of opening it and of the next batches, before and after it took effect."""
    acknowledged = -1
    for nth in range(1, 13):
        for moment in ("before", "after"):
            acknowledged = max(acknowledged, run_child(tmp_path, str(nth), moment))
            await check(tmp_path, acknowledged)
    log = read_log({name.removeprefix("primary/killed/"): data for name, data in tree_of(tmp_path).items()}, "killed")
    assert sum(isinstance(entry, Claim) for entry in log) == log[-1].epoch
    assert acknowledged > 5
