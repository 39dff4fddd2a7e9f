"""What the state has of Spark's batches, in the newest commit: whatever is committed on top, and swept below."""

import pytest

import statebackend as sb
from statebackend._log.marks import QUERIES_MAX, marks_after
from statebackend.ids import (
    CheckpointId,
    CommitSequence,
    CommitSummary,
    Epoch,
    RangeState,
    SnapshotResult,
    SourceMark,
    all_key_groups,
)
from statebackend.objectstore import MemoryStore
from statebackend.spark.replay import Marks, Policies, Step, decide, newest_marks
from tests.knobs import settings_with
from tests.log.swept import Job, forget, put

MINE, THEIRS = SourceMark("mine", 5, "a run"), SourceMark("theirs", 9)


async def marks_in(job: Job, *, adopt: bool = False) -> Marks:
    """What a sink of the query "mine" that opens the job finds."""
    async with job.backend(read_only=True) as backend:
        return await newest_marks(backend.history(), "mine", adopt=adopt)


async def test_a_batch_stays_known_under_edits_by_hand_bases_and_a_sweep() -> None:
    """Its commit is gone, and everything it pointed into. Spark delivers it again: it must not count twice."""
    job = Job()
    async with job.backend() as backend:
        await put(backend, 6, source=MINE)
    job.pass_time()
    for edit in range(3):
        async with job.backend() as backend:
            forget(backend)
            await put(backend, 6 + edit)
    job.pass_time()
    await job.sweep()
    assert min(await job.commits()) > 0, "the sweep leaves the commit of the batch"
    marks = await marks_in(job)
    assert marks == Marks(MINE, MINE)
    assert decide(SourceMark("mine", 5, "next run"), marks, Policies()) is Step.SKIP


async def test_owners_and_their_coordinator_carry_it_too() -> None:
    """The coordinator makes the commit, so executors and owners by hand need not know."""
    store, settings = MemoryStore(), settings_with(job="parts", primary="memory://unused", max_parallelism=2)
    groups = all_key_groups(2)
    async with sb.owners.open_coordinator(settings, store=store) as coordinator:
        for checkpoint_id, source in enumerate((MINE, THEIRS, None)):
            state = RangeState(groups, ())
            base = None if checkpoint_id == 0 else CheckpointId(checkpoint_id - 1)
            snapshot = SnapshotResult(
                CheckpointId(checkpoint_id), state, local=False, epoch=coordinator.epoch, base=base
            )
            await coordinator.commit(checkpoint_id, [snapshot], source)
        assert coordinator.newest is not None
        assert coordinator.newest.marks == (MINE, THEIRS)
        assert coordinator.newest.newest_mark == THEIRS


async def test_a_rewrite_and_a_savepoint_have_the_batches_of_their_commit() -> None:
    """Made by hand, on top of it: the state has the batch."""
    job = Job()
    await job.commit(1, 2)
    async with job.backend() as backend:
        await put(backend, 6, source=THEIRS)
        await put(backend, 7, source=MINE)
        await put(backend, 8)
        kept = await backend.savepoint("edited")
    assert kept.source == MINE
    rewritten = Job(max_parallelism=4)
    rewritten.store, rewritten.clock = job.store, job.clock
    await sb.rewrite(rewritten.settings, store=job.store, clock=job.clock)
    assert await marks_in(rewritten) == Marks(MINE, MINE)
    async with rewritten.backend() as backend:
        assert backend.newest is not None
        assert backend.newest.marks == (THEIRS, MINE)


async def test_an_older_checkpoint_opened_by_hand_goes_on_from_the_batches_that_it_has() -> None:
    """By hand, in order to undo some: the next batch of Spark then shows what is missing."""
    job = Job()
    async with job.backend() as backend:
        for batch in range(4):
            await put(backend, batch, source=SourceMark("mine", batch))
    async with job.backend(checkpoint_id=1) as backend:
        await put(backend, 1)
    assert (await marks_in(job)).own == SourceMark("mine", 1)


@pytest.mark.parametrize("by_hand", [False, True])
async def test_a_commit_that_many_queries_have_advanced_does_not_grow(by_hand) -> None:
    """A job that a new query adopts each day carries a bounded number of them."""
    job = Job()
    async with job.backend() as backend:
        for query in range(2 * QUERIES_MAX):
            await put(backend, query, source=SourceMark(f"query {query}", 0))
            if by_hand:
                await put(backend, query)
        assert backend.newest is not None
        assert len(backend.newest.marks or ()) == QUERIES_MAX


async def test_an_older_checkpoint_in_place_of_a_damaged_one_is_told_until_the_next_commit() -> None:
    """Then a gap behind it is what the setting allows; later ones are not."""
    job = Job(fall_back_to_older=True)
    await job.commit(1, 2)
    async with job.backend() as backend:
        assert not backend.fell_back
    newest = (await job.commits())[1]
    await job.store.put(f"{job.settings.job}/commits/{newest.sequence:012}", (b"damaged",))
    async with job.backend() as backend:
        assert backend.fell_back
        await put(backend, 3)
        assert not backend.fell_back


QUERIES = [SourceMark(f"query {number}", number) for number in range(QUERIES_MAX + 2)]


@pytest.mark.parametrize("count", [QUERIES_MAX - 1, QUERIES_MAX, QUERIES_MAX + 1])
def test_the_query_that_is_idle_longest_is_forgotten_first(count: int) -> None:
    """The latest last: of one more than there is room for, the first goes, and no other."""
    base = CommitSummary(
        CommitSequence(7), CheckpointId(7), Epoch(1), None, QUERIES[count - 1], 0.0, marks=tuple(QUERIES[: count - 1])
    )
    assert marks_after(base, SourceMark("mine", 1)) == tuple(QUERIES[max(0, count - QUERIES_MAX) : count])
    assert marks_after(base, None) == tuple(QUERIES[max(0, count - QUERIES_MAX) : count])
    assert marks_after(base, SourceMark(QUERIES[0].query_id, 9)) == tuple(QUERIES[1:count][-QUERIES_MAX:])
