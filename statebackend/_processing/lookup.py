"""`lookup`: an asynchronous function that many calls of `process` ask, and that is asked once for each question.

    call of process -> asked in this batch already? -> the same answer, or wait for it
                    -> free place, next time slot -> function, within its time -> again, if the batch can afford it

Within a batch an answer stays the same, and so does a failure. Limits are those of one lookup in one process, whose
batches run on one loop.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from decimal import Decimal
from numbers import Real
from types import TracebackType
from typing import Any, Final, Generic, TypeVar, TypeVarTuple, cast
from weakref import WeakKeyDictionary

import anyio

from statebackend._processing.calls import NOBODY, KeyCall, current_call
from statebackend._retry import RetryPolicy
from statebackend.errors import InputError, SettingsError

T = TypeVar("T")
Args = TypeVarTuple("Args")


def lookup(
    function: Callable[[*Args], Awaitable[T]],
    *,
    concurrency: int = 16,
    rate_per_s: float | None = None,
    timeout_s: float = 5.0,
    attempts_max: int = 3,
    retry_delay_s: float = 0.5,
    retries_max: int = 100,
    retry_on: tuple[type[Exception], ...] = (OSError,),
) -> "Lookup[T, *Args]":
    """Return `function` as calls of an asynchronous `process` should ask it: `await self.weather("EWR")`.

    In a batch it is called once for each distinct argument, however many keys ask. In a process at most `concurrency`
    of its calls are under way, `rate_per_s` begin per second, and one that takes longer than `timeout_s` ends in a
    `TimeoutError`, which is an `OSError`. After an error of `retry_on` it is called again `retry_delay_s` later: at
    most `attempts_max` times for an argument, and in a batch at most `retries_max` times again, for all arguments
    together. Its last error is raised wherever the argument is asked for in this batch.

    Make it in `__init__` or `open` of the processor, or in its module. `function` must not use state, because its
    answer goes to all keys, nor ask the lookup itself. Raises `SettingsError` for a limit that is out of bounds, for
    what is no function, and for what are no exceptions.
    """
    _check_callables(function, retry_on)
    bounds = (
        ("concurrency", concurrency, 1),
        ("attempts_max", attempts_max, 1),
        ("retries_max", retries_max, 0),
    )
    for name, value, least in bounds:
        if type(value) is not int or value < least:
            raise SettingsError(f"{name} of a lookup must be a whole number, of at least {least}", **{name: value})
    for name, seconds in (
        ("rate_per_s", 1 if rate_per_s is None else rate_per_s),
        ("timeout_s", timeout_s),
        ("retry_delay_s", retry_delay_s),
    ):
        if not isinstance(cast("object", seconds), Real | Decimal):
            raise SettingsError(f"{name} of a lookup must be a number", **{name: seconds})
    if rate_per_s is not None and not rate_per_s > 0:
        raise SettingsError("rate_per_s of a lookup must be above 0, or None for no limit", rate_per_s=rate_per_s)
    if not timeout_s > 0 or not retry_delay_s >= 0:
        raise SettingsError(
            "timeout_s of a lookup must be above 0, and retry_delay_s at least 0",
            timeout_s=timeout_s,
            retry_delay_s=retry_delay_s,
        )
    policy = RetryPolicy(attempts_max=attempts_max, timeout_s=float(timeout_s), delay_s=float(retry_delay_s))
    limits = _Limits(concurrency, 0.0 if rate_per_s is None else float(1 / rate_per_s))
    return Lookup(function, policy, limits, retries_max=retries_max, retry_on=retry_on)


class Lookup(Generic[T, *Args]):
    """An asynchronous function with a memo for each batch. Made by `lookup`. Pickles if the function does."""

    def __init__(
        self,
        function: Callable[[*Args], Awaitable[T]],
        policy: RetryPolicy,
        limits: "_Limits",
        *,
        retries_max: int,
        retry_on: tuple[type[Exception], ...],
    ) -> None:
        self._function = function
        self._policy = policy
        self._limits = limits
        self._retries_max = retries_max
        self._retry_on = retry_on

    async def __call__(self, *args: *Args) -> T:
        """Return the answer for these arguments, in this batch always the same object: do not change it.

        Raises what the function raises, and `InputError` outside of a call of `process`, in the function itself, or for
        arguments that cannot be remembered because they have no hash. If the call that asks is cancelled, the next one
        that waits asks anew.
        """
        call = current_call()
        if call is None or not call.is_open:
            raise InputError("a lookup is made in a call of an asynchronous process: await it before process returns")
        if self in call.within:
            raise InputError(
                "a lookup asks itself, and would wait for a place among its own calls: ask step by step, in process",
                args=repr(args),
            )
        memo = cast("_Memo[T] | None", call.batch.memos.get(self))
        if memo is None:
            memo = call.batch.memos[self] = _Memo[T](self._retries_max)
        try:
            answer = memo.answers.get(args)
        except TypeError as error:
            said = "the arguments of a lookup must have a hash: pass a tuple for a list"
            raise InputError(said, args=repr(args)) from error
        while answer is not None:
            if answer.is_known:
                return answer.result()
            await answer.known()
            answer = memo.answers.get(args)
        answer = memo.answers[args] = _Remembered[T]()
        try:
            answer.settle(await self._ask(memo, call, args))
        except Exception as error:
            answer.settle(error=error)
            raise
        finally:
            if not answer.is_known:
                del memo.answers[args]
            answer.wake()
        return answer.result()

    async def _ask(self, memo: "_Memo[T]", by: KeyCall, args: tuple[*Args]) -> T:
        attempt = 0
        async with self._limits.places():
            while True:
                attempt += 1
                await self._limits.wait_for_slot()
                try:
                    # A third of the time of anyio's, and what is late may await in its `finally`, as a call may.
                    async with asyncio.timeout(self._policy.timeout_s):
                        with KeyCall(by.batch, NOBODY, -1, within=(*by.within, self)):
                            return await _awaitable(self._function(*args))
                except self._retry_on:
                    pause_s = self._policy.pause_s(attempt, OSError())
                    if pause_s is None or not memo.take_retry():
                        raise
                await anyio.sleep(pause_s)


class _Memo(Generic[T]):
    """The answers to one lookup in a batch, and its retries there."""

    def __init__(self, retries_max: int) -> None:
        self.answers: Final[dict[Any, _Remembered[T]]] = {}
        self._retries_left = retries_max

    def take_retry(self) -> bool:
        """Take one of the batch's retries. False if none is left."""
        self._retries_left -= 1
        return self._retries_left >= 0


