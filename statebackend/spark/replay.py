"""Is a delivered batch new? Decided from the source marks in the job's commits.

Spark delivers each batch at least once, and only the newest batch of a query can come again. So the source mark of the
newest commit is all that has to be remembered:

    delivered batch                                     step
    the newest committed one                            SKIP: the state has it already
    a later one (gaps are legal), or nothing committed  PROCESS
    an earlier one                                      `RewindError`, or ROLL_BACK if the sink allows it
    another query's                                     `WrongQueryError`, or, if adopted, as above by its own marks

Query id and batch id decide, never the run id: a replay arrives in another run.
"""

import enum
from collections.abc import AsyncIterator
from typing import Literal

from statebackend.errors import RewindError, WrongQueryError
from statebackend.ids import CheckpointId, CommitSummary, SourceMark

OnRewind = Literal["fail", "rollback"]


class Step(enum.Enum):
    """The sink's next step for a delivered batch."""

    SKIP = "skip"
    PROCESS = "process"
    ROLL_BACK = "roll back"


def decide(
    delivered: SourceMark, *, newest: SourceMark | None, own: SourceMark | None, on_rewind: OnRewind, adopt: bool
) -> Step:
    """The step for `delivered`, given two source marks from the history of the state. Pure.

    `newest` is the newest mark of any query, `own` the newest of the delivered query. They are equal unless another
    query has advanced the state since. Raises `WrongQueryError` or `RewindError` if the policies forbid the batch.
    """
    if newest is not None and newest.query_id != delivered.query_id and not adopt:
        raise WrongQueryError(
            "another streaming query made the newest commit: restore that query's Spark checkpoint, name another job, "
            "or continue from its state with adopt=True",
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
        "Spark delivers a batch older than the committed one: restore the Spark checkpoint that belongs to the state, "
        "or take the state back with on_rewind='rollback'",
        batch_id=delivered.batch_id,
        committed_batch_id=own.batch_id,
    )


async def newest_marks(
    history: AsyncIterator[CommitSummary], query_id: str, *, adopt: bool
) -> tuple[SourceMark | None, SourceMark | None]:
    """The newest source mark of any query, and the newest of query `query_id`: `newest` and `own` of `decide`.

    Only an adopting query reads on below another query's commit. Commits made by hand have no mark and are passed over,
    since the state still contains the batches below them.
    """
    newest = None
    async for summary in history:
        newest = newest or summary.source
        if summary.source is not None and summary.source.query_id == query_id:
            return newest, summary.source
        if newest is not None and not adopt:
            break
    return newest, None


async def checkpoint_before(history: AsyncIterator[CommitSummary], delivered: SourceMark) -> CheckpointId | None:
    """The newest checkpoint to roll back to so that `delivered` can be applied. `None` if no such commit is left."""
    async for summary in history:
        if can_precede(summary, delivered):
            return summary.checkpoint_id
    return None


def can_precede(summary: CommitSummary, delivered: SourceMark) -> bool:
    """True if `delivered` may be applied on top of that commit: the same query made it for an earlier batch."""
    source = summary.source
    return source is not None and source.query_id == delivered.query_id and source.batch_id < delivered.batch_id
