"""The decision on a delivered batch, without Spark: the state has each batch once, lacks none, and keeps every edit."""

from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend._log.marks import QUERIES_MAX, marks_after
from statebackend.errors import RewindError, StateGoneError, WrongQueryError
from statebackend.ids import CheckpointId, CommitSequence, CommitSummary, Epoch, SourceMark
from statebackend.spark.replay import Marks, Policies, Step, decide, gap_after, newest_marks, rollback_to
from tests.examples import name_of

T = TypeVar("T")


def mark(query: str, batch: int, run: str = "run") -> SourceMark:
    return SourceMark(query_id=query, batch_id=batch, run_id=run)


def summary(source: SourceMark | None, marks: tuple[SourceMark, ...] | None = None, number: int = 0) -> CommitSummary:
    """A commit. By default one of an earlier release, which does not say what the state has besides."""
    return CommitSummary(CommitSequence(number), CheckpointId(number), Epoch(1), None, source, 0.0, None, marks)


def committed(*sources: SourceMark | None) -> list[CommitSummary]:
    """The commits of a job, for these batches, or by hand. Oldest first."""
    commits: list[CommitSummary] = []
    for number, source in enumerate(sources):
        commits.append(summary(source, marks_after(commits[-1] if commits else None, source), number))
    return commits


def earlier(commits: Sequence[CommitSummary]) -> list[CommitSummary]:
    """The same, as an earlier release has made them."""
    return [msgspec.structs.replace(commit, marks=None) for commit in commits]


async def history(commits: Sequence[CommitSummary]) -> AsyncIterator[CommitSummary]:
    for commit in reversed(commits):
        yield commit


