"""Run coroutines from synchronous code: one event loop on one thread, owned by one `Portal`, without globals.

Always true: an exception of a coroutine ends its own call and nothing else. `KeyboardInterrupt`, `SystemExit` and a
stray `CancelledError` become a `BatchError` on the loop, before they can end it or pass for a real cancellation. A
cancelled call counts as ended only when its coroutine has unwound.

Why not anyio's `BlockingPortal`: its calls and its stop wait for the loop without a bound, so one coroutine that blocks
the loop holds up every thread that wants to start, cancel or close; a `BaseException` falls through it and ends the
loop; and cancelling its future forgets the coroutine while it is still running.
"""

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, TypeVarTuple

import anyio
import anyio.abc

from statebackend.errors import BackendClosedError, BatchError

Args = TypeVarTuple("Args")
T = TypeVar("T")

CLOSE_TIMEOUT_S: Final = 10.0
UNWIND_S: Final = 1.0
"""Seconds a cancelled coroutine may take to unwind before a bounded close continues without it."""

_logger = logging.getLogger(__name__)


def as_exception(error: BaseException) -> Exception:
    """Return `error` if it is an `Exception`, else a `BatchError` with `error` as its cause."""
    if isinstance(error, Exception):
        return error
    failure = BatchError("the function raised something that is not an Exception", raised=type(error).__name__)
    failure.__cause__ = error
    return failure


