"""A read beside writers and sweeps, of damaged or swept files: whole, or an error that says what is wrong."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import numpy as np
import pyarrow as pa
import pytest

import statebackend as sb
from statebackend import errors
from statebackend._changelog.changelog_reader import TAIL_BYTES
from statebackend.objectstore import MemoryStore
from statebackend.testing import FaultyStore, Slow, run_virtual
from statebackend.testing.virtual_time import VirtualClock
from tests.log.swept import HandClock
from tests.reading.states import table_of
from tests.rewrite.jobs import JOB, settings_of

BASES: dict[str, Any] = {
    "materialize_handles_max": 1,
    "materialize_interval_s": 0.0,
    "inline_bytes_max": 0,
    "restore_concurrency_max": 1,
    "persist_size_threshold_bytes": 0,
}
GROUPS = 8
KEYS = [f"key {number}" for number in range(6)]


class CountingBytes(MemoryStore):
    """Counts the bytes that are read of segments."""

    read_bytes = 0

    async def get(self, key: str) -> bytes:
        found = await super().get(key)
        self.read_bytes += len(found) if "/segments/" in key else 0
        return found

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        found = await super().get_range(key, offset, length)
        self.read_bytes += len(found)
        return found


async def with_bases(store: sb.ObjectStore, clock: Any = None, **changes: Any) -> sb.Settings:
    """A job of several bases, of one segment for each key group; more than a batch of rows lies in each."""
    settings = settings_of(GROUPS, **{"in_flight_bytes_max": 4, "checkpoints_retained": 1, **BASES, **changes})
    async with sb.open_backend(settings, store=store, **({"clock": clock} if clock else {})) as backend:
        backend.value_state("n", int).update({number: number for number in range(5000 * GROUPS)})
        await backend.checkpoint(1)
        await backend._base_writer.settled()
        await backend.checkpoint(2)
    return settings


async def test_a_key_costs_its_key_groups_share_of_the_bytes() -> None:
    """One of 128, with the index; and all of them together what there is."""
    store = CountingBytes()
    settings = settings_of(128, compression="none", **BASES)
    rows = 20_000
    octets = np.random.default_rng(1).bytes(450 * rows)
    raw = pa.FixedSizeBinaryArray.from_buffers(pa.binary(450), rows, [None, pa.py_buffer(octets)])
    async with sb.open_backend(settings, store=store) as backend:
        state = backend.columnar_state("rows", pa.schema({"n": pa.int64(), "raw": pa.binary(450)}), key=pa.int64())
        keys = pa.array(range(rows), pa.int64())
        state.rows(keys).scatter(pa.RecordBatch.from_arrays([keys, raw], names=["n", "raw"]))
        await backend.checkpoint(1)
        await backend._base_writer.settled()
        await backend.checkpoint(2)
    store.read_bytes = 0
    found = await table_of(settings, "rows", store=store, keys=[7], columns=["n"])
    assert found.select(["key", "n"]).to_pylist() == [{"key": 7, "n": 7}]
    one = store.read_bytes - TAIL_BYTES
    store.read_bytes = 0
    assert (await table_of(settings, "rows", store=store)).num_rows == rows
    assert one * 128 < 1.5 * store.read_bytes
    assert one > 0


async def test_damage_in_the_middle_is_told_with_its_place() -> None:
    """The rows before it are no result: the stream ends with the error, and not as if it were at its end."""
    store = MemoryStore()
    settings = await with_bases(store)
    segments = [info.key async for info in store.list(f"{JOB}/segments/")]
    whole = await table_of(settings, "n", store=store)
    assert whole.num_rows == 5000 * GROUPS
    damaged = segments[-1]
    content = bytearray(await store.get(damaged))
    content[len(content) // 2] ^= 1
    await store.put(damaged, (bytes(content),))
    async with sb.read_batches(settings, "n", store=store) as batches:
        rows = (await anext(batches)).num_rows
        with pytest.raises(errors.CorruptSegmentError) as caught:
            await drained(batches)
    assert 0 < rows < whole.num_rows
    assert damaged.endswith(caught.value.facts["object"])
    assert 0 < caught.value.facts["offset"] <= len(content) // 2


async def test_a_checkpoint_that_is_swept_beneath_a_read_is_told() -> None:
    """With another error than that of a file which is lost. A savepoint keeps it."""
    clock = HandClock()
    for savepoint, error in ((None, errors.CheckpointNotFoundError), ("kept", None)):
        store = MemoryStore(clock=clock)
        settings = await with_bases(store, clock)
        async with sb.open_backend(settings, store=store, clock=clock) as backend:
            await backend.checkpoint(3, savepoint=savepoint)
        async with sb.read_batches(settings, "n", store=store, checkpoint_id=3) as batches:
            rows = (await anext(batches)).num_rows
            await with_bases_again(settings, store, clock)
            if error is None:
                assert rows + sum([batch.num_rows async for batch in batches]) == 5000 * GROUPS
            else:
                with pytest.raises(error, match="swept while it was read"):
                    await drained(batches)


async def with_bases_again(settings: sb.Settings, store: sb.ObjectStore, clock: HandClock) -> None:
    """New bases of everything days later, and a sweep."""
    async with sb.open_backend(settings, store=store, clock=clock) as backend:
        backend.value_state("n", int).update({number: -number for number in range(5000 * GROUPS)})
        await backend.checkpoint(4)
        await backend._base_writer.settled()
        clock.now_s += 86_400.0
        await backend.checkpoint(5)
        clock.now_s += 86_400.0
        await backend.checkpoint(6)
    assert (await sb.sweep(settings, dry_run=False, min_age_s=0.0, store=store, clock=clock)).deleted


class Overtaken(MemoryStore):
    """Calls `meddle` before the first read of an entry of the log."""

    meddle: Callable[[], Awaitable[object]] | None = None

    async def get(self, key: str) -> bytes:
        if self.meddle is not None and "/commits/" in key:
            meddle, self.meddle = self.meddle, None
            await meddle()
        return await super().get(key)


async def test_entries_that_are_swept_while_a_job_is_inspected_are_no_damage() -> None:
    """They were listed, and are left out. One that is lost for another reason is damage."""
    clock = HandClock()
    store = Overtaken(clock=clock)
    settings = settings_of(2, checkpoints_retained=2)
    async with sb.open_backend(settings, store=store, clock=clock) as backend:
        for number in range(1, 7):
            backend.value_state("n", int)["k"] = number
            await backend.checkpoint(number)
            clock.now_s += 86_400.0
    entries = [info.key async for info in store.list(f"{JOB}/commits/")]

    async def sweep() -> None:
        assert (await sb.sweep(settings, dry_run=False, min_age_s=0.0, store=store, clock=clock)).deleted

    store.meddle = sweep
    found = await sb.inspect(settings, store=store)
    assert {row.kind for row in found.log} <= {"claim", "commit"}
    left = [info.key async for info in store.list(f"{JOB}/commits/")]
    assert len(found.log) == len(left) < len(entries)

    (floor,) = [int(info.key.rpartition("/")[2]) async for info in store.list(f"{JOB}/swept/")]
    for lost in (f"{JOB}/commits/{floor:012d}", left[-1]):  # the oldest that is kept, and the newest
        content = await store.get(lost)
        store.meddle = partial(store.delete, lost)
        found = await sb.inspect(settings, store=store)
        assert [row.sequence for row in found.log if row.kind == "damaged"] == [int(lost.rpartition("/")[2])]
        await store.put(lost, (content,))


async def test_a_file_that_is_lost_is_told() -> None:
    """It was not swept: its checkpoint is the newest."""
    store = MemoryStore()
    settings = await with_bases(store)
    segments = [info.key async for info in store.list(f"{JOB}/segments/")]
    await store.delete(segments[-1])
    with pytest.raises(errors.MissingObjectError):
        await table_of(settings, "n", store=store)


async def test_a_file_of_the_oldest_checkpoint_that_is_kept_is_lost_and_not_swept() -> None:
    """All entries before it were swept. Below them only a savepoint could be read: it lost its file, too."""
    clock = HandClock()
    store = MemoryStore(clock=clock)
    settings = settings_of(2, checkpoints_retained=1, inline_bytes_max=0, materialize_handles_max=0)
    async with sb.open_backend(settings, store=store, clock=clock) as backend:
        for number in range(1, 4):
            backend.value_state("n", int)["k"] = number
            await backend.checkpoint(number, savepoint="kept" if number == 1 else None)
            clock.now_s += 86_400.0
    assert (await sb.sweep(settings, dry_run=False, min_age_s=0.0, store=store, clock=clock)).deleted
    for segment in [info.key async for info in store.list(f"{JOB}/segments/")]:
        await store.delete(segment)
    for options in ({}, {"savepoint": "kept"}):
        with pytest.raises(errors.MissingObjectError):
            await table_of(settings, "n", store=store, **options)


async def drained(batches: AsyncIterator[Any]) -> int:
    return sum([batch.num_rows async for batch in batches])


@pytest.mark.parametrize("seconds", [0, 400, 3000])
@run_virtual
async def test_a_read_beside_writers_and_sweeps_is_never_mixed(seconds: int) -> None:
    """Each commit has one number under all keys, and on each some keys come and others go.

    Each file takes the reader so many seconds, by a virtual clock: with most of them, sweeps are quicker.
    """
    clock, outcomes = VirtualClock(), set[str]()
    store = MemoryStore(clock=clock)
    slow = FaultyStore(store, [Slow(operation="get", key="*segments*", seconds=seconds)])
    settings = settings_of(4, checkpoints_retained=1, **BASES)

    async def write() -> None:
        for life in range(3):
            async with sb.open_backend(settings, store=store, clock=clock) as backend:
                for number in range(6 * life, 6 * life + 6):
                    write_all(backend, number)
                    await backend.checkpoint(number)
                    await anyio.sleep(1200)

    async def sweep() -> None:
        while True:
            await anyio.sleep(600)
            await sb.sweep(settings, dry_run=False, min_age_s=0.0, store=store, clock=clock)

    async def read(state: str, column: str) -> None:
        while True:
            await anyio.sleep(1000)
            try:
                async with sb.read_batches(settings, state, store=slow) as batches:
                    found = [(row["key"], row[column]) async for batch in batches for row in batch.to_pylist()]
                    number = batches.checkpoint_id
            except errors.CheckpointNotFoundError:
                outcomes.add("swept")
                continue
            assert sorted(found) == sorted((key, number) for key in KEYS[number % 4 :])
            outcomes.add("whole")

    async with anyio.create_task_group() as tasks:
        for task, *arguments in ((sweep,), (read, "n", "value"), (read, "rows", "n")):
            tasks.start_soon(task, *arguments)
        await write()
        tasks.cancel_scope.cancel()
    assert outcomes == ({"whole"} if seconds < 3000 else {"swept"}), outcomes


def write_all(backend: sb.StateBackend, number: int) -> None:
    """Give `number` to some of the keys, and drop the others."""
    live = KEYS[number % 4 :]
    state = backend.value_state("n", int)
    rows = backend.columnar_state("rows", pa.schema({"n": pa.int64()}), key=pa.string())
    for key in KEYS[: number % 4]:
        state.pop(key, None)
    state.update(dict.fromkeys(live, number))
    rows.rows(pa.array(KEYS)).drop()
    rows.rows(pa.array(live)).scatter(pa.RecordBatch.from_pydict({"n": pa.array([number] * len(live), pa.int64())}))
