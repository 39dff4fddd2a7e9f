"""A follower for synchronous code: it lives on a thread of its own, and questions are sent there."""

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from statebackend._following.follower import LOOK_EVERY_S, StateFollower, follow
from statebackend._following.position import FollowerPosition
from statebackend._portal import OpenContext, Portal
from statebackend.abc import Clock, ObjectStore, Observer
from statebackend.ids import KeyGroupRange
from statebackend.settings import Settings

T = TypeVar("T")


class BackgroundFollower:
    """A follower on a thread of its own, for any thread to ask. Made by `follow_in_background`."""

    def __init__(self, portal: Portal, held: OpenContext[StateFollower]) -> None:
        self._portal: Final = portal
        self._held: Final = held
        self._close = weakref.finalize(self, _close, portal, held)

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

        async def asked() -> T:
            follower = self._held.result()
            with follower.at_one_commit(max_staleness_s=max_staleness_s):
                return function(follower)

        return self._portal.call(asked)

    def wait_for(
        self, *, batch_id: int | None = None, checkpoint_id: int | None = None, timeout_s: float = 10.0
    ) -> FollowerPosition:
        """As `StateFollower.wait_for`."""

        async def waited() -> FollowerPosition:
            return await self._held.result().wait_for(
                batch_id=batch_id, checkpoint_id=checkpoint_id, timeout_s=timeout_s
            )

        return self._portal.call(waited)

    def close(self) -> None:
        """End the thread. Twice is fine; a follower that is not used any more is closed by itself."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def follow_in_background(
    settings: Settings,
    *,
    key_groups: KeyGroupRange | None = None,
    every_s: float = LOOK_EVERY_S,
    max_staleness_s: float | None = None,
    wait: bool = False,
    store: ObjectStore | None = None,
    clock: Clock | None = None,
    observer: Observer | None = None,
) -> BackgroundFollower:
    """As `follow`, for Flask, Streamlit or a notebook: it returns once the state was read.

        fleet = sb.follow_in_background(settings)
        fleet.ask(lambda fleet: fleet.value_state("legs", Leg).get("N14228"))

    Raises as `follow`. Have one in a process: each holds the whole state.
    """
    arguments: dict[str, Any] = {
        "key_groups": key_groups,
        "every_s": every_s,
        "max_staleness_s": max_staleness_s,
        "wait": wait,
        "store": store,
        "clock": clock,
        "observer": observer,
    }
    portal = Portal(name="statebackend-follow")
    try:
        held = portal.hold(follow(settings, **arguments))
        held.wait()
        held.result()
    except BaseException:
        portal.close()
        raise
    return BackgroundFollower(portal, held)


def _close(portal: Portal, held: OpenContext[StateFollower]) -> None:
    try:
        held.close()
    finally:
        portal.close()
