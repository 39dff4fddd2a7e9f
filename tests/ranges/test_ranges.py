"""Ranges of key groups, opened for each batch at the committed base, contribute to one commit."""

import pickle
from collections.abc import Callable, Sequence

import msgspec
import pytest

import statebackend as sb
from statebackend._log.names import entry_key
from statebackend._ranges.range_owners import RangeTask, open_range_owners
from statebackend._ranges.range_task import CommittedBase
from statebackend.errors import (
    BatchError,
    CheckpointExistsError,
    CorruptCommitError,
    FencedError,
    InputError,
    MissingObjectError,
)
from statebackend.objectstore import MemoryStore
from statebackend.objectstore.scoped import CountingStore
from tests.knobs import replaced
from tests.ranges.parts import Model, Run, open_run, ranges_of

SETTINGS = sb.Settings(job="fleet", primary="memory://unused", persist_delay_s=0.0, max_parallelism=12)
KEYS = range(40)


def batch(number: int, keys: Sequence[int] = KEYS) -> list[tuple[sb.Key, int]]:
    return [(key, number) for key in keys]


@pytest.mark.parametrize("inline_bytes_max", [0, 64 * 1024])
async def test_ranges_contribute_to_one_commit_and_go_on_from_it(inline_bytes_max: int) -> None:
    """In segments, or in the commit; after another number of ranges, too."""
    settings = msgspec.structs.replace(SETTINGS, inline_bytes_max=inline_bytes_max)
    store, model = MemoryStore(), Model()
    for parts in (3, 1, 4):
        async with open_run(settings, parts, store) as run, open_range_owners(store=store) as owners:
            for number in range(4):
                contributions = await run.batch(owners, batch(number))
                model.apply(batch(number))
                assert len(contributions) == parts
                assert all(bool(each.inline) is bool(inline_bytes_max) for each in contributions)
                await model.check(settings, store)
    assert ([info async for info in store.list("fleet/segments/")] == []) is bool(inline_bytes_max)


@pytest.mark.parametrize("checkpoint_id", [1, 3])
async def test_a_sweep_takes_nothing_of_an_attempt_that_may_be_committed_yet(checkpoint_id: int) -> None:
    """Also in an epoch that went back, below commits of the one before. Of two attempts it takes the loser's, later."""
    settings, store, model = replaced(SETTINGS, inline_bytes_max=0), MemoryStore(), Model()
    async with open_run(settings, 1, store) as run, open_range_owners(store=store) as owners:
        for number in range(4):
            await run.batch(owners, batch(number))
            model.apply(batch(number) if number <= checkpoint_id else [])
    async with (
        sb.owners.open_coordinator(settings, checkpoint_id=checkpoint_id, store=store) as coordinator,
        open_range_owners(store=store) as owners,
        open_range_owners(store=store) as others,
    ):
        run = Run(settings, coordinator, 1)
        (task,) = run.tasks()
        lost, won = await run.contribute(others, task, batch(7)), await run.contribute(owners, task, batch(8))
        assert (await sb.sweep(settings, dry_run=False, min_age_s=0.0, store=store)).deleted == ()
        await run.commit([won])
        model.apply(batch(8))
        swept = await sb.sweep(settings, dry_run=False, min_age_s=0.0, store=store)
        assert set(swept.deleted) == lost.snapshot.state.segments() - won.snapshot.state.segments() != set()
    await model.check(settings, store)


async def test_a_range_without_rows_stands_as_it_is() -> None:
    """No attempt is made at it. Without any rows the commit has all that the one before had."""
    store, model = MemoryStore(), Model()
    async with open_run(SETTINGS, 3, store) as run, open_range_owners(store=store) as owners:
        for changes in (batch(1), batch(2, [7]), [], batch(3)):
            contributions = await run.batch(owners, changes)
            assert len(contributions) == min(3, len(changes))
            model.apply(changes)
            await model.check(SETTINGS, store)
    async with open_run(SETTINGS, 5, store) as run, open_range_owners(store=store) as owners:
        await run.batch(owners, [])
        await model.check(SETTINGS, store)


