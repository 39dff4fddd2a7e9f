"""Whole processes killed with SIGKILL over a bucket: nothing acknowledged is lost, and no batch is applied twice.

Nor does anything stay that a sweep does not find.
"""

import random

import pytest

from benchmarks.servers import Server
from statebackend.objectstore.s3 import open_s3_store
from tests.mortal_jobs import check_killed_at_every_request, check_killed_from_outside
from tests.s3.killed_child import live, settings_of


@pytest.mark.parametrize("seed", [1, 2])
async def test_killed_from_outside_again_and_again(server: Server, bucket: str, seed: int) -> None:
    """Four lives."""
    place = server, bucket, f"outside/{seed}"
    await check_killed_from_outside(live, settings_of(*place), *place, lives=4, chance=random.Random(seed))


async def test_killed_at_every_request_of_the_protocol(server: Server, bucket: str) -> None:
    """Those of the first batches."""
    place = server, bucket, "inside"
    settings = settings_of(*place)
    await check_killed_at_every_request(
        live, settings, *place, opening=lambda: open_s3_store(settings.primary, settings.s3), nths=(1, 2, 3, 6)
    )
