"""What is in memory while a state is read does not grow with it."""

import tracemalloc
from collections.abc import Awaitable

import anyio
import pyarrow as pa
import pytest

import statebackend as sb
from statebackend._reading import batches as batches_module
from statebackend._reading import opened_state
from statebackend.objectstore import MemoryStore
from statebackend.settings import KiB, MiB
from statebackend.testing import run_virtual
from tests.reading.states import table_of
from tests.reading.test_beside import BASES, CountingBytes
from tests.rewrite.jobs import settings_of

ROW_BYTES = 500


async def test_a_state_is_read_in_a_part_of_its_size() -> None:
    """A few files and a frame. The long form, with 5,000,000 keys within 256 MiB, is `benchmarks/reading.py`."""
    store, keys = MemoryStore(), 20_000
    settings = settings_of(64, compression="none", in_flight_bytes_max=MiB, **BASES)
    async with sb.open_backend(settings, store=store) as backend:
        backend.value_state("n", str).update({f"key {number}": f"{number:0{ROW_BYTES}}" for number in range(keys)})
        await backend.checkpoint(1)
        await backend._base_writer.settled()
        backend.value_state("n", str)["key 1"] = "changed"
        await backend.checkpoint(2)
    await table_of(settings, "n", store=store, keys=["key 1"])  # imports are no part of it
    rows, arrow_bytes = 0, 0
    tracemalloc.start()
    try:
        async with sb.read_batches(settings, "n", store=store) as batches:
            async for batch in batches:
                rows += batch.num_rows
                arrow_bytes = max(arrow_bytes, pa.total_allocated_bytes())
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows == keys
    assert peak_bytes + arrow_bytes < keys * ROW_BYTES / 3


class CountingReads(MemoryStore):
    """Counts the segments that are being read, and the most at a time."""

    reading = most = 0

    async def get(self, key: str) -> bytes:
        return await self._counted(key, super().get(key))

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        return await self._counted(key, super().get_range(key, offset, length))

    async def _counted(self, key: str, read: Awaitable[bytes]) -> bytes:
        if "/segments/" not in key:
            return await read
        self.reading += 1
        self.most = max(self.most, self.reading)
        await anyio.sleep(1)
        found = await read
        self.reading -= 1
        return found


@pytest.mark.parametrize(("fetched_bytes_max", "at_once"), [(1, 1), (MiB, 3)])
@run_virtual
async def test_files_are_fetched_ahead_within_bounds(
    fetched_bytes_max: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as the setting says, but no more than their bytes allow: a large one is fetched alone."""
    store = CountingReads()
    settings = settings_of(8, **{**BASES, "restore_concurrency_max": 3, "materialize_handles_max": 0})
    async with sb.open_backend(settings, store=store) as backend:
        for number in range(8):
            backend.value_state("n", int)[f"k{number}"] = number
            await backend.checkpoint(number)
        monkeypatch.setattr(batches_module, "FETCHED_BYTES_MAX", fetched_bytes_max)
        store.most = 0
        assert (await table_of(settings, "n", store=store)).num_rows == 8
    assert store.most == at_once


async def test_what_is_held_of_a_list_state_does_not_grow_with_its_keys() -> None:
    """An entry that is handed over is forgotten, with all that was noted of its key."""
    store, keys = MemoryStore(), 20_000
    settings = settings_of(64, in_flight_bytes_max=MiB, **BASES)
    async with sb.open_backend(settings, store=store) as backend:
        state = backend.list_state("n", int)
        for number in range(keys):
            state[f"key {number}"].append(1)
        await backend.checkpoint(1)
        await backend._base_writer.settled()
        state["key 1"].append(2)
        await backend.checkpoint(2)
    await table_of(settings, "n", store=store, keys=["key 1"])  # imports are no part of it
    rows, held_bytes = 0, list[int]()
    tracemalloc.start()
    try:
        async with sb.read_batches(settings, "n", store=store) as batches:
            async for batch in batches:
                rows += batch.num_rows
                held_bytes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert rows == keys
    assert max(held_bytes) - held_bytes[0] < keys * 8, "less than one pointer for each key"


@pytest.mark.parametrize(("kind", "is_read_once"), [("value", True), ("list", False)])
async def test_a_changelog_is_read_once_if_its_keys_fit(
    kind: str, is_read_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large its values are, since no value is kept. Those of lists are, so that some are read at a time."""
    store, keys, value = CountingBytes(), 64, "x" * 8 * KiB
    settings = settings_of(
        8, compression="none", inline_bytes_max=0, materialize_handles_max=0, materialize_changelog_ratio=0
    )
    async with sb.open_backend(settings, store=store) as backend:
        values, lists = backend.value_state("value", str), backend.list_state("list", str)
        for number in range(keys):
            values[f"key {number}"] = value
            lists[f"key {number}"].append(value)
        await backend.checkpoint(1)
    stored_bytes = sum([info.size_bytes async for info in store.list("") if "/segments/" in info.key])
    assert stored_bytes > 2 * keys * len(value)
    monkeypatch.setattr(opened_state, "KEYS_BYTES_MAX", stored_bytes // 2)
    store.read_bytes = 0
    assert (await table_of(settings, kind, store=store)).num_rows == keys
    assert (store.read_bytes <= stored_bytes) == is_read_once
