"""The decision on a delivered batch, without Spark: the state has each batch once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.errors import RewindError, StateGoneError, WrongQueryError
from statebackend.ids import CheckpointId, CommitSequence, CommitSummary, Epoch, SourceMark
from statebackend.spark.replay import Marks, Step, can_precede, decide, gap_after, newest_marks
from tests.examples import name_of


def mark(query: str, batch: int, run: str = "run") -> SourceMark:
    return SourceMark(query_id=query, batch_id=batch, run_id=run)


def summary(source: SourceMark | None) -> CommitSummary:
    return CommitSummary(CommitSequence(0), CheckpointId(0), Epoch(1), None, source, 0.0)


@pytest.mark.parametrize(
    ("batch", "step"), [(4, RewindError), (5, Step.SKIP), (6, Step.PROCESS), (9, Step.PROCESS)], ids=name_of
)
@pytest.mark.parametrize("adopt", [False, True])
def test_a_querys_own_batches_are_told_apart_by_their_id(batch, step, adopt) -> None:
    """The newest is skipped, whatever run delivers it; later ones are new, gap or not; earlier ones are an error."""
    own = mark("mine", 5)

    def decided() -> Step:
        return decide(mark("mine", batch, "another run"), Marks(own, own), on_rewind="fail", adopt=adopt)

    if isinstance(step, Step):
        assert decided() is step
    else:
        with pytest.raises(step):
            decided()


@pytest.mark.parametrize("adopt", [False, True])
@pytest.mark.parametrize("on_rewind", ["fail", "rollback"])
@pytest.mark.parametrize(("first", "batches"), [(0, {0}), (4, {0, 4}), ("any", {0, 1, 4, 7})])
def test_an_empty_job_takes_a_querys_first_batch_only(first, batches, on_rewind, adopt) -> None:
    """That is 0, or what the sink says: with any other batch, the state of the batches before is gone."""

    def decided(batch: int) -> Step:
        empty = Marks(is_empty=True)
        return decide(mark("mine", batch), empty, on_rewind=on_rewind, adopt=adopt, first_batch_id=first)

    for batch in (0, 1, 4, 7):
        if batch in batches:
            assert decided(batch) is Step.PROCESS
        else:
            with pytest.raises(StateGoneError, match=f"first_batch_id={batch}"):
                decided(batch)


@pytest.mark.parametrize("batch", [0, 7])
def test_a_job_with_commits_made_by_hand_takes_any_batch(batch) -> None:
    """Somebody filled it before the query had it: it is not empty."""
    assert decide(mark("mine", batch), Marks(), on_rewind="fail", adopt=False) is Step.PROCESS


@pytest.mark.parametrize(("batch", "after"), [(4, None), (5, None), (6, None), (7, 5), (90, 5)])
def test_a_batch_that_is_not_the_next_of_its_query_is_noticed(batch, after) -> None:
    """The next one, a replay and an earlier one are not a gap; and without a batch in the state there is none."""
    assert gap_after(mark("mine", batch), mark("mine", 5)) == after
    assert gap_after(mark("mine", batch), None) is None


@pytest.mark.anyio
@pytest.mark.parametrize("adopt", [False, True])
async def test_only_a_history_without_a_commit_is_empty(adopt) -> None:
    """Not one whose commits say nothing of the query."""

    async def history(*sources):
        for source in sources:
            yield summary(source)

    mine, theirs = mark("mine", 5), mark("theirs", 9)
    assert await newest_marks(history(), "mine", adopt=adopt) == Marks(is_empty=True)
    assert await newest_marks(history(None), "mine", adopt=adopt) == Marks()
    assert await newest_marks(history(theirs), "mine", adopt=adopt) == Marks(theirs)
    assert await newest_marks(history(None, mine), "mine", adopt=adopt) == Marks(mine, mine)
    below = Marks(theirs, mine) if adopt else Marks(theirs)
    assert await newest_marks(history(theirs, mine), "mine", adopt=adopt) == below


def test_an_earlier_batch_rolls_back_where_that_is_asked_for() -> None:
    """The policy says so, and only of a query's own batches."""
    own = mark("mine", 5)
    assert decide(mark("mine", 4), Marks(own, own), on_rewind="rollback", adopt=False) is Step.ROLL_BACK


@pytest.mark.parametrize("batch", [4, 5, 6])
def test_another_querys_state_is_refused_whatever_the_batch_id(batch) -> None:
    """Batch ids of two queries have nothing to do with each other."""
    with pytest.raises(WrongQueryError):
        decide(mark("mine", batch), Marks(mark("theirs", 5)), on_rewind="rollback", adopt=False)


def test_an_adopting_query_still_knows_its_own_batches_below_the_other_ones() -> None:
    """Two queries that take turns on one state: what either has applied is in it, also below the other's commits."""
    newest, own = mark("theirs", 9), mark("mine", 5)
    assert decide(mark("mine", 5), Marks(newest, own), on_rewind="fail", adopt=True) is Step.SKIP
    assert decide(mark("mine", 6), Marks(newest, own), on_rewind="fail", adopt=True) is Step.PROCESS
    assert decide(mark("mine", 0), Marks(newest), on_rewind="fail", adopt=True) is Step.PROCESS


def test_a_batch_can_stand_on_an_earlier_one_of_its_own_query_only() -> None:
    """That is where a rollback ends."""
    delivered = mark("mine", 5)
    assert can_precede(summary(mark("mine", 4)), delivered)
    assert not can_precede(summary(mark("mine", 5)), delivered)
    assert not can_precede(summary(mark("theirs", 4)), delivered)
    assert not can_precede(summary(None), delivered)


deliveries = st.lists(st.tuples(st.sampled_from(["left", "right"]), st.integers(0, 5)), max_size=40)


@given(deliveries=deliveries, rollback=st.booleans(), adopt=st.booleans())
def test_whatever_is_delivered_the_state_holds_each_batch_at_most_once(deliveries, rollback, adopt) -> None:
    """In a history that is followed by the decisions, each query's batch ids only grow."""
    history: list[SourceMark] = []
    for query, batch in deliveries:
        delivered = mark(query, batch)
        newest = history[-1] if history else None
        own = next((each for each in reversed(history) if each.query_id == query), None)
        try:
            marks = Marks(newest, own, is_empty=not history)
            step = decide(delivered, marks, on_rewind="rollback" if rollback else "fail", adopt=adopt)
        except (RewindError, StateGoneError, WrongQueryError):
            continue
        if step is Step.ROLL_BACK:
            while history and not can_precede(summary(history[-1]), delivered):
                history.pop()
            if not history:
                continue  # nothing to roll back to, which the sink reports
        if step is not Step.SKIP:
            history.append(delivered)
        assert any((each.query_id, each.batch_id) == (query, batch) for each in history)
        for name in ("left", "right"):
            ids = [each.batch_id for each in history if each.query_id == name]
            assert ids == sorted(set(ids))
