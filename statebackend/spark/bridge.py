"""Between Spark's callback thread and the event loop: waits for coroutines while watching the query, never hangs it.

Two things always hold. Only an `Exception` leaves the sink for py4j: after anything else the callback thread dies
without an answer, and the query waits for that answer for ever. And it leaves only after the coroutine that the sink
waited for has unwound.

The callback thread is pinned to the query's own thread in the JVM, so any call into the JVM from here sees that
thread's interrupt flag. `Thread.sleep(0)` asks for it. Spark tells a stopped query from a failed one by the text of the
error that we raise.
"""

import atexit
import concurrent.futures
import contextlib
import logging
import os
import traceback
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from pyspark.sql import DataFrame

from statebackend._portal import Call, OpenContext, Portal
from statebackend.errors import BackendClosedError
from statebackend.spark.frames import context_of

T = TypeVar("T")

POLL_S: Final = 0.1
"""Seconds between two looks at whether the query is being stopped. A look costs less than a millisecond."""
UNWIND_POLLS: Final = 50
"""Polls, of a tenth of a second, that a cancelled coroutine may take to clean up before it is cancelled again."""

_CALLING: Final = "py4j.protocol.Py4JJavaError: An error occurred while calling"
_INTERRUPTS: Final = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
"""The exceptions that Spark takes for a stop, if their names follow `_CALLING` in the text of the error."""

_logger = logging.getLogger(__name__)
_portals: dict[int, Portal] = {}  # by process


def process_portal() -> Portal:
    """The one event loop of this process, for all its sinks. Starts on first use and ends with the process.

    A forked child gets its own, because the thread of its parent's loop does not exist there.
    """
    pid = os.getpid()
    if (portal := _portals.get(pid)) is None:
        mine = Portal(name="statebackend-spark")
        portal = _portals.setdefault(pid, mine)  # if two threads come here, one wins
        if portal is mine:
            atexit.register(_close_at_exit, pid, portal)
    return portal


class QueryStoppedError(Exception):
    """Carries the words that Spark takes for the stop of a query, and nothing more.

    The pattern by which Spark looks for them (SPARK-39218) recurses for every character that follows. The Java stack
    trace in an error of py4j makes it overflow the stack of the query's thread, which then dies while stopping.
    """

    def __init__(self) -> None:
        super().__init__(f"{_CALLING} sleep: {_INTERRUPTS[0]}")


class QueryThread:
    """Spark's callback thread and, behind it, the query's own thread in the JVM. Only for use on the callback thread.

    On Spark Connect there is neither an interrupt flag nor a job group, so all methods do nothing.
    """

    def __init__(self, df: DataFrame, run_id: str) -> None:
        self._context = context_of(df)
        self._run_id = run_id
        self._sleep: Callable[[int], None] | None = None

    def raise_if_stopped(self, error: BaseException | None = None) -> None:
        """Raise `QueryStoppedError` if the query is being stopped, or if `error` says so.

        The JVM reports an interrupt only once. If one of the user's Spark actions met it, only `error` still knows.
        """
        if self._context is None:
            return
        if self._sleep is None:  # looked up late: that takes some milliseconds, and a quick batch never asks
            # PySpark has no public way to the JVM.
            jvm: Any = self._context._jvm  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            self._sleep = cast("Callable[[int], None]", jvm.java.lang.Thread.sleep)
        try:
            self._sleep(0)
        except Exception as interrupt:
            if _tells_of_an_interrupt(interrupt):
                raise QueryStoppedError from None
            raise
        if error is not None and _tells_of_an_interrupt(error):
            _logger.debug("a Spark action was interrupted", exc_info=error)
            raise QueryStoppedError from None

    def cancel_jobs(self) -> None:
        """Cancel the Spark jobs of the query's run. Raises nothing: it is called while another error is raised."""
        if self._context is not None and self._run_id:
            with contextlib.suppress(Exception):  # the JVM may be gone
                self._context.cancelJobGroup(self._run_id)


def attend(call: Call[T] | OpenContext[T], query: QueryThread) -> T:
    """Wait for `call` and return its result. If the query is stopped meanwhile, cancel, wait for the end, and raise.

    Raises what the coroutine raises, `QueryStoppedError`, or `BackendClosedError` if the loop was closed.
    """
    try:
        while not call.wait(POLL_S):
            query.raise_if_stopped()
    except BaseException:
        _unwind(call.call if isinstance(call, OpenContext) else call, query)
        raise
    try:
        return call.result()
    except concurrent.futures.CancelledError as error:
        raise BackendClosedError("the event loop was closed while a batch was running") from error


def _unwind(call: Call[Any], query: QueryThread) -> None:
    while True:
        call.cancel()
        for _ in range(UNWIND_POLLS):
            if call.wait(POLL_S):
                return
            # Spark cancels the jobs of a stopped query before it interrupts us. A job that a thread of the coroutine
            # starts after that would run to its end, and we would wait for it.
            query.cancel_jobs()
        _logger.warning("a coroutine of a stopped batch does not end: cancelling it again")


def _tells_of_an_interrupt(error: BaseException) -> bool:
    """True if Spark would take `error` for an interrupt: it has only the text of an error and of its causes."""
    _, calling, text = "".join(traceback.format_exception(error)).partition(_CALLING)
    return bool(calling) and any(name in text for name in _INTERRUPTS)


def _close_at_exit(pid: int, portal: Portal) -> None:
    # The loop's threads are daemons and would not keep the process alive. But open backends had better be closed than
    # cut off, and an extension that takes the interpreter's lock back during shutdown may abort the process.
    if os.getpid() == pid:  # a forked child inherits the registration
        portal.close()
