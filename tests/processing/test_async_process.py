"""An asynchronous `process` on a backend, without Spark: in what order its calls run, and what they leave behind."""

import asyncio
import itertools
import operator
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statebackend as sb
from statebackend._codec.change_sets.parts import encode_parts
from statebackend._processing.runner import ProcessorRunner
from statebackend._tasks import StrayCancellationError
from statebackend.errors import BatchError
from statebackend.testing import run_virtual
from statebackend.testing.virtual_time import settle

OUTPUT = pa.schema([("key", pa.string()), ("count", pa.int64())])
SUMS = pa.schema([("n", pa.int64()), ("last", pa.int64())])
Row = tuple[str, int]
jobs = itertools.count()


def table(rows: list[Row]) -> pa.Table:
    return pa.table({"key": [key for key, _ in rows], "number": pa.array([number for _, number in rows], pa.int64())})


def runner_of(processor: sb.spark.KeyedProcessor, **options: Any) -> ProcessorRunner:
    has_output = processor.output_schema is not None
    return ProcessorRunner(processor, **{"key": "key", "order_by": (), "has_output": has_output, **options})


async def run(runner: ProcessorRunner, rows: pa.Table, batch_id: int, backend: sb.StateBackend) -> Any:
    """One batch, on this loop."""
    return runner.table_of(await runner.run(runner.keys_of(rows), batch_id, backend))


def new_job() -> sb.Settings:
    return sb.Settings(job="j", primary=f"memory://async-{next(jobs)}", local=())


# ------------------------------------------------------------------------------------------------- order and outcome


class EveryKind(sb.spark.KeyedProcessor):
    """Uses state of every kind, and awaits between any two uses for as long as `delays` say."""

    output_schema = OUTPUT

    def __init__(self, delays: Callable[[str], float]) -> None:
        self._delays = delays

    def open(self, context):
        ttl = sb.TimeToLive(5.0, now=lambda: 4.0 * context.batch_id, on_read=True)
        self.counts = context.value_state("counts", int, ttl=ttl)
        self.lists = context.list_state("lists", int)
        self.maps = context.map_state("maps", str, int)
        self.sums = context.reducing_state("sums", int, operator.add)
        self.rows = context.columnar_state("rows", SUMS, key=pa.string(), ttl=ttl)
        self.due = context.timers("due")
        self.seen = context.operator_state("seen", str)

    async def process(self, key, rows, context):
        for row in rows:
            number = row["number"]
            for use in (self._use_values, self._use_collections, self._use_columns, self._use_others):
                await anyio.sleep(self._delays(key))
                use(key, number)
            yield {"key": key, "count": self.counts[key]}

    def _use_values(self, key, number):
        self.counts[key] = self.counts.get(key, 0) + 1
        self.sums.add(key, number)
        if number == 3:
            del self.counts[key]
            self.counts[key] = 100

    def _use_collections(self, key, number):
        self.lists[key].append(number)
        self.maps[key][str(number)] = number
        if number == 4:
            self.lists[key].clear()
            del self.maps[key]

    def _use_columns(self, key, number):
        found = self.rows.get(key, {"n": 0})
        self.rows[key] = {"n": found["n"] + 1, "last": number}
        if number == 5:
            assert self.rows.pop(key)["last"] == 5

    def _use_others(self, key, number):
        self.due.register(key, number)
        self.due.delete(key, number - 2)
        self.seen.append(f"{key}{number}")
        if number == 2:
            self.seen.replace([key])


async def outcome(batches: list[list[Row]], delays: Callable[[str], float], concurrency: int) -> list[Any]:
    """What each batch puts out and logs, and the order in which entries lie."""
    found: list[Any] = []
    async with sb.open_backend(new_job()) as backend:
        runner = runner_of(EveryKind(delays), concurrency=concurrency)
        for batch_id, rows in enumerate(batches):
            found.append((await run(runner, table(rows), batch_id, backend)).to_pylist())
            found += [list(backend.value_state(name, int)) for name in ("counts",)]
            found += [list(backend.list_state("lists", int)), backend._states.operator_report()]
            found.append(bytes(encode_parts(backend._states.drain())))
    return found


