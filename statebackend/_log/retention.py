"""What of a job is needed and what is garbage, and why. Pure: the log as it was read and a listing in, verdicts out.

    plan_log     which entries of the log stay: the retained ones, and those without which it would have a gap
    classify     a verdict on every object under the job's scope

What always holds: a commit that can be opened is whole. What only older ones point into is superseded. Of an entry that
is superseded as a commit the object stays for as long as newer commits point into the change sets that it carries. An
object that no commit points into is garbage where its writer's epoch is over, because that writer can commit no more;
in the epoch that lasts it may be about to be committed. What does not bear one of our names is not ours, and stays.
"""

import enum
import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from statebackend._codec.commit import Commit
from statebackend.abc import ObjectInfo
from statebackend.ids import Epoch

ENTRY_AGE_MIN_S: Final = 3600.0
"""Least age of a log entry that goes: twice the longest time for which a writer trusts its own picture of the log."""
CLOCK_SKEW_MAX_S: Final = 86_400.0
"""How far this host's clock may be ahead of the store's. An idle job, whose store has nothing newer, waits so long."""

_DATA_NAME: Final = re.compile(r"(\d{8,})-(\d{8,})-[0-9a-f]{32}")
_ATTEMPT_DIGITS: Final = 14
NAMES_PER_ATTEMPT: Final = 1_000_000
"""An attempt at a range has numbers of at least 14 digits: where in the log it stood, and six of its own."""
_NOT_DATA: Final = ("commits/", "savepoints/", "swept/")


class Verdict(enum.Enum):
    """What becomes of an object, and why."""

    RETAINED = "retained"
    """An entry of the log that is retained, or without which the log would have a gap."""
    NEEDED = "needed"
    """A commit that stays points into it."""
    HINT = "hint"
    """Where a search in the log begins, and below which entry it finds nothing."""
    SAVEPOINT = "savepoint"
    """The mark of a savepoint that exists."""
    LIVE = "live"
    """No commit points into it, but its writer may be about to make one that does."""
    YOUNG = "young"
    """Garbage that has not reached the minimum age."""
    FOREIGN = "foreign"
    """Not ours: nobody here knows what it is for."""
    SUPERSEDED = "superseded"
    """An entry of the log that is not retained any more, or what only such entries point into. Deleted."""
    ORPHAN = "orphan"
    """Left by a writer whose epoch is over, and no commit points into it. Deleted."""

    @property
    def is_garbage(self) -> bool:
        """Whether a sweep deletes it."""
        return self in (Verdict.SUPERSEDED, Verdict.ORPHAN)


class Classified(msgspec.Struct, frozen=True):
    """One object, what becomes of it, and why. Times are those of the store."""

    key: str
    size_bytes: int
    modified_s: float
    verdict: Verdict
    reason: str


class Ages(msgspec.Struct, frozen=True):
    """How old a thing is, by a moment that has passed for certain.

    `newest_s` is the newest time that the store itself has given to an object of ours; our own clock counts only for
    what is left of it after `CLOCK_SKEW_MAX_S`. So a wrong clock on this host makes nothing old.
    """

    newest_s: float
    now_s: float
    min_age_s: float

    def age_s(self, modified_s: float) -> float:
        """The least age that a thing of that time can have; negative for the youngest ones."""
        return max(self.newest_s, self.now_s - CLOCK_SKEW_MAX_S) - modified_s

    def is_old(self, modified_s: float, *, at_least_s: float = 0.0) -> bool:
        """Whether it has reached the minimum age, and `at_least_s`."""
        return self.age_s(modified_s) >= max(self.min_age_s, at_least_s)


class LogPlan(msgspec.Struct, frozen=True):
    """Of each entry that is there, by sequence: why it stays, or that it goes. `remove` is in order, oldest first.

    From `floor` on the log has no gap, and every commit is whole. Below it only the commits in `keep` are.
    """

    keep: Mapping[int, str]
    remove: tuple[int, ...]
    floor: int = 0

    def without(self, needed: Container[str]) -> "LogPlan":
        """The same, but nothing goes at a key that is needed: newer commits point into change sets that it carries."""
        remove = tuple(sequence for sequence in self.remove if entry_key(sequence) not in needed)
        return LogPlan(self.keep, remove, self.floor)


