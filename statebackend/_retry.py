"""Hedged attempts: when an attempt is late another one joins it, and the first to finish wins.

A timeout is not a cancellation: the slow attempt keeps running, and its result counts if it comes first. After an I/O
error there is a pause and another attempt; any other error is final. Rules and names follow the changelog retry of
stream processors. One of their mistakes is not repeated: `discard` removes what an attempt that lost has stored.
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup

from statebackend.errors import StoreFullError, StoreUnavailableError
from statebackend.settings import UploadSettings

T = TypeVar("T")


OUTAGE_PAUSE_MAX_S: Final = 5.0
"""Longest pause between two attempts in an outage: the pauses double up to this."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """At most `attempts_max`; the next joins after `timeout_s` (0: never), or begins `delay_s` after an I/O error.

    While the store says that it is unavailable there are more attempts, until `outage_s` have passed. The last attempt
    is not late before that: a store that repeats requests itself gives no answer for the whole outage.
    """

    attempts_max: int = 3
    timeout_s: float = 1.0
    delay_s: float = 0.5
    outage_s: float = 0.0

    @classmethod
    def of(cls, upload: UploadSettings) -> "RetryPolicy":
        """The policy that a user's settings ask for."""
        return cls(
            attempts_max=upload.attempts_max,
            timeout_s=upload.timeout_s,
            delay_s=upload.retry_delay_s,
            outage_s=upload.primary_outage_s,
        )

    def pause_s(self, attempt: int, error: BaseException, elapsed_s: float = 0.0) -> float | None:
        """The pause in seconds after `attempt` failed with `error`, `None` to give up.

        `elapsed_s`: since the first attempt began.
        """
        if attempt >= self.attempts_max:
            # A full store is unavailable too, but waiting does not make room in it.
            away = isinstance(error, StoreUnavailableError) and not isinstance(error, StoreFullError)
            return self._outage_pause_s(attempt, elapsed_s) if away else None
        if isinstance(error, AttemptTimeoutError):
            return 0.0  # it has waited long enough already
        return self.delay_s if isinstance(error, OSError) else None

    def late_s(self, attempt: int, elapsed_s: float) -> float:
        """The seconds after which `attempt`, begun `elapsed_s` after the first, is late. For a `timeout_s` above 0."""
        return self.timeout_s if attempt < self.attempts_max else max(self.timeout_s, self.outage_s - elapsed_s)

    def _outage_pause_s(self, attempt: int, elapsed_s: float) -> float | None:
        if elapsed_s >= self.outage_s:
            return None
        doubled_s = max(self.delay_s, 0.1) * 2.0 ** min(attempt - self.attempts_max, 10)
        return min(doubled_s, OUTAGE_PAUSE_MAX_S, self.outage_s - elapsed_s)


class AttemptTimeoutError(TimeoutError):
    """An attempt did not finish in time. It keeps running, and may still win."""