def result_of(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that waits for nothing: no loop is needed."""
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    result: T = stopped.value.value
    return result


def found_in(commits: Sequence[CommitSummary], query: str, *, adopt: bool = False) -> Marks:
    return result_of(newest_marks(history(commits), query, adopt=adopt))


def base_of(commits: Sequence[CommitSummary], delivered: SourceMark, first_batch_id: int = 0) -> int:
    """The place of the commit to roll back to."""
    return result_of(rollback_to(history(commits), delivered, first_batch_id))


def decided(delivered: SourceMark, marks: Marks, **policies: Any) -> Step:
    return decide(delivered, marks, Policies(**policies))


@pytest.mark.parametrize(
    ("batch", "step"),
    [(4, RewindError), (5, Step.SKIP), (6, Step.PROCESS), (7, StateGoneError), (9, StateGoneError)],
    ids=name_of,
)
@pytest.mark.parametrize("adopt", [False, True])
def test_a_querys_own_batches_are_told_apart_by_their_id(batch, step, adopt) -> None:
    """The newest is skipped, whatever run delivers it; the next one is new; before and behind them is an error."""
    own = mark("mine", 5)
    delivered = mark("mine", batch, "another run")
    if isinstance(step, Step):
        assert decided(delivered, Marks(own, own), adopt=adopt) is step
    else:
        with pytest.raises(step):
            decided(delivered, Marks(own, own), adopt=adopt)


@pytest.mark.parametrize("adopt", [False, True])
@pytest.mark.parametrize("on_rewind", ["fail", "rollback"])
@pytest.mark.parametrize(("first", "batches"), [(0, {0}), (4, {0, 4}), ("any", {0, 1, 4, 7})])
@pytest.mark.parametrize("is_empty", [True, False], ids=["empty", "filled by hand"])
def test_a_job_takes_a_querys_first_batch_only(is_empty, first, batches, on_rewind, adopt) -> None:
    """That is 0, or what the sink says: with any other batch, the state of the batches before is gone."""
    marks = Marks(is_empty=is_empty)
    policies = {"on_rewind": on_rewind, "adopt": adopt, "first_batch_id": first}
    for batch in (0, 1, 4, 7):
        if batch in batches:
            assert decided(mark("mine", batch), marks, **policies) is Step.PROCESS
        else:
            with pytest.raises(StateGoneError, match=f"first_batch_id={batch}") as caught:
                decided(mark("mine", batch), marks, **policies)
            assert ("is empty" in caught.value.message) is is_empty


@pytest.mark.parametrize("first", [0, 3, 8, "any"])
def test_a_gap_is_refused_unless_the_sink_says_that_the_state_goes_on_there(first) -> None:
    """Said of one batch, it allows no other gap, no rewind, and no second time."""
    own = mark("mine", 5)
    for batch in (7, 8, 90):
        if first in (batch, "any"):
            assert decided(mark("mine", batch), Marks(own, own), first_batch_id=first) is Step.PROCESS
            assert decided(mark("mine", batch), Marks(mark("mine", batch), mark("mine", batch))) is Step.SKIP
        else:
            with pytest.raises(StateGoneError, match="ends with batch 5") as caught:
                decided(mark("mine", batch), Marks(own, own), first_batch_id=first)
            assert caught.value.facts["next_batch_id"] == 6
    with pytest.raises(RewindError):
        decided(mark("mine", 3), Marks(own, own), first_batch_id=first)


@pytest.mark.parametrize(("batch", "after"), [(4, None), (5, None), (6, None), (7, 5), (90, 5)])
def test_a_batch_that_is_not_the_next_of_its_query_is_noticed(batch, after) -> None:
    """The next one, a replay and an earlier one are not a gap; and without a batch in the state there is none."""
    assert gap_after(mark("mine", batch), mark("mine", 5)) == after
    assert gap_after(mark("mine", batch), None) is None


@pytest.mark.parametrize("adopt", [False, True])
def test_only_a_history_without_a_commit_is_empty(adopt) -> None:
    """Not one whose commits say nothing of the query."""
    mine, theirs = mark("mine", 5), mark("theirs", 9)
    assert found_in([], "mine", adopt=adopt) == Marks(is_empty=True)
    for of_release in (committed, lambda *sources: earlier(committed(*sources))):
        assert found_in(of_release(None), "mine", adopt=adopt) == Marks()
        assert found_in(of_release(theirs), "mine", adopt=adopt) == Marks(theirs)
        assert found_in(of_release(mine, None), "mine", adopt=adopt) == Marks(mine, mine)
    below = Marks(theirs, mine) if adopt else Marks(theirs)
    assert found_in(earlier(committed(mine, theirs)), "mine", adopt=adopt) == below


@pytest.mark.parametrize("on_top", [[None], [None] * 5, [mark("theirs", 0), None, mark("theirs", 1)]], ids=len)
def test_the_newest_commit_alone_says_what_the_state_has(on_top) -> None:
    """All below it may be swept: a batch stays known under edits by hand and batches of another query."""
    mine = mark("mine", 5)
    commits = committed(mark("mine", 4), mine, *on_top)
    marks = found_in(commits[-1:], "mine", adopt=True)
    assert marks.own == mine
    assert marks.newest == next((source for source in reversed(on_top) if source), mine)
    assert decided(mark("mine", 5, "another run"), marks, adopt=True) is Step.SKIP


def test_of_many_queries_the_one_idle_longest_is_forgotten_and_then_refused() -> None:
    """A job that is adopted again and again does not grow. A forgotten query is not taken for a new one."""
    queries = [mark(f"query {number}", 3) for number in range(2 * QUERIES_MAX)]
    commits = committed(*queries)
    assert max(len(commit.marks or ()) for commit in commits) == QUERIES_MAX
    for number, query in enumerate(queries):
        marks = found_in(commits[-1:], query.query_id, adopt=True)
        assert marks.own == (query if number >= QUERIES_MAX - 1 else None)
    with pytest.raises(StateGoneError):
        decided(queries[0], found_in(commits, "query 0", adopt=True), adopt=True)


def test_what_an_earlier_release_has_not_said_is_looked_up_as_far_as_the_log_goes() -> None:
    """It becomes known with the first commit by another hand, of a release that says it."""
    old = earlier(committed(mark("mine", 5)))
    next_of_mine = summary(mark("mine", 6), marks_after(old[-1], mark("mine", 6)), 1)
    assert next_of_mine.marks is None
    by_hand = summary(None, marks_after(next_of_mine, None), 2)
    assert by_hand.marks == (mark("mine", 6),)
    hand_on_hand = earlier(committed(mark("mine", 5), None))
    assert marks_after(hand_on_hand[-1], None) is None
    assert found_in([*hand_on_hand, summary(None, None, 2)], "mine") == Marks(mark("mine", 5), mark("mine", 5))


def test_an_earlier_batch_rolls_back_where_that_is_asked_for() -> None:
    """The policy says so, and only of a query's own batches."""
    own = mark("mine", 5)
    assert decided(mark("mine", 4), Marks(own, own), on_rewind="rollback") is Step.ROLL_BACK


@pytest.mark.parametrize("of_release", [list, earlier], ids=["this release", "an earlier one"])
def test_a_rollback_keeps_the_edits_from_before_the_batch(of_release) -> None:
    """Made by hand, or by another query, between the batches that stay and those that go."""
    own = [mark("mine", batch) for batch in range(4)]
    assert base_of(of_release(committed(*own)), own[2]) == 1
    assert base_of(of_release(committed(*own[:2], None, None, *own[2:])), own[2]) == 3
    assert base_of(of_release(committed(*own[:2], mark("theirs", 0), *own[2:])), own[2]) == 2
    assert base_of(committed(None, *own), own[0]) == 0, "what the job was filled with before its first batch"


@pytest.mark.parametrize("of_release", [list, earlier], ids=["this release", "an earlier one"])
@pytest.mark.parametrize("edit", [None, mark("theirs", 0)], ids=["by hand", "of another query"])
def test_a_rollback_undoes_no_edit(of_release, edit) -> None:
    """Nobody would make it again. The error names it, and the checkpoint to start from if it may go."""
    own = [mark("mine", batch) for batch in range(4)]
    for commits in (committed(*own, edit), committed(*own[:3], edit, own[3]), committed(*own[:3], edit, edit, own[3])):
        with pytest.raises(RewindError, match="savepoint=") as caught:
            base_of(of_release(commits), own[2])
        assert caught.value.facts["rollback_checkpoint_id"] == 1
        assert commits[caught.value.facts["checkpoint_id"]].source == edit


def test_a_rollback_ends_with_an_error_where_nothing_is_left_to_roll_back_to() -> None:
    """The commit was swept, there never was one, or the state would lack the batches before."""
    own = [mark("mine", batch) for batch in range(4)]
    for commits in (committed(*own)[2:], committed(*own), earlier(committed(None, *own))):
        with pytest.raises(RewindError, match="cannot roll back"):
            base_of(commits, own[0])
    with_gap = committed(own[0], mark("mine", 7), mark("mine", 8))
    assert base_of(with_gap, mark("mine", 7), first_batch_id=7) == 0
    with pytest.raises(StateGoneError):
        base_of(with_gap, mark("mine", 5))


@pytest.mark.parametrize("batch", [4, 5, 6])
def test_another_querys_state_is_refused_whatever_the_batch_id(batch) -> None:
    """Batch ids of two queries have nothing to do with each other."""
    with pytest.raises(WrongQueryError):
        decided(mark("mine", batch), Marks(mark("theirs", 5)), on_rewind="rollback")


def test_a_query_adopts_the_one_that_it_names_and_no_other() -> None:
    """So the argument may stay in the code: a Spark checkpoint that is lost later makes another query."""
    theirs, others = Marks(mark("theirs", 5)), Marks(mark("others", 5))
    assert decided(mark("mine", 0), theirs, adopt="theirs") is Step.PROCESS
    assert decided(mark("mine", 0), others, adopt=True) is Step.PROCESS
    with pytest.raises(WrongQueryError, match="adopt='others'"):
        decided(mark("mine", 0), others, adopt="theirs")


def test_an_adopting_query_still_knows_its_own_batches_below_the_other_ones() -> None:
    """Two queries that take turns on one state: what either has applied is in it, also below the other's commits."""
    newest, own = mark("theirs", 9), mark("mine", 5)
    assert decided(mark("mine", 5), Marks(newest, own), adopt=True) is Step.SKIP
    assert decided(mark("mine", 6), Marks(newest, own), adopt=True) is Step.PROCESS
    assert decided(mark("mine", 0), Marks(newest), adopt=True) is Step.PROCESS


deliveries = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["left", "right"]), st.integers(0, 5)),
        st.just(("by hand", 0)),
        st.tuples(st.just("swept"), st.integers(1, 3)),
    ),
    max_size=40,
)


