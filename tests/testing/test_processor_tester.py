"""`ProcessorTester`: rows in, rows out, and the state, without Spark, files and threads."""

import asyncio
import datetime as dt
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statebackend as sb
from statebackend._processing.processor import KeyedProcessor, ProcessorContext
from statebackend.errors import BackendClosedError, InputError, SettingsError, StateBackendError
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fail, Fault, FaultyStore, ProcessorTester
from tests.knobs import settings_with

COUNTED = pa.schema([("key", pa.string()), ("n", pa.int64())])


class Counting(KeyedProcessor):
    """Counts rows by key, and yields the count. A row with a negative number fails."""

    output_schema = COUNTED

    def open(self, context: ProcessorContext) -> None:
        self.counts = context.value_state("counts", int)
        self.seen: list[str] = []

    def process(self, key: Any, rows: Any, context: ProcessorContext) -> Any:
        self.seen.append(key)
        self.counts[key] = self.counts.get(key, 0) + len(rows)
        if any(row["number"] < 0 for row in rows):
            raise ValueError("a negative number")
        yield {"key": key, "n": self.counts[key]}


class Slow(Counting):
    """The same, asynchronously: each key waits for an hour."""

    async def process(self, key: Any, rows: Any, context: ProcessorContext) -> Any:  # type: ignore[override]
        await anyio.sleep(3600)
        count = self.counts.get(key, 0) + len(rows)
        await anyio.sleep(3600)
        self.counts[key] = count
        return [{"key": key, "n": count}]


def rows(keys: str) -> list[dict[str, Any]]:
    return [{"key": key, "number": number} for number, key in enumerate(keys)]


def counts(tester: ProcessorTester) -> dict[Any, int]:
    return {key: n for backend in tester.backends for key, n in backend.value_state("counts", int).items()}


