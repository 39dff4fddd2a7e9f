"""Whole processes killed with SIGKILL over a bucket: nothing acknowledged is lost, and no batch is applied twice.

Nor does anything stay that a sweep does not find.
"""

import random

import pytest

from benchmarks.servers import Server
from statebackend.objectstore.s3 import open_s3_store
from tests.mortal_jobs import check, check_swept
from tests.mortals import last_word
from tests.s3.killed_child import live, settings_of


@pytest.mark.parametrize("seed", [1, 2])
async def test_killed_from_outside_again_and_again(server: Server, bucket: str, seed: int) -> None:
    """Four lives of one job, each ended while it works: each continues where the last one was acknowledged."""
    chance = random.Random(seed)
    place = server, bucket, f"outside/{seed}"
    acknowledged, settings = -1, settings_of(*place)
    for _ in range(4):
        acknowledged = max(acknowledged, last_word(live, *place, words=chance.randrange(1, 8)))
        await check(settings, acknowledged)


async def test_killed_at_every_request_of_the_protocol(server: Server, bucket: str) -> None:
    """One job, killed at each request of its first batches, before and after the request took effect."""
    place = server, bucket, "inside"
    acknowledged, settings = -1, settings_of(*place)
    for nth in (1, 2, 3, 6):
        for moment in ("before", "after"):
            acknowledged = max(acknowledged, last_word(live, *place, nth=nth, moment=moment))
            await check(settings, acknowledged)
            await check_swept(settings, open_s3_store(settings.primary, settings.s3))
    assert acknowledged >= 1
