"""Which local copies nobody needs any more who works on a range, by what an attempt knows. Pure.

    <epoch>-<standing><number>-<random>       name of a segment of an attempt; standing: 1 + the sequence of its base

An attempt knows its base, and that is a commit of all ranges. What was made by attempts on an earlier base of this
epoch has been taken into a commit by then, or never will be; what the base does not point into, no later commit does.
So copies of those are in nobody's way to be removed, whatever else runs on the host, and no lock is needed to know it.
"""

from collections.abc import Collection

from statebackend._codec.commit import Commit
from statebackend._log.retention import entry_of, epoch_of, standing_of
from statebackend.ids import Epoch


def standing(base: Commit | None) -> int:
    """Where in the log an attempt stands. Grows with its base."""
    return 0 if base is None else base.sequence + 1


def superseded(keys: Collection[str], base: Commit, epoch: Epoch) -> frozenset[str]:
    """Of the copies with these keys those that neither `base` needs nor whatever follows it, in the epoch `epoch`.

    None before that epoch has committed, because the commit before is not the newest where an older one was opened.
    None where there are copies of a later epoch: then ours is over, and we know nothing of what is needed.
    """
    made = {key: (found, standing_of(key) or 0) for key in keys if (found := epoch_of(key)) is not None}
    if base.epoch != epoch or any(epoch_made > epoch for epoch_made, _ in made.values()):
        return frozenset()
    older = {key for key, position in made.items() if position < (epoch, standing(base))}
    entries = {key for key in keys if (entry := entry_of(key)) is not None and entry < base.sequence}
    return frozenset((older | entries) - base.segments())
