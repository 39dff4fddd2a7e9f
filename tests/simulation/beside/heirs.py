"""Follows a simulated job beside those who work on it, and judges each answer, also between two pieces of a commit.

An answer is of the one commit that the position names; and whoever has a newer one to show knew of it no longer ago
than the answer says that it may be old.
"""

from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, Final

from statebackend._following.follower import StateFollower
from statebackend._following.following import Following
from statebackend.abc import Clock
from statebackend.ids import KeyGroupRange
from statebackend.settings import Settings
from tests import invariants
from tests.simulation.job import SimulatedJob
from tests.simulation.states import states_of
from tests.simulation.timed import TTL_S, TimePlan, assert_time

ROUNDED_S: Final = 1e-6


class JudgedFollower:
    """A follower whose answers are judged whenever somebody could read one."""

    def __init__(
        self,
        follower: StateFollower,
        job: SimulatedJob,
        settings: Settings,
        timing: TimePlan | None,
        *,
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        self._follower = follower
        self._job = job
        self._settings = settings
        self._timing = timing
        self._clock = clock
        self._tell = tell
        self._jumps = 0
        self._states = states_of(follower)  # type: ignore[arg-type]  # declared as in a backend
        following = follower._following
        following._may_go_on = self._judged(following)  # type: ignore[method-assign]  # of this one alone

    def _judged(self, following: Following) -> Callable[[], Coroutine[Any, Any, None]]:
        may_go_on = following._may_go_on

        async def judged() -> None:
            if self._follower._closed is None:  # or it catches up to what it takes over, and nobody can ask it
                self.judge_answer()
            await may_go_on()

        return judged

    def judge_answer(self) -> None:
        """Ask for all there is, and judge it."""
        with self._job.judging():
            with self._follower.at_one_commit() as position:
                found = {(name, key): state[key] for name, state in self._states.items() for key in state}
                time = self._job.time_at(position.sequence)
                contents = self._job.contents_at(position.sequence)
                if self._timing is not None:
                    whole = KeyGroupRange(0, self._settings.max_parallelism - 1)
                    assert_time(_with_clock(self._follower, whole), contents, time, self._timing, len(whole))
            living = invariants.living(contents, time.now_s, TTL_S)
            expected = {place: value for place, value in living.items() if place[0] in self._states}
            invariants.assert_same_contents(found, expected, f"what is answered of commit {position.sequence}")
            newer_s = [at_s for sequence, at_s in self._job.committed_at_s.items() if sequence > position.sequence]
            unknown_s = max((self._clock.monotonic() - at_s for at_s in newer_s), default=0.0)
            invariants.assert_as_old_as_it_says(position.staleness_s + ROUNDED_S, unknown_s)
        if position.jumps > self._jumps:
            self._jumps = position.jumps
            self._tell(f"jumps to commit {position.sequence}")

    def tell(self) -> None:
        """Say what was followed."""
        position = self._follower.position
        self._tell(f"has followed {position.commits} commits, {position.jumps} jumps, problem {position.problem}")


def _with_clock(follower: StateFollower, key_groups: KeyGroupRange) -> Any:
    """What declares the follower's states, with the clock of its commit, as a backend has it."""
    clock = follower._following.state.commit.clock
    return SimpleNamespace(
        clock_s=None if clock is None else clock.now_s,
        key_groups=key_groups,
        timers=follower.timers,
        value_state=follower.value_state,
    )
