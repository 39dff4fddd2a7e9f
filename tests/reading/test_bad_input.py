"""Bad luck in the middle of a read, whoever reads: an interrupt, a newer release. It ends, and has changed nothing."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

import statebackend as sb
from statebackend import errors
from statebackend._codec import commit as commits
from statebackend._codec import segment as segments
from statebackend._log.position import Pin
from statebackend._reading.feed import open_changes
from statebackend._upkeep.job_primary import open_job_primary
from statebackend.ids import StateDescriptor
from statebackend.objectstore import MemoryStore
from statebackend.spark.reading.read_options import state_options
from statebackend.spark.reading.readers import Plan, StateReader
from tests.reading.states import table_of
from tests.reading.test_beside import BASES
from tests.rewrite.jobs import settings_of

SETTINGS = settings_of(2, in_flight_bytes_max=4, checkpoints_retained=9, **BASES)
ROWS = 50
COMMITS = (1, 2, 3)  # their places in the log, behind the claim


class Meddling(MemoryStore):
    """Calls `meddle` at the operation of that number, and counts them all."""

    at = -1
    seen = 0

    def __init__(self) -> None:
        super().__init__()
        self.meddle: Callable[[], Awaitable[None]] = anyio.sleep_forever

    async def get(self, key: str) -> bytes:
        await self._count()
        return await super().get(key)

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        await self._count()
        return await super().get_range(key, offset, length)

    async def list(self, prefix: str) -> AsyncIterator[Any]:
        await self._count()
        async for info in super().list(prefix):
            yield info

    async def _count(self) -> None:
        self.seen += 1
        if self.seen - 1 == self.at:
            await self.meddle()

    def begin(self, at: int) -> None:
        """Count anew."""
        self.at, self.seen = at, 0


async def filled() -> Meddling:
    """A job with bases of two states, and changes behind them."""
    store = Meddling()
    async with sb.open_backend(SETTINGS, store=store) as backend:
        value = backend.value_state("n", int)
        rows = backend.columnar_state("rows", pa.schema({"n": pa.int64()}), key=pa.int64())
        value.update({number: number for number in range(ROWS)})
        numbers = pa.array(range(ROWS), pa.int64())
        rows.rows(numbers).scatter(pa.RecordBatch.from_arrays([numbers], names=["n"]))
        await backend.checkpoint(1)
        await backend._base_writer.settled()
        value[1] = -1
        await backend.checkpoint(2)
        value[2] = -2
        await backend.checkpoint(3)
    return store


Read = Callable[[MemoryStore, Path], Awaitable[object]]


async def _scan(store: MemoryStore, out: Path) -> object:
    return (await table_of(SETTINGS, "n", store=store)).num_rows


async def _columns(store: MemoryStore, out: Path) -> object:
    return (await table_of(SETTINGS, "rows", store=store)).num_rows


async def _get(store: MemoryStore, out: Path) -> object:
    return (await table_of(SETTINGS, "n", store=store, keys=[7])).num_rows


async def _feed(store: MemoryStore, out: Path) -> object:
    first, *others = COMMITS
    async with open_changes(SETTINGS, "n", sequences=others, before=first, store=store) as batches:
        return sum([batch.num_rows async for batch in batches])


async def _diff(store: MemoryStore, out: Path) -> object:
    return len([each async for each in sb.diff(SETTINGS, 1, 3, store=store)])


async def _dump(store: MemoryStore, out: Path) -> object:
    async with sb.read_rows(SETTINGS, store=store) as rows:
        return len(list(rows))


async def _watch(store: MemoryStore, out: Path) -> object:
    async for entry in sb.watch(SETTINGS, store=store):
        return entry.checkpoint_id
    return None


async def _report(store: MemoryStore, out: Path) -> object:
    return (await sb.report(SETTINGS, store=store)).newest.checkpoint_id


async def _export(store: MemoryStore, out: Path) -> object:
    report = await sb.export(SETTINGS, "rows", out, store=store)
    await anyio.Path(out).unlink()
    return report.rows


READS: dict[str, tuple[Read, object]] = {
    "scan": (_scan, ROWS),
    "columns": (_columns, ROWS),
    "get": (_get, 1),
    "feed": (_feed, 2),
    "diff": (_diff, 2),
    "dump": (_dump, 2 * ROWS),
    "watch": (_watch, 3),
    "report": (_report, 3),
    "export": (_export, ROWS),
}


@pytest.mark.parametrize("name", READS)
async def test_a_read_that_is_cancelled_anywhere_leaves_nothing(name: str, tmp_path: Path) -> None:
    """Ctrl-C cancels the task, here at each of its requests: no task goes on, no file and no object stays."""
    read, expected = READS[name]
    store = await filled()
    before = dict(store._objects)
    store.begin(-1)
    assert await read(store, tmp_path / "out.parquet") == expected
    requests = store.seen
    assert requests > 1
    for at in range(requests):
        reached = anyio.Event()

        async def meddle(reached: anyio.Event = reached) -> None:
            reached.set()
            await anyio.sleep_forever()

        store.meddle = meddle
        store.begin(at)
        task = asyncio.ensure_future(read(store, tmp_path / "out.parquet"))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert files_in(tmp_path) == []
    assert store._objects == before


def files_in(directory: Path) -> list[Path]:
    return list(directory.iterdir())


@pytest.fixture
def interruptible() -> Generator[None]:
    """A shell starts what it has in the background with interrupts ignored, and then so would the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_a_reader() -> None:
    """A signal reaches the thread that waits for the next batch. The loop and its thread end with the reader."""
    store = asyncio.run(filled())

    async def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await anyio.sleep_forever()

    store.begin(-1)
    assert sb.read_state(SETTINGS, "n", store=store).read_all().num_rows == ROWS
    last, before = store.seen - 1, set(threading.enumerate())
    for at in (0, last):  # while it is opened, and in the middle
        store.meddle = interrupt
        store.begin(at)
        with pytest.raises(KeyboardInterrupt):
            sb.read_state(SETTINGS, "n", store=store).read_all()
        assert "statebackend-read" not in {thread.name for thread in set(threading.enumerate()) - before}