def in_order(output: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return sorted((row["key"], row["n"]) for row in output)


@pytest.mark.parametrize("ranges", [1, 3])
@pytest.mark.parametrize("processor", [Counting, Slow])
def test_rows_come_out_and_the_state_is_there_to_look_at(processor: Any, ranges: int) -> None:
    """In one range and in several, synchronously and not. No thread has been started."""
    threads = threading.active_count()
    with ProcessorTester(processor(), key="key", ranges=ranges) as tester:
        assert in_order(tester.batch(rows("aab"))) == [("a", 2), ("b", 1)]
        assert in_order(tester.batch(rows("bc"))) == [("b", 2), ("c", 1)]
        assert tester.batch([]) == []
        assert counts(tester) == {"a": 2, "b": 2, "c": 1}
        assert tester.backend("b").value_state("counts", int)["b"] == 2
        assert threading.active_count() == threads


def test_state_that_is_set_by_hand_is_what_a_batch_finds_and_outlives_its_failure() -> None:
    """It is committed before the batch."""
    with ProcessorTester(Counting(), key="key") as tester:
        tester.backend().value_state("counts", int)["a"] = 10
        with pytest.raises(ValueError, match="negative"):
            tester.batch([{"key": "a", "number": -1}])
        assert counts(tester) == {"a": 10}
        assert tester.batch(rows("a")) == [{"key": "a", "n": 11}]


def test_a_batch_that_fails_changes_nothing_and_the_next_goes_on() -> None:
    """Nor does one whose process dies before the commit. The copy of the processor is a new one then."""
    with ProcessorTester(Counting(), key="key") as tester:
        tester.batch(rows("a"))
        for attempt in range(2):
            with pytest.raises(ValueError, match="negative"):
                tester.batch([{"key": "b", "number": 1}, {"key": "a", "number": -1}])
            assert counts(tester) == {"a": 1}, attempt
        assert tester.batch(rows("a"), commit=False) == [{"key": "a", "n": 2}]
        assert counts(tester) == {"a": 1}
        assert tester.batch(rows("a")) == [{"key": "a", "n": 2}]


def test_a_replayed_batch_gives_the_same_rows_and_state() -> None:
    """Also the first one; and the batch behind it goes on from there. None comes again twice."""
    with ProcessorTester(Counting(), key="key", ranges=2) as tester:
        first = tester.batch(rows("abb"))
        assert tester.replay() == first
        assert counts(tester) == {"a": 1, "b": 2}
        second = tester.batch(rows("ba"))
        tester.restart()
        assert tester.replay() == second
        assert counts(tester) == {"a": 2, "b": 3}
        assert in_order(tester.batch(rows("a"))) == [("a", 3)]


class Forgetful(Counting):
    """Keeps its count where it is lost."""

    def open(self, context: ProcessorContext) -> None:
        self.total = 0

    def process(self, key: Any, rows: Any, context: ProcessorContext) -> Any:
        self.total += len(rows)
        yield {"key": key, "n": self.total}


def test_what_a_processor_keeps_to_itself_is_gone_after_a_restart() -> None:
    """That is what a restart is for."""
    with ProcessorTester(Forgetful(), key="key") as tester:
        tester.batch(rows("a"))
        assert tester.batch(rows("a"))[0]["n"] == 2
        tester.restart()
        assert tester.batch(rows("a"))[0]["n"] == 1


def test_the_clock_is_committed_and_never_goes_back() -> None:
    """It is that of a batch, and of every range; one that failed has not moved it."""
    with ProcessorTester(Counting(), key="key", ranges=2) as tester:
        assert tester.clock_s is None
        tester.batch(rows("a"), clock_s=5.0)
        with pytest.raises(ValueError, match="negative"):
            tester.batch([{"key": "a", "number": -1}], clock_s=100.0)
        assert tester.clock_s == 5.0
        tester.restart(ranges=3)
        assert [backend.clock_s for backend in tester.backends] == [5.0] * 3
        tester.advance_clock(3.0)
        assert tester.clock_s == 5.0


class Reminding(KeyedProcessor):
    """Reminds of each row ten seconds after its time, and puts out what is late."""

    output_schema = COUNTED

    def open(self, context: ProcessorContext) -> None:
        self.reminders = context.timers("reminders", clock="event")

    def process(self, key: Any, rows: Any, context: ProcessorContext) -> None:
        for row in rows:
            self.reminders.register(key, row["at"].timestamp() + 10)

    def process_late(self, key: Any, rows: Any, context: ProcessorContext) -> Any:
        return [{"key": key, "n": -len(rows)}]

    def on_timer(self, key: Any, at: float, context: ProcessorContext) -> Any:
        yield {"key": key, "n": int(at)}


@pytest.mark.parametrize("ranges", [1, 3])
def test_timers_fire_by_the_clock_also_without_rows(ranges: int) -> None:
    """By event time, or where the clock is moved to; once, whatever range they are in; late rows are told apart."""

    def at(key: str, second: int) -> dict[str, Any]:
        return {"key": key, "at": dt.datetime.fromtimestamp(second, tz=dt.UTC)}

    with ProcessorTester(Reminding(), key="key", event_time="at", lateness_s=1, late="output", ranges=ranges) as tester:
        assert tester.batch([at("a", 100), at("b", 101)]) == []
        assert tester.clock_s == 100.0
        assert in_order(tester.batch([at("a", 99), at("c", 111)])) == [("a", -1), ("a", 110)]
        tester.restart(ranges=2)
        assert in_order(tester.advance_clock(130)) == [("b", 111), ("c", 121)]
        assert tester.advance_clock(140) == []


@settings(max_examples=20, deadline=None)
@given(
    batches=st.lists(st.text("abcde", max_size=6), max_size=4),
    steps=st.lists(st.sampled_from(["restart", "replay", "rescale", "lose", "none"]), min_size=4, max_size=4),
    processor=st.sampled_from([Counting, Slow]),
)
def test_nothing_that_happens_between_batches_shows(batches: list[str], steps: list[str], processor: Any) -> None:
    """Restarts, replays, rescales and lost batches: the rows and the state are those of a run without them."""
    with ProcessorTester(Counting(), key="key") as plain, ProcessorTester(processor(), key="key", ranges=2) as tester:
        for keys, step in zip(batches, steps, strict=False):
            expected = in_order(plain.batch(rows(keys)))
            if step == "lose":
                assert in_order(tester.batch(rows(keys), commit=False)) == expected
            assert in_order(tester.batch(rows(keys))) == expected
            if step == "replay":
                assert in_order(tester.replay()) == expected
            if step in ("restart", "rescale"):
                tester.restart(ranges=len(keys) + 1 if step == "rescale" else None)
        assert counts(tester) == counts(plain)


def test_bad_input_is_told_and_nothing_is_committed() -> None:
    """Rows of another schema, keys that are none, and calls that make no sense; each says what to do."""
    with ProcessorTester(Counting(), key="key", ranges=2) as tester:
        with pytest.raises(InputError, match="no batch that could come again"):
            tester.replay()
        tester.batch(rows("a"))
        for wrong, told in (
            ([{"key": "a"}], "other columns"),
            ([{"key": "a", "number": 1, "more": 2}], "other columns"),
            ([{"key": "a", "number": "one"}], "does not fit"),
            ([{"key": None, "number": 1}], "null"),
            (pa.table({"key": ["a"], "number": ["one"]}), "another schema"),
        ):
            with pytest.raises(InputError, match=told):
                tester.batch(wrong)
        assert counts(tester) == {"a": 1}
        with pytest.raises(InputError, match="name the key"):
            tester.backend()
        with pytest.raises(SettingsError):
            tester.restart(ranges=0)
        assert in_order(tester.batch(rows("a"))) == [("a", 2)]
    with pytest.raises(BackendClosedError, match="with ProcessorTester"):
        tester.batch(rows("a"))
    with pytest.raises(InputError, match="exactly one column"), ProcessorTester(Counting(), key="tail") as tester:
        tester.batch(rows("a"))
    with ProcessorTester(Counting(), key="key") as tester:
        with pytest.raises(KeyError):
            tester.batch([{"key": "a"}])  # which was no batch: the schema is still open
        tester.batch(rows("a"))
    with pytest.raises(SettingsError):
        ProcessorTester(Counting(), key=())
    for table in ([{"key": "a", "number": 1.5}], pa.table({"key": ["a"], "number": pa.array([1], pa.int32())})):
        schema = pa.schema([("key", pa.string()), ("number", pa.int64())])
        with ProcessorTester(Counting(), key="key", schema=schema) as tester, pytest.raises(InputError):
            tester.batch(table)


async def test_it_is_for_synchronous_tests() -> None:
    """It has a loop of its own."""
    with pytest.raises(InputError, match="a loop of its own"), ProcessorTester(Counting(), key="key"):
        pass


class CountingKnown(KeyedProcessor):
    """Counts the rows of a table that have a key."""

    def open(self, context: ProcessorContext) -> None:
        self.counts = context.value_state("counts", int)

    def process_table(self, table: Any, context: ProcessorContext) -> None:
        for key in zip(*(column.to_pylist() for column in table.columns), strict=True):
            if None not in key:
                self.counts[key] = self.counts.get(key, 0) + 1


@pytest.mark.parametrize("ranges", [1, 2, 5])
def test_rows_without_a_key_go_to_one_range_as_in_spark(ranges: int) -> None:
    """To that of their other parts. Who processes tables may filter them."""
    keys = [("a", 1), ("b", 2), (None, 1), ("c", None), (None, None)]
    with ProcessorTester(CountingKnown(), key=["key", "n"], ranges=ranges) as tester:
        tester.batch([{"key": key, "n": n} for key, n in keys])
        assert counts(tester) == {("a", 1): 1, ("b", 2): 1}
    with ProcessorTester(Counting(), key="key", ranges=ranges) as tester, pytest.raises(InputError, match="a key is"):
        tester.batch([{"key": "a", "number": 1}, {"key": None, "number": 1}])


@pytest.mark.parametrize("times", [{"order_by": "at"}, {"event_time": "at", "lateness_s": 0}])
def test_the_clock_may_move_before_there_are_rows(times: dict[str, Any]) -> None:
    """Then the columns of a batch are not known yet."""
    with ProcessorTester(CountingKnown(), key="key", **times) as tester:
        for to_s in (100.0, 200.0):
            tester.advance_clock(to_s)
        assert tester.clock_s == 200.0


def test_a_record_batch_is_a_batch_and_what_holds_no_rows_is_refused() -> None:
    """A mapping of columns is no list of rows."""
    with ProcessorTester(Counting(), key="key") as tester:
        assert tester.batch(pa.RecordBatch.from_pylist(rows("aa"))) == [{"key": "a", "n": 2}]
        for wrong in ({"key": ["a"], "number": [1]}, [("a", 1)], ["a"]):
            with pytest.raises(InputError, match="a list of mappings"):
                tester.batch(wrong)
        assert counts(tester) == {"a": 2}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"processor": Counting}, "an instance of it: Counting"),
        ({"processor": print}, "need a KeyedProcessor"),
        ({"key": None}, "key must be"),
        ({"ranges": "2"}, "a whole number"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], said: str) -> None:
    """As a sink does."""
    with pytest.raises(SettingsError, match=said):
        ProcessorTester(**{"processor": Counting(), "key": "key", **arguments})


