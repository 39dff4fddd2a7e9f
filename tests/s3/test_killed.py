"""Whole processes killed with SIGKILL over a bucket: nothing acknowledged is lost, and no batch is applied twice.

Nor does anything stay that a sweep does not find.
"""

import random

import pytest

import statebackend as sb
from benchmarks.servers import Server
from statebackend._clock import SystemClock
from statebackend.objectstore import PROBE_KEY
from statebackend.objectstore.s3 import open_s3_store
from tests.backend.killed_child import apply, batch_changes
from tests.backend.reachable import reachable_keys
from tests.mortals import last_word
from tests.s3.killed_child import live, settings_of


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
    place = server, bucket, f"outside/{seed}"
    acknowledged, settings = -1, settings_of(*place)
    for _ in range(4):
        acknowledged = max(acknowledged, last_word(live, *place, words=chance.randrange(1, 8)))
        await check(settings, acknowledged)


async def check_swept(settings: sb.Settings) -> None:
    """Go on by a checkpoint, let all of the job grow old, and sweep it: what is reachable stays, and nothing else."""
    async with sb.open_backend(settings) as backend:
        source = backend.newest.source if backend.newest is not None else None
        await backend.checkpoint(backend.next_checkpoint_id, source=source)
    for _ in range(2):  # the mark of how far the sweep before went is garbage only for the next one
        report = await sb.sweep(settings, dry_run=False, min_age_s=0.0, clock=DaysAhead())
        assert (report.failures, report.stopped) == ((), None)
    async with open_s3_store(settings.primary, settings.s3) as store:
        keys = [info.key async for info in store.list("fleet/")]
        objects = {key.removeprefix("fleet/"): await store.get(key) for key in keys}
    assert objects.keys() - {PROBE_KEY} == reachable_keys(objects, "fleet", retained=settings.checkpoints_retained)


class DaysAhead(SystemClock):
    """A clock for which all that lies in S3 is old."""

    def time(self) -> float:
        return super().time() + 3 * 86_400.0


async def test_killed_at_every_request_of_the_protocol(server: Server, bucket: str) -> None:
    """One job, killed at each request of its first batches, before and after the request took effect."""
    place = server, bucket, "inside"
    acknowledged, settings = -1, settings_of(*place)
    for nth in (1, 2, 3, 6):
        for moment in ("before", "after"):
            acknowledged = max(acknowledged, last_word(live, *place, nth=nth, moment=moment))
            await check(settings, acknowledged)
            await check_swept(settings)
    assert acknowledged >= 1
