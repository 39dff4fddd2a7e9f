"""Where a follower stands, and how old its answers may be."""

from typing import Final

import msgspec

from statebackend._codec.commit import Commit
from statebackend.abc import Clock
from statebackend.ids import CheckpointId, CommitSequence


class FollowerPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The commit that a follower's answers are of. `batch_id`: of its source, `None` if it was made without one.

    `committed_at_s`: by the clock of the host that committed; `applied_at_s`: by the follower's. `staleness_s`: the
    seconds since a look at the log succeeded and found nothing newer; infinite before the first one. So an idle job is
    fresh, and a store that cannot be reached is not. `problem`: why the last look failed, `None` if it did not.
    `commits`, `changes`, `size_bytes`: applied since the follower was opened. `jumps`: times that it read a commit anew
    in place of what led to it.
    """

    batch_id: int | None
    checkpoint_id: CheckpointId
    sequence: CommitSequence
    committed_at_s: float
    applied_at_s: float
    staleness_s: float
    problem: str | None
    commits: int
    changes: int
    size_bytes: int
    jumps: int


class KnownMoment:
    """A moment by both clocks: one may stand still while the machine sleeps, the other may be set."""

    __slots__ = ("_clock", "_monotonic_s", "at_s")

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._monotonic_s = clock.monotonic()
        self.at_s = clock.time()

    def since_s(self) -> float:
        """Seconds since then, by the clock that counts more."""
        return max(self._clock.monotonic() - self._monotonic_s, self._clock.time() - self.at_s)


class FollowedSoFar:
    """Counts the work of a follower so far."""

    def __init__(self) -> None:
        self.commits = 0
        self.changes = 0
        self.size_bytes = 0
        self.jumps = 0

    def position(
        self, commit: Commit, applied_at_s: float, *, fresh: KnownMoment | None, problem: Exception | None
    ) -> FollowerPosition:
        """The position at this commit. `fresh`: when a look last found nothing newer."""
        return FollowerPosition(
            batch_id=None if commit.source is None else commit.source.batch_id,
            checkpoint_id=commit.checkpoint_id,
            sequence=commit.sequence,
            committed_at_s=commit.committed_at_s,
            applied_at_s=applied_at_s,
            staleness_s=float("inf") if fresh is None else fresh.since_s(),
            problem=None if problem is None else str(problem),
            commits=self.commits,
            changes=self.changes,
            size_bytes=self.size_bytes,
            jumps=self.jumps,
        )
