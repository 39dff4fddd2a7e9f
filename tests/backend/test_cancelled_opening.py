"""An opening that is cancelled, however early, ends as cancelled, and leaves nothing for the loop to complain of."""

import asyncio
import gc
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio.lowlevel
import pytest

import statebackend as sb
from statebackend._ranges.range_owners import open_range_owners
from statebackend._tasks import simulate_threads
from statebackend.objectstore import MemoryStore
from tests.knobs import replaced

SETTINGS = sb.Settings(job="fleet", primary="memory://unused", persist_delay_s=0.0, max_parallelism=16)
OWNED = sb.owners.KeyGroupRange(0, 7)
STEPS = 100
"""More turns of the loop than any of the openings takes before it waits for a thread."""

OPENINGS: dict[str, Callable[[sb.Settings, sb.ObjectStore], AbstractAsyncContextManager[Any]]] = {
    "backend": lambda settings, store: sb.open_backend(settings, store=store),
    "in rocksdb": lambda settings, store: sb.open_backend(replaced(settings, table="rocksdb"), store=store),
    "owner": lambda settings, store: sb.open_backend(settings, store=store, key_groups=OWNED),
    "owner without a disk": lambda settings, store: sb.open_backend(SETTINGS, store=store, key_groups=OWNED),
    "coordinator": lambda settings, store: sb.owners.open_coordinator(settings, store=store),
    "ranges": lambda settings, store: open_range_owners(store=store),
    "cache": lambda settings, store: sb.owners.open_download_cache(settings),
}


@pytest.mark.parametrize("threads", ["threads", "the loop instead of threads"])
@pytest.mark.parametrize("opening", OPENINGS)
async def test_an_opening_that_is_cancelled_ends_quietly(opening: str, threads: str, tmp_path: Path) -> None:
    """After any turn of the loop, as by a query that is stopped at once, and with threads at any time."""
    if "rocksdb" in opening:
        pytest.importorskip("rocksdict", reason="the extra rocksdb")
    told: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    if threads != "threads":
        simulate_threads(loop, anyio.lowlevel.checkpoint)
    loop.set_exception_handler(lambda _, context: told.append(context))
    settings = replaced(SETTINGS, local=(f"{tmp_path}/local",), cache_dir=f"{tmp_path}/cache")

    async def open_() -> None:
        async with OPENINGS[opening](settings, MemoryStore()):
            await anyio.sleep_forever()

    for steps in range(STEPS):
        task = asyncio.ensure_future(open_())
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert scratch_in(tmp_path) == []
    del task
    gc.collect()
    assert told == []


def scratch_in(directory: Path) -> list[Path]:
    """The scratch directories that are left there."""
    return list(directory.rglob("scratch-*"))