# ----------------------------------------------------------------------------------------------- settings and stores


@pytest.mark.parametrize("ranges", [1, 3])
@pytest.mark.parametrize("table", ["heap", "rocksdb"])
def test_a_job_of_ones_own_settings(tmp_path: Path, table: Any, ranges: int) -> None:
    """Tables in RocksDB, bases, local copies; and what is stored is there for the next tester."""
    settings = settings_with(
        job="mine",
        primary=f"file://{tmp_path}/primary",
        local=(str(tmp_path / "local"),),
        table=table,
        max_parallelism=16,
        materialize_interval_s=0.001,
        inline_bytes_max=0,
    )
    for first in (True, False):
        with ProcessorTester(Counting(), key="key", settings=settings, ranges=ranges) as tester:
            assert counts(tester) == ({} if first else {"a": 3, "b": 1})
            if first:
                tester.batch(rows("aa"))
                tester.restart()
                assert in_order(tester.batch(rows("ab"))) == [("a", 3), ("b", 1)]
                assert in_order(tester.replay()) == [("a", 3), ("b", 1)]
    assert [*(tmp_path / "local").iterdir()]


def test_two_numbers_of_key_groups_are_refused() -> None:
    """Those of the settings count."""
    with pytest.raises(SettingsError, match="max_parallelism"):
        ProcessorTester(
            Counting(), key="key", settings=settings_with(job="mine", primary="memory://x"), max_parallelism=4
        )


