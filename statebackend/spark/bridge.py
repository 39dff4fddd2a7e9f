"""Between Spark's callback thread and the loop: waiting without losing sight of the query, and never hanging it.

Always holds: what leaves the sink for py4j is an `Exception` (anything else ends the callback thread without an answer,
and the query waits for that answer for ever), and it leaves only when the coroutine it waited for has unwound.

The callback thread is pinned to the query's own thread in the JVM, so any call into the JVM made from here sees that
thread's interrupt flag. `Thread.sleep(0)` asks for it. Spark tells a query that was stopped from one that failed by the
text of what we raise.
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
"""How often the callback thread asks whether the query is being stopped. One ask costs under a millisecond."""
UNWIND_POLLS: Final = 50
"""Polls, of a tenth of a second, that a cancelled coroutine may spend on cleaning up before it is cancelled again."""

_CALLING: Final = "py4j.protocol.Py4JJavaError: An error occurred while calling"
_INTERRUPTS: Final = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)

_logger = logging.getLogger(__name__)
_portals: dict[int, Portal] = {}


def process_portal() -> Portal:
    """The one loop of this process, for all of its sinks: it starts with the first use and ends with the process.

    A forked child gets its own: the thread of its parent's is not there.
    """
    pid = os.getpid()
    if (portal := _portals.get(pid)) is None:
        mine = Portal(name="statebackend-spark")
        portal = _portals.setdefault(pid, mine)  # of two threads, one wins
        if portal is mine:
            atexit.register(_close_at_exit, pid, portal)
    return portal


class QueryStoppedError(Exception):
    """Has the words that Spark takes for the stop of a query, and no more.

    Spark's pattern (SPARK-39218) recurses with every character that comes after them. With the stack trace of Java that
    py4j puts into its errors it overflows the stack of the query's thread, which then dies in the middle of stopping.
    """

    def __init__(self) -> None:
        super().__init__(f"{_CALLING} sleep: {_INTERRUPTS[0]}")


class QueryThread:
    """Spark's callback thread and, behind it, the query's own thread in the JVM. To be used on the former only.

    On Spark Connect there is neither an interrupt flag nor a job group, and nothing happens here.
    """

    def __init__(self, df: DataFrame, run_id: str) -> None:
        self._context = context_of(df)
        self._run_id = run_id
        self._sleep: Callable[[int], None] | None = None

    def raise_if_stopped(self, error: BaseException | None = None) -> None:
        """Raise `QueryStoppedError`, once, if the query is being stopped.

        `error` may say that already, where an action of the user's has met the interrupt.
        """
        if self._context is None:
            return
        if self._sleep is None:  # looked up late: it takes some milliseconds, and a quick batch never asks
            # There is no public way to the JVM.
            jvm: Any = self._context._jvm  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            self._sleep = cast("Callable[[int], None]", jvm.java.lang.Thread.sleep)
        try:
            self._sleep(0)
        except Exception as interrupt:
            if _tells_of_an_interrupt(interrupt):
                raise QueryStoppedError from None
            raise
        if error is not None and _tells_of_an_interrupt(error):
            _logger.debug("an action was interrupted", exc_info=error)
            raise QueryStoppedError from None

    def cancel_jobs(self) -> None:
        """Cancel the jobs of the query's run. Raises nothing: it is called where an error is on its way already."""
        if self._context is not None and self._run_id:
            with contextlib.suppress(Exception):  # the JVM may be gone
                self._context.cancelJobGroup(self._run_id)


def attend(call: Call[T] | OpenContext[T], query: QueryThread) -> T:
    """The result of `call`. If the query is stopped meanwhile, raise that, after the coroutine has unwound."""
    try:
        while not call.wait(POLL_S):
            query.raise_if_stopped()
    except BaseException:
        _unwind(call.call if isinstance(call, OpenContext) else call, query)
        raise
    try:
        return call.result()
    except concurrent.futures.CancelledError as error:
        raise BackendClosedError("the loop was closed while a batch was running") from error


def _unwind(call: Call[Any], query: QueryThread) -> None:
    while True:
        call.cancel()
        for _ in range(UNWIND_POLLS):
            if call.wait(POLL_S):
                return
            # Spark has cancelled the jobs of a stopped query before it interrupts us. What a thread of the coroutine
            # starts after that would run on to its end, and we would wait for it.
            query.cancel_jobs()
        _logger.warning("a coroutine of a stopped batch does not end: cancelling it again")


def _tells_of_an_interrupt(error: BaseException) -> bool:
    """As Spark sees it, which has nothing but the text of an error and of what led to it."""
    _, calling, told = "".join(traceback.format_exception(error)).partition(_CALLING)
    return bool(calling) and any(name in told for name in _INTERRUPTS)


def _close_at_exit(pid: int, portal: Portal) -> None:
    # The loop's threads are daemons and would not keep the process alive; but what is held open is better left than cut
    # off, and an extension that takes the interpreter's lock back while that shuts down may abort the process.
    if os.getpid() == pid:  # a forked child inherits what was registered
        portal.close()
