"""Is a delivered batch new? Decided from the source marks in the job's commits.

Spark delivers each batch at least once, and only the newest batch of a query can come again. So the source mark of the
newest commit is all that has to be remembered:

    delivered batch                     step
    the newest committed one            SKIP: the state has it already
    a later one                         PROCESS; a gap is legal, since Spark may use up an id, but it is told
    an earlier one                      `RewindError`, or ROLL_BACK if the sink allows it
    another query's                     `WrongQueryError`, or, if adopted, as above by its own marks
    0, and the job has no commit        PROCESS: the query begins
    any other, and the job has none     `StateGoneError`, unless the sink says that the state begins with it

Query id and batch id decide, never the run id: a replay arrives in another run.
"""

import enum
from collections.abc import AsyncIterator
from typing import Literal

import msgspec

from statebackend._upkeep.savepoints import StartingPoint
from statebackend.errors import RewindError, StateGoneError, WrongQueryError
from statebackend.ids import CheckpointId, CommitSummary, SourceMark

OnRewind = Literal["fail", "rollback"]
FirstBatch = int | Literal["any"]


class Step(enum.Enum):
    """The sink's next step for a delivered batch."""

    SKIP = "skip"
    PROCESS = "process"
    ROLL_BACK = "roll back"


class Marks(msgspec.Struct, frozen=True):
    """The marks in the history of the state: the newest of any query, and the newest of the delivered query, `own`.

    They are equal unless another query has advanced the state since. `is_empty`: there is no commit at all.
    """

    newest: SourceMark | None = None
    own: SourceMark | None = None
    is_empty: bool = False


def decide(
    delivered: SourceMark, marks: Marks, *, on_rewind: OnRewind, adopt: bool, first_batch_id: FirstBatch = 0
) -> Step:
    """The step for `delivered`, given the marks in the history of the state. Pure.

    Raises `WrongQueryError`, `RewindError` or `StateGoneError` if the policies forbid the batch.
    """
    newest, own = marks.newest, marks.own
    if marks.is_empty and first_batch_id != "any" and delivered.batch_id not in (0, first_batch_id):
        raise StateGoneError(
            "the job is empty, and this is not the first batch of the query: correct job or primary, or put the state "
            f"back; if the state is to begin with this batch, give the sink first_batch_id={delivered.batch_id}",
            query_id=delivered.query_id,
            batch_id=delivered.batch_id,
        )
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


def starts_at_savepoint(delivered: SourceMark, start: StartingPoint, *, on_rewind: OnRewind) -> bool:
    """True if `delivered`, the first batch of a run, goes on from the savepoint; False if from the newest commit.

    The latter only where a run has gone on from the savepoint before and this batch goes with what it has left: so the
    sink's arguments may stay as they are when the program is started again. Raises `RewindError` for a batch that goes
    with neither. Pure.
    """
    kept, newest = start.savepoint.source, start.newest.source
    if start.is_begun and (
        newest is None or (newest.query_id == delivered.query_id and delivered.batch_id >= newest.batch_id)
    ):
        return False
    if kept is None or kept.query_id != delivered.query_id or delivered.batch_id - kept.batch_id in (0, 1):
        return True
    if start.is_begun and on_rewind == "rollback":
        return False
    raise RewindError(
        f"Spark's checkpoint does not go with the savepoint, whose state ends with batch {kept.batch_id}: delete the "
        "files above that number from offsets/ and commits/ of Spark's checkpoint, or put a copy back that ends there",
        savepoint=start.savepoint.name,
        query_id=delivered.query_id,
        batch_id=delivered.batch_id,
        next_batch_id=kept.batch_id + 1,
    )


def gap_after(delivered: SourceMark, own: SourceMark | None) -> int | None:
    """The newest batch of the query in the state, `own`, if the delivered one comes later but is not the next one."""
    return own.batch_id if own is not None and delivered.batch_id > own.batch_id + 1 else None


async def newest_marks(history: AsyncIterator[CommitSummary], query_id: str, *, adopt: bool) -> Marks:
    """The newest source mark of any query, and the newest of query `query_id`.

    Only an adopting query reads on below another query's commit. Commits made by hand have no mark and are passed over,
    since the state still contains the batches below them.
    """
    newest, is_empty = None, True
    async for summary in history:
        newest, is_empty = newest or summary.source, False
        if summary.source is not None and summary.source.query_id == query_id:
            return Marks(newest, summary.source)
        if newest is not None and not adopt:
            break
    return Marks(newest, is_empty=is_empty)


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
