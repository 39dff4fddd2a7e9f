"""How far a long piece of work is, for whoever waits for it."""

from collections.abc import Callable
from typing import Literal

import msgspec

from statebackend._checkpoint.restore import Applied
from statebackend._codec.commit import Commit


class Progress(msgspec.Struct, frozen=True):
    """How far a phase is: the `share` of it from 0 to 1, and the changes and stored bytes that it has dealt with."""

    phase: Literal["reading", "writing", "verifying"]
    share: float
    changes: int
    size_bytes: int


Tell = Callable[[Progress], None]


def reading(commit: Commit, tell: Tell) -> Applied:
    """Tells of each file of `commit` that a restore has applied."""
    objects = {handle for part in commit.ranges for handle in part.objects()}
    total_bytes = sum(handle.length for handle in objects)
    seen: set[str] = set()
    read_bytes = changes_read = 0

    def applied(key: str, size_bytes: int, changes: int) -> None:
        nonlocal read_bytes, changes_read
        changes_read += changes
        if key not in seen:  # an object may be read more than once, for change sets that are no neighbours
            seen.add(key)
            read_bytes += size_bytes
        tell(Progress("reading", min(1.0, read_bytes / total_bytes), changes_read, read_bytes))

    return applied
