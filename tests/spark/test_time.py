"""The job's clock in Spark: the same times in the driver and on executors, where idle ranges wake for their timers."""

import asyncio
import random
from typing import Any

import pytest

import statebackend as sb
from statebackend._processing.event_time import EventTime
from statebackend.ids import ClockMark
from statebackend.spark.batch_clock import BatchClock
from statebackend.spark.frames import collected
from tests.spark.processors import Sessions, timed

BATCHES = [
    [f"{key}:{number}" for number, key in enumerate("abcdefghijkl")],
    ["a:13", "b:2"],
    [],
    ["a:100"],
    ["a:5000", "b:99", "b:100"],
]
TOLD = [
    [*((key, "rows", 1.0) for key in "abcdefghijkl"), ("a", "end", 10.0), ("b", "end", 11.0)],
    [("a", "rows", 1.0), ("b", "late", 1.0), ("c", "end", 12.0), ("d", "end", 13.0)],
    [],
    [("a", "rows", 1.0), *((key, "end", number + 14.0) for number, key in enumerate("efghijkl"))],
    [("a", "rows", 1.0), ("b", "late", 1.0), ("b", "rows", 1.0), ("b", "end", 110.0)],
]
"""By hand: lateness is 0, so the clock is 11, 13, 13, 100, 5000."""
LATE = [0, 1, 0, 0, 1, 0]
AT_WORK = ["abcdefghijkl", "abcd", "", "aefghijkl", "ab", ""]
"""The keys for which there is something to do in each batch."""
RANGES = 4


class Told(sb.Observer):
    """The output rows of each batch; how many ranges were opened for it, and how many of its rows were late."""

    def __init__(self) -> None:
        self.rows: list[list[tuple[Any, ...]]] = []
        self.opened: list[int] = [0]
        self.late: list[int] = [0]

    def __call__(self, df: Any, batch_id: int) -> None:
        self.rows.append(sorted(tuple(row) for row in df.collect()))

    def range_opened(self, found: str) -> None:
        self.opened[-1] += 1

    def rows_late(self, rows: int) -> None:
        self.late[-1] += rows

    def checkpoint_committed(self, info: sb.CheckpointInfo) -> None:
        self.opened.append(0)
        self.late.append(0)


def clock_of(settings: sb.Settings) -> ClockMark | None:
    async def read() -> ClockMark | None:
        async with sb.open_backend(settings, read_only=True) as backend:
            return None if backend.newest is None else backend.newest.clock

    return asyncio.run(read())


def test_driver_and_executors_fire_the_same_timers_and_open_no_idle_range_for_nothing(open_stream, open_sink) -> None:
    """Ranges without rows have timers, too."""
    for where in ({}, {"execution": "executors", "parallelism": RANGES}):
        stream, told = open_stream(where.get("execution", "driver")), Told()
        for batch in BATCHES:
            stream.feed(*batch)
        sink = open_sink(
            Sessions(),
            stream.settings,
            key="key",
            event_time="at",
            lateness_s=0,
            late="output",
            output=told,
            observer=told,
            **where,
        )
        stream.run(sink, plan=timed)
        assert told.rows == [sorted(rows) for rows in TOLD]
        assert told.late == LATE
        assert clock_of(stream.settings) == ClockMark(5000.0, "event")
        if where:
            groups = stream.settings.max_parallelism
            ranges = [{sb.owners.key_group(key, groups) * RANGES // groups for key in keys} for keys in AT_WORK]
            assert told.opened == [len(each) for each in ranges]
            assert any(0 < len(each) < RANGES for each in ranges), "else idle ranges are not tested"


def test_a_function_goes_by_the_clock_and_does_not_see_late_rows(stream, open_sink) -> None:
    """Its time-to-live and its timers are not told of it either. A null time fails the batch."""
    for batch in (["a:0", "b:50"], ["a:100", "b:49"], ["a:99", "c:100"]):
        stream.feed(*batch)
    seen: list[Any] = []
    told = Told()

    def function(df: Any, batch_id: int, backend: sb.StateBackend) -> None:
        recent, idle = backend.value_state("recent", int, ttl=sb.TimeToLive(50)), backend.timers("idle")
        keys = sorted(row.key for row in df.collect())
        seen.append((keys, sorted(recent), [timer.key for timer in backend.due_timers()], backend.clock_s))
        for key in keys:
            recent[key] = 1
            idle.register(key, backend.clock_s + 20)

    options = {"event_time": "at", "lateness_s": 0, "observer": told}
    stream.run(open_sink(function, stream.settings, **options), plan=timed)
    assert seen == [(["a", "b"], [], [], 50), (["a"], [], ["a", "b"], 100), (["c"], ["a"], [], 100)]
    assert told.late == [0, 1, 1, 0]
    stream.feed("a:200", "b:300")

    def unknown(df: Any) -> Any:
        return timed(df).selectExpr("key", "nullif(at, timestamp_seconds(300)) AS at")

    assert "a row has no event time" in stream.fail(open_sink(function, stream.settings, **options), plan=unknown)
    assert len(seen) == 3
    assert clock_of(stream.settings) == ClockMark(100.0, "event")


@pytest.mark.parametrize(
    "of_type", ["timestamp_micros({})", "TIMESTAMP_NTZ '1970-01-01' + make_dt_interval(0, 0, 0, {}e-6BD)"]
)
def test_late_rows_are_told_to_the_microsecond_in_any_year(spark, of_type) -> None:
    """With a zone and without. Python's own times end with the year 9999, Spark's do not."""
    clock = BatchClock(EventTime("at", 0.0, "drop"))
    for before_us in (-1, 0, 1_500_000_000_000_001, 600_000_000_000_000_000):
        df = spark.range(-1, 2).selectExpr(
            "id", f"{of_type.format(before_us)} + make_dt_interval(0, 0, 0, id * 1e-6BD) AS at"
        )
        to_s, late = clock.of_frame(df, before_us / 1e6)
        assert (to_s, late) == ((before_us + 1) / 1e6, 1)
        assert [row.id for row in clock.in_time(df, before_us / 1e6).select("id").collect()] == [0, 1]


@pytest.mark.parametrize(
    "of_type", ["timestamp_micros(us)", "TIMESTAMP_NTZ '1970-01-01' + make_dt_interval(0, 0, 0, us * 1e-6BD)"]
)
def test_rows_in_spark_are_late_by_the_rule_of_rows_at_hand(spark, of_type) -> None:
    """It is written twice, as SQL and for Arrow: drawn times about a drawn clock fall on the same side by both."""
    chance = random.Random(2600)
    rule = EventTime("at", 0.0, "drop")
    for before_s in (0.0, -0.5e-6, *(chance.uniform(-1e9, 4e9) for _ in range(2))):
        drawn = [(number, round(before_s * 1e6) + chance.randint(-3, 3)) for number in range(20)]
        df = spark.createDataFrame(drawn, "id bigint, us bigint").selectExpr("id", f"{of_type} AS at")
        in_time, late = rule.split(collected(df), before_s)
        clock = BatchClock(rule)
        assert clock.in_time(df, before_s).toArrow()["id"].to_pylist() == in_time["id"].to_pylist()
        assert clock.of_frame(df, before_s) == (rule.latest_s(collected(df)), late.num_rows)
        assert in_time.num_rows
        assert late.num_rows