class Race(Generic[T]):
    """Tries one action until an attempt wins or none is left.

    Attempts run in `tasks`, which outlives the race. An attempt still at work when the race is decided has lost: if it
    finishes, its result goes to `discard`, which must not raise; if it does not within twice `timeout_s`, it is
    cancelled, because it keeps in memory what it was to upload. `ended` is set when no attempt is left.
    """

    # The action refers to a whole segment. That must be freed with the last attempt, not by the cyclic collector, which
    # a million changes do not set off. The race itself lives longer, in what its action refers to and in the frame of a
    # cancelled watch, so it must keep neither the action nor a result: see `run` and `_attempt`. Only the traceback of
    # an error that is raised keeps them.

    def __init__(
        self,
        action: Callable[[int], Awaitable[T]],
        *,
        policy: RetryPolicy,
        discard: Callable[[T], Coroutine[Any, Any, None]],
        tasks: TaskGroup,
    ) -> None:
        self.ended: Final = anyio.Event()
        self._action = action
        self._policy = policy
        self._discard = discard
        self._tasks = tasks
        self._decided = anyio.Event()
        self._begun = 0.0
        self._won: tuple[T, int] | None = None
        self._error: Exception | None = None
        self._newest = 0  # the only attempt not judged yet: each begins when the one before has been judged
        self._present = 0  # attempts that have not returned yet, judged or not
        self._spared: set[int] = set()

    @property
    def attempts(self) -> int:
        """Number of attempts so far, including one that pauses before it begins. Final once `run` has returned."""
        return self._newest

    async def run(self) -> tuple[T, int]:
        """Return the winner's result and its attempt number. Raises the error of the newest attempt.

        Called once. After a cancelled call no attempt begins, and those at work have lost.
        """
        self._begun = anyio.current_time()
        self._start(1, 0.0)
        try:
            await self._decided.wait()
        except BaseException:
            self._withdraw()
            raise
        won, self._won = self._won, None  # the result is the caller's alone
        if won is None:
            assert self._error is not None
            raise self._error
        return won

    def spare(self, number: int) -> None:
        """Attempt `number` has stored what counts: it is late only `timeout_s` after it would be otherwise."""
        self._spared.add(number)

    def _start(self, number: int, pause_s: float) -> None:
        self._newest = number
        self._present += 1
        self._tasks.start_soon(self._attempt, number, pause_s)

    def _withdraw(self) -> None:
        """The caller is gone: an attempt that wins from now on has lost, and so has one that won a moment ago."""
        self._decided.set()
        if self._won is not None:  # decided, but `run` was cancelled before it woke up: the result has no owner
            self._tasks.start_soon(self._discard, self._won[0])

    async def _attempt(self, number: int, pause_s: float) -> None:
        try:
            if pause_s > 0:
                with anyio.move_on_after(pause_s):
                    await self._decided.wait()  # an earlier attempt may win during the pause
            if not self._decided.is_set():
                await self._try(number)
        finally:
            self._present -= 1
            if self._present == 0:
                self._action = _over  # frees what the action refers to
                self.ended.set()

    async def _try(self, number: int) -> None:
        lost: list[T] = []
        try:
            async with anyio.create_task_group() as watched:
                watched.start_soon(self._watch, number, watched.cancel_scope)
                try:
                    result = await self._action(number)
                except Exception as error:  # noqa: BLE001  # `run` raises it, unless another attempt follows
                    self._judge(number, error)
                else:  # no await between result and decision: a cancellation there would lose the result
                    if not self._win(number, result):
                        lost.append(result)
                watched.cancel_scope.cancel()
        finally:
            for result in lost:
                await self._discard(result)

    async def _watch(self, number: int, attempt: anyio.CancelScope) -> None:
        if self._policy.timeout_s > 0:
            late_s = self._policy.late_s(number, anyio.current_time() - self._begun)
            await anyio.sleep(late_s)
            if number in self._spared:
                await anyio.sleep(self._policy.timeout_s)
            self._judge(number, AttemptTimeoutError(f"attempt {number} took over {late_s} s"))
            await self._decided.wait()
            await anyio.sleep(self._policy.timeout_s)  # time to finish, so that what it stored can be discarded
            attempt.cancel()

    def _win(self, number: int, result: T) -> bool:
        if self._decided.is_set():
            return False
        self._won = (result, number)
        self._decided.set()
        return True

    def _judge(self, number: int, error: Exception) -> None:
        """Judge an attempt that failed or is late: begin the next one, or give up. Each attempt is judged once.

        The error of an attempt that was late before says nothing new: the next attempt has begun already.
        """
        if number != self._newest or self._decided.is_set():
            return
        pause_s = self._policy.pause_s(number, error, anyio.current_time() - self._begun)
        if pause_s is None:
            self._error = error
            self._decided.set()
        else:
            self._start(number + 1, pause_s)


async def _over(number: int) -> Any:
    raise AssertionError(f"attempt {number} of a race that has ended")
