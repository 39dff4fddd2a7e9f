"""Whole processes killed with SIGKILL over a container: nothing acknowledged is lost, and no batch is applied twice.

Nor does anything stay that a sweep does not find.
"""

import random

from benchmarks.azurite import Azurite
from statebackend.objectstore.azure import open_azure_store
from tests.azure.killed_child import live, settings_of
from tests.mortal_jobs import check_killed_at_every_request, check_killed_from_outside


async def test_killed_from_outside_again_and_again(server: Azurite, container: str) -> None:
    """Three lives."""
    place = server, container, "outside"
    await check_killed_from_outside(live, settings_of(*place), *place, lives=3, chance=random.Random(3))


async def test_killed_at_every_request_of_the_protocol(server: Azurite, container: str) -> None:
    """Those of the first batches."""
    place = server, container, "inside"
    settings = settings_of(*place)
    await check_killed_at_every_request(
        live, settings, *place, opening=lambda: open_azure_store(settings.primary, settings.azure), nths=(1, 2, 3)
    )