class _Remembered(Generic[T]):
    """An answer, or what was raised instead, as soon as it is known."""

    __slots__ = ("_error", "_traceback", "_values", "_waiting")

    def __init__(self) -> None:
        self._values: tuple[T, ...] = ()
        self._error: Exception | None = None
        self._traceback: TracebackType | None = None
        self._waiting: anyio.Event | None = None

    @property
    def is_known(self) -> bool:
        return bool(self._values) or self._error is not None

    async def known(self) -> None:
        """Wait until `wake`."""
        if self._waiting is None:
            self._waiting = anyio.Event()
        await self._waiting.wait()

    def settle(self, *values: T, error: Exception | None = None) -> None:
        self._values, self._error = values, error
        self._traceback = None if error is None else error.__traceback__

    def wake(self) -> None:
        if self._waiting is not None:
            self._waiting.set()

    def result(self) -> T:
        if self._error is not None:
            # Each raise appends to the error's own traceback: without this it had the frames of all that have asked.
            raise self._error.with_traceback(self._traceback)
        return self._values[0]


class _Limits:
    """How many calls of a lookup are under way at a time, and one begins every `interval_s` seconds.

    They hold for all batches on a loop, also of several sinks. Another loop, as in a test, has its own.
    """

    def __init__(self, concurrency: int, interval_s: float) -> None:
        self._concurrency = concurrency
        self._interval_s = interval_s
        self._places = WeakKeyDictionary[asyncio.AbstractEventLoop, anyio.Semaphore]()
        self._next_at = WeakKeyDictionary[asyncio.AbstractEventLoop, float]()  # each loop has its own time

    def places(self) -> anyio.Semaphore:
        """To be held during a call."""
        loop = asyncio.get_running_loop()
        if (found := self._places.get(loop)) is None:
            found = self._places[loop] = anyio.Semaphore(self._concurrency, fast_acquire=True)
        return found

    async def wait_for_slot(self) -> None:
        """Wait for the next time slot. A cancelled call has used it up."""
        if not self._interval_s:
            return
        loop = asyncio.get_running_loop()
        begin_at = max(loop.time(), self._next_at.get(loop, 0.0))
        self._next_at[loop] = begin_at + self._interval_s
        await anyio.sleep_until(begin_at)

    def __reduce__(self) -> tuple[type["_Limits"], tuple[int, float]]:
        return _Limits, (self._concurrency, self._interval_s)


def _check_callables(function: object, retry_on: object) -> None:
    if not callable(function):
        raise SettingsError("a lookup needs an asynchronous function", function=function)
    kinds = cast("tuple[object, ...]", retry_on) if isinstance(retry_on, tuple) else (retry_on,)
    if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        raise SettingsError("retry_on of a lookup must be a tuple of exception classes", retry_on=retry_on)


def _awaitable(returned: Awaitable[T]) -> Awaitable[T]:
    if not inspect.isawaitable(returned):
        raise InputError("a lookup needs an asynchronous function: make it an `async def`", returned=type(returned))
    return returned
