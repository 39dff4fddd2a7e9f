"""Is a delivered batch new? Decided from the newest batch of its query that the newest commit names.

Spark delivers each batch at least once; only the newest batch of a query can come again, and none is left out. So the
newest batch of each query is all that has to be remembered: `_log/marks.py` carries it from commit to commit.

    delivered batch                         step
    the newest one in the state             SKIP: the state has it already
    the one after it; 0, if there is none   PROCESS
    a later one                             `StateGoneError`, unless the sink says that the state goes on with it
    an earlier one                          `RewindError`, or ROLL_BACK if the sink allows it
    another query's                         `WrongQueryError`, or, if adopted, as above by its own batches

Query id and batch id decide, never the run id: a replay arrives in another run.
"""

import enum
from collections.abc import AsyncIterator
from typing import Any, Literal, get_args

import msgspec

from statebackend._upkeep.savepoints import StartingPoint
from statebackend.errors import RewindError, SettingsError, StateGoneError, WrongQueryError
from statebackend.ids import CheckpointId, CommitSummary, SourceMark

OnRewind = Literal["fail", "rollback"]
FirstBatch = int | Literal["any"]
Adopt = bool | str
"""The queries whose state another one may continue: one by its id, all, or none."""


class Step(enum.Enum):
    """The sink's next step for a delivered batch."""

    SKIP = "skip"
    PROCESS = "process"
    ROLL_BACK = "roll back"


class Marks(msgspec.Struct, frozen=True):
    """The newest batch in the state: of any query, and of the delivered query, `own`.

    They are equal unless another query has advanced the state since. `is_empty`: there is no commit at all.
    `starts_from`: where the stream has to begin, if the newest commit says so: there was no batch yet.
    """

    newest: SourceMark | None = None
    own: SourceMark | None = None
    is_empty: bool = False
    starts_from: Any = None


class Policies(msgspec.Struct, frozen=True):
    """The choices of a sink for batches that do not just follow. Raises `SettingsError` for one that there is not."""

    on_rewind: OnRewind = "fail"
    adopt: Adopt = False
    first_batch_id: FirstBatch = 0

    def __post_init__(self) -> None:
        first = self.first_batch_id
        if self.on_rewind not in get_args(OnRewind):
            raise SettingsError("on_rewind must be 'fail' or 'rollback'", on_rewind=self.on_rewind)
        if not self.adopt and self.adopt is not False:
            raise SettingsError("adopt must be the id of a query, True or False", adopt=self.adopt)
        if first != "any" and (type(first) is not int or first < 0):
            raise SettingsError("first_batch_id must be the id of a batch, or 'any'", first_batch_id=first)


def decide(delivered: SourceMark, marks: Marks, policies: Policies) -> Step:
    """The step for `delivered`, given the newest batches in the state. Pure.

    Raises `WrongQueryError`, `RewindError` or `StateGoneError` if the policies forbid the batch.
    """
    own = marks.own
    check_query(delivered, marks.newest, policies.adopt)
    if own is not None and delivered.batch_id == own.batch_id:
        return Step.SKIP
    if own is None or delivered.batch_id > own.batch_id:
        check_follows(delivered, own, policies.first_batch_id, is_empty=marks.is_empty)
        return Step.PROCESS
    if policies.on_rewind == "rollback":
        return Step.ROLL_BACK
    raise RewindError(
        "Spark delivers a batch older than the committed one: restore the Spark checkpoint that belongs to the state, "
        "or take the state back with on_rewind='rollback'",
        batch_id=delivered.batch_id,
        committed_batch_id=own.batch_id,
    )


def check_query(delivered: SourceMark, newest: SourceMark | None, adopt: Adopt) -> None:
    """Raise `WrongQueryError` if another query has made the `newest` batch in the state, which is not adopted."""
    if newest is not None and newest.query_id != delivered.query_id and adopt not in (True, newest.query_id):
        raise WrongQueryError(
            "another streaming query made the newest commit: restore that query's Spark checkpoint, name another job, "
            f"or continue from its state with adopt={newest.query_id!r}",
            query_id=delivered.query_id,
            committed_query_id=newest.query_id,
            committed_batch_id=newest.batch_id,
        )