def plan_log(
    modified_s: Mapping[int, float],
    *,
    retained: Collection[int],
    pinned: Mapping[int, str],
    ages: Ages,
) -> LogPlan:
    """Which entries stay. `modified_s`: when each of them was made, by the store's clock.

    `retained` are the newest commits of the branch; `pinned` are kept one by one, for the reasons given: they leave a
    gap between them and the log. From the oldest entry that stays for another reason the log goes on without a gap.
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
            floor = sequence  # what follows it stays, so that the log has no gap
        if sequence in retained:
            keep[sequence] = "one of the newest on its branch"
        elif sequence in pinned:
            keep[sequence] = pinned[sequence]
        elif sequence >= floor:
            keep[sequence] = (
                "the log goes on from here without a gap" if old else "too young: a late writer may miss it"
            )
        elif not old:
            keep[sequence] = "too young: a late writer may miss it"
        else:
            remove.append(sequence)
    return LogPlan(keep, tuple(remove), max(floor, 0))


class Reach:
    """What commits point into: of each object, the newest commit that stays, or else the newest one that goes."""

    def __init__(self) -> None:
        self.needed: dict[str, int] = {}
        self.superseded: dict[str, int] = {}

    def add(self, commit: Commit, *, stays: bool) -> None:
        """Take one commit in, in any order."""
        reach = self.needed if stays else self.superseded
        for key in commit.segments():
            reach[key] = max(reach.get(key, -1), commit.sequence)


def classify(
    objects: Iterable[ObjectInfo],
    *,
    log: LogPlan,
    reach: Reach,
    known: Mapping[str, tuple[Verdict, str]],
    epoch: Epoch,
    ages: Ages,
    newest: int = -1,
) -> Iterator[Classified]:
    """A verdict on each object. `known`: what was found out about the hint and about marks, by key.

    `epoch`: the epoch that lasts, that of the log's last entry. `newest`: its newest commit, if it has made one.
    """
    entries = {entry_key(sequence): (Verdict.RETAINED, reason) for sequence, reason in log.keep.items()}
    entries.update((entry_key(sequence), (Verdict.SUPERSEDED, "not retained")) for sequence in log.remove)
    for info in objects:
        verdict, reason = entries.get(info.key) or known.get(info.key) or _judge(info.key, reach, epoch, newest)
        if verdict is Verdict.ORPHAN and not ages.is_old(info.modified_s):
            verdict, reason = Verdict.YOUNG, f"{reason}, but younger than {ages.min_age_s:g} s"
        yield Classified(info.key, info.size_bytes, info.modified_s, verdict, reason)


def _judge(key: str, reach: Reach, epoch: Epoch, newest: int) -> tuple[Verdict, str]:
    """Of a data object, or of something foreign."""
    if (needed_by := reach.needed.get(key)) is not None:
        return Verdict.NEEDED, f"commit {needed_by} points into it"
    if (used_by := reach.superseded.get(key)) is not None:
        return Verdict.SUPERSEDED, f"commit {used_by} was the last to point into it"
    if (entry := entry_of(key)) is not None:
        return Verdict.RETAINED, f"entry {entry} was made while the sweep looked"
    if (made_in := epoch_of(key)) is None:
        return Verdict.FOREIGN, "not one of our names"
    return _judge_unreached(key, made_in, epoch, newest)


def _judge_unreached(key: str, made_in: Epoch, epoch: Epoch, newest: int) -> tuple[Verdict, str]:
    if made_in < epoch:
        return Verdict.ORPHAN, f"no commit points into it, and epoch {made_in} is over"
    if made_in == epoch and (stood_at := standing_of(key)) is not None and stood_at <= newest:
        return Verdict.ORPHAN, "no commit points into it, and another attempt was committed in place of its own"
    return Verdict.LIVE, f"the writer of epoch {made_in} may be about to commit it"


def epoch_of(key: str) -> Epoch | None:
    """The epoch in which a data object was made, by its name; `None` for what bears no name of ours."""
    if key.startswith(_NOT_DATA):
        return None
    match = _DATA_NAME.fullmatch(key.rpartition("/")[2])
    return None if match is None else Epoch(int(match[1]))


def standing_of(key: str) -> int | None:
    """Behind which entry of the log the attempt stood that made a data object; `None` for what no attempt made.

    What it made is in the next commit of its epoch, or in none.
    """
    match = _DATA_NAME.fullmatch(key.rpartition("/")[2])
    return int(match[2]) // NAMES_PER_ATTEMPT if match is not None and len(match[2]) >= _ATTEMPT_DIGITS else None


def entry_key(sequence: int) -> str:
    """Key of an entry of the log."""
    return f"commits/{sequence:012d}"


def entry_of(key: str) -> int | None:
    """The sequence of the entry at `key`, `None` for what is no entry."""
    number = key.removeprefix("commits/")
    return int(number) if number.isdigit() and entry_key(int(number)) == key else None
