"""A follower for synchronous code: it lives on a thread of its own, and questions are sent there."""

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar

from statebackend._following.follower import StateFollower, follow
from statebackend._following.position import FollowerPosition
from statebackend._portal import OpenContext, Portal
from statebackend._tasks import HomeProcess
from statebackend.errors import ForkedProcessError

P = ParamSpec("P")
T = TypeVar("T")


class BackgroundFollower:
    """A follower on a thread of its own, for any thread to ask. Made by `follow_in_background`."""

    def __init__(self, portal: Portal, held: OpenContext[StateFollower]) -> None:
        self._portal: Final = portal
        self._held: Final = held
        self._home: Final = HomeProcess()
        self._close = weakref.finalize(self, _close, portal, held, self._home)

    @property
    def position(self) -> FollowerPosition:
        """As `StateFollower.position`."""
        return self.ask(lambda follower: follower.position)

    def ask(self, function: Callable[[StateFollower], T], *, max_staleness_s: float | None = None) -> T:
        """Call the function with the follower, and return what it returns: all of it is of one commit.

            fleet.ask(lambda fleet: fleet.value_state("legs", Leg).get("N14228"))

        It runs on the follower's thread: return plain values, and be quick. Raises what it raises, `StaleError` where
        the answer may be older than `max_staleness_s`, and `BackendClosedError` after `close`.
        """
        self._home.check()

        async def asked() -> T:
            follower = self._held.result()
            with follower.at_one_commit(max_staleness_s=max_staleness_s):
                return function(follower)

        return self._portal.call(asked)

    def wait_for(
        self, *, batch_id: int | None = None, checkpoint_id: int | None = None, timeout_s: float = 10.0
    ) -> FollowerPosition:
        """As `StateFollower.wait_for`."""
        self._home.check()

        async def waited() -> FollowerPosition:
            return await self._held.result().wait_for(
                batch_id=batch_id, checkpoint_id=checkpoint_id, timeout_s=timeout_s
            )

        return self._portal.call(waited)

    def close(self) -> None:
        """End the thread. Twice is fine; a follower that is not used any more is closed by itself.

        A process that was forked has no such thread: there it does nothing, and everything else raises
        `ForkedProcessError`.
        """
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _with_arguments_of(_: Callable[P, object]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Tell type checkers that a function takes the arguments of another one."""
    return lambda function: function


@_with_arguments_of(follow)
def follow_in_background(*arguments: Any, **options: Any) -> BackgroundFollower:
    """As `follow`, with the same arguments, for Flask, Streamlit or a notebook: it returns once the state was read.

        fleet = sb.follow_in_background(settings)
        fleet.ask(lambda fleet: fleet.value_state("legs", Leg).get("N14228"))

    Raises as `follow`. Have one in a process: each holds the whole state.
    """
    portal = Portal(name="statebackend-follow")
    try:
        held = portal.hold(follow(*arguments, **options))
        held.wait()
        held.result()
    except BaseException:
        portal.close()
        raise
    return BackgroundFollower(portal, held)


def _close(portal: Portal, held: OpenContext[StateFollower], home: HomeProcess) -> None:
    try:
        home.check()
    except ForkedProcessError:
        return
    try:
        held.close()
    finally:
        portal.close()