async def test_one_of_two_attempts_wins() -> None:
    """Made at once at the same base, both upload; which of them the commit takes is all that counts."""
    settings = msgspec.structs.replace(SETTINGS, inline_bytes_max=0)
    store, model = MemoryStore(), Model()
    async with (
        open_run(settings, 1, store) as run,
        open_range_owners(store=store) as one,
        open_range_owners(store=store) as other,
    ):
        for number in range(4):
            (task,) = run.tasks()
            lost = await run.contribute(other if number % 2 else one, task, batch(100))
            won = await run.contribute(one if number % 2 else other, task, batch(number))
            assert lost.snapshot.state.changelog[-1].segment.key != won.snapshot.state.changelog[-1].segment.key
            await run.commit([won])
            model.apply(batch(number))
            await model.check(settings, store)


async def test_an_attempt_that_fails_leaves_nothing() -> None:
    """Its uploads are removed, and the next attempt finds the base as it was."""
    settings = msgspec.structs.replace(SETTINGS, inline_bytes_max=0, preemptive_persist_threshold_bytes=0)
    store = MemoryStore()

    def fail(backend: sb.StateBackend) -> None:
        backend.value_state("sum", int)[1] = 1
        raise BatchError("no")

    async with open_run(settings, 1, store) as run, open_range_owners(store=store) as owners:
        (task,) = run.tasks()
        with pytest.raises(BatchError):
            await owners.contribute(task, fail)
        async with owners.attempt(task) as attempt:
            assert 1 not in attempt.backend.value_state("sum", int)
    assert [info.key async for info in store.list("fleet/segments/")] == []


async def test_the_base_comes_with_the_task() -> None:
    """Or is read where it is too large for that; who stands on a commit that is gone is told so."""
    store = CountingStore(MemoryStore())
    async with open_run(SETTINGS, 1, store) as run, open_range_owners(store=store) as owners:
        await run.batch(owners, batch(1))
        (task,) = run.tasks()
        before = store.requests.copy()
        contribution = await run.contribute(owners, task, batch(2))
        assert store.requests - before == {}
        assert contribution.base == 1
        read = msgspec.structs.replace(task, base=CommittedBase(entry_key(1)))
        again = await run.contribute(owners, read, batch(2))
        assert again.snapshot.state.changelog[0] == contribution.snapshot.state.changelog[0]
        assert store.requests - before == {"get": 1}
        gone = msgspec.structs.replace(task, base=CommittedBase(entry_key(9)))
        with pytest.raises(MissingObjectError):
            await run.contribute(owners, gone, batch(2))


async def test_contributions_that_do_not_make_a_checkpoint_are_refused() -> None:
    """Two of one range, one of nobody, one to another base: of them no commit is made."""
    store = MemoryStore()
    async with open_run(SETTINGS, 2, store) as run, open_range_owners(store=store) as owners:
        first, second = [await run.contribute(owners, task, batch(1)) for task in run.tasks()]
        state = msgspec.structs.replace(first.snapshot.state, key_groups=sb.owners.KeyGroupRange(0, 3))
        foreign = msgspec.structs.replace(first.snapshot, state=state)
        for wrong in (
            [first, first],
            [first, second, second],
            [msgspec.structs.replace(first, snapshot=foreign), second],
            [msgspec.structs.replace(first, base=sb.ids.CommitSequence(7)), second],
        ):
            with pytest.raises(InputError):
                await run.commit(wrong)
        await run.commit([second, first])
        with pytest.raises(CheckpointExistsError):
            await owners.contribute(
                msgspec.structs.replace(run.tasks()[0], checkpoint_id=sb.ids.CheckpointId(0)), lambda _: None
            )