@given(deliveries=deliveries, rollback=st.booleans(), adopt=st.booleans())
def test_whatever_is_delivered_the_state_has_each_batch_once_lacks_none_and_keeps_each_edit(
    deliveries, rollback, adopt
) -> None:
    """In a history that is followed by the decisions, of which a sweep leaves a few, among edits by hand."""
    applied: dict[int, list[SourceMark | int]] = {}
    log: list[CommitSummary] = []
    for number, (query, batch) in enumerate(deliveries):
        if query == "swept":
            log = log[-batch:]
            continue
        state = applied[log[-1].sequence] if log else []
        if query == "by hand":
            source, changed = None, [*state, number]
        else:
            source = mark(query, batch)
            try:
                step = decided(
                    source,
                    found_in(log, query, adopt=adopt),
                    on_rewind="rollback" if rollback else "fail",
                    adopt=adopt,
                )
                if step is Step.ROLL_BACK:
                    base = base_of(log, source)
                    gone = [each for each in state if each not in applied[base]]
                    assert all(isinstance(each, SourceMark) and each.query_id == query for each in gone)
                    log = [commit for commit in log if commit.sequence <= base]
                    state = applied[base]
            except (RewindError, StateGoneError, WrongQueryError):
                continue
            assert (source in state) is (step is Step.SKIP)
            if step is Step.SKIP:
                continue
            changed = [*state, source]
        log.append(summary(source, marks_after(log[-1] if log else None, source), number))
        applied[number] = changed
        for name in ("left", "right"):
            ids = [each.batch_id for each in changed if isinstance(each, SourceMark) and each.query_id == name]
            assert ids == list(range(len(ids)))
