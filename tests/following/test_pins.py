"""A follower that pins what it reads: no sweep takes it meanwhile, and afterwards nothing is left of the pin."""

from collections.abc import AsyncGenerator

import anyio
import pytest

import statebackend as sb
from statebackend.errors import StoreAccessError
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fail, FaultyStore, Hold, run_virtual
from statebackend.testing.virtual_time import VirtualClock
from tests.following.test_following import SETTINGS, commit, followed
from tests.rewrite.jobs import settings_of


@pytest.mark.parametrize("pin", [True, False])
def test_a_pin_keeps_a_commit_while_it_is_read(pin: bool) -> None:
    """For hours, if that takes so long; afterwards nothing is left of it. Without one, a sweep may be faster."""

    @run_virtual
    async def go() -> None:
        clock = VirtualClock()
        store = MemoryStore(clock=clock)
        settings = settings_of(4, inline_bytes_max=0, checkpoints_retained=1, materialize_handles_max=1)
        seen_through = FaultyStore(store, [hold := Hold(operation="get", key="*/segments/*")])
        found: list[dict[sb.Key, int]] = []

        async def follow() -> None:
            async with sb.follow(settings, store=seen_through, clock=clock, pin=pin) as follower:
                found.append(dict(follower.value_state("n", int)))

        async with sb.open_backend(settings, store=store, clock=clock) as backend:
            await commit(backend, 1, a=1)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow)
                await hold.reached.wait()
                for number in range(2, 8):
                    await anyio.sleep(1200)
                    await commit(backend, number, a=number)
                    await sb.sweep(settings, dry_run=False, store=store, clock=clock)
                hold.release()
        assert found == [{"a": 1 if pin else 7}]
        puts = [key for operation, key in seen_through.calls if operation == "put"]
        assert len(puts) == (13 if pin else 0), "one, and another one every ten minutes"
        assert [key async for key in _keys_of(store, "savepoints")] == []

    go()


async def _keys_of(store: MemoryStore, folder: str) -> AsyncGenerator[str]:
    async for info in store.list(f"{SETTINGS.job}/{folder}/"):
        yield info.key


@run_virtual
async def test_a_pin_needs_rights_to_write() -> None:
    """It says so at once. Without the option none are needed."""
    store = MemoryStore()
    seen_through = FaultyStore(store, [Fail(operation="put", error=StoreAccessError("only to be read"))])
    async with followed(store, seen_through):
        pass
    with pytest.raises(StoreAccessError):
        async with sb.follow(SETTINGS, store=seen_through, pin=True):
            pass
