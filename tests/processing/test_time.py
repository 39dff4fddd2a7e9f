"""Processors in time: the clock follows the rows, timers fire after them, and late rows go where they are to go."""

import asyncio
import datetime as dt
import pydoc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import statebackend as sb
from statebackend._processing.event_time import EventTime, event_time_of
from statebackend._processing.processor import KeyedProcessor, ProcessorContext
from statebackend._processing.runner import ProcessorRunner
from statebackend._state.time.job_clock import NOT_BEGUN
from statebackend.errors import InputError, SettingsError
from statebackend.objectstore import MemoryStore
from tests.knobs import replaced
from tests.state import timer_programs

SETTINGS = sb.Settings(job="sessions", primary="memory://unused", persist_delay_s=0.0, max_parallelism=16)
ROWS = pa.schema([("key", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
TOLD = pa.schema([("key", pa.string()), ("what", pa.string()), ("at", pa.float64())])


def rows(*found: tuple[str, float]) -> Any:
    return pa.table(
        [[key for key, _ in found], [dt.datetime.fromtimestamp(at, dt.UTC) for _, at in found]], schema=ROWS
    )


class Sessions(KeyedProcessor):
    """Ends the session of a key ten seconds after its last row. Tells all that it is called for."""

    output_schema = TOLD

    def open(self, context: Any) -> None:
        self.ends, self.last = context.timers("ends"), context.value_state("last", float)
        self.told: list[str] = []

    def open_batch(self, context: Any) -> None:
        self.told.append(f"open {context.late_rows}")

    def process(self, key: Any, rows: Any, context: Any) -> Any:
        at = max(row["at"].timestamp() for row in rows)
        self.last[key] = max(at, self.last.get(key, at))
        self.ends.register(key, max(self.last[key] + 10, context.clock_s))
        yield {"key": key, "what": "row", "at": at}

    def on_timer(self, key: Any, at: float, context: Any) -> Any:
        if self.last.get(key, at) + 10 <= at:
            del self.last[key]
            yield {"key": key, "what": f"end of {context.timer_name}", "at": at}

    def close_batch(self, context: Any) -> None:
        self.told.append(f"close {context.clock_s}")


class ByTable(Sessions):
    """The same by Arrow, for the rows."""

    process = KeyedProcessor.process

    def process_table(self, table: Any, context: Any) -> Any:
        told: list[dict[str, Any]] = []
        for key in sorted(set(table["key"].to_pylist())):
            found = [row for row in table.to_pylist() if row["key"] == key]
            told += Sessions.process(self, key, found, context)
        return pa.Table.from_pylist(told, schema=TOLD)


class Asking(Sessions):
    """The same, with others in between."""

    async def process(self, key: Any, rows: Any, context: Any) -> Any:
        told = list(super().process(key, rows, context))
        await asyncio.sleep(0)
        return told


class Driven:
    """A runner on a backend, as a sink drives it."""

    def __init__(self, processor: KeyedProcessor, backend: sb.StateBackend, late: Any, lateness_s: float) -> None:
        self.event_time = EventTime("at", lateness_s, late)
        self.runner = ProcessorRunner(processor, key="key", order_by=(), has_output=True, event_time=self.event_time)
        self.backend = backend

    async def batch(self, *found: tuple[str, float]) -> list[tuple[str, str, float]]:
        table = rows(*found)
        self.backend.advance_clock(self.event_time.latest_s(table))
        if self.runner.is_async:
            batch = self.runner.keys_of(table, self.backend.clock_before_s)
            output = self.runner.table_of(await self.runner.run(batch, 0, self.backend))
        else:
            output = self.runner(table, 0, self.backend)
        await self.backend.checkpoint(self.backend.next_checkpoint_id)
        return [tuple(row.values()) for row in output.to_pylist()]

    @property
    def told(self) -> list[str]:
        (opened,) = self.runner._opened.values()
        told: list[str] = opened.processor.told  # type: ignore[attr-defined]
        return told


@asynccontextmanager
async def driven(
    processor: KeyedProcessor, store: sb.ObjectStore, *, late: Any = "drop", lateness_s: float = 0
) -> AsyncIterator[Driven]:
    async with sb.open_backend(SETTINGS, store=store) as backend:
        yield Driven(processor, backend, late, lateness_s)


@pytest.mark.parametrize("processor", [Sessions(), ByTable(), Asking()], ids=["rows", "table", "async"])
@pytest.mark.parametrize("again", [False, True], ids=["one process", "each batch in a new one"])
async def test_timers_fire_after_the_rows_up_to_the_clock(processor: KeyedProcessor, *, again: bool) -> None:
    """Of keys without rows too, and with a batch that has none; never twice, whoever has the state."""
    batches = [
        ([("a", 1.0), ("b", 2.0)], [("a", "row", 1), ("b", "row", 2)]),
        ([("c", 11.5)], [("c", "row", 11.5), ("a", "end of ends", 11)]),
        ([("b", 11.6)], [("b", "row", 11.6)]),
        ([], []),
        ([("d", 40.0)], [("d", "row", 40), ("c", "end of ends", 21.5), ("b", "end of ends", 21.6)]),
        ([], []),
    ]
    store = MemoryStore()
    if again:
        for found, expected in batches:
            async with driven(processor, store) as job:
                assert await job.batch(*found) == expected
    else:
        async with driven(processor, store) as job:
            for found, expected in batches:
                assert await job.batch(*found) == expected
            assert job.told == [
                *("open 0", "close 2.0", "open 0", "close 11.5", "open 0", "close 11.6"),
                *("open 0", "close 40.0"),
            ]


async def test_a_batch_without_rows_fires_what_became_due_without_rows() -> None:
    """By the clock of batches: nothing else moves it there."""
    async with driven(Sessions(), MemoryStore()) as job:
        await job.batch(("a", 1.0))
        job.backend.advance_clock(50)
        assert await job.batch() == [("a", "end of ends", 11)]
        assert job.told[-2:] == ["open 0", "close 50.0"]
        assert await job.batch() == []
        assert len(job.told) == 4, "a batch for nothing is not opened"


@pytest.mark.parametrize(
    ("late", "expected"),
    [
        ("drop", [("b", "row", 8)]),
        ("keep", [("a", "row", 7.9), ("b", "row", 8)]),
        ("output", [("b", "row", 8), ("a", None, 7.9)]),
    ],
)
@pytest.mark.parametrize("processor", [Sessions, ByTable, Asking], ids=["rows", "table", "async"])
async def test_late_rows_are_counted_and_go_where_they_are_to_go(processor: Any, late: str, expected: Any) -> None:
    """Those that are older than the clock of the batch before; one as old is in time."""

    class Late(processor):
        def process_late(self, key: Any, rows: Any, context: Any) -> Any:
            for row in super().process_late(key, rows, context):
                assert set(row) == {"key", "what", "at"}
                yield {**row, "at": row["at"].timestamp()}

    async with driven(Late(), MemoryStore(), late=late, lateness_s=2) as job:
        assert len(await job.batch(("x", 10.0), ("y", 1.0))) == 2, "in the first batch nothing is late"
        assert sorted(await job.batch(("a", 7.9), ("b", 8.0)), key=str) == sorted(expected, key=str)
        assert (job.runner.late_rows, job.told[-2:]) == (1, ["open 1", "close 8.0"])
        await job.batch(("a", 12.5))
        assert job.runner.late_rows == 0


async def test_a_timer_that_is_due_when_it_is_set_fires_in_the_same_batch() -> None:
    """Also if no other was due."""

    class AtOnce(Sessions):
        def process(self, key: Any, rows: Any, context: Any) -> Any:
            self.last[key] = -7
            self.ends.register(key, 3)

    async with driven(AtOnce(), MemoryStore()) as job:
        assert await job.batch(("a", 5.0)) == [("a", "end of ends", 3)]


async def test_rows_without_an_output_are_refused_from_timers_too() -> None:
    """As from `process`."""

    class Silent(Sessions):
        def process(self, key: Any, rows: Any, context: Any) -> Any:
            self.ends.register(key, 1)

        def on_timer(self, key: Any, at: float, context: Any) -> Any:
            yield {"key": key}

    async with sb.open_backend(SETTINGS, store=MemoryStore()) as backend:
        backend.advance_clock(2)
        runner = ProcessorRunner(Silent(), key="key", order_by=(), has_output=False)
        with pytest.raises(InputError, match="has no output"):
            runner(rows(("a", 1.0)), 0, backend)


async def test_without_on_timer_timers_wait() -> None:
    """For `due` of the processor."""

    class Waiting(Sessions):
        on_timer = KeyedProcessor.on_timer

    async with driven(Waiting(), MemoryStore()) as job:
        await job.batch(("a", 1.0))
        await job.batch(("b", 100.0))
        assert sorted(job.backend.timers("ends")) == ["a", "b"]
        assert not job.runner.fires_timers


async def test_a_timer_that_is_set_again_comes_once_a_batch() -> None:
    """For the time at which it fires; else no batch would end."""

    class Again(Sessions):
        def on_timer(self, key: Any, at: float, context: Any) -> Any:
            self.ends.register(key, at)
            yield {"key": key, "what": "again", "at": at}

    async with driven(Again(), MemoryStore()) as job:
        await job.batch(("a", 1.0))
        assert await job.batch(("b", 11.0)) == [("b", "row", 11), ("a", "again", 11)]
        assert await job.batch() == [("a", "again", 11)]


class Programmed(Sessions):
    """Does to its timers what a program says, and tells what it sees."""

    def __init__(self, program: Sequence[timer_programs.Batch], seen: list[list[object]]) -> None:
        self.program, self.seen = program, seen

    def open(self, context: Any) -> None:
        self.timers = {name: context.timers(name) for name in timer_programs.NAMES}

    def open_batch(self, context: Any) -> None:
        batch = self.program[len(self.seen)]
        self.seen.append([])
        self.before = context.clock_s - batch.step
        timer_programs.do(batch.deeds, self.timers, self.before, self.seen[-1])

    def process(self, key: Any, rows: Any, context: Any) -> Any:
        pass

    def on_timer(self, key: Any, at: float, context: Any) -> Any:
        self.seen[-1].append((at, key, context.timer_name))
        timer_programs.do(
            self.program[len(self.seen) - 1].on_timer.get(key, ()), self.timers, self.before, self.seen[-1]
        )

    def close_batch(self, context: Any) -> None:
        pass


class ProgrammedAsync(Programmed):
    """The same, with a `process` that awaits."""

    async def process(self, key: Any, rows: Any, context: Any) -> Any:
        await asyncio.sleep(0)


@pytest.mark.parametrize("table", ["heap", "rocksdb"])
@given(program=timer_programs.PROGRAMS, of=st.sampled_from([Programmed, ProgrammedAsync]), again=st.booleans())
@example(program=timer_programs.AGAIN_AND_DELETED, of=Programmed, again=False)
@example(program=timer_programs.AGAIN_AND_DELETED, of=ProgrammedAsync, again=True)
@settings(max_examples=25)
def test_a_processor_sees_and_gets_the_timers_of_a_dictionary(
    table: Any, program: Any, of: Any, *, again: bool
) -> None:
    """Whatever it registers and deletes while others fire: in either table, in one process or in many."""
    if table == "rocksdb":
        pytest.importorskip("rocksdict", reason="the extra rocksdb")
    store, seen = MemoryStore(), list[list[object]]()
    tables = replaced(SETTINGS, table=table)

    async def run(batches: Sequence[timer_programs.Batch], now: float) -> float:
        async with sb.open_backend(tables, store=store) as backend:
            job = Driven(of(program, seen), backend, "drop", 0)
            for batch in batches:
                now += batch.step
                await job.batch(("a", now))
            return now

    now = 0.0
    for batches in [[batch] for batch in program] if again else [program]:
        now = asyncio.run(run(batches, now))
    assert seen == [told for told, _ in timer_programs.expected(program)]


@pytest.mark.parametrize("method", ["open_batch", "process_late", "on_timer", "close_batch"])
def test_only_process_can_be_asynchronous(method: str) -> None:
    """Nothing would await the others."""

    async def never(*_: Any) -> None: ...

    processor = type("Wrong", (Sessions,), {method: never})()
    with pytest.raises(SettingsError, match=f"{method} cannot be async"):
        ProcessorRunner(processor, key="key", order_by=(), has_output=True)


def test_context_and_backend_show_what_they_have() -> None:
    """To `help()`, and so to an editor: each method of the states with its parameters, and the time."""
    for shown in (ProcessorContext, sb.StateBackend):
        text = pydoc.render_doc(shown, renderer=pydoc.plaintext)
        for name in ("value_state", "list_state", "map_state", "reducing_state", "aggregating_state", "columnar_state"):
            assert f"{name}(self, name: 'str'" in text or f"{name}(self, name: str" in text
        for name in ("operator_state", "timers", "clock_s", "clock_before_s"):
            assert name in text


def as_column(values: list[Any], type_: Any) -> Any:
    return pa.table({"key": ["k"] * len(values), "at": pa.array(values, type_)})


@pytest.mark.parametrize("type_", [pa.timestamp("us"), pa.timestamp("us", tz="America/New_York"), pa.timestamp("ns")])
def test_the_clock_follows_the_largest_time_less_the_lateness(type_: Any) -> None:
    """In seconds, to the microsecond. Without a zone it counts as UTC. Without rows nothing moves it."""
    event_time, table = EventTime("at", 1.5, "drop"), as_column([1_000_000, 5_250_001], pa.int64())
    unit = pa.timestamp("us", tz=type_.tz)
    table = table.set_column(1, "at", table["at"].cast(unit).cast(type_))
    assert event_time.latest_s(table) == 3.750001
    assert event_time.latest_s(table.slice(0, 0)) == NOT_BEGUN
    in_time, late = event_time.split(table, 5.250001)
    assert (in_time.num_rows, late.num_rows) == (1, 1)
    assert [part.num_rows for part in event_time.split(table, None)] == [2, 0]


@pytest.mark.parametrize("lateness_s", [3600.7, 0.1, 0.000001, 59.999999, 86399.3, 7])
@pytest.mark.parametrize("latest_us", [1_367_409_600_000_000, 1_700_000_000_123_457, 4_102_444_800_999_999, 7])
def test_a_row_as_old_as_the_clock_is_in_time_whatever_the_lateness(lateness_s: float, latest_us: int) -> None:
    """Also one that a float does not hold: a microsecond more, and it is late."""
    event_time = EventTime("at", lateness_s, "drop")
    before_s = event_time.latest_s(as_column([latest_us], pa.timestamp("us")))
    end = latest_us - round(lateness_s * 1_000_000)
    in_time, late = event_time.split(as_column([end, end - 1, end + 1], pa.timestamp("us")), before_s)
    found = [part["at"].cast(pa.int64()).to_pylist() for part in (in_time, late)]
    assert found == [[end, end + 1], [end - 1]]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"key": ["a"]}), "exactly one column"),
        (pa.table([["a"], ["a"]], names=["at", "at"]), "exactly one column"),
        (as_column([dt.datetime(2013, 1, 1, tzinfo=dt.UTC), None], pa.timestamp("us", tz="UTC")), "no event time"),
        (as_column([1], pa.int64()), "must hold timestamps"),
        (as_column(["2013-01-01"], pa.string()), "must hold timestamps"),
        (as_column([], pa.date32()), "must hold timestamps"),
    ],
    ids=["missing", "twice", "null", "numbers", "text", "dates"],
)
def test_a_column_that_is_missing_null_or_no_time_is_refused(table: Any, said: str) -> None:
    """Each says what to do."""
    with pytest.raises(InputError, match=said) as caught:
        EventTime("at", 0, "drop").latest_s(table)
    assert caught.value.facts["column"] == "at"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("at", -0.1, None), "0 or more"),
        (("at", None, None), "needs lateness_s"),
        (("at", float("nan"), None), "0 or more"),
        (("at", True, None), "0 or more"),
        (("at", 1, "forget"), "late must be"),
        ((["at"], 1, None), "name of a column"),
        ((None, 1, None), "name it as event_time"),
        ((None, None, "keep"), "name it as event_time"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: Any, said: str) -> None:
    """Before anything is opened."""
    with pytest.raises(SettingsError, match=said):
        event_time_of(*arguments)


def test_late_rows_are_put_out_only_where_there_is_an_output() -> None:
    """Told when the sink is made."""
    with pytest.raises(SettingsError, match="give it one"):
        ProcessorRunner(Sessions(), key="key", order_by=(), has_output=False, event_time=EventTime("at", 0, "output"))
