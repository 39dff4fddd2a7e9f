"""The calls of an asynchronous `process` that are under way, and what each of them may touch.

A call may use the state of its own key, and operator state, on the loop, until it ends. Anything else raises, and fails
the batch even if the processor swallows the error: other calls wait half way through their keys, so what it would read
or write depends on who is answered first.
"""

import logging
import math
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NoReturn

from anyio.abc import TaskGroup

from statebackend.errors import InputError
from statebackend.ids import Key

_logger = logging.getLogger(__name__)


NOBODY: Final[Any] = math.nan
"""The key of what runs for all keys that ask, in a lookup: it equals no key, nor itself."""


class Batch:
    """The calls of one batch on one backend. `tasks` end with the batch."""

    __slots__ = ("memos", "tasks", "turns")

    def __init__(self, turns: "Turns", tasks: TaskGroup) -> None:
        self.turns: Final = turns
        self.tasks: Final = tasks
        self.memos: Final[dict[object, Any]] = {}
        """Values that last as long as the batch, each under the object that put it there."""


class KeyCall:
    """One call of `process`: that for `key`, the `rank`-th key of its batch. The code in this context belongs to it.

    `within`: the lookups whose functions it is within, outermost first.
    """

    __slots__ = ("_token", "batch", "is_open", "key", "rank", "within")

    def __init__(self, batch: Batch, key: Key, rank: int, within: tuple[object, ...] = ()) -> None:
        self.within: Final = within
        self.batch: Final = batch
        self.key: Final = key
        self.rank: Final = rank
        self.is_open = True

    def __enter__(self) -> None:
        self._token = _current.set(self)

    def __exit__(self, *raised: object) -> None:
        self.is_open = False
        _current.reset(self._token)


_current: ContextVar[KeyCall | None] = ContextVar("call of process", default=None)


def current_call() -> KeyCall | None:
    """The call that the running code belongs to, also in tasks and threads that it has started. It may have ended."""
    return _current.get()


class Turns:
    """Decides who may use the states of one opened processor: each call its own key's, code that is alone all of them.

    `broken`: the first use that was refused, or other thing that fails the batch whatever its calls do.
    """

    def __init__(self) -> None:
        self.broken: InputError | None = None
        self._is_alone = False
        self._thread = 0

    @contextmanager
    def alone(self) -> Generator[None, None, None]:
        """In this context, which does not await, the running code may use the state of all keys."""
        self._is_alone = True
        try:
            yield
        finally:
            self._is_alone = False

    def begin(self) -> None:
        """Note the loop's thread: a batch begins. Raises what an earlier batch's call was refused when it was over."""
        self._thread = threading.get_ident()
        self.check_unbroken()

    def check_unbroken(self) -> None:
        """Raise what has broken the batch, once."""
        broken, self.broken = self.broken, None
        if broken is not None:
            raise broken

    def check(self, key: object) -> None:
        """Raise `InputError` unless the running code may use the state of `key` now."""
        call = _current.get()
        if call is None:
            if not self._is_alone:
                self._refuse_outside()
        elif (
            call.key != key or not call.is_open or call.batch.turns is not self or threading.get_ident() != self._thread
        ):
            self._refuse(call, key)

    def check_all(self, use: str) -> None:
        """Raise `InputError` unless the running code may use the state of all keys now. `use`: what it does with it."""
        call = _current.get()
        if call is not None:
            self._refuse(call, f"all keys, by {use}")
        if not self._is_alone:
            self._refuse_outside()

    def call(self) -> KeyCall | None:
        """The call that uses state under no key now; `None` for code that is alone. Raises `InputError` as `check`."""
        call = _current.get()
        self.check(None if call is None else call.key)
        return call

    def _refuse_outside(self) -> NoReturn:
        self._raise(
            InputError(
                "state is used outside of the calls of an asynchronous process, by a task that open or somebody else "
                "has started: use it in process only"
            )
        )

    def _refuse(self, call: KeyCall, key: object) -> NoReturn:
        if call.batch.turns is not self:
            said = "a call of process uses the state of another sink: declare the state in its own processor"
        elif not call.is_open:
            said = (
                "state is used by what a call of process has started and not awaited: await it before process returns"
            )
        elif threading.get_ident() != self._thread:
            said = "state is used in a thread: pass the thread values, and use state where process awaits the result"
        elif call.key is NOBODY:
            said = "a lookup uses state, and its answer goes to all keys: pass it values, and use state in process"
        else:
            said = (
                "a call of an asynchronous process may use the state of its own key only, because those of other keys "
                "are under way: keep such state under the key, in operator state, or write a synchronous process"
            )
        self._raise(InputError(said, key=call.key, used=key))

    def break_by(self, error: InputError) -> None:
        """Have `error` fail the batch, or the next one if it comes too late for that. In any thread."""
        if self.broken is None:
            self.broken = error

    def _raise(self, error: InputError) -> NoReturn:
        self.break_by(error)
        _logger.error("%s", error)
        raise error
