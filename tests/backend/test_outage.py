"""The primary is down for a minute in the middle of a stream: checkpoints wait or fail cleanly; nothing is lost.

By default they wait.
"""

from dataclasses import dataclass
from typing import Any

import anyio
import msgspec
import pytest

import statebackend as sb
from statebackend.errors import OutcomeUnknownError, StoreUnavailableError, UploadError
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fault, FaultyStore, run_virtual
from statebackend.testing.faults import Operation
from statebackend.testing.virtual_time import VirtualClock
from tests.knobs import settings_with

OUTAGE_S = 60.0


@dataclass(kw_only=True, eq=False)
class Down(Fault):
    """Refuses everything between two moments."""

    since_s: float
    until_s: float

    def strikes(self, operation: Operation, key: str) -> bool:
        return super().strikes(operation, key) and self.since_s <= anyio.current_time() < self.until_s

    async def strike(self) -> None:
        raise StoreUnavailableError("the store is down")


class Silent(Down):
    """Answers nothing between two moments: it is a store that repeats requests itself, for as long as that takes."""

    async def strike(self) -> None:
        await anyio.sleep_until(self.until_s)


def job(*, inline: bool, **changes: Any) -> sb.Settings:
    """As it is by default, but for what is changed."""
    settings = settings_with(job="fleet", primary="memory://unused", **changes)
    return settings if inline else msgspec.structs.replace(settings, inline_bytes_max=0)


async def batches(settings: sb.Settings, store: sb.ObjectStore, count: int) -> None:
    """Go on behind the newest commit, a batch each second, up to batch `count`."""
    async with sb.open_backend(settings, store=store, clock=VirtualClock()) as backend:
        for number in range(backend.next_checkpoint_id, count):
            backend.value_state("n", int)[number] = number
            await backend.checkpoint(number)
            await anyio.sleep(1.0)


@pytest.mark.parametrize("kind", [Down, Silent])
@pytest.mark.parametrize("inline", [True, False])
@run_virtual
async def test_a_stream_waits_for_a_primary_that_comes_back(inline: bool, kind: type[Down]) -> None:
    """Every batch is committed, one of them a minute late, with uploads and commits tried now and then."""
    store, settings = MemoryStore(), job(inline=inline)
    down = FaultyStore(store, [kind(since_s=2.5, until_s=2.5 + OUTAGE_S)])
    await batches(settings, down, 6)
    assert anyio.current_time() > OUTAGE_S
    assert len(down.calls) < 60  # not in a busy loop
    async with sb.open_backend(settings, store=store) as backend:
        assert dict(backend.value_state("n", int)) == {number: number for number in range(6)}


@pytest.mark.parametrize("inline", [True, False])
@run_virtual
async def test_a_stream_that_does_not_wait_so_long_fails_and_continues_without_loss(inline: bool) -> None:
    """By `upload.primary_outage_s`; opened again when the store is back, it stands on the last committed batch."""
    store, settings = MemoryStore(), job(inline=inline, upload__primary_outage_s=20.0)
    down = FaultyStore(store, [Down(since_s=2.5, until_s=2.5 + OUTAGE_S)])
    with pytest.raises(OutcomeUnknownError if inline else UploadError):
        await batches(settings, down, 6)
    assert 20.0 <= anyio.current_time() < 20.0 + 15.0  # and `close_timeout_s`, within which nothing can be removed
    await anyio.sleep(OUTAGE_S)
    await batches(settings, down, 6)
    async with sb.open_backend(settings, store=store) as backend:
        assert dict(backend.value_state("n", int)) == {number: number for number in range(6)}
        assert len([summary async for summary in backend.history()]) == 6
