"""A failed batch frees its state, although PySpark keeps the error that the function raised."""

import asyncio
import contextlib
import gc
import os
import socket
import threading
import traceback
import weakref
from pathlib import Path

import pytest

import statebackend as sb
from statebackend.errors import BackendClosedError, CorruptCommitError, FencedError
from statebackend.spark.failed_frames import clear_frames
from tests.spark import processors

LONG = bool(os.environ.get("STATEBACKEND_SPARK_LONG"))
KEYS = 30_000
STATE_BYTES = 100 * KEYS
"""About what a state of so many keys takes at least."""


class Held:
    """An object that weak references can follow."""


def raised(function) -> Exception:
    """What the function raises, with its traceback."""
    with pytest.raises(Exception) as caught:
        function()
    return caught.value


def test_what_the_frames_of_an_error_refer_to_is_freed() -> None:
    """Of its causes, of what it was raised in the handling of, and of what a group holds. The lines stay."""
    references = []

    def failing(error) -> None:
        held = Held()
        references.append(weakref.ref(held))
        raise error

    def handling() -> None:
        held = Held()
        references.append(weakref.ref(held))
        try:
            failing(KeyError("first"))
        except KeyError:
            failing(OSError("second"))

    def causing() -> None:
        group = ExceptionGroup("both", [raised(handling), raised(lambda: failing(ValueError("third")))])
        raise RuntimeError from group

    error = raised(causing)
    gc.collect()
    assert len(references) == 4
    assert all(reference() is not None for reference in references)
    before = traceback.format_exception(error)
    clear_frames(error)
    gc.collect()
    assert not any(reference() is not None for reference in references)
    assert traceback.format_exception(error) == before


async def test_a_coroutine_that_goes_on_keeps_its_variables() -> None:
    """It has handled the error, or given it to another one, and is still at work; so is an asynchronous generator."""
    errors: asyncio.Queue[Exception] = asyncio.Queue()
    go_on = asyncio.Event()

    async def serving() -> int:
        held = 7
        try:
            raise OSError("handled here, raised there")
        except OSError as error:
            await errors.put(error)
        await go_on.wait()
        return held

    async def numbers():
        for number in (1, 2):
            try:
                raise OSError
            except OSError as error:
                errors.put_nowait(error)
            yield number

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(serving())
        iterator = numbers()
        assert await anext(iterator) == 1
        failure = ExceptionGroup("all", [await errors.get(), await errors.get()])
        await asyncio.to_thread(clear_frames, failure)
        go_on.set()
    assert task.result() == 7
    assert await anext(iterator) == 2
    await iterator.aclose()


def test_a_function_that_still_runs_keeps_its_variables() -> None:
    """The one that clears the frames of an error that it has caught."""
    held = Held()
    try:
        raise OSError
    except OSError as error:
        clear_frames(error)
    assert isinstance(held, Held)


class Failing:
    """Functions of batches that fill a state, give it away, and fail."""

    def __init__(self) -> None:
        self.backends: list[weakref.ref[sb.StateBackend]] = []
        self.states: list[sb.ValueState[int]] = []

    def fill(self, backend) -> None:
        state = backend.value_state("counts", int)
        state.put_many(range(KEYS), range(KEYS))
        self.backends.append(weakref.ref(backend))
        self.states.append(state)

    def synchronous(self, df, batch_id, backend) -> None:
        rows = df.collect()
        self.fill(backend)
        raise OSError(len(rows))

    async def asynchronous(self, df, batch_id, backend) -> None:
        table = await sb.spark.to_arrow(df)
        self.fill(backend)
        raise OSError(table.num_rows)

    def fenced(self, df, batch_id, backend) -> None:
        """The commit fails, with another error each time: an epoch."""
        self.fill(backend)

        async def open_it() -> None:
            async with sb.open_backend(self.settings):
                pass

        asyncio.run(open_it())

    settings: sb.Settings


