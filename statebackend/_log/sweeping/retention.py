"""Decides what of a job is needed and what is garbage, and why. Pure: the log and a listing in, verdicts out.

    plan_log     which entries of the log stay: the retained ones, and those without which it would have a gap
    classify     a verdict on every object under the job's scope
    superseded   which local copies can be removed, judged from one attempt alone
    left_behind  the same, judged by an owner of key groups that opens beside others

What always holds: a commit that can be opened is whole. What only older commits point into is superseded. When an entry
is superseded as a commit, its object stays as long as newer commits point into the change sets that it carries. An
object that no commit points into is garbage once its writer's epoch is over, because that writer can commit no more; in
the current epoch it may be about to be committed. An object whose name does not parse is not ours, and stays.
"""

import enum
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from statebackend._codec.commit import Commit
from statebackend._log.names import DataName, data_name_of, entry_key, log_position, sequence_of
from statebackend.abc import ObjectInfo
from statebackend.ids import Epoch

ENTRY_AGE_MIN_S: Final = 3600.0
"""Least age of a log entry that is deleted: twice the longest time for which a writer trusts what it knows of the log.

Were an entry deleted earlier, a writer that has slept could find its old place free again, and commit there.
"""
CLOCK_SKEW_MAX_S: Final = 86_400.0
"""How far this host's clock may be ahead of the store's. In an idle job, nothing gets old any sooner than that."""


class SweepReason(enum.Enum):
    """The classes of objects that a sweep tells apart. It deletes the last two."""

    RETAINED = "retained"
    """An entry of the log that is retained, or without which the log would have a gap."""
    MILESTONE = "milestone"
    """A commit that is kept for its age, or what only such commits point into."""
    NEEDED = "needed"
    """A commit that stays points into it."""
    HINT = "hint"
    """Says where a search in the log begins, or below which entry it finds nothing."""
    SAVEPOINT = "savepoint"
    """The marker of a savepoint that exists."""
    MIRROR = "mirror"
    """A step of a mirror, which says what its table has."""
    LIVE = "live"
    """No commit points into it, but its writer may be about to make one that does."""
    YOUNG = "young"
    """Garbage that has not reached the minimum age."""
    FOREIGN = "foreign"
    """Not ours: nothing is known of its purpose."""
    SUPERSEDED = "superseded"
    """An entry of the log that is no longer retained, or an object that only such entries point into. Deleted."""
    ORPHAN = "orphan"
    """Made by a writer whose epoch is over, and no commit points into it. Deleted."""

    @property
    def is_garbage(self) -> bool:
        """True if a sweep deletes it."""
        return self in (SweepReason.SUPERSEDED, SweepReason.ORPHAN)


_STAYING: Final = (SweepReason.RETAINED, SweepReason.NEEDED)


class ObjectReport(msgspec.Struct, frozen=True):
    """An object with the verdict on it and the reason. Times are the store's."""

    key: str
    size_bytes: int
    modified_s: float
    verdict: SweepReason
    reason: str


class Ages(msgspec.Struct, frozen=True):
    """How old things are, measured back from a moment that has certainly passed.

    `newest_s` is the newest time that the store itself has given to an object of ours. Our own clock counts only for
    what exceeds `CLOCK_SKEW_MAX_S`, so a wrong clock on this host makes nothing old.
    """

    newest_s: float
    now_s: float
    min_age_s: float

    def age_s(self, modified_s: float) -> float:
        """The least age that a thing of that time can have; negative for the youngest ones."""
        return max(self.newest_s, self.now_s - CLOCK_SKEW_MAX_S) - modified_s

    def is_old(self, modified_s: float, *, at_least_s: float = 0.0) -> bool:
        """True if it has reached the minimum age, and `at_least_s`."""
        return self.age_s(modified_s) >= max(self.min_age_s, at_least_s)


class LogPlan(msgspec.Struct, frozen=True):
    """For each entry that exists, by sequence: why it stays, or that it is removed. `remove` is ordered, oldest first.

    From `floor` on the log has no gap, and every commit is whole. Below it only the commits in `keep` are.
    """

    keep: Mapping[int, str]
    remove: tuple[int, ...]
    floor: int = 0

    def without(self, needed: Container[str]) -> "LogPlan":
        """The same plan, but no entry is removed whose key is needed: newer commits point into what it carries."""
        remove = tuple(sequence for sequence in self.remove if entry_key(sequence) not in needed)
        return LogPlan(self.keep, remove, self.floor)


def plan_log(
    modified_s: Mapping[int, float],
    *,
    retained: Collection[int],
    pinned: Mapping[int, str],
    ages: Ages,
) -> LogPlan:
    """Decide which entries stay. `modified_s`: when each of them was made, by the store's clock.

    `retained` are the newest commits of the branch. `pinned` are kept one by one, for the reasons given, and leave a
    gap between them and the log. From the oldest entry that stays for any other reason the log continues without a gap.
    """
    end = max(modified_s, default=-1)
    begin = end
    while begin - 1 in modified_s:
        begin -= 1
    floor = min((each for each in (*retained, end) if each >= begin), default=end)
    keep: dict[int, str] = {}
    remove: list[int] = []
    for sequence in sorted(modified_s):
        old = ages.is_old(modified_s[sequence], at_least_s=ENTRY_AGE_MIN_S)
        if begin <= sequence < floor and not old:
            floor = sequence  # everything after it stays too: a search for the end probes forward, and stops at a gap
        if sequence in retained:
            keep[sequence] = "one of the newest on its branch"
        elif sequence in pinned:
            keep[sequence] = pinned[sequence]
        elif sequence >= floor:
            keep[sequence] = (
                "the log continues from here without a gap" if old else "too young: a late writer may miss it"
            )
        elif not old:
            keep[sequence] = "too young: a late writer may miss it"
        else:
            remove.append(sequence)
    return LogPlan(keep, tuple(remove), max(floor, 0))


