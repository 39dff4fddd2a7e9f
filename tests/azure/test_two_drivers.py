"""Two drivers of one job, one of which is held at each of its requests: what each was told is what is there."""

import asyncio

import pytest

import statebackend as sb
from benchmarks.azurite import Azurite
from statebackend.errors import FencedError
from statebackend.objectstore.azure import open_azure_store
from statebackend.testing import FaultyStore, Hold
from statebackend.testing.faults import Moment
from tests.azure.clients import settings_for

REQUESTS_MAX = 40


async def add(settings: sb.Settings, number: int, store: sb.ObjectStore | None = None) -> bool:
    """Open the job, add to its total and commit. False if somebody else has taken the job."""
    try:
        async with sb.open_backend(settings, store=store) as backend:
            totals = backend.reducing_state("totals", int, int.__add__)
            totals.add("all", number)
            await backend.checkpoint(backend.next_checkpoint_id)
    except FencedError:
        return False
    return True


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_driver_that_is_told_that_it_has_committed_has(server: Azurite, container: str, moment: Moment) -> None:
    """The first is held before, or behind, its nth request, from opening to the end, while another comes and goes."""
    outcomes = set[bool]()
    for nth in range(1, REQUESTS_MAX):
        settings = settings_for(server, container, prefix=f"{moment}/{nth}", inline_bytes_max=0)
        assert await add(settings, 1)
        hold = Hold(nth=nth, moment=moment)
        async with open_azure_store(settings.primary, settings.azure) as store:
            held = asyncio.create_task(add(settings, 10, FaultyStore(store, [hold])))
            reached = asyncio.create_task(hold.reached.wait())
            await asyncio.wait([held, reached], return_when=asyncio.FIRST_COMPLETED)
            reached.cancel()
            assert await add(settings, 100), "nobody else has come"
            hold.release()
            has_committed = await held
            outcomes.add(has_committed)
        async with sb.open_backend(settings, read_only=True) as backend:
            assert backend.reducing_state("totals", int, int.__add__)["all"] == 101 + 10 * has_committed
        if not hold.matched >= nth:
            break
    else:
        pytest.fail(f"more than {REQUESTS_MAX} requests")
    assert outcomes == {True, False}
