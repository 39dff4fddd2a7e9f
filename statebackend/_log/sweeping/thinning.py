"""Thins the log by age: of what no longer lies in it without a gap, one commit of each stretch of time stays.

    slots    which entries compete for which stretch of time. Pure: when they were made in, candidates out
    thinned  of each slot the newest entry that is a commit and can be read

Stretches begin at whole multiples of their length, so each sweep chooses as the one before. Long ones are made of short
ones: what was the newest of the last ten minutes of an hour becomes the newest of that hour.
"""

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from itertools import pairwise
from typing import Final

from statebackend._codec.commit import Commit
from statebackend._log.log_reader import LogReader
from statebackend._log.milestones import Milestone
from statebackend._log.savepoint_markers import Savepoints
from statebackend._log.sweeping.retention import Ages
from statebackend.errors import CorruptCommitError, MissingObjectError

FINE_S: Final = 600.0
"""One commit in so many seconds stays of the last day,"""
COARSE_S: Final = 3600.0
"""and one in so many of what lies before."""
FINE_FOR_S: Final = 86_400.0


def slots(modified_s: Mapping[int, float], *, ages: Ages, retained_s: float) -> list[list[int]]:
    """The entries that compete, newest first, of each stretch of time that is not older than `retained_s`."""
    found: defaultdict[tuple[float, float], list[int]] = defaultdict(list)
    for sequence in sorted(modified_s, reverse=True):
        at_s = modified_s[sequence]
        age_s = ages.age_s(at_s)
        if age_s <= retained_s:
            width_s = FINE_S if age_s <= FINE_FOR_S else COARSE_S
            found[width_s, at_s // width_s].append(sequence)
    return list(found.values())


async def thinned(
    log: LogReader,
    savepoints: Savepoints,
    entries: Mapping[int, float],
    *,
    listed: Container[int],
    floor: int,
    ages: Ages,
    retained_s: float,
) -> Sequence[Milestone]:
    """The milestones of a log that is to be swept up to `floor`. `entries`: of it, and when they were made;
    `listed`: all that there are.

    Below the former floor only milestones compete: other entries are there for what they carry, and are not whole. One
    request for each commit that becomes a milestone. Raises `DataError` where it is not known which there are.
    """
    before, known = await savepoints.milestones()
    times: dict[int, float] = {each.sequence: each.committed_at_s for each in known.values() if each.sequence in listed}
    times |= entries
    competing = {
        sequence: at_s
        for sequence, at_s in times.items()
        if before <= sequence < floor or (sequence in known and sequence < max(before, floor))
    }
    found: list[Milestone] = []
    stretches = slots(competing, ages=ages, retained_s=retained_s)
    for candidates, older in pairwise((*stretches, [before - 1])):
        for sequence in candidates:
            milestone = known.get(sequence) or await _milestone_at(log, sequence, behind=older[0])
            if milestone is not None:
                found.append(milestone)
                break
    return found


async def _milestone_at(log: LogReader, sequence: int, *, behind: int) -> Milestone | None:
    """That of the entry; for a claim, of the commit that it names, if that lies behind the stretch before.

    Of a long log only the newest entry of each stretch is known, which a job that ends and is opened has made a claim.
    `None` for what cannot be read.
    """
    try:
        entry = await log.load(sequence)
    except (CorruptCommitError, MissingObjectError):
        return None
    if isinstance(entry, Commit):
        return Milestone.of(entry)
    if entry.newest is None or entry.newest <= behind:
        return None
    return await _milestone_at(log, entry.newest, behind=behind)