class Breaking(Counting):
    """Breaks the store, once, while it processes a batch."""

    def __init__(self, plan: Sequence[Fault]) -> None:
        self.store = FaultyStore(MemoryStore(), [])
        self.later = [*plan]

    def process(self, key: Any, rows: Any, context: Any) -> Any:
        if key == "b" and self.later:
            self.store.plan[:], self.later[:] = self.later, []
        return super().process(key, rows, context)

    def __copy__(self) -> "Breaking":
        return self


def unanswered(moment: Any) -> list[Fault]:
    """A commit gets no answer, and nobody can look whether it was made."""
    reads = [Fail(key="*/commits/*", nth=None, operation=each) for each in ("get", "get_range", "head")]
    return [Fail(key="*/commits/*", nth=None, operation="put_if_absent", moment=moment), *reads]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_commit_whose_answer_is_lost_counts_once(moment: Any) -> None:
    """Spark delivers the batch again: if the commit was made, its rows are passed over, and otherwise they count."""
    processor = Breaking(unanswered(moment))
    with ProcessorTester(processor, key="key", store=processor.store) as tester:
        tester.batch(rows("a"))
        with pytest.raises(StateBackendError):
            tester.batch(rows("ab"))
        processor.store.plan.clear()
        assert counts(tester) == ({"a": 2, "b": 1} if moment == "after" else {"a": 1})
        tester.backend().value_state("counts", int)["z"] = 7
        tester.restart()
        again = in_order(tester.batch(rows("ab")))
        assert again == ([] if moment == "after" else [("a", 2), ("b", 1)])
        assert in_order(tester.batch(rows("ab"))) == [("a", 3), ("b", 2)]
        assert in_order(tester.replay()) == [("a", 3), ("b", 2)]
        assert counts(tester) == {"a": 3, "b": 2, "z": 7}


def test_other_rows_behind_a_lost_answer_are_the_next_batch() -> None:
    """The one before was committed, so these are not it."""
    processor = Breaking(unanswered("after"))
    with ProcessorTester(processor, key="key", store=processor.store) as tester:
        with pytest.raises(StateBackendError):
            tester.batch(rows("b"))
        processor.store.plan.clear()
        assert tester.batch(rows("bb")) == [{"key": "b", "n": 3}]


@pytest.mark.parametrize("number", [-1, 1])
def test_a_store_that_fails_does_not_hide_why_a_batch_failed(number: int) -> None:
    """The state cannot be opened again, either: the error has a note of it, and the next call tries once more."""
    processor = Breaking([Fail(key="*", nth=None)])
    with ProcessorTester(processor, key="key", store=processor.store) as tester:
        with pytest.raises((ValueError, StateBackendError)) as failed:
            tester.batch([{"key": "b", "number": number}])
        assert (failed.type is ValueError) == (number < 0)
        assert any("could not be opened again" in note for note in failed.value.__notes__)
        with pytest.raises(StateBackendError):
            tester.batch(rows("a"))
        processor.store.plan.clear()
        assert counts(tester) == {}


def test_a_sweep_takes_what_a_test_has_aged() -> None:
    """A store in memory can be made older, as a disk cannot."""
    store, settings = MemoryStore(), settings_with(job="mine", primary="memory://unused", checkpoints_retained=1)
    with ProcessorTester(Counting(), key="key", settings=settings, store=store) as tester:
        for _ in range(5):
            tester.batch(rows("a"))
    for aged, is_swept in ((False, False), (True, True)):
        if aged:
            store.age(by_s=30 * 86_400)
        report = asyncio.run(sb.sweep(settings, dry_run=False, store=store))
        assert bool(report.deleted) == is_swept
    with ProcessorTester(Counting(), key="key", settings=settings, store=store) as tester:
        assert counts(tester) == {"a": 5}