async def test_contributions_of_an_older_epoch_are_refused() -> None:
    """By who has claimed the job since; and who has not is fenced."""
    store, model = MemoryStore(), Model()
    async with open_run(SETTINGS, 1, store) as older, open_range_owners(store=store) as owners:
        await older.batch(owners, batch(1))
        model.apply(batch(1))
        (task,) = older.tasks()
        zombie = await older.contribute(owners, task, batch(2))
        async with open_run(SETTINGS, 1, store) as newer:
            with pytest.raises(FencedError):
                await older.commit([zombie])
            with pytest.raises(InputError):
                await newer.commit([zombie])
            await newer.batch(owners, batch(3))
            model.apply(batch(3))
    await model.check(SETTINGS, store)


async def test_operator_state_is_dealt_out_once_in_an_epoch() -> None:
    """`union` gives everybody everything at the start of a run, and after that everybody has his own."""
    store = MemoryStore()
    seen: list[list[str]] = []

    def note(name: str) -> "object":
        def work(backend: sb.StateBackend) -> None:
            state = backend.operator_state("notes", str, "union")
            seen.append(list(state))
            state.replace([name])

        return work

    for run_number in (1, 2):
        async with open_run(SETTINGS, 2, store) as run, open_range_owners(store=store) as owners:
            for number in (1, 2):
                seen.clear()
                tasks = run.tasks()
                contributions = [
                    await owners.contribute(task, note(f"{run_number}{number}{place}"))  # type: ignore[arg-type]
                    for place, task in enumerate(tasks)
                ]
                await run.commit(contributions)
                if (run_number, number) == (2, 1):
                    assert seen == [["120", "121"]] * 2
                elif number == 2:
                    assert seen == [[f"{run_number}10"], [f"{run_number}11"]]


async def test_union_that_ranges_without_rows_hand_on_is_not_multiplied() -> None:
    """In each run two of four ranges are at work, keep what they were given, and add to it; the others hand it on."""
    store = MemoryStore()
    seen: list[list[int]] = []
    given: list[int] = []
    kept: list[int] = []

    def note(run_number: int) -> Callable[[sb.StateBackend], None]:
        def work(backend: sb.StateBackend) -> None:
            state = backend.operator_state("notes", int, "union")
            seen.append(list(state))
            state.replace(sorted({*state, run_number}))

        return work

    for run_number in range(4):
        async with open_run(SETTINGS, 4, store) as run, open_range_owners(store=store) as owners:
            await run.commit([await owners.contribute(run.tasks()[0], note(run_number))])
            await run.batch(owners, [])
            await run.commit([await owners.contribute(run.tasks()[1], note(run_number))])
        given = [
            *kept,
            *kept,
            *given,
        ]  # of the two that were at work in the run before, and once of those that were not
        kept = sorted({*given, run_number})
        assert [sorted(each) for each in seen[-2:]] == [sorted(given)] * 2


def test_a_task_takes_no_secrets_along() -> None:
    """It goes into closures, event logs and spill files, and what fails in a worker is told with it."""
    (owner,) = ranges_of(1, 12)
    settings = replaced(
        SETTINGS,
        s3__access_key_id="me",
        s3__secret_access_key=sb.settings.Secret("hush"),
        s3__session_token=sb.settings.Secret("hush"),
    )
    task = RangeTask(settings, owner, (owner,), sb.ids.Epoch(1), sb.ids.CheckpointId(1), None)
    assert b"hush" not in pickle.dumps(task)
    assert "hush" not in repr(task)
    assert pickle.loads(pickle.dumps(task)).settings.s3.access_key_id == "me"


async def test_a_base_that_came_along_under_another_key_is_refused() -> None:
    """The bytes of a commit are checked against the place that the task names, as those that are read."""
    store = MemoryStore()
    async with open_run(SETTINGS, 1, store) as run, open_range_owners(store=store) as owners:
        await run.batch(owners, batch(0))
        (task,) = run.tasks()
        assert task.base is not None
        foreign = msgspec.structs.replace(task.base, key=entry_key(7))
        with pytest.raises(CorruptCommitError, match="another place"):
            async with owners.attempt(msgspec.structs.replace(task, base=foreign)):
                pass
