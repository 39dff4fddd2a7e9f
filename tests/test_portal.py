"""The portal: synchronous code runs coroutines on one loop thread, and nothing they raise ends that thread."""

import asyncio
import concurrent.futures
import contextvars
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from statebackend._portal import Portal, as_exception
from statebackend.errors import BackendClosedError, BatchError

BOUND_S = 10.0


@pytest.fixture
def portal() -> Iterator[Portal]:
    with Portal() as portal:
        yield portal


async def loop_thread() -> threading.Thread:
    return threading.current_thread()


async def raise_it(error: BaseException) -> None:
    raise error


class Patient:
    """A coroutine that waits for ever, and tells how it ended. Its cleanup awaits `cleanup_awaits` times."""

    def __init__(self, *, cleanup_awaits: int = 0) -> None:
        self.begun = threading.Event()
        self.cleaned_up = threading.Event()
        self._cleanup_awaits = cleanup_awaits

    async def run(self) -> None:
        self.begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            for _ in range(self._cleanup_awaits):
                await asyncio.sleep(0)
            self.cleaned_up.set()


class Resource:
    """An async context that remembers in which task it was entered and left."""

    def __init__(self, *, refuses: Exception | None = None) -> None:
        self.tasks: list[object] = []
        self._refuses = refuses

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Resource"]:
        self.tasks.append(asyncio.current_task())
        if self._refuses is not None:
            raise self._refuses
        async with anyio.create_task_group():
            yield self
        self.tasks.append(asyncio.current_task())

    async def answer(self) -> int:
        await asyncio.sleep(0)
        return 42


# ------------------------------------------------------------------------------------------------------------ calls


def test_all_calls_run_on_one_thread_that_starts_with_the_first(portal: Portal) -> None:
    """A portal costs nothing until it is used; then it has one thread, which is a daemon."""
    before = set(threading.enumerate())
    first, second = portal.call(loop_thread), portal.call(loop_thread)
    assert first is second
    assert first.daemon
    assert set(threading.enumerate()) - before == {first}


def test_an_exception_reaches_the_caller_as_it_is(portal: Portal) -> None:
    """The same object, not a copy and not wrapped in a group."""
    error = ValueError("as it is")
    with pytest.raises(ValueError) as caught:
        portal.call(raise_it, error)
    assert caught.value is error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError(), GeneratorExit()])
def test_what_is_not_an_exception_becomes_one_and_the_loop_goes_on(portal: Portal, error: BaseException) -> None:
    """Nothing that a coroutine raises ends the loop thread, nor looks as if we had cancelled it."""
    thread = portal.call(loop_thread)
    with pytest.raises(BatchError) as caught:
        portal.call(raise_it, error)
    assert caught.value.__cause__ is error
    assert portal.call(loop_thread) is thread


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_a_task_that_user_code_started_cannot_end_the_loop_either(portal: Portal, error: BaseException) -> None:
    """Even from a task that nobody awaits, asyncio lets these two out of `run_forever`: other calls must not notice."""
    patient = Patient()
    bystander = portal.start(patient.run)
    assert patient.begun.wait(BOUND_S)
    thread = portal.call(loop_thread)

    async def start_and_forget() -> None:
        task = asyncio.get_running_loop().create_task(raise_it(error))
        await asyncio.wait([task])
        assert task.exception() is error

    portal.call(start_and_forget)
    assert portal.call(loop_thread) is thread
    assert not bystander.has_ended
    assert bystander.unwind(BOUND_S)


def test_a_call_sees_the_context_variables_of_the_thread_that_started_it(portal: Portal) -> None:
    """That is how a batch hands its Spark properties to the coroutine; what the coroutine sets stays with it."""
    word = contextvars.ContextVar("word", default="unset")
    word.set("from the caller")

    async def read_and_set() -> str:
        read = word.get()
        word.set("from the coroutine")
        return read

    assert portal.call(read_and_set) == "from the caller"
    assert word.get() == "from the caller"
    assert contextvars.Context().run(portal.call, read_and_set) == "unset"


def test_a_cancelled_call_is_over_only_when_its_coroutine_has_unwound(portal: Portal) -> None:
    """`unwind` returns after the coroutine's `finally`, and the call's result says that it was cancelled."""
    patient = Patient()
    call = portal.start(patient.run)
    assert patient.begun.wait(BOUND_S)
    assert not call.has_ended
    assert call.unwind(BOUND_S)
    assert patient.cleaned_up.is_set()
    with pytest.raises(concurrent.futures.CancelledError):
        call.result()


