"""`KeyedProcessor.close`: once for each `open`, when the state is closed; in the driver, the tester and a worker."""

import asyncio
import gc
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import statebackend as sb
from statebackend._processing.closing import CLOSE_WITHIN_S
from statebackend.errors import BackendClosedError, SettingsError
from statebackend.testing import ProcessorTester
from tests.spark.frames_without_spark import frame_of
from tests.spark.test_worker import attempts

told: list[str] = []
"""What the processors of this module did, also those that a worker has unpickled."""
ROWS = [{"key": "a"}, {"key": "b"}]


@pytest.fixture(autouse=True)
def nothing_told() -> Iterator[None]:
    """The worker freezes what its process has loaded."""
    told.clear()
    yield
    gc.unfreeze()


class Counting(sb.spark.KeyedProcessor):
    """Counts the rows of each key, with something that is to be closed."""

    def open(self, context: Any) -> None:
        self.counts = context.value_state("counts", int)
        told.append("open")

    def process(self, key: Any, rows: Any, context: Any) -> Any:
        if key == "z":
            raise RuntimeError("refused")
        self.counts[key] = self.counts.get(key, 0) + len(rows)

    def close(self) -> Any:
        told.append("close")


class ClosingLate(Counting):
    """Its `close` awaits."""

    async def close(self) -> None:
        await asyncio.sleep(0)
        told.append(f"close on {threading.current_thread().name}")


class Awaiting(Counting):
    """Its `process` awaits, and its `close` does not."""

    async def process(self, key: Any, rows: Any, context: Any) -> None:
        self.counts[key] = self.counts.get(key, 0) + len(rows)

    def close(self) -> None:
        asyncio.get_running_loop()
        told.append("close")


class Failing(Counting):
    """Its `close` fails."""

    def close(self) -> None:
        super().close()
        raise RuntimeError("the client is gone")


class Hanging(Counting):
    """Its `close` never ends."""

    async def close(self) -> None:
        told.append("close")
        await asyncio.Event().wait()


class Writing(Counting):
    """Its `close` goes on with its state."""

    def close(self) -> None:
        try:
            self.counts["a"] = 1000
        except BackendClosedError:
            told.append("refused")


@pytest.mark.parametrize("processor", [Counting, Awaiting, Failing])
def test_each_range_is_closed_once_for_each_opening(processor: type[Counting]) -> None:
    """With the state, and again after a batch that was not committed."""
    with ProcessorTester(processor(), key="key", ranges=2) as tester:
        tester.batch(ROWS)
        tester.batch(ROWS)
        assert told == ["open"] * 2
        tester.batch(ROWS, commit=False)
        assert told == ["open"] * 2 + ["close"] * 2
        tester.batch(ROWS)
        counted = [dict(backend.value_state("counts", int)) for backend in tester.backends]
        assert {**counted[0], **counted[1]} == {"a": 3, "b": 3}
    assert told == (["open"] * 2 + ["close"] * 2) * 2


def test_what_close_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The batch was decided before."""
    with caplog.at_level(logging.WARNING), ProcessorTester(Failing(), key="key") as tester:
        tester.batch(ROWS)
    assert "Failing did not close cleanly" in caplog.text
    assert "the client is gone" in caplog.text


def test_a_close_that_hangs_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    """In virtual time."""
    with caplog.at_level(logging.WARNING), ProcessorTester(Hanging(), key="key") as tester:
        tester.batch(ROWS)
    assert told == ["open", "close"]
    assert f"Hanging did not close within {CLOSE_WITHIN_S:g} s" in caplog.text


@pytest.mark.parametrize("processor", [Counting, ClosingLate, Awaiting])
def test_a_sink_closes_its_processor(processor: type[Counting], tmp_path: Path) -> None:
    """After a failed batch and with the sink, not twice, and on the loop if it awaits."""
    settings = sb.Settings(job="closed", primary=f"file://{tmp_path}", local=())
    with sb.spark.StatefulSink(processor(), settings, key="key", query_id="mine") as sink:
        sink(frame_of("ab"), 0)
        sink(frame_of("a"), 1)
        assert told == ["open"]
        if processor is not Awaiting:
            for times in (1, 2):
                with pytest.raises(RuntimeError, match="refused"):
                    sink(frame_of("z"), 2)
                assert [each.split()[0] for each in told] == ["open", "close"] * times
        sink.close()
    times = 1 if processor is Awaiting else 2
    assert [each.split()[0] for each in told] == ["open", "close"] * times
    if processor is ClosingLate:
        assert threading.current_thread().name not in told[-1]


@pytest.mark.parametrize("processor", [Counting, ClosingLate, Awaiting])
async def test_a_worker_closes_its_processor_after_each_attempt(processor: type[Counting], tmp_path: Path) -> None:
    """Each has a copy of its own."""
    settings = sb.Settings(job=processor.__name__, primary=f"file://{tmp_path}", local=())
    await attempts(settings, processor(), [["a", "b"], ["a"]])
    assert [each.split()[0] for each in told] == ["open", "close"] * 2
    with pytest.raises(sb.errors.BatchError):
        await attempts(settings, Counting(), [["z"]])
    assert [each.split()[0] for each in told] == ["open", "close"] * 3


async def test_close_cannot_change_the_state(tmp_path: Path) -> None:
    """A worker closes the processor before its range is committed: what it wrote would count there and nowhere else."""
    settings = sb.Settings(job="written", primary=f"file://{tmp_path}", local=())
    await attempts(settings, Writing(), [["a", "b"], ["a"]])
    assert told == ["open", "refused"] * 2
    async with sb.open_backend(settings, read_only=True) as backend:
        assert dict(backend.value_state("counts", int)) == {"a": 2, "b": 1}


def test_a_close_that_yields_is_refused() -> None:
    """Nothing would run it."""

    class Yielding(Counting):
        def close(self) -> Any:
            yield

    with pytest.raises(SettingsError, match="cannot yield"):
        ProcessorTester(Yielding(), key="key")