def check_follows(
    delivered: SourceMark, own: SourceMark | None, first_batch_id: FirstBatch, *, is_empty: bool = False
) -> None:
    """Raise `StateGoneError` if the state lacks batches before `delivered`, and the sink does not say that it may.

    `own`: the newest batch of the query in the state.
    """
    following = 0 if own is None else own.batch_id + 1
    if delivered.batch_id == following or first_batch_id in ("any", delivered.batch_id):
        return
    if own is not None:
        found = (
            f"the state ends with batch {own.batch_id} of this query, and Spark has gone on without it: put back the "
            "state that goes with Spark's checkpoint, or the checkpoint that goes with the state; give the sink every "
            "batch, also an empty one"
        )
    elif is_empty:
        found = "the job is empty, and this is not the first batch of the query: correct job or primary, or put the "
        found += "state back"
    else:
        found = "the state has no batch of this query, and this is not its first: correct job or primary, or put the "
        found += "state back"
    raise StateGoneError(
        f"{found}; if the state is to go on with this batch, give the sink first_batch_id={delivered.batch_id}",
        query_id=delivered.query_id,
        batch_id=delivered.batch_id,
        next_batch_id=following,
    )


def starts_at_savepoint(delivered: SourceMark, start: StartingPoint, *, on_rewind: OnRewind) -> bool:
    """True if `delivered`, the first batch of a run, goes on from the savepoint; False if from the newest commit.

    The latter only where a run has gone on from the savepoint before and this batch goes with what it has left: so the
    sink's arguments may stay as they are when the program is started again. Raises `RewindError` for a batch that goes
    with neither. Pure.
    """
    kept, newest = start.kept.mark_of(delivered.query_id), start.newest.mark_of(delivered.query_id)
    if start.is_begun and (
        start.newest.newest_mark is None or (newest is not None and delivered.batch_id >= newest.batch_id)
    ):
        return False
    if kept is None or delivered.batch_id - kept.batch_id in (0, 1):
        return True
    if start.is_begun and on_rewind == "rollback":
        return False
    raise RewindError(
        f"Spark's checkpoint does not go with the savepoint, whose state ends with batch {kept.batch_id}: delete the "
        "files above that number from offsets/ and commits/ of Spark's checkpoint, or put a copy back that ends there",
        savepoint=start.name,
        query_id=delivered.query_id,
        batch_id=delivered.batch_id,
        next_batch_id=kept.batch_id + 1,
    )


def gap_after(delivered: SourceMark, own: SourceMark | None) -> int | None:
    """The newest batch of the query in the state, `own`, if the delivered one comes later but is not the next one."""
    return own.batch_id if own is not None and delivered.batch_id > own.batch_id + 1 else None


async def newest_marks(history: AsyncIterator[CommitSummary], query_id: str, *, adopt: Adopt) -> Marks:
    """The newest batch of any query in the state, and the newest of query `query_id`.

    The first commit of the history says both. Where an earlier release has made it, those below are read, too: by an
    adopting query below another query's commit, by any query below commits made by hand.
    """
    newest, is_empty, starts_from = None, True, None
    async for summary in history:
        starts_from = summary.starts_from if is_empty else starts_from
        newest, is_empty = newest or summary.newest_mark, False
        own = summary.mark_of(query_id)
        if own is not None or summary.marks is not None or (newest is not None and not adopt):
            return Marks(newest, own, starts_from=starts_from)
    return Marks(newest, is_empty=is_empty, starts_from=starts_from)


async def rollback_to(
    history: AsyncIterator[CommitSummary], delivered: SourceMark, first_batch_id: FirstBatch = 0
) -> CheckpointId:
    """The checkpoint to roll back to so that `delivered` can be applied: the newest without it and what came after it.

    Edits by hand from before that batch are kept so. Raises `RewindError` if no such commit is left, or if others than
    this query have changed the state since: Spark does not deliver their changes again. Raises `StateGoneError` if
    the state would lack batches before this one.
    """
    edit: CommitSummary | None = None
    unclear: CommitSummary | None = None
    async for summary in history:
        own = summary.mark_of(delivered.query_id)
        if own is None and summary.marks is None:  # by an earlier release: the commit below tells what it continues
            unclear = unclear or summary
        elif own is not None and own.batch_id >= delivered.batch_id:
            edit = edit or unclear or (None if summary.source == own else summary)
            unclear = None
        else:
            base = unclear or summary
            if edit is not None:
                raise RewindError(
                    "cannot roll back: commits by hand, or of another query, lie on top of the batches that would go, "
                    "and would go with them. Restore the Spark checkpoint that belongs to the state; or, if they may "
                    f"go, name checkpoint {base.checkpoint_id} a savepoint and start the sink with savepoint=",
                    query_id=delivered.query_id,
                    batch_id=delivered.batch_id,
                    checkpoint_id=edit.checkpoint_id,
                    rollback_checkpoint_id=base.checkpoint_id,
                )
            check_follows(delivered, own, first_batch_id)
            return base.checkpoint_id
    raise RewindError(
        "cannot roll back: no commit of this query from before the delivered batch is left. Restore the Spark "
        "checkpoint that belongs to the state, or start over with another job",
        query_id=delivered.query_id,
        batch_id=delivered.batch_id,
    )