def test_a_call_cancelled_once_may_await_in_its_cleanup(portal: Portal) -> None:
    """User code is written for asyncio, where `finally: await session.close()` works in a cancelled task."""
    patient = Patient(cleanup_awaits=3)
    call = portal.start(patient.run, once=True)
    assert patient.begun.wait(BOUND_S)
    assert call.unwind(BOUND_S)
    assert patient.cleaned_up.is_set()


def test_a_call_that_was_cancelled_before_it_began_does_not_begin(portal: Portal) -> None:
    """The loop is held up, so that the cancellation is there before the coroutine."""
    gate = threading.Event()
    patient = Patient()

    async def hold_up() -> None:
        gate.wait(BOUND_S)

    holding_up = portal.start(hold_up)
    call = portal.start(patient.run)
    call.cancel()
    gate.set()
    assert call.wait(BOUND_S)
    assert holding_up.wait(BOUND_S)
    assert not patient.begun.is_set()


def test_waiting_on_the_loop_is_refused(portal: Portal) -> None:
    """It would wait for itself for ever."""

    async def call_again() -> None:
        portal.call(loop_thread)

    with pytest.raises(RuntimeError):
        portal.call(call_again)


def test_as_exception_keeps_exceptions_and_wraps_the_rest() -> None:
    """One conversion for the loop and for Spark's callback thread."""
    error, interrupt = ValueError(), KeyboardInterrupt()
    assert as_exception(error) is error
    assert as_exception(interrupt).__cause__ is interrupt


# ------------------------------------------------------------------------------------------------------------- held


def test_a_held_resource_stays_open_between_calls_and_is_left_in_the_task_that_entered_it(portal: Portal) -> None:
    """Task groups of anyio must be left by the task that entered them; that is what holding is for."""
    resource = Resource()
    held = portal.hold(resource.open())
    assert held.wait(BOUND_S)
    assert held.result() is resource
    assert held.is_open
    assert portal.call(resource.answer) == portal.call(resource.answer) == 42
    held.close(BOUND_S)
    held.close(BOUND_S)
    assert not held.is_open
    assert resource.tasks[0] is resource.tasks[1] is not None


def test_a_resource_that_cannot_be_opened_raises_its_error(portal: Portal) -> None:
    """Once: it is not open, and there is nothing to leave."""
    held = portal.hold(Resource(refuses=OSError("no")).open())
    assert held.wait(BOUND_S)
    assert not held.is_open
    with pytest.raises(OSError):
        held.result()
    held.close()


def test_an_opening_that_hangs_can_be_cancelled(portal: Portal) -> None:
    """Restoring a large state takes minutes; stopping the query must not."""
    patient = Patient()

    @asynccontextmanager
    async def open_for_ever() -> AsyncIterator[None]:
        await patient.run()
        yield

    held = portal.hold(open_for_ever())
    assert patient.begun.wait(BOUND_S)
    assert not held.wait(0)
    assert held.call.unwind(BOUND_S)
    with pytest.raises(concurrent.futures.CancelledError):
        held.result()


def test_an_opening_that_was_cancelled_before_it_began_has_ended(portal: Portal) -> None:
    """As when a sink is closed while another query's code holds up the loop: its batch must not wait for ever."""
    gate = threading.Event()
    resource = Resource()

    async def hold_up() -> None:
        gate.wait(BOUND_S)

    holding_up = portal.start(hold_up)
    held = portal.hold(resource.open())
    held.call.cancel()
    assert not held.wait(0)
    gate.set()
    assert held.wait(BOUND_S)
    with pytest.raises(concurrent.futures.CancelledError):
        held.result()
    assert holding_up.wait(BOUND_S)
    assert not resource.tasks


def test_leaving_that_hangs_is_bounded(portal: Portal) -> None:
    """Closing gives it its time, then cancels it."""
    leaving = Patient()

    @asynccontextmanager
    async def never_leave() -> AsyncIterator[None]:
        yield
        await leaving.run()

    held = portal.hold(never_leave())
    assert held.wait(BOUND_S)
    with pytest.raises(concurrent.futures.CancelledError):
        held.close(0.05)
    assert leaving.cleaned_up.is_set()


# ------------------------------------------------------------------------------------------------------------ close


