"""Followers of jobs drawn from seeds: each answer is of one commit, none is older than it says, no promotion loses."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final
from unittest.mock import patch

import pytest

from statebackend._checkpoint.chain import added_by
from statebackend._codec.commit import Commit
from statebackend._following import columns, following
from statebackend._following.columns import ColumnsAtCommit
from statebackend._following.following import Following
from statebackend._following.log_steps import Found, LogSteps
from statebackend._following.position import KnownMoment
from statebackend._following.tables import EntriesAtCommit, TableAtCommit
from statebackend.errors import StoreUnavailableError
from statebackend.ids import ChangeSetHandle
from statebackend.testing import run_virtual
from tests.following.model import Course

SEEDS: Final = 7
STEPS: Final = 12


def course_of(seed: int, table: str) -> Course:
    """The course of that seed, run to its end."""
    found: list[Course] = []

    @run_virtual
    async def go() -> None:
        course = Course(seed, table)
        await course.run(STEPS)
        found.append(course)

    go()
    return found[0]


@pytest.mark.parametrize("table", ["heap", "rocksdb"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_follower_answers_as_the_job_was(seed: int, table: str, quiet: None) -> None:
    """Whatever the job does: it commits, goes back, is rewritten, swept, away, or taken over."""
    assert course_of(seed, table).judged > STEPS


def keeps_nothing(_: TableAtCommit, __: Any) -> None:
    """Changes show as soon as they are applied."""


def keeps_without_copies(table: TableAtCommit, changes: Any) -> None:
    """Lists and maps that are kept change with those that are not."""
    for key in changes.keys:
        table.entries.kept.setdefault(key, table.inside.entries.get(key))


def counts_what_is_there(entries: EntriesAtCommit) -> int:
    """The keys that come with the next commit are counted already."""
    return len(entries._entries)


def leaves_out_the_last(before: Commit, commits: Sequence[Commit], key_groups: Any) -> Any:
    """Of several commits the last one's changes are left out."""
    return added_by(before, commits if len(commits) == 1 else commits[:-1], key_groups)


def trusts_every_log(before: Commit, commits: Sequence[Commit], key_groups: Any) -> Sequence[ChangeSetHandle]:
    """A commit that does not go on from the one before is taken for one that does."""
    found = added_by(before, commits, key_groups)
    return () if isinstance(found, str) else found


def takes_failures_for_nothing_new() -> AbstractContextManager[Any]:
    """A look that fails counts as one that has found nothing newer."""
    look = LogSteps.look

    async def looked(steps: LogSteps) -> Found:
        try:
            return await look(steps)
        except StoreUnavailableError:
            return Found(fresh=KnownMoment(steps._clock))

    return patch.object(LogSteps, "look", looked)


def is_fresh_once_it_answers(_: KnownMoment) -> float:
    """The time since the last look does not count."""
    return 0.0


def keeps_no_rows(_: ColumnsAtCommit, __: Any, ___: Any) -> None:
    """The row of a column is changed while the commit before is still read."""


async def claims_alone(following: Following, commit: Commit | None) -> None:
    """A promotion does not apply what lies between."""


SLIPS: Final[dict[str, Callable[[], AbstractContextManager[Any]]]] = {
    "keeps nothing": lambda: patch.object(TableAtCommit, "keep", keeps_nothing),
    "keeps without copies": lambda: patch.object(TableAtCommit, "keep", keeps_without_copies),
    "counts what is there": lambda: patch.object(EntriesAtCommit, "__len__", counts_what_is_there),
    "keeps no rows": lambda: patch.object(ColumnsAtCommit, "keep", keeps_no_rows),
    "shows rows that are added": lambda: patch.object(columns, "ADDED", 0),
    "leaves out the last": lambda: patch.object(following, "added_by", leaves_out_the_last),
    "trusts every log": lambda: patch.object(following, "added_by", trusts_every_log),
    "takes failures for nothing new": takes_failures_for_nothing_new,
    "forgets how long ago it looked": lambda: patch.object(KnownMoment, "since_s", is_fresh_once_it_answers),
    "claims alone": lambda: patch.object(Following, "catch_up", claims_alone),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_noticed(slip: str, quiet: None) -> None:
    """Each of these follows most jobs well; in one of the seeds above it does not, and the judge says so."""
    noticed = False
    for seed in range(SEEDS):
        try:
            with SLIPS[slip]():
                course_of(seed, "heap")
        except* AssertionError:
            noticed = True
        if noticed:
            break
    assert noticed
