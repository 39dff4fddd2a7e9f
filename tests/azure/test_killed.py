"""Whole processes killed with SIGKILL over a container: nothing acknowledged is lost, and no batch is applied twice.

Nor does anything stay that a sweep does not find.
"""

import random

from benchmarks.azurite import Azurite
from statebackend.objectstore.azure import open_azure_store
from tests.azure.killed_child import live, settings_of
from tests.mortal_jobs import check, check_swept
from tests.mortals import last_word


async def test_killed_from_outside_again_and_again(server: Azurite, container: str) -> None:
    """Three lives of one job, each ended while it works: each continues where the last one was acknowledged."""
    chance = random.Random(3)
    place = server, container, "outside"
    acknowledged, settings = -1, settings_of(*place)
    for _ in range(3):
        acknowledged = max(acknowledged, last_word(live, *place, words=chance.randrange(1, 8)))
        await check(settings, acknowledged)


async def test_killed_at_every_request_of_the_protocol(server: Azurite, container: str) -> None:
    """One job, killed at each request of its first batches, before and after the request took effect."""
    place = server, container, "inside"
    acknowledged, settings = -1, settings_of(*place)
    for nth in (1, 2, 3):
        for moment in ("before", "after"):
            acknowledged = max(acknowledged, last_word(live, *place, nth=nth, moment=moment))
            await check(settings, acknowledged)
            await check_swept(settings, open_azure_store(settings.primary, settings.azure))
    assert acknowledged >= 1
