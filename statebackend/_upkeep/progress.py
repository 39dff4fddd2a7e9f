"""How far a long call is: it hands a `Progress` to its `tell` after each step."""

from collections.abc import Callable
from typing import Literal

import msgspec

from statebackend._checkpoint.fetch import FileDone
from statebackend._codec.commit import Commit
from statebackend.errors import InputError

Phase = Literal["reading", "writing", "verifying", "copying", "transforming"]


class Progress(msgspec.Struct, frozen=True):
    """How far a phase is: its `share` from 0 to 1, and the changes and stored bytes that it has dealt with."""

    phase: Phase
    share: float
    changes: int
    size_bytes: int


Tell = Callable[[Progress], None]


class Meter:
    """Adds up the steps of one phase, and calls `tell` after each. `total` is what `done` adds up to, in any unit."""

    def __init__(self, phase: Phase, total: int, tell: Tell) -> None:
        """Raises `InputError` for a `tell` that cannot be called."""
        if not callable(tell):
            raise InputError("tell must be a function that takes a Progress, or left out", tell=repr(tell)[:80])
        self._phase: Phase = phase
        self._total = max(1, total)
        self._tell = tell
        self._done = self._changes = self._size_bytes = 0

    def step(self, done: int, *, changes: int, size_bytes: int) -> None:
        """Count one step."""
        self._done += done
        self._changes += changes
        self._size_bytes += size_bytes
        self._tell(Progress(self._phase, min(1.0, self._done / self._total), self._changes, self._size_bytes))


def reading(commit: Commit, tell: Tell) -> FileDone:
    """Tell how far a restore of `commit` is, after each file that it has applied."""
    left = {handle.key: handle.length for part in commit.ranges for handle in part.objects()}
    meter = Meter("reading", sum(left.values()), tell)

    def file_done(key: str, size_bytes: int, changes: int) -> None:
        # An object is read again for change sets that do not lie side by side in it: its bytes count once. It is done
        # as a whole, although only some of it may have been wanted.
        length = left.pop(key, 0)
        meter.step(length, changes=changes, size_bytes=size_bytes if length else 0)

    return file_done
