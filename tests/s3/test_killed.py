"""Whole processes killed with SIGKILL over a bucket: nothing acknowledged is lost, and no batch is applied twice.

Nor does anything stay that a sweep does not find.
"""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import statebackend as sb
from benchmarks.servers import Server
from statebackend._clock import SystemClock
from statebackend.objectstore import PROBE_KEY
from statebackend.objectstore.s3 import open_s3_store
from tests.backend.killed_child import apply, batch_changes
from tests.backend.reachable import reachable_keys
from tests.s3.killed_child import settings_of

ROOT = Path(__file__).parents[2]


def run_child(server: Server, bucket: str, prefix: str, *args: str, acknowledgements: int | None = None) -> int:
    """Run the child until it dies, or kill it after so many acknowledgements; the last acknowledged batch, or -1."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.s3.killed_child", json.dumps(dataclasses.astuple(server)), bucket, prefix, *args],
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


async def check(settings: sb.Settings, acknowledged: int) -> None:
    """The state is that of a dictionary to which every batch up to the committed one was applied once."""
    async with sb.open_backend(settings, read_only=True) as backend:
        source = backend.newest.source if backend.newest is not None else None
        committed = -1 if source is None else source.batch_id
        assert committed >= acknowledged
        expected: dict[sb.Key, int] = {}
        for batch in range(committed + 1):
            apply(expected, batch_changes(batch))
        assert dict(backend.value_state("n", int)) == expected


@pytest.mark.parametrize("seed", [1, 2])
async def test_killed_from_outside_again_and_again(server: Server, bucket: str, seed: int) -> None:
    """Four lives of one job, each ended while it works: each continues where the last one was acknowledged."""
    chance = random.Random(seed)
    acknowledged, prefix = -1, f"outside/{seed}"
    for _ in range(4):
        lives = chance.randrange(1, 8)
        acknowledged = max(acknowledged, run_child(server, bucket, prefix, acknowledgements=lives))
        await check(settings_of(server, bucket, prefix), acknowledged)


async def check_swept(settings: sb.Settings) -> None:
    """Go on by a checkpoint, let all of the job grow old, and sweep it: what is reachable stays, and nothing else."""
    async with sb.open_backend(settings) as backend:
        source = backend.newest.source if backend.newest is not None else None
        await backend.checkpoint(backend.next_checkpoint_id, source=source)
    for _ in range(2):  # the mark of how far the sweep before went is garbage only for the next one
        report = await sb.sweep(settings, dry_run=False, min_age_s=0.0, clock=DaysAhead())
        assert (report.failures, report.stopped) == ((), None)
    async with open_s3_store(settings, commits=False) as store:
        keys = [info.key async for info in store.list("fleet/")]
        objects = {key.removeprefix("fleet/"): await store.get(key) for key in keys}
    assert objects.keys() - {PROBE_KEY} == reachable_keys(objects, "fleet", retained=settings.checkpoints_retained)


class DaysAhead(SystemClock):
    """A clock for which all that lies in S3 is old."""

    def time(self) -> float:
        return super().time() + 3 * 86_400.0


async def test_killed_at_every_request_of_the_protocol(server: Server, bucket: str) -> None:
    """One job, killed at each request of its first batches, before and after the request took effect."""
    acknowledged, prefix = -1, "inside"
    for nth in (1, 2, 3, 6):
        for moment in ("before", "after"):
            acknowledged = max(acknowledged, run_child(server, bucket, prefix, str(nth), moment))
            await check(settings_of(server, bucket, prefix), acknowledged)
            await check_swept(settings_of(server, bucket, prefix))
    assert acknowledged >= 1