class FailingProcessor(processors.Counting):
    """The same, as a processor."""

    def __init__(self, failing: Failing) -> None:
        self._failing = failing

    def __copy__(self):
        return FailingProcessor(self._failing)

    def process(self, key, rows, context):
        self.counts.put_many([f"{number}" for number in range(KEYS)], range(KEYS))
        self._failing.states.append(self.counts)
        raise OSError


@pytest.fixture
def one_row(spark):
    return spark.createDataFrame([("a",)], "key string")


@pytest.mark.parametrize("how", ["synchronous", "asynchronous", "fenced", "processor"])
def test_a_failed_batch_leaves_no_state_behind(stream, open_sink, one_row, how) -> None:
    """While its error is kept, and a state is still referred to: that state says that it is closed."""
    failing = Failing()
    failing.settings = stream.settings
    work, options = getattr(failing, how, None), {}
    if how == "processor":
        work, options = FailingProcessor(failing), {"key": "key"}
    sink = open_sink(work, stream.settings, query_id="mine", **options)
    errors = []
    for _ in range(2):
        with pytest.raises(FencedError if how == "fenced" else OSError) as caught:
            sink(one_row, 0)
        errors.append(caught.value)
    del caught
    gc.collect()
    assert not any(reference() is not None for reference in failing.backends)
    assert all(error.__traceback__ for error in errors)
    for state in failing.states:
        with pytest.raises(BackendClosedError):
            len(state)
        with pytest.raises(BackendClosedError):
            state.get("1")


def test_an_opening_that_fails_leaves_no_state_behind(stream, open_sink, one_row, counting) -> None:
    """What it had restored so far is in the frames of its error only."""
    sink = open_sink(counting, stream.settings, query_id="mine")
    sink(one_row, 0)
    sink.close()
    newest = max(Path(stream.settings.primary.removeprefix("file://")).glob("stream/commits/*"))
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.raises(CorruptCommitError) as caught:
        sink(one_row, 1)
    held = [name for frame, _ in traceback.walk_tb(caught.value.__traceback__) for name in frame.f_locals]
    assert "position" not in held
    assert "primary" not in held


def resources() -> tuple[int, int, int]:
    """Resident bytes of this process, its threads, its descriptors."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))


def assert_flat(before: tuple[int, int, int], after: tuple[int, int, int], states: int) -> None:
    """Room for a few states; and for the idle worker threads of a job, which end after some seconds."""
    assert after[0] - before[0] < states * STATE_BYTES
    assert after[1] - before[1] <= 8
    assert after[2] <= before[2]


def test_failures_leave_memory_threads_and_descriptors_as_they_were(stream, open_sink, one_row) -> None:
    """All their errors are kept, as PySpark keeps them. A state of each would be four times as much as is allowed."""
    failing = Failing()
    sink = open_sink(failing.synchronous, stream.settings, query_id="mine")
    errors = []

    def fail(times: int) -> None:
        errors.extend(raised(lambda: sink(one_row, 0)) for _ in range(times))

    fail(3)
    before = resources()
    fail(16)
    assert_flat(before, resources(), 4)


def hang_up(spark) -> None:
    """End what PySpark keeps of every query that was started, with a sink or without one: a thread and its socket.

    They belong to a thread of the JVM that has ended, and neither side closes them.
    """
    for connection in list(spark.sparkContext._gateway._callback_server.connections):
        with contextlib.suppress(OSError, AttributeError):  # it has just closed itself
            connection.socket.shutdown(socket.SHUT_RDWR)


@pytest.mark.skipif(not LONG, reason="takes minutes: `nox -s spark`")
def test_a_thousand_failed_queries_leave_memory_threads_and_descriptors_as_they_were(stream, open_sink) -> None:
    """Each a start of a real query, whose error PySpark keeps by itself. What else it keeps is not looked at."""
    failing = Failing()
    sink = open_sink(failing.synchronous, stream.settings)
    stream.feed("a")

    def fail(times: int) -> None:
        for _ in range(times):
            assert "OSError" in stream.fail(sink)
            hang_up(stream.spark)

    fail(50)
    before = resources()
    fail(950)
    after = resources()
    print(f"after 50 failures {before}, after 1,000 {after}: bytes, threads, descriptors")
    assert_flat(before, after, 20)