rows = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 5)), max_size=12)


@settings(max_examples=25)
@given(batches=st.lists(rows, max_size=3), data=st.data())
def test_state_and_output_are_those_of_one_call_after_the_other(batches, data) -> None:
    """Byte for byte, however long each await takes: who is answered first leaves no trace."""
    delays = st.sampled_from([0.0, 0.001, 1.0, 5.0])

    @run_virtual
    async def both() -> None:
        expected = await outcome(batches, lambda key: 0.0, 1)
        drawn = await outcome(batches, lambda key: data.draw(delays), data.draw(st.integers(2, 7)))
        assert drawn == expected

    both()


class Watching(sb.spark.KeyedProcessor):
    """Notes which calls are under way, and which rows they get."""

    def __init__(self) -> None:
        self.under_way = Counter[str]()
        self.at_a_time: list[int] = []
        self.got: dict[str, list[int]] = defaultdict(list)

    async def process(self, key, rows, context):
        self.under_way[key] += 1
        assert self.under_way[key] == 1
        for row in rows:
            self.at_a_time.append(self.under_way.total())
            self.got[key].append(row["number"])
            await anyio.sleep(len(key) + row["number"] % 3)
        self.under_way[key] -= 1


@pytest.mark.parametrize(("concurrency", "expected"), [(1, 1), (3, 3), (64, 10), (None, 10)])
@run_virtual
async def test_as_many_keys_are_under_way_as_allowed_and_rows_of_a_key_come_in_order(concurrency, expected) -> None:
    """One call for each key, and in it the key's rows, by number."""
    given_rows = [(f"{number % 10}", number) for number in reversed(range(50))]
    processor = Watching()
    async with sb.open_backend(new_job()) as backend:
        runner = runner_of(processor, order_by="number", concurrency=concurrency)
        assert await run(runner, table(given_rows), 0, backend) is None
    assert max(processor.at_a_time) == expected
    assert processor.got == {f"{key}": list(range(key, 50, 10)) for key in range(10)}


class Returning(sb.spark.KeyedProcessor):
    output_schema = OUTPUT

    async def process(self, key, rows, context):
        return [{"key": key, "count": len(rows)}] if key == "a" else None


@run_virtual
async def test_rows_may_be_returned_instead_of_yielded() -> None:
    """All of them, or none."""
    async with sb.open_backend(new_job()) as backend:
        output = await run(runner_of(Returning()), table([("a", 1), ("b", 1), ("a", 2)]), 0, backend)
        assert output.to_pylist() == [{"key": "a", "count": 2}]
        assert (await run(runner_of(Returning()), table([]), 1, backend)).num_rows == 0


@run_virtual
async def test_calls_that_never_wait_let_others_use_the_loop() -> None:
    """Otherwise nobody could cancel them."""

    class Busy(sb.spark.KeyedProcessor):
        async def process(self, key, rows, context):
            loop._now_s += 0.001  # as if it had calculated for so long

    loop: Any = asyncio.get_running_loop()
    async with sb.open_backend(new_job()) as backend:
        running = asyncio.create_task(run(runner_of(Busy()), table([(str(n), n) for n in range(1000)]), 0, backend))
        await anyio.sleep(0.01)
        assert not running.done()
        await running


# ------------------------------------------------------------------------------------------------ errors and stopping


class Clumsy(sb.spark.KeyedProcessor):
    """Its calls do what `deeds` say of their keys; the others wait. All of them clean up, for a second."""

    def __init__(self, **deeds: Callable[[], Any]) -> None:
        self.deeds = deeds
        self.cleaned_up: list[str] = []

    def open(self, context):
        self.counts = context.value_state("counts", int)

    async def process(self, key, rows, context):
        self.counts[key] = 1
        try:
            await anyio.sleep(1 if key in self.deeds else 3600)
            self.deeds[key]()
        finally:
            await anyio.sleep(1)
            self.cleaned_up.append(key)


