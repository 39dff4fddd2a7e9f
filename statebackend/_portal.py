"""Run the event loop from synchronous code: one loop thread, owned by one `Portal`, and no globals.

What always holds: whatever a coroutine raises ends its own call and nothing else. `KeyboardInterrupt`, `SystemExit`
and a `CancelledError` that nobody asked for become a `BatchError` on the loop, before they can end it or look like
a cancellation of ours. A cancelled call counts as over only when its coroutine has unwound.

anyio's `BlockingPortal` was weighed and not taken. Its calls and its stop wait for the loop without a bound, so one
coroutine that blocks the loop holds up every thread that wants to start, cancel or close; a `BaseException` falls
through it and ends the loop; and cancelling its future forgets the coroutine while that is still running.
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
"""How long a coroutine that was cancelled may take to unwind before a bounded close goes on without it."""

_logger = logging.getLogger(__name__)


def as_exception(error: BaseException) -> Exception:
    """`error` itself if it is an `Exception`, else a `BatchError` with `error` as its cause."""
    if isinstance(error, Exception):
        return error
    failure = BatchError("the function ended in something that is not an Exception", raised=type(error).__name__)
    failure.__cause__ = error
    return failure


class Call(Generic[T]):
    """A coroutine under way on a portal's loop, seen from other threads. Made by `Portal.start`."""

    def __init__(self, portal: "Portal", function: Callable[[], Awaitable[T]], *, once: bool) -> None:
        self._portal = portal
        self._function = function
        self._once = once
        self._ended = threading.Event()
        self._asked_to_end = False
        self._scope: anyio.CancelScope | None = None
        self._task: asyncio.Task[Any] | None = None
        self._values: list[T] = []
        self._error: Exception | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the coroutine has returned, raised, or unwound."""
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the coroutine has ended, after waiting up to `timeout_s` seconds for it. `None`: for ever."""
        self._portal.refuse_on_loop()
        return self._ended.wait(timeout_s)

    def cancel(self) -> None:
        """Ask the coroutine to end. Returns at once; not an error if it has ended or was asked before.

        A coroutine that has not begun when this returns does not begin.
        """
        self._asked_to_end = True  # here and not on the loop: what asks may stand behind the coroutine in its queue
        self._portal.post(self.cancel_on_loop)

    def unwind(self, timeout_s: float) -> bool:
        """Cancel, and wait up to `timeout_s` seconds. Whether the coroutine has unwound."""
        self.cancel()
        return self.wait(timeout_s)

    def result(self) -> T:
        """What the ended coroutine returned, or raise what it raised: always an `Exception`.

        Raises `concurrent.futures.CancelledError` if it was cancelled, by `cancel` or by closing the portal.
        """
        assert self._ended.is_set(), "the result of a call that has not ended"
        if self._error is not None:
            raise self._error
        return self._values[0]

    def cancel_on_loop(self) -> None:
        """What `cancel` has the loop do."""
        self._asked_to_end = True
        if self._once and self._task is not None:
            self._task.cancel()
        elif self._scope is not None:
            self._scope.cancel()

    async def run_on_loop(self) -> None:
        """Run the coroutine and keep what comes of it. Raises nothing."""
        try:
            self._task = asyncio.current_task()
            with anyio.CancelScope() as self._scope:
                if not self._asked_to_end:
                    self._values.append(await self._function())
            if not self._values:
                self._error = concurrent.futures.CancelledError()
        except BaseException as error:  # noqa: BLE001 - nothing may get past: it would end the loop for all callers
            ours = self._asked_to_end and isinstance(error, asyncio.CancelledError)
            self._error = concurrent.futures.CancelledError() if ours else as_exception(error)
        finally:
            self._task = self._scope = None
            self._ended.set()

    def abandon(self) -> None:
        """End without the loop, which is over."""
        if not self._ended.is_set():
            self._error = concurrent.futures.CancelledError()
            self._ended.set()


