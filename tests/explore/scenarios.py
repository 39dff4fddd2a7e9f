"""The scenarios that are explored, and for each invariant a break of the library by which it must be violated.

`small` fits into a test; `large` is for `nox -s explore`.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from statebackend._backend.job import Job
from statebackend._checkpoint.chain import added_by
from statebackend._codec.commit import Claim
from statebackend._following import following
from statebackend._following.following import Following
from statebackend._following.log_steps import Found, LogSteps
from statebackend._following.position import KnownMoment
from statebackend._log.log_reader import LogReader
from statebackend._log.log_writer import LogWriter
from statebackend._log.savepoint_markers import Savepoints
from statebackend._log.sweeping.sweep_requests import SweepRequests
from statebackend._reading import feed
from statebackend.spark.replay import Step
from tests.explore import programs
from tests.explore.judging import ACKNOWLEDGED, NO_GOING_BACK, ONE, SWEPT, TWICE, WHOLE_STATES
from tests.explore.programs import drive, follow, inherit, keep, one_after_the_other, sweep
from tests.explore.protocol import Scenario, Slot

OLD = ((drive(2, merges=True), 0), (drive(1, merges=True), 2))
"""claim 0, commits 1 and 2, claim 3, commit 4, all old enough to be swept; the hint names 4."""
RENEWED = (*OLD, (drive(1, merges=True), 0))
"""The same, and claim 5 and commit 6, which are new: by them a sweep sees that the others are old."""
NAMED = (
    (drive(1, merges=True), 0),
    (drive(2, merges=True, leaves=False), 0),
    (keep("s", 3), 2),
    (drive(1, merges=True, leaves=False), 0),
)
"""claim 0, commit 1, claim 2, commits 3 and 4, all old, claim 5, commit 6; 3 is a savepoint, and the hint names 1."""

A = Slot("driver A", drive(1, merges=True), is_driver=True)
A2 = Slot("driver A", drive(2), is_driver=True)
B = Slot("driver B", drive(1, merges=True), is_driver=True)
B2 = Slot("driver B", drive(2), is_driver=True)
BACK = Slot("driver that goes back", drive(1, checkpoint_id=1), is_driver=True)
SWEEP, SWEEP2 = Slot("sweep", sweep(), deletes=True), Slot("other sweep", sweep(), deletes=True)
READER = Slot("reader", follow(2))
KEEPER = Slot("keeper", keep("k", 2))
HEIR = Slot("follower that takes over", inherit(2, 1), is_driver=True)

DRIVERS = Scenario(
    "two drivers, answers lost and late, one is started again", (A2, B2), lost=1, late=1, restarts=1, switches=4
)
SLEEPER = Scenario("two drivers and a sweep, while an hour passes", (A, B, SWEEP), before=OLD, hours=1, switches=2)
OPENING = Scenario("an opening beside two sweeps that leave a savepoint", (A, SWEEP, SWEEP2), before=NAMED, switches=3)
GOING_BACK = Scenario("an old checkpoint is opened beside a sweep", (BACK, SWEEP, A), before=OLD, switches=3)
FOLLOWING = Scenario("a reader that follows, a driver and a sweep", (A2, READER, SWEEP), before=OLD, switches=3)
KEEPING = Scenario(
    "a commit becomes a savepoint beside a sweep", (KEEPER, SWEEP, A), before=RENEWED, switches=3, lost=1
)
TIRED = Scenario(
    "a driver sleeps for an hour, while another one commits and sweeps",
    (A, Slot("driver B, then a sweep", one_after_the_other(drive(1, merges=True), sweep()), deletes=True)),
    before=OLD,
    hours=1,
    switches=1,
)
INHERITING = Scenario(
    "a follower takes over from a driver, beside a sweep, and an answer is lost",
    (A2, HEIR, SWEEP),
    before=OLD,
    lost=1,
    switches=3,
)
INHERITING_BACK = Scenario(
    "a follower takes over, beside a driver that goes back", (BACK, HEIR), before=OLD, lost=1, switches=4
)
AGAIN = Scenario("a driver is started again and again, answers are lost", (A2,), lost=2, restarts=2)
RACE = Scenario("two drivers on a job that has commits", (A, B), before=OLD[:1])
LARGE = (
    *(DRIVERS, SLEEPER, OPENING, GOING_BACK, FOLLOWING, KEEPING, TIRED, AGAIN, RACE),
    *(INHERITING, INHERITING_BACK),
)

SMALL_AGAIN = replace(AGAIN, name="a driver is started again, an answer is lost", slots=(A,), lost=1, restarts=1)
SMALL_OPENING = replace(
    OPENING, name="an opening beside a sweep that leaves a savepoint", slots=OPENING.slots[:2], switches=1
)
SMALL_GOING_BACK = replace(GOING_BACK, slots=GOING_BACK.slots[:2], switches=1)
SMALL_FOLLOWING = replace(FOLLOWING, name="a reader that follows a driver", slots=FOLLOWING.slots[:2], switches=2)
SMALL_KEEPING = replace(KEEPING, slots=KEEPING.slots[:2], switches=1)
SMALL_INHERITING = replace(
    INHERITING,
    name="a follower takes over from a driver, and an answer is lost",
    slots=INHERITING.slots[:2],
    before=OLD[:1],
    switches=2,
)
SMALL_INHERITING_BACK = replace(INHERITING_BACK, switches=2)
SMALL = (
    *(RACE, SMALL_AGAIN, SMALL_OPENING, SMALL_GOING_BACK, SMALL_FOLLOWING, SMALL_KEEPING),
    *(SMALL_INHERITING, SMALL_INHERITING_BACK),
)


@dataclass(frozen=True)
class Mutant:
    """A break of the library (`name` of `target` is replaced), what it violates, and where that is seen."""

    invariant: str
    what: str
    scenario: Scenario
    target: Any
    name: str
    by: Any

    def applied(self) -> AbstractContextManager[Any]:
        """Within, the library is broken."""
        return patch.object(self.target, self.name, self.by)


_settle = LogWriter._settle


async def _settle_claims_only(writer: LogWriter, entry: Any, cause: Any) -> None:
    if isinstance(entry, Claim):
        await _settle(writer, entry, cause)


_check = LogWriter._check_is_part_of_log


async def _check_claims_only(writer: LogWriter, entry: Any) -> None:
    if isinstance(entry, Claim):
        await _check(writer, entry)


async def _nothing(*_: Any, **__: Any) -> None:
    return None


async def _end_without_looking_again(log: LogReader) -> Any:
    hint = await log.hint()
    found = None if hint is None else await log._end_from(hint)
    if found is not None:
        return found
    last = await log._list_last()
    return None if last is None else await log._end_at(await log._probe(last))


_claim = Job.claim
_stretch = feed.stretch


async def _claim_and_stay(job: Job, position: Any) -> Any:
    claimed = await _claim(job, position)
    return type(claimed)(claimed.end, claimed.newest, position.base, claim=claimed.claim)


async def _first_passed_over(*arguments: Any, **options: Any) -> Any:
    found = await _stretch(*arguments, **options)
    return found._replace(commits=found.commits[1:])


async def _floor_of_nothing(_: Any) -> int:
    return 0


_look = LogSteps.look


async def _look_for_nothing(steps: LogSteps) -> Found:
    found = await _look(steps)
    return Found(fresh=KnownMoment(steps._clock)) if found.entries else found


def _added_by_all(*arguments: Any) -> Any:
    found = added_by(*arguments)
    return () if isinstance(found, str) else found


MUTANTS: Sequence[Mutant] = (
    Mutant(ONE, "an entry that lies in our place is taken for ours", RACE, LogWriter, "_settle", _settle_claims_only),
    Mutant(
        ACKNOWLEDGED, "a driver that lost the race stands on what it saw first", RACE, Job, "claim", _claim_and_stay
    ),
    Mutant(TWICE, "a batch that was committed is new", SMALL_AGAIN, programs, "decide", lambda *_, **__: Step.PROCESS),
    Mutant(WHOLE_STATES, "a feed passes over a commit", SMALL_FOLLOWING, feed, "stretch", _first_passed_over),
    Mutant(SWEPT, "no look for claims before the deletion", SMALL_GOING_BACK, SweepRequests, "wanted_again", _nothing),
    Mutant(SWEPT, "a savepoint without a look at the floor", SMALL_KEEPING, Savepoints, "floor", _floor_of_nothing),
    Mutant(NO_GOING_BACK, "the hint is not read again", SMALL_OPENING, LogReader, "end", _end_without_looking_again),
    Mutant(ACKNOWLEDGED, "an heir does not catch up", SMALL_INHERITING, Following, "catch_up", _nothing),
    Mutant(
        NO_GOING_BACK, "a follower is fresh whatever it finds", SMALL_INHERITING, LogSteps, "look", _look_for_nothing
    ),
    Mutant(
        WHOLE_STATES, "a follower applies whatever comes", SMALL_INHERITING_BACK, following, "added_by", _added_by_all
    ),
)
LONG_MUTANTS: Sequence[Mutant] = (
    Mutant(
        ONE,
        "a late writer believes that it has appended",
        TIRED,
        LogWriter,
        "_check_is_part_of_log",
        _check_claims_only,
    ),
)
