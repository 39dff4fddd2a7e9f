"""A batch that is under way tells the observer how far it is. Without Spark."""

import asyncio
import itertools
import threading
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

import statebackend as sb
from statebackend._processing.runner import ProcessorRunner
from statebackend._tasks import open_tasks
from statebackend.spark import driver
from statebackend.testing import run_virtual
from tests.knobs import settings_with
from tests.observers.test_events import Recorder
from tests.spark.frames_without_spark import frame_of

LASTS_S = {"a": 1.5, "bb": 2.25, "ccc": 0.25, "dddd": 2.0}
"""How long `process` takes for each key, which has as many rows as letters."""
jobs = itertools.count()


class Lasting(sb.spark.KeyedProcessor):
    async def process(self, key: Any, rows: Any, context: Any) -> None:
        await anyio.sleep(LASTS_S[key])


def told_by(recorder: Recorder) -> list[tuple[Any, ...]]:
    """Rows, of how many, and keys under way, as often as they were told; and when."""
    names = ("rows", "of_rows", "keys_under_way", "seconds")
    return [tuple(facts[each] for each in names) for name, _, facts in recorder.heard if name == "batch_progressed"]


@pytest.mark.parametrize(
    ("concurrency", "keys", "expected"),
    [
        (1, ["a", "bb"], [(1, 3, 1, 1.0), (3, 3, 1, 2.0), (3, 3, 1, 3.0)]),
        (2, list(LASTS_S), [(3, 10, 2, 1.0), (10, 10, 2, 2.0), (10, 10, 1, 3.0)]),  # dddd from 1.75 to 3.75
        (64, ["ccc"], []),
    ],
    ids=["one by one", "two at a time", "quick"],
)
@run_virtual
async def test_a_batch_tells_once_a_second_how_far_it_is(
    concurrency: int, keys: list[str], expected: list[tuple[Any, ...]]
) -> None:
    """Also when no key is left to begin: a last one that hangs is seen."""
    recorder, settings = Recorder(), settings_with(job="j", primary=f"memory://progress-{next(jobs)}")
    runner = ProcessorRunner(Lasting(), key="key", order_by=(), has_output=False, concurrency=concurrency)
    rows = runner.keys_of(pa.table({"key": [key for key in keys for _ in key]}))
    async with sb.open_backend(settings) as backend, open_tasks() as tasks:
        tasks.start_soon(driver.tell_progress, runner, recorder, 0, rows.table.num_rows)
        await runner.run(rows, 0, backend)
        tasks.cancel_scope.cancel()
    assert told_by(recorder) == expected


class Held(sb.spark.KeyedProcessor):
    """Waits, on the thread that Spark would call."""

    def __init__(self, gate: Any) -> None:
        self.gate = gate

    def process(self, key: Any, rows: Any, context: Any) -> None:
        self.gate.wait()


class HeldTable(sb.spark.KeyedProcessor):
    """The same with all rows."""

    def __init__(self, gate: Any) -> None:
        self.gate = gate

    def process_table(self, table: Any, context: Any) -> None:
        self.gate.wait()


class HeldOnLoop(Held):
    """The same, and every call at the same time."""

    async def process(self, key: Any, rows: Any, context: Any) -> None:
        await self.gate.wait()


@pytest.mark.parametrize(
    ("held", "gate", "expected"),
    [
        (Held, threading.Event(), (1, 6, 1)),
        (HeldTable, threading.Event(), (6, 6, 0)),
        (HeldOnLoop, asyncio.Event(), (6, 6, 3)),
    ],
    ids=["sync", "table", "async"],
)
def test_it_is_told_while_every_call_waits_and_not_after_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: Any, gate: Any, expected: tuple[int, ...]
) -> None:
    """The calls wait for the very event that says so: were it not told, this would hang."""
    monkeypatch.setattr(driver, "PROGRESS_EVERY_S", 0.0)

    def let_go() -> None:
        if expected in [each[:3] for each in told_by(recorder)]:
            gate.set()

    recorder, settings = Recorder(let_go), settings_with(job="job", primary=f"file://{tmp_path}/primary")
    with sb.spark.StatefulSink(held(gate), settings, query_id="mine", key="key", observer=recorder) as sink:
        sink(frame_of("abbccc"), 0)
    committed = recorder.events.index("checkpoint_committed")
    assert "batch_progressed" in recorder.events[:committed]
    assert "batch_progressed" not in recorder.events[committed:]
