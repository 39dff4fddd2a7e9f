"""What to do with a delivered batch, decided from what the state holds already. Pure.

Spark delivers at least once, and only the newest batch of a query can come again. So the newest commit's source mark is
all that has to be remembered:

    delivered batch                                     step
    the newest committed one                            SKIP: it is in the state already
    a later one (gaps are legal), or nothing committed  PROCESS
    an earlier one                                      `RewindError`, or ROLL_BACK if asked for
    another query's                                     `WrongQueryError`, or as above on its own marks if adopted

Query and batch id decide, never the run id: a replay comes in another run.
"""

import enum
from typing import Literal

from statebackend.errors import RewindError, WrongQueryError
from statebackend.ids import CommitSummary, SourceMark

OnRewind = Literal["fail", "rollback"]


class Step(enum.Enum):
    """What a delivered batch calls for."""

    SKIP = "skip"
    PROCESS = "process"
    ROLL_BACK = "roll back"


def decide(
    delivered: SourceMark, *, newest: SourceMark | None, own: SourceMark | None, on_rewind: OnRewind, adopt: bool
) -> Step:
    """The step for `delivered`, given two marks of the history that the state stands on.

    `newest` is the newest mark of any query, `own` the newest mark of the delivered query; they are equal unless
    another query advanced the state since. Raises `WrongQueryError` or `RewindError` where the policies say no.
    """
    if newest is not None and newest.query_id != delivered.query_id and not adopt:
        raise WrongQueryError(
            "another streaming query made the newest commit: restore that query's Spark checkpoint, name another job, "
            "or continue on its state with adopt=True",
            query_id=delivered.query_id,
            committed_query_id=newest.query_id,
            committed_batch_id=newest.batch_id,
        )
    if own is None or delivered.batch_id > own.batch_id:
        return Step.PROCESS
    if delivered.batch_id == own.batch_id:
        return Step.SKIP
    if on_rewind == "rollback":
        return Step.ROLL_BACK
    raise RewindError(
        "Spark delivers a batch before the committed one: restore the Spark checkpoint that belongs to the state, or "
        "take the state back with on_rewind='rollback'",
        batch_id=delivered.batch_id,
        committed_batch_id=own.batch_id,
    )


def can_stand_under(summary: CommitSummary, delivered: SourceMark) -> bool:
    """Whether `delivered` may be applied on that commit: made by the same query for an earlier batch."""
    source = summary.source
    return source is not None and source.query_id == delivered.query_id and source.batch_id < delivered.batch_id