def raises(error: BaseException) -> Callable[[], None]:
    def deed() -> None:
        raise error

    return deed


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("b"), ValueError),
        (asyncio.CancelledError(), StrayCancellationError),
        (KeyboardInterrupt(), BatchError),
        (SystemExit(), BatchError),
    ],
)
@run_virtual
async def test_the_first_error_cancels_the_other_calls_and_waits_for_them(error, expected) -> None:
    """It is raised as it is, or as an `Exception`, and each call could still await in its `finally`."""
    processor = Clumsy(b=raises(error))
    async with sb.open_backend(new_job()) as backend:
        with pytest.raises(expected):
            await run(runner_of(processor, concurrency=3), table([(key, 1) for key in "abcd"]), 0, backend)
        assert sorted(processor.cleaned_up) == ["a", "b", "c"]  # `d` has not begun


@run_virtual
async def test_an_error_of_a_cancelled_call_does_not_hide_the_first(caplog) -> None:
    """It is logged."""

    class Worse(Clumsy):
        async def process(self, key, rows, context):
            try:
                await super().process(key, rows, context)
            except asyncio.CancelledError:
                raise OSError("the second") from None

    processor = Worse(a=raises(ValueError("the first")))
    async with sb.open_backend(new_job()) as backend:
        with pytest.raises(ValueError, match="the first"):
            await run(runner_of(processor), table([("a", 1), ("b", 1)]), 0, backend)
    assert "has failed" in caplog.text


class Stepping(EveryKind):
    """Cancels the batch at one of its awaits: that number `at`."""

    def __init__(self, batch: Callable[[], asyncio.Task[Any]], at: int) -> None:
        super().__init__(self._step)
        self._batch = batch
        self._at = at
        self.steps = itertools.count()
        self.under_way: set[str] = set()

    async def process(self, key, rows, context):
        self.under_way.add(key)
        try:
            async for row in super().process(key, rows, context):
                yield row
        finally:
            try:
                await anyio.sleep(1)
            finally:
                self.under_way.remove(key)

    def _step(self, key: str) -> float:
        if next(self.steps) == self._at:
            asyncio.get_running_loop().call_soon(self._batch().cancel)
        return float(ord(key) % 3)


BATCHES = [[("a", 1), ("b", 2), ("a", 3)], [("a", 4), ("b", 5), ("c", 1), ("b", 1)]]


async def run_and_commit(job: sb.Settings, batch_id: int, at: int = -1) -> tuple[Any, int]:
    """The output of one batch, and how often its calls have awaited."""
    async with sb.open_backend(job) as backend:
        processor = Stepping(lambda: running, at)
        running = asyncio.create_task(run(runner_of(processor, concurrency=2), table(BATCHES[batch_id]), 1, backend))
        await asyncio.wait([running])
        assert not processor.under_way
        if running.cancelled():
            return None, next(processor.steps)
        await backend.checkpoint(backend.next_checkpoint_id)
        return (await running).to_pylist(), next(processor.steps)


@run_virtual
async def test_a_batch_cancelled_at_any_await_has_no_call_under_way_and_leaves_nothing() -> None:
    """Each time the batch is delivered again, its outcome is that of a batch that was never cancelled."""
    calm, job = new_job(), new_job()
    for each in (calm, job):
        await run_and_commit(each, 0)
    expected, awaits = await run_and_commit(calm, 1)
    assert awaits == 4 * len(BATCHES[1])
    for at in range(awaits):
        output, _ = await run_and_commit(job, 1, at)
        assert output is None
    assert await run_and_commit(job, 1) == (expected, awaits)


@run_virtual
async def test_a_call_that_ignores_its_cancellation_is_waited_for_and_cancelled_again() -> None:
    """By whoever cancels the batch again: a stopped query does so every five seconds."""
    cancellations = 0

    class Stubborn(sb.spark.KeyedProcessor):
        async def process(self, key, rows, context):
            nonlocal cancellations
            while cancellations < 3:
                try:
                    await anyio.sleep(3600)
                except asyncio.CancelledError:
                    cancellations += 1

    async with sb.open_backend(new_job()) as backend:
        running = asyncio.create_task(run(runner_of(Stubborn()), table([("a", 1)]), 0, backend))
        for expected in range(3):
            await settle()
            assert cancellations == expected
            assert not running.done()
            running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
