"""A batch with columns that do not do is refused wherever the clock stands: also when all of its rows are late."""

import datetime as dt
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import statebackend as sb
from statebackend._processing.event_time import EventTime
from statebackend._processing.processor import KeyedProcessor
from statebackend._processing.runner import ProcessorRunner
from statebackend.errors import InputError
from statebackend.objectstore import MemoryStore

SETTINGS = sb.Settings(job="late", primary="memory://unused", persist_delay_s=0.0, max_parallelism=16)


class Rows(KeyedProcessor):
    """Processes whatever comes."""

    output_schema = pa.schema([("key", pa.string())])

    def process(self, key: Any, rows: Any, context: Any) -> None:
        """Do nothing."""

    def process_late(self, key: Any, rows: Any, context: Any) -> None:
        """Do nothing."""


class Table(KeyedProcessor):
    """The same, by table."""

    output_schema = Rows.output_schema

    def process_table(self, table: Any, context: Any) -> None:
        """Do nothing."""

    def process_late(self, key: Any, rows: Any, context: Any) -> None:
        """Do nothing."""


def good(*seconds: float) -> Any:
    times = [dt.datetime.fromtimestamp(each, dt.UTC) for each in seconds]
    return pa.table(
        {
            "key": pa.array(["a"] * len(times), pa.string()),
            "number": pa.array(range(len(times)), pa.int64()),
            "at": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )


def with_key(array: Any) -> Callable[[Any], Any]:
    return lambda table: table.set_column(0, "key", array)


FAULTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "missing": (lambda table: table.rename_columns(["other", "number", "at"]), "exactly one column"),
    "twice": (lambda table: table.append_column("key", table["key"]), "share a name"),
    "null": (with_key(pa.array(["a", None], pa.string())), "key is null"),
    "type": (with_key(pa.array([1.5, 2.5])), "must hold text, whole numbers or bytes"),
    "no order": (lambda table: table.rename_columns(["key", "other", "at"]), "exactly one column"),
    "unordered": (lambda table: table.set_column(1, "number", pa.array([[1], [2]])), "have an order"),
}


@pytest.mark.parametrize("late", ["drop", "keep", "output"])
@pytest.mark.parametrize("seconds", [(200.0, 300.0), (20.0, 200.0), (20.0, 30.0)], ids=["none", "one", "all"])
@pytest.mark.parametrize(
    ("processor", "fault"),
    [(Rows, fault) for fault in FAULTS] + [(Table, fault) for fault in FAULTS if fault != "null"],
)
async def test_columns_are_checked_however_many_rows_are_late(
    processor: Any, fault: str, seconds: tuple[float, float], late: Any
) -> None:
    """A processor of tables alone gets null keys as they are: it may have a use for them."""
    change, message = FAULTS[fault]
    event_time = EventTime("at", 0.0, late)
    runner = ProcessorRunner(processor(), key="key", order_by="number", has_output=True, event_time=event_time)
    async with sb.open_backend(SETTINGS, store=MemoryStore()) as backend:
        for table in (good(100.0, 101.0), good(*seconds)):
            backend.advance_clock(event_time.latest_s(table))
            runner(table, 0, backend)
        found = change(good(*seconds))
        with pytest.raises(InputError, match=message):
            runner(found, 0, backend)


def test_a_batch_without_rows_may_have_any_columns() -> None:
    """As the tester makes of an empty list."""
    runner = ProcessorRunner(Rows(), key="key", order_by="number", has_output=True)
    assert runner.keys_of(pa.table({"key": pa.array([], pa.null())})).is_empty