class Reach:
    """The objects that commits point into, each with the newest commit that stays and needs it, or else that goes."""

    def __init__(self) -> None:
        self.needed: dict[str, int] = {}
        self.superseded: dict[str, int] = {}

    def add(self, commit: Commit, *, stays: bool) -> None:
        """Add what one commit points into. Commits may come in any order."""
        reach = self.needed if stays else self.superseded
        for key in commit.segments():
            reach[key] = max(reach.get(key, -1), commit.sequence)


def classify(
    objects: Iterable[ObjectInfo],
    *,
    log: LogPlan,
    reach: Reach,
    known: Mapping[str, tuple[SweepReason, str]],
    epoch: Epoch,
    ages: Ages,
    newest: int = -1,
    milestones: Container[int] = (),
) -> Iterator[ObjectReport]:
    """Yield a verdict on each object. `known`: verdicts on the hint, savepoint markers and sweep floors, by key.

    `epoch`: the current one, that of the log's last entry. `newest`: the newest commit of that epoch, if it has one.
    `milestones`: of the entries that stay.
    """
    entries = {entry_key(sequence): (SweepReason.RETAINED, reason) for sequence, reason in log.keep.items()}
    entries.update((entry_key(sequence), (SweepReason.SUPERSEDED, "not retained")) for sequence in log.remove)
    for info in objects:
        verdict, reason = entries.get(info.key) or known.get(info.key) or _judge(info.key, reach, epoch, newest)
        needed_by = reach.needed.get(info.key, sequence_of(info.key))
        if verdict in _STAYING and needed_by is not None and needed_by in milestones:
            verdict = SweepReason.MILESTONE
        if verdict is SweepReason.ORPHAN and not ages.is_old(info.modified_s):
            verdict, reason = SweepReason.YOUNG, f"{reason}, but younger than {ages.min_age_s:g} s"
        yield ObjectReport(info.key, info.size_bytes, info.modified_s, verdict, reason)


def _judge(key: str, reach: Reach, epoch: Epoch, newest: int) -> tuple[SweepReason, str]:
    """Of a data object, or of something foreign."""
    if (needed_by := reach.needed.get(key)) is not None:
        return SweepReason.NEEDED, f"commit {needed_by} points into it"
    if (used_by := reach.superseded.get(key)) is not None:
        return SweepReason.SUPERSEDED, f"commit {used_by} was the last to point into it"
    if (entry := sequence_of(key)) is not None:
        return SweepReason.RETAINED, f"entry {entry} was made while the sweep looked"
    if (name := data_name_of(key)) is None:
        return SweepReason.FOREIGN, "not one of our names"
    return _judge_unreached(name, epoch, newest)


def _judge_unreached(name: DataName, epoch: Epoch, newest: int) -> tuple[SweepReason, str]:
    if name.epoch < epoch:
        return SweepReason.ORPHAN, f"no commit points into it, and epoch {name.epoch} is over"
    # An attempt is committed right after its base or never: a newer commit of its epoch has settled that.
    if name.epoch == epoch and name.position is not None and name.position <= newest:
        return SweepReason.ORPHAN, "no commit points into it, and another attempt was committed in place of its own"
    return SweepReason.LIVE, f"the writer of epoch {name.epoch} may be about to commit it"


def left_behind(keys: Collection[str], needed: Container[str], newest: Commit | None, epoch: Epoch) -> frozenset[str]:
    """The local copies among `keys` that are not `needed`, and that no living owner of `epoch` can have made.

    For an owner that shares its roots with others: they write in this epoch, and their next commit is not known here.
    Empty if there are copies of a later epoch: then ours is over.
    """
    made = {key: name for key in keys if (name := data_name_of(key)) is not None}
    if newest is None or any(name.epoch > epoch for name in made.values()):
        return frozenset()
    older = {key for key, name in made.items() if name.epoch < epoch}
    entries = {key for key in keys if (entry := sequence_of(key)) is not None and entry < newest.sequence}
    return frozenset(key for key in older | entries if key not in needed)


def superseded(keys: Collection[str], base: Commit, epoch: Epoch) -> frozenset[str]:
    """The local copies among `keys` that neither `base` nor any later commit of `epoch` needs.

    Judged from one attempt alone, and so without a lock: an attempt knows its base, which is a commit of all ranges.
    What attempts on an earlier base of this epoch made is in a commit by now, or never will be; what the base does not
    point into, no later commit does. So nobody needs these copies, whatever else runs on the host.

    Empty before the epoch's first commit: if an older checkpoint was opened, the commit before is not the newest. Empty
    too if there are copies of a later epoch: then ours is over, and we do not know what is needed.
    """
    made = {key: name for key in keys if (name := data_name_of(key)) is not None}
    if base.epoch != epoch or any(name.epoch > epoch for name in made.values()):
        return frozenset()
    here = (epoch, log_position(base))
    older = {key for key, name in made.items() if (name.epoch, name.position or 0) < here}
    entries = {key for key in keys if (entry := sequence_of(key)) is not None and entry < base.sequence}
    return frozenset((older | entries) - base.segments())
