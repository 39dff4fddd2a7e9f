"""Hooks of time that a sink would never call are refused when it is made, and due timers where there is no clock."""

from typing import Any

import pyarrow as pa
import pytest

import statebackend as sb
from statebackend.errors import InputError, SettingsError
from statebackend.testing import ProcessorTester

SETTINGS = sb.Settings(job="sessions", primary="memory://unused", local=())
ROWS = pa.schema([("key", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])


class Plain(sb.spark.KeyedProcessor):
    """Has no hook of time."""

    output_schema = pa.schema([("key", pa.string())])

    def process(self, key: Any, rows: Any, context: Any) -> None:
        pass


class Ending(Plain):
    """Ends sessions."""

    def open(self, context: Any) -> None:
        self.ends = context.timers("ends")

    def on_timer(self, key: Any, at: float, context: Any) -> Any:
        yield {"key": key}


class Telling(Plain):
    """Tells of late rows."""

    def process_late(self, key: Any, rows: Any, context: Any) -> Any:
        yield {"key": key}


EVENT_TIME = {"event_time": "at", "lateness_s": 1}


def sink(processor: Any, times: dict[str, Any]) -> sb.spark.StatefulSink:
    return sb.spark.StatefulSink(processor, SETTINGS, key="key", output=lambda df, batch_id: None, **times)


@pytest.mark.parametrize(
    ("processor", "times", "said"),
    [
        (Ending(), {}, "on_timer is never called"),
        (Telling(), {}, "process_late is never called"),
        (Telling(), EVENT_TIME, "process_late is never called"),
    ],
)
def test_a_sink_refuses_hooks_that_it_would_never_call(processor: Any, times: dict[str, Any], said: str) -> None:
    """A clock that was forgotten would look like success: no session would ever end."""
    with pytest.raises(SettingsError, match=said) as caught:
        sink(processor, times)
    assert caught.value.facts["processor"] is type(processor)
    if times:
        with pytest.raises(SettingsError, match=said):
            ProcessorTester(processor, key="key", **times)


@pytest.mark.parametrize(
    ("processor", "times"),
    [
        (Plain(), {}),
        (Ending(), EVENT_TIME),
        (Ending(), {"clock": "batch"}),
        (Ending(), {"clock": "kept"}),
        (Telling(), {"clock": "batch"}),
        *((Telling(), {**EVENT_TIME, "late": late}) for late in ("drop", "keep", "output")),
    ],
)
def test_a_sink_takes_hooks_for_which_there_is_a_clock(processor: Any, times: dict[str, Any]) -> None:
    """And one whose late rows are said to go elsewhere."""
    sink(processor, times)


@pytest.mark.parametrize("clock", ["event", "processing"])
def test_due_timers_need_a_clock(clock: Any) -> None:
    """In the tester, too, and in the first batch: not when timers would be due, since that never comes."""
    with ProcessorTester(Ending(), key="key", clock=clock) as tester:
        with pytest.raises(InputError, match="the job has no clock") as caught:
            tester.batch([{"key": "a"}])
        assert "clock_s" in str(caught.value)
        assert tester.batch([{"key": "a"}], clock_s=1.0) == []


def test_timers_of_another_clock_are_told_when_due_ones_are_asked_for() -> None:
    """`on_timer` would never be called with them."""

    class Otherwise(Ending):
        def open(self, context: Any) -> None:
            self.ends = context.timers("ends", clock="processing")

    with (
        ProcessorTester(Otherwise(), key="key", **EVENT_TIME) as tester,
        pytest.raises(InputError, match="none of the timers goes by the clock of the job") as caught,
    ):
        tester.batch(pa.table([["a"], [0]], schema=ROWS))
    assert caught.value.facts == {"timers": ["ends"], "clock": "event"}


class Recent(Plain):
    """Has a time-to-live, and timers."""

    def open(self, context: Any) -> None:
        self.recent = context.value_state("recent", int, ttl=sb.TimeToLive(10))
        self.columns = context.columnar_state(
            "columns", pa.schema([("n", pa.int64())]), key=pa.string(), ttl=sb.TimeToLive(10)
        )
        self.ends = context.timers("ends")

    def process(self, key: Any, rows: Any, context: Any) -> Any:
        self.recent[key] = len(rows) + self.recent.get(key, 0)
        self.columns[key] = {"n": 1}
        self.ends.register(key, context.clock_s + 5)

    def on_timer(self, key: Any, at: float, context: Any) -> Any:
        yield {"key": key}


@pytest.mark.parametrize("ranges", [1, 3])
@pytest.mark.parametrize("schema", [None, ROWS])
def test_the_first_batches_of_a_tester_may_be_empty_as_those_of_a_sink(ranges: int, schema: Any) -> None:
    """The clock has not begun then: nothing expires, and nothing is due."""
    with ProcessorTester(Recent(), key="key", **EVENT_TIME, ranges=ranges, schema=schema) as tester:
        for _ in range(2):
            assert tester.batch([]) == []
            assert tester.clock_s is None
        tester.restart()
        assert tester.batch([]) == []
        at_20_s = pa.table([["a"], [20_000_000]], schema=ROWS)
        assert tester.batch(at_20_s) == []
        assert tester.clock_s == 19.0
        assert tester.batch([]) == []
        assert tester.batch(pa.table([["b"], [30_000_000]], schema=ROWS)) == [{"key": "a"}]