def test_closing_cancels_calls_and_leaves_what_is_held() -> None:
    """In one go: the call unwinds, the resource is left and not cancelled, the thread is gone."""
    portal, patient, resource = Portal(), Patient(cleanup_awaits=2), Resource()
    call = portal.start(patient.run, once=True)
    held = portal.hold(resource.open())
    assert patient.begun.wait(BOUND_S)
    assert held.wait(BOUND_S)
    thread = portal.call(loop_thread)
    portal.close()
    portal.close()
    assert not thread.is_alive()
    assert call.has_ended
    assert patient.cleaned_up.is_set()
    assert len(resource.tasks) == 2
    held.close()
    with pytest.raises(BackendClosedError):
        portal.call(loop_thread)


def test_closing_a_portal_that_was_never_used_starts_nothing() -> None:
    """No thread, no loop."""
    before = set(threading.enumerate())
    Portal().close()
    assert set(threading.enumerate()) <= before


def test_closing_is_bounded_when_a_coroutine_blocks_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """A coroutine that blocks the loop is a bug of its author; it must not become a hang of the closing thread."""
    portal, gate, begun = Portal(), threading.Event(), threading.Event()

    async def block() -> None:
        begun.set()
        gate.wait(60)

    call = portal.start(block)
    assert begun.wait(BOUND_S)
    portal.close(0.05)
    assert not call.has_ended
    assert caplog.records
    gate.set()
    assert call.wait(BOUND_S)


def test_a_coroutine_that_refuses_to_end_is_cancelled_again() -> None:
    """Closing first asks once; when its time is over it insists."""
    portal, begun, refused = Portal(), threading.Event(), threading.Event()

    async def refuse_once() -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            refused.set()
        await anyio.sleep_forever()

    call = portal.start(refuse_once, once=True)
    assert begun.wait(BOUND_S)
    portal.close(0.05)
    assert refused.is_set()
    assert call.has_ended


def test_a_call_that_never_reached_the_loop_ends_with_it(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was started in the instant in which the loop ended."""
    portal.call(loop_thread)
    with monkeypatch.context() as lost:
        lost.setattr(portal, "post", lambda *args: None)
        call, held = portal.start(loop_thread), portal.hold(Resource().open())
    portal.close(0.05)
    for each in (call, held):
        assert each.wait(BOUND_S)
        with pytest.raises(concurrent.futures.CancelledError):
            each.result()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what a stopped loop leaves behind
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_in_vain_for_a_loop_that_has_ended() -> None:
    """Whatever ended it, here a coroutine that stops the loop under everybody: calls end, new ones are refused."""
    portal, patient = Portal(), Patient()
    call = portal.start(patient.run)
    assert patient.begun.wait(BOUND_S)

    async def stop_the_loop() -> None:
        asyncio.get_running_loop().stop()
        calls.append(portal.start(anyio.sleep_forever))  # too late for the loop to begin with it
        await anyio.sleep_forever()

    calls = [call]
    calls.append(portal.start(stop_the_loop))
    for each in calls:
        assert each.wait(BOUND_S)
        with pytest.raises((BatchError, concurrent.futures.CancelledError)):
            each.result()
    portal.close()
    with pytest.raises(BackendClosedError):
        portal.call(loop_thread)
    gc.collect()


def test_a_portal_leaves_nothing_for_the_collector_to_complain_about() -> None:
    """No unclosed loop, no coroutine that was never awaited: with warnings as errors, collecting would tell."""
    portal = Portal()
    portal.call(loop_thread)
    portal.close()
    del portal
    gc.collect()


def test_a_portal_that_nobody_closes_does_not_keep_the_process_alive() -> None:
    """Neither its loop nor the loop's worker threads, nor a call under way."""
    program = (
        "import anyio, anyio.to_thread\n"
        "from statebackend._portal import Portal\n"
        "portal = Portal()\n"
        "portal.call(anyio.to_thread.run_sync, int)\n"
        "portal.start(anyio.sleep_forever)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_an_opening_that_is_interrupted_at_once_ends_with_the_portal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt comes when the loop has the call, and the caller does not: nobody else could end it."""
    portal, patient = Portal(), Patient()
    start = portal.start

    @asynccontextmanager
    async def open_slowly() -> AsyncIterator[None]:
        await patient.run()
        yield

    def interrupted(*args: Any, **options: Any) -> Any:
        start(*args, **options)
        assert patient.begun.wait(BOUND_S)
        raise KeyboardInterrupt

    monkeypatch.setattr(portal, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        portal.hold(open_slowly())
    portal.close()
    assert patient.cleaned_up.is_set()
