"""What is in memory while a state is read does not grow with it."""

import tracemalloc

import pyarrow as pa

import statebackend as sb
from statebackend.objectstore import MemoryStore
from statebackend.settings import MiB
from tests.reading.states import table_of
from tests.reading.test_beside import BASES
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
        async with sb.open_batches(settings, "n", store=store) as batches:
            async for batch in batches:
                rows += batch.num_rows
                arrow_bytes = max(arrow_bytes, pa.total_allocated_bytes())
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows == keys
    assert peak_bytes + arrow_bytes < keys * ROW_BYTES / 3
