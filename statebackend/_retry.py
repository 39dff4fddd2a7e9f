"""Hedged attempts: a late attempt is joined by another one, and the first to finish wins.

A timeout is not a cancellation: the slow attempt goes on, and its result counts if it comes first. An I/O error waits
and tries again; any other error is final. Rules and names follow the changelog retry of the stream-processing world;
what that one got wrong, a loser whose copies stay, is mended by `discard`.
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
"""Between two attempts in an outage: the pauses double up to this."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`attempts_max` in all; `timeout_s` before the next one joins (0: never); `delay_s` after an I/O error.

    While the store says that it is unavailable there are more of them, until `outage_s` have gone by. Nor is the last
    one late before that: a store that repeats requests itself is silent for as long as it is away.
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
        """How long to wait for the attempt after number `attempt`, `None` to give up.

        `elapsed_s`: since the first attempt began.
        """
        if attempt >= self.attempts_max:
            away = isinstance(error, StoreUnavailableError) and not isinstance(error, StoreFullError)
            return self._outage_pause_s(attempt, elapsed_s) if away else None
        if isinstance(error, AttemptTimeoutError):
            return 0.0
        return self.delay_s if isinstance(error, OSError) else None

    def late_s(self, attempt: int, elapsed_s: float) -> float:
        """How long attempt number `attempt`, begun `elapsed_s` after the first, may take. For a `timeout_s` above 0."""
        return self.timeout_s if attempt < self.attempts_max else max(self.timeout_s, self.outage_s - elapsed_s)

    def _outage_pause_s(self, attempt: int, elapsed_s: float) -> float | None:
        if elapsed_s >= self.outage_s:
            return None
        doubled_s = max(self.delay_s, 0.1) * 2.0 ** min(attempt - self.attempts_max, 10)
        return min(doubled_s, OUTAGE_PAUSE_MAX_S, self.outage_s - elapsed_s)


class AttemptTimeoutError(TimeoutError):
    """An attempt has not finished in time. It goes on, and may still win."""


class Race(Generic[T]):
    """One action, tried until an attempt wins or none is left.

    Attempts run in `tasks`, which outlives the race. One that is still at work when the race is decided has lost: if it
    finishes, its result is given to `discard`, which must not raise; if it has not within twice `timeout_s`, it is
    cancelled, because it holds on to whatever it was to upload. `ended` is set when no attempt is left.

    What the action holds, a whole segment, goes with the last attempt, and not when the collector comes, which a
    million changes do not call: the race lives on in what its action knows and in the frame of a cancelled watch, and
    keeps neither the action nor a result. Only the traceback of an error that is raised does.
    """

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
        self._newest = 0  # the one attempt that is not judged yet: each starts when the one before it has been
        self._present = 0  # attempts that have not returned, judged or not
        self._spared: set[int] = set()

    @property
    def attempts(self) -> int:
        """Attempts begun so far, one that still waits to begin among them. Does not change once `run` has returned."""
        return self._newest

    async def run(self) -> tuple[T, int]:
        """The winner's result and its attempt number. Raises the error of the newest attempt.

        Called once. After a cancelled call no attempt begins, and those at work have lost.
        """
        self._begun = anyio.current_time()
        self._start(1, 0.0)
        try:
            await self._decided.wait()
        except BaseException:
            self._withdraw()
            raise
        won, self._won = self._won, None
        if won is None:
            assert self._error is not None
            raise self._error
        return won

    def spare(self, number: int) -> None:
        """Attempt `number` has what counts, and is not late yet: it has another `timeout_s` from when it would be."""
        self._spared.add(number)

    def _start(self, number: int, pause_s: float) -> None:
        self._newest = number
        self._present += 1
        self._tasks.start_soon(self._attempt, number, pause_s)

    def _withdraw(self) -> None:
        """Nobody waits any more: an attempt that wins now, or has won a moment ago, has lost."""
        self._decided.set()
        if self._won is not None:
            self._tasks.start_soon(self._discard, self._won[0])

    async def _attempt(self, number: int, pause_s: float) -> None:
        try:
            if pause_s > 0:
                with anyio.move_on_after(pause_s):
                    await self._decided.wait()
            if not self._decided.is_set():
                await self._try(number)
        finally:
            self._present -= 1
            if self._present == 0:
                self._action = _over
                self.ended.set()

    async def _try(self, number: int) -> None:
        lost: list[T] = []
        try:
            async with anyio.create_task_group() as watched:
                watched.start_soon(self._watch, number, watched.cancel_scope)
                try:
                    result = await self._action(number)
                except Exception as error:  # noqa: BLE001  # judged: whoever asked for the action gets it
                    self._judge(number, error)
                else:  # no await between the result and the decision: a cancellation there would lose the result
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
            await anyio.sleep(self._policy.timeout_s)
            attempt.cancel()

    def _win(self, number: int, result: T) -> bool:
        if self._decided.is_set():
            return False
        self._won = (result, number)
        self._decided.set()
        return True

    def _judge(self, number: int, error: Exception) -> None:
        """Each attempt is judged once: the late error of one that timed out before says nothing new."""
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