class Call(Generic[T]):
    """A coroutine running on a portal's loop, seen from other threads. Made by `Portal.start`."""

    def __init__(
        self, portal: "Portal", function: Callable[[], Awaitable[T]], *, once: bool, on_end: Callable[[], None] | None
    ) -> None:
        self._portal = portal
        self._function = function
        self._once = once
        self._on_end = on_end
        self._ended = threading.Event()
        self._asked_to_end = False
        self._scope: anyio.CancelScope | None = None
        self._task: asyncio.Task[Any] | None = None
        self._values: list[T] = []
        self._error: Exception | None = None

    @property
    def has_ended(self) -> bool:
        """True once the coroutine has returned, raised, or unwound."""
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait up to `timeout_s` seconds, `None` for ever; return true if the coroutine has ended."""
        self._portal.refuse_on_loop()
        return self._ended.wait(timeout_s)

    def cancel(self) -> None:
        """Ask the coroutine to end, and return at once. No error if it has ended or was asked before.

        A coroutine that has not started when this returns never starts.
        """
        # Set here, not on the loop: there the request could queue behind the coroutine itself.
        self._asked_to_end = True
        self._portal.post(self.cancel_on_loop)

    def unwind(self, timeout_s: float) -> bool:
        """Cancel, and wait up to `timeout_s` seconds; return true if the coroutine has unwound."""
        self.cancel()
        return self.wait(timeout_s)

    def result(self) -> T:
        """Return what the ended coroutine returned, or raise what it raised: always an `Exception`.

        Raises `concurrent.futures.CancelledError` if it was cancelled, by `cancel` or by closing the portal.
        """
        assert self._ended.is_set(), "the result of a call that has not ended"
        if self._error is not None:
            raise self._error
        return self._values[0]

    def cancel_on_loop(self) -> None:
        """The part of `cancel` that runs on the loop."""
        self._asked_to_end = True
        if self._once and self._task is not None:
            self._task.cancel()
        elif self._scope is not None:
            self._scope.cancel()

    async def run_on_loop(self) -> None:
        """Run the coroutine and store its result or error. Raises nothing."""
        try:
            self._task = asyncio.current_task()
            with anyio.CancelScope() as self._scope:
                if not self._asked_to_end:
                    self._values.append(await self._function())
            if not self._values:
                self._error = concurrent.futures.CancelledError()
        except BaseException as error:  # noqa: BLE001 - whatever gets past here would end the loop for all callers
            ours = self._asked_to_end and isinstance(error, asyncio.CancelledError)
            self._error = concurrent.futures.CancelledError() if ours else as_exception(error)
        finally:
            self._task = self._scope = None
            self._end()

    def abandon(self) -> None:
        """End the call without the loop, which has ended."""
        if not self._ended.is_set():
            self._error = concurrent.futures.CancelledError()
            self._end()

    def _end(self) -> None:
        self._ended.set()
        if self._on_end is not None:
            self._on_end()


class OpenContext(Generic[T]):
    """An asynchronous context that stays open on the loop across calls, entered and left in the same task.

    Wait for its opening as for a `Call`: `wait`, then `result`. `call` spans all of it: opening, being open, leaving.
    Made by `Portal.hold`.
    """

    def __init__(self, portal: "Portal", context: AbstractAsyncContextManager[T]) -> None:
        self.portal = portal
        self._context = context
        self._settled = threading.Event()
        self._release = anyio.Event()
        self._resources: list[T] = []
        self.call = portal.start(self._live, on_close=self._leave_on_loop, on_end=self._settled.set)

    @property
    def is_open(self) -> bool:
        """True while the resource can be used: entered, not left, and not ended by a failure inside it."""
        return bool(self._resources) and not self.call.has_ended

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait up to `timeout_s` seconds; return true if opening has succeeded, failed, or been cancelled."""
        self.portal.refuse_on_loop()
        return self._settled.wait(timeout_s)

    def left(self) -> T | None:
        """The resource of a context that was entered and has been left; `None` for any other."""
        return self._resources[0] if self._resources and self.call.has_ended else None

    def result(self) -> T:
        """Return the resource, or raise what opening it raised."""
        if not self._resources:
            self.call.wait()
            self.call.result()
        return self._resources[0]

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Leave the context and wait at most `timeout_s` seconds; after that cancel it and raise `TimeoutError`.

        Raises what leaving raised, nothing if it was never entered. A second call waits again with the same outcome.
        """
        self.portal.post(self._release.set)
        if not self.call.wait(timeout_s) and not self.call.unwind(UNWIND_S):
            raise TimeoutError(f"the context was not left within {timeout_s} s, nor when cancelled")
        if self._resources:
            self.call.result()

    def _leave_on_loop(self, call: Call[None]) -> None:
        self._release.set() if self._resources else call.cancel_on_loop()  # an interrupt may have come before `call`

    async def _live(self) -> None:
        async with self._context as resource:
            self._resources.append(resource)
            self._settled.set()
            await self._release.wait()


class Portal:
    """One event loop on a thread of its own, for use from any other thread.

    The thread starts with the first call. It and the loop's worker threads are daemons, so a portal that is never
    closed does not keep the process alive. Once closed, a portal stays closed.
    """

    def __init__(self, *, name: str = "statebackend-loop") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._close_timeout_s = CLOSE_TIMEOUT_S
        # The running calls and how to ask each one to end. Grows under the lock, shrinks on the loop.
        self._closers: dict[Call[Any], Callable[[], None]] = {}
        # The fields below belong to the loop.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._stop = anyio.Event()
        self._idle = anyio.Event()

    def start(
        self,
        function: Callable[[*Args], Awaitable[T]],
        *args: *Args,
        once: bool = False,
        on_close: "Callable[[Call[T]], None] | None" = None,
        on_end: Callable[[], None] | None = None,
    ) -> Call[T]:
        """Start `function(*args)` on the loop, in a copy of this thread's context variables, and return at once.

        `once` chooses how it is cancelled. False: anyio's way, every await raises until the coroutine has ended. True:
        asyncio's way, one `CancelledError`, after which `finally` may await; for code that is not ours. `on_close` runs
        on the loop in place of the cancellation when the portal closes, and asks the call to end in its own way.
        `on_end` is called when the call has ended, also if the coroutine never began: on the loop, or without one.

        Raises `BackendClosedError` on a closed portal.
        """
        call: Call[T] = Call(self, partial(function, *args), once=once, on_end=on_end)
        with self._lock:
            if self._closed:
                raise BackendClosedError("the portal is closed")
            self._start_thread()
            self._closers[call] = partial(on_close, call) if on_close else call.cancel_on_loop
            self.post(self._spawn, call)
        return call

    def call(self, function: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
        """Run `function(*args)` to its end: return or raise its outcome. Interrupting this thread cancels it first."""
        call = self.start(function, *args)
        try:
            call.wait()
        except BaseException:
            call.unwind(CLOSE_TIMEOUT_S)
            raise
        return call.result()

    def hold(self, context: AbstractAsyncContextManager[T]) -> OpenContext[T]:
        """Start to enter `context` on the loop and return at once. Raises `BackendClosedError` on a closed portal."""
        return OpenContext(self, context)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Cancel calls, leave open contexts, end the thread: within `timeout_s` plus two seconds, whatever they do.

        Anything still running by then is logged and left to its daemon thread. Closing again is not an error.
        """
        self.refuse_on_loop()
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is None:
            return
        self._close_timeout_s = timeout_s
        self.post(self._stop.set)
        thread.join(timeout_s + 2 * UNWIND_S)
        if thread.is_alive():
            _logger.warning("the loop has not ended within %s s: something blocks it or cannot be cancelled", timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def refuse_on_loop(self) -> None:
        """Raise `RuntimeError` on the loop's own thread, where waiting for the loop would never end."""
        if self._thread is threading.current_thread():
            raise RuntimeError("this waits for the loop and was called on the loop: await instead")

    def post(self, function: Callable[[*Args], object], *args: *Args) -> None:
        """Schedule `function(*args)` on the loop. Does nothing if the loop has ended."""
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function, *args)

    def _start_thread(self) -> None:
        if self._thread is not None:
            return
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name=self._name, daemon=True)
        Context().run(self._thread.start)  # the loop outlives the caller and must not keep its context
        started.wait()
        if self._loop is None:
            self._closed = True
            raise BackendClosedError("the loop did not start: see the traceback of its thread")

    def _run(self, started: threading.Event) -> None:
        try:
            anyio.run(self._serve, started, backend_options={"loop_factory": _SturdyLoop})
        finally:
            started.set()
            with self._lock:
                self._closed = True
            for call in tuple(self._closers):  # whatever ended the loop, no caller waits in vain
                call.abandon()

    async def _serve(self, started: threading.Event) -> None:
        async with anyio.create_task_group() as self._tasks:
            self._loop = asyncio.get_running_loop()
            started.set()
            await self._stop.wait()
            await self._end_calls()
            self._tasks.cancel_scope.cancel()

    def _spawn(self, call: Call[Any]) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(self._run_call, call)

    async def _run_call(self, call: Call[Any]) -> None:
        await call.run_on_loop()
        del self._closers[call]
        if not self._closers:
            self._idle.set()

    async def _end_calls(self) -> None:
        for ask_to_end in tuple(self._closers.values()):
            ask_to_end()
        with anyio.move_on_after(self._close_timeout_s):
            while self._closers:
                self._idle = anyio.Event()
                await self._idle.wait()
        for call in tuple(self._closers):
            call.cancel_on_loop()


class _SturdyLoop(asyncio.SelectorEventLoop):
    """An event loop that survives `KeyboardInterrupt` and `SystemExit`.

    asyncio raises both out of `run_forever` even if a task has already caught them, and `Call` cannot guard tasks that
    user code started itself. Signals go to the main thread, so an exception seen here was raised by a coroutine.
    """

    def run_forever(self) -> None:
        while True:
            try:
                super().run_forever()
            except (KeyboardInterrupt, SystemExit) as error:
                _logger.warning("a task on the loop raised %s; the loop goes on", type(error).__name__)
            else:
                return