async def test_a_task_of_spark_that_is_given_up_leaves_no_thread(tmp_path: Path) -> None:
    """Spark closes the generator where a query has its rows, `limit(1)`, or is cancelled."""
    settings = sb.Settings(job="given-up", primary=f"file://{tmp_path}/primary")
    async with sb.open_backend(settings) as backend:
        backend.value_state("n", int).update({number: number for number in range(ROWS)})
        await backend.checkpoint(1)
    async with open_job_primary(settings, None) as primary:
        pin = Pin.of((await primary.find()).commit)
    options = state_options({"job": "given-up", "stateVarName": "n"}, {"given-up": settings})
    plan = Plan(options, StateDescriptor(0, "n", "value", '"int"'), pin)

    def take_one() -> int:
        own = pa.schema([("key_group", pa.int32()), ("key", pa.int64()), ("value", pa.int64())])
        schema = plan.columns.schema(own, old_values=False)
        rows = StateReader(plan, schema).read(InputPartition((0, 127)))
        count = next(rows).num_rows
        rows.close()
        return count

    before = set(threading.enumerate())
    assert 0 < await asyncio.to_thread(take_one) <= ROWS
    assert "statebackend-spark" not in {thread.name for thread in set(threading.enumerate()) - before}


@pytest.mark.parametrize("name", ["scan", "columns", "get", "feed", "diff", "dump", "export", "watch", "report"])
@pytest.mark.parametrize("of", [commits, segments], ids=["commit", "segment"])
async def test_a_job_of_a_newer_release_is_an_error_of_its_own(
    name: str, of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stored has a version that this release, made older here, does not know."""
    read, _ = READS[name]
    store = await filled()
    before = dict(store._objects)
    monkeypatch.setattr(of, "VERSION", 0)
    if of is segments and name in ("watch", "report", "feed"):
        assert await read(store, tmp_path / "out.parquet") is not None  # they read no base
        return
    with pytest.raises(errors.UnsupportedVersionError) as caught:
        await read(store, tmp_path / "out.parquet")
    assert caught.value.facts["object"]
    assert files_in(tmp_path) == []
    assert store._objects == before


@pytest.mark.parametrize("name", ["scan", "columns", "dump", "export"])
async def test_damage_in_each_segment_is_told_with_its_place(name: str, tmp_path: Path) -> None:
    """By the object and the offset; what was read before it is not taken for the whole, and no file is left."""
    read, _ = READS[name]
    store = await filled()
    whole = dict(store._objects)
    found = []
    for key in [key for key in whole if "/segments/" in key]:
        content = bytearray(whole[key][0])
        content[len(content) // 2] ^= 1
        store._objects = {**whole, key: (bytes(content), whole[key][1])}
        error = await error_of(read(store, tmp_path / "out.parquet"))
        if error is not None:  # else the segment is none of those that are read
            assert key.endswith(error.facts["object"])
            assert 0 < error.facts["offset"] <= len(content) // 2
            found.append(key)
        assert files_in(tmp_path) == []
    assert len(found) > 1, "no read met the damage"


async def error_of(reading: Awaitable[object]) -> errors.CorruptSegmentError | None:
    try:
        await reading
    except errors.CorruptSegmentError as error:
        return error
    return None


async def test_a_key_of_another_type_is_told_by_each_way_to_ask() -> None:
    """A text where the keys are numbers, in values and in columns."""
    store = await filled()
    for state in ("n", "rows"):
        with pytest.raises(errors.KeyTypeError, match="another type"):
            await table_of(SETTINGS, state, store=store, keys=["7"])


@pytest.mark.parametrize("key", ["ab", b"ab", ("a",), ("a", "b", "c")])
async def test_a_key_that_is_no_tuple_of_as_many_parts_is_told(key: sb.Key) -> None:
    """A text of two letters is no key of two texts."""
    store, key_type = MemoryStore(), pa.struct({"a": pa.string(), "b": pa.string()})
    async with sb.open_backend(SETTINGS, store=store) as backend:
        backend.columnar_state("rows", pa.schema({"n": pa.int64()}), key=key_type)["a", "b"] = {"n": 1}
        await backend.checkpoint(1)
    assert (await table_of(SETTINGS, "rows", store=store, keys=[("a", "b")])).num_rows == 1
    with pytest.raises(errors.KeyTypeError, match="another type"):
        await table_of(SETTINGS, "rows", store=store, keys=[key])
