"""The bridge without Spark: waiting for a coroutine while the query may be stopped."""

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import anyio.to_thread
import pyarrow as pa
import pytest

from statebackend._portal import Portal
from statebackend.errors import BackendClosedError
from statebackend.spark import bridge
from statebackend.spark.bridge import attend, process_portal
from statebackend.spark.driver import result_of
from tests.programs.frames import Session

BOUND_S = 10.0


class StoppedError(Exception):
    """Stands for what a stopped query raises."""


class Query:
    """A query as the bridge sees it, stopped when `stopped` is set."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.cancelled_jobs = threading.Event()

    def raise_if_stopped(self) -> None:
        if self.stopped.is_set():
            raise StoppedError

    def cancel_jobs(self) -> None:
        self.cancelled_jobs.set()


@pytest.fixture
def portal() -> Iterator[Portal]:
    with Portal() as portal:
        yield portal


@pytest.fixture
def query() -> Query:
    return Query()


def test_a_timeout_that_a_coroutine_raises_is_its_own(portal, query) -> None:
    """It is not mistaken for a poll that timed out."""

    async def time_out() -> None:
        with anyio.fail_after(0):
            await anyio.sleep_forever()

    with pytest.raises(TimeoutError):
        attend(portal.start(time_out), query)


def test_a_stop_gets_through_only_after_the_coroutine_has_unwound(portal, query) -> None:
    """Or its cleanup would still run when Spark delivers the batch again."""
    cleaned_up = []

    async def clean_up_slowly() -> None:
        query.stopped.set()
        try:
            await anyio.sleep_forever()
        finally:
            cleaned_up.append(await anyio.to_thread.run_sync(query.cancelled_jobs.wait, BOUND_S))

    with pytest.raises(StoppedError):
        attend(portal.start(clean_up_slowly, once=True), query)
    assert cleaned_up == [True]


def test_a_coroutine_that_swallows_its_cancellation_is_cancelled_again(portal, query, monkeypatch, caplog) -> None:
    """After a while, and with a warning: it holds up the query's stop."""
    monkeypatch.setattr(bridge, "UNWIND_POLLS", 1)
    swallowed = []

    async def swallow_one() -> None:
        query.stopped.set()
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            swallowed.append(True)
        await anyio.sleep_forever()

    with pytest.raises(StoppedError):
        attend(portal.start(swallow_one, once=True), query)
    assert swallowed
    assert caplog.records


def test_a_coroutine_that_a_stop_comes_before_is_closed(query) -> None:
    """The loop was busy. Python would warn of a coroutine that was never awaited, when the error's frames are freed."""

    async def publish() -> None:
        raise AssertionError("begun after the stop")

    publishing = publish()
    process_portal().call(anyio.lowlevel.checkpoint)  # it starts with the first call
    query.stopped.set()
    process_portal().post(query.cancelled_jobs.wait, BOUND_S)  # the loop gets to nothing before the call is cancelled
    with pytest.raises(StoppedError):
        result_of(publishing, Session().frame(pa.table({})), query)
    assert query.cancelled_jobs.is_set()
    assert inspect.getcoroutinestate(publishing) == inspect.CORO_CLOSED


def test_a_stop_while_a_context_is_being_opened_cancels_the_opening(portal, query) -> None:
    """As for a call: what was being opened is closed before the stop gets through."""
    left = []

    @asynccontextmanager
    async def open_slowly():
        query.stopped.set()
        try:
            await anyio.sleep_forever()
        finally:
            left.append(True)
        yield

    with pytest.raises(StoppedError):
        attend(portal.hold(open_slowly()), query)
    assert left


def test_a_portal_that_closes_under_a_batch_is_an_error_of_ours(portal, query) -> None:
    """As at the end of the process: neither a hang nor a bare cancellation."""
    begun = threading.Event()

    async def wait_for_ever() -> None:
        begun.set()
        await anyio.sleep_forever()

    call = portal.start(wait_for_ever)
    assert begun.wait(BOUND_S)
    portal.close()
    with pytest.raises(BackendClosedError):
        attend(call, query)


def test_there_is_one_portal_per_process() -> None:
    """Also for threads that ask for it at the same time."""
    together = threading.Barrier(4)
    found: list[Portal] = []

    def ask() -> None:
        together.wait(BOUND_S)
        found.append(process_portal())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


def run_program(*lines: str) -> None:
    """Run a program; a process that does not end is the failure that this looks for."""
    preamble = (
        "import os, sys, threading, anyio, anyio.to_thread",
        "from statebackend.spark.bridge import process_portal",
    )
    subprocess.run([sys.executable, "-c", "\n".join((*preamble, *lines))], check=True, timeout=60)


def test_a_process_that_used_the_portal_ends_with_its_main_thread() -> None:
    """Nobody has to close the process's portal: no call under way and no worker thread keeps it alive."""
    run_program(
        "process_portal().call(anyio.to_thread.run_sync, int)",
        "process_portal().start(anyio.sleep_forever)",
    )


def test_open_contexts_are_left_when_the_process_ends(tmp_path) -> None:
    """Its cleanup runs, threads included, before the interpreter takes itself apart."""
    left = tmp_path / "left"
    run_program(
        "from contextlib import asynccontextmanager",
        "from pathlib import Path",
        "@asynccontextmanager",
        "async def context():",
        "    yield",
        f"    await anyio.to_thread.run_sync(Path({str(left)!r}).touch)",
        "process_portal().hold(context()).wait()",
    )
    assert left.exists()


def test_a_forked_child_gets_a_portal_of_its_own() -> None:
    """The thread of the parent's portal is not there; waiting for it would be for ever."""
    run_program(
        "process_portal().call(anyio.sleep, 0)",
        "child = os.fork()",
        "process_portal().call(anyio.sleep, 0)",
        "if child:",
        "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
    )