class Held(Generic[T]):
    """An asynchronous context kept open on the loop across calls: entered and left in one and the same task.

    Opening is waited for like a `Call`: `wait`, then `result`. `call` spans the whole: opening, being open, leaving.
    Made by `Portal.hold`.
    """

    def __init__(self, portal: "Portal", context: AbstractAsyncContextManager[T]) -> None:
        self.portal = portal
        self._context = context
        self._settled = threading.Event()
        self._release = anyio.Event()
        self._resources: list[T] = []
        self.call = portal.start(self._live, on_close=self._leave_on_loop)

    @property
    def is_open(self) -> bool:
        """Whether the resource can be used: entered, and neither left nor ended by a failure inside it."""
        return bool(self._resources) and not self.call.has_ended

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether opening is over, well or badly, after waiting up to `timeout_s` seconds for it."""
        self.portal.refuse_on_loop()
        return self._settled.wait(timeout_s)

    def result(self) -> T:
        """The resource, or raise what opening it raised."""
        if not self._resources:
            self.call.wait()
            self.call.result()
        return self._resources[0]

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Leave the context and wait for that, at most `timeout_s` seconds; beyond, cancel it and raise `TimeoutError`.

        Raises what leaving raised; nothing if it was never entered. Closing again waits again and says the same.
        """
        self.portal.post(self._release.set)
        if not self.call.wait(timeout_s) and not self.call.unwind(UNWIND_S):
            raise TimeoutError(f"the context was not left within {timeout_s} s, nor when cancelled")
        if self._resources:
            self.call.result()

    def _leave_on_loop(self) -> None:
        self._release.set() if self._resources else self.call.cancel_on_loop()

    async def _live(self) -> None:
        try:
            async with self._context as resource:
                self._resources.append(resource)
                self._settled.set()
                await self._release.wait()
        finally:
            self._settled.set()


class Portal:
    """One event loop on one thread of its own, for use from any other thread.

    The thread starts with the first call. It and the loop's worker threads are daemons, so that a portal that nobody
    closes does not keep the process alive. Once closed, a portal stays closed.
    """

    def __init__(self, *, name: str = "statebackend-loop") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._close_timeout_s = CLOSE_TIMEOUT_S
        # The calls under way, and how each is asked to end. Grows under the lock, shrinks on the loop.
        self._closers: dict[Call[Any], Callable[[], None]] = {}
        # What follows belongs to the loop.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._stop = anyio.Event()
        self._idle = anyio.Event()

    def start(
        self,
        function: Callable[[*Args], Awaitable[T]],
        *args: *Args,
        once: bool = False,
        on_close: Callable[[], None] | None = None,
    ) -> Call[T]:
        """Start `function(*args)` on the loop, in a copy of this thread's context variables, and return at once.

        `once` says how it is cancelled. False: by anyio's rule, every await raises until the coroutine has ended.
        True: as asyncio does it, one `CancelledError`, after which `finally` may await; for code that is not ours.
        `on_close` runs on the loop where closing the portal would cancel the call, and asks it to end in its own way.

        Raises `BackendClosedError` on a closed portal.
        """
        call: Call[T] = Call(self, partial(function, *args), once=once)
        with self._lock:
            if self._closed:
                raise BackendClosedError("the portal is closed")
            self._start_thread()
            self._closers[call] = on_close or call.cancel_on_loop
            self.post(self._spawn, call)
        return call

    def call(self, function: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
        """What `function(*args)` returns or raises. An interrupt of this thread cancels it and waits for its end."""
        call = self.start(function, *args)
        try:
            call.wait()
        except BaseException:
            call.unwind(CLOSE_TIMEOUT_S)
            raise
        return call.result()

    def hold(self, context: AbstractAsyncContextManager[T]) -> Held[T]:
        """Start to enter `context` on the loop and return at once. Raises `BackendClosedError` on a closed portal."""
        return Held(self, context)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Cancel calls, leave held contexts, end the thread: within `timeout_s` and two seconds, whatever they do.

        What has not ended by then is logged and left to its daemon thread. Closing again is not an error.
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
        """Raise `RuntimeError` on the loop's own thread, where waiting for the loop would be for ever."""
        if self._thread is threading.current_thread():
            raise RuntimeError("this waits for the loop and was called on the loop: await instead")

    def post(self, function: Callable[[*Args], object], *args: *Args) -> None:
        """Have the loop run `function(*args)` soon. Nothing happens if the loop is over."""
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
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
            for call in tuple(self._closers):  # whatever ended the loop, nobody waits for it in vain
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
    """A loop that `KeyboardInterrupt` and `SystemExit` do not end.

    asyncio lets both out of `run_forever` even when a task holds them already, and a task that user code started itself
    is out of reach of `Call`. Signals go to the main thread, so what comes out here was raised by a coroutine.
    """

    def run_forever(self) -> None:
        while True:
            try:
                super().run_forever()
            except (KeyboardInterrupt, SystemExit) as error:
                _logger.warning("a task on the loop raised %s; the loop goes on", type(error).__name__)
            else:
                return
