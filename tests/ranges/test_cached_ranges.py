"""A process keeps the states that it has contributed, and uses them for whatever continues them, and nothing else."""

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import hypothesis
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import statebackend as sb
from statebackend._checkpoint.lineage import lineage_of
from statebackend._ranges.cached_in_process import CachedRange, CachedRanges, CachedTables, range_name
from statebackend._ranges.range_owners import open_range_owners
from statebackend._tables.heap import heap_table
from statebackend.errors import BackendClosedError, BatchError
from statebackend.objectstore import MemoryStore
from statebackend.objectstore.scoped import CountingStore
from statebackend.observers import Metrics
from statebackend.testing import FaultyStore, Hold
from tests.ranges.parts import Changes, Model, open_run, ranges_of

SETTINGS = sb.Settings(job="fleet", primary="memory://unused", max_parallelism=12)


def batch(number: int, keys: Sequence[int] = range(20)) -> list[tuple[sb.Key, int]]:
    return [(key, number) for key in keys]


async def test_who_goes_on_reads_nothing() -> None:
    """Also after a checkpoint to which the range had nothing to say, and under another who commits."""
    store, model, metrics = CountingStore(MemoryStore()), Model(), Metrics()
    async with open_range_owners(store=store, observer=metrics) as owners:
        found: list[str] = []
        for _ in range(2):
            async with open_run(SETTINGS, 1, store) as run:
                for changes in (batch(1), [], batch(2)):
                    before = store.requests.copy()
                    contributions = await run.batch(owners, changes)
                    assert store.requests - before == {"put_if_absent": 1}
                    found += [each.found for each in contributions]
                    assert {each.report for each in contributions} <= {None}
                    model.apply(changes)
        await model.check(SETTINGS, store)
    assert found == ["new", "process", "process", "process"]
    assert dict(metrics.ranges_opened) == {"new": 1, "process": 3}


async def test_who_was_away_catches_up_with_what_is_missing() -> None:
    """The newest commit comes with the task; of older ones what they carry is read."""
    store, model = CountingStore(MemoryStore()), Model()
    async with (
        open_run(SETTINGS, 1, store) as run,
        open_range_owners(store=store) as one,
        open_range_owners(store=store) as other,
    ):
        for number, owners, found, changes, reads in (
            (1, one, "new", None, 0),
            (2, other, "primary", 40, 0),
            (3, one, "process", 40, 0),
            (4, one, "process", None, 0),
            (5, other, "process", 80, 1),
        ):
            before = store.requests.copy()
            (contribution,) = await run.batch(owners, batch(number))
            model.apply(batch(number))
            assert contribution.found == found
            assert (contribution.report and contribution.report.changes) == changes
            assert (store.requests - before).total() - 1 == reads
    await model.check(SETTINGS, store)


async def test_what_did_not_win_is_not_gone_on_from() -> None:
    """The state of a lost attempt is rebuilt, and so is that of one that failed."""
    store, model = MemoryStore(), Model()

    async def fail(backend: sb.StateBackend) -> None:
        backend.value_state("sum", int)[1] = 10**6
        raise BatchError("no")

    async with (
        open_run(SETTINGS, 1, store) as run,
        open_range_owners(store=store) as one,
        open_range_owners(store=store) as other,
    ):
        await run.batch(one, batch(1))
        (task,) = run.tasks()
        await run.contribute(one, task, batch(100))
        await run.batch(other, batch(2))
        (contribution,) = await run.batch(one, batch(3))
        assert contribution.found == "primary"
        with pytest.raises(BatchError):
            await one.contribute(run.tasks()[0], fail)
        (contribution,) = await run.batch(one, batch(4))
        assert contribution.found == "primary"
        async with one.attempt(run.tasks()[0]) as attempt:  # left without a contribution
            attempt.backend.value_state("sum", int)[1] = 10**6
        (contribution,) = await run.batch(one, batch(5))
        assert contribution.found == "primary"
    for number in range(1, 6):
        model.apply(batch(number))
    await model.check(SETTINGS, store)


async def test_a_state_has_one_user_at_a_time() -> None:
    """Of two attempts at once in one process the second one reads what it needs."""
    store = MemoryStore()
    async with open_run(SETTINGS, 1, store) as run, open_range_owners(store=store) as owners:
        await run.batch(owners, batch(1))
        (task,) = run.tasks()
        async with owners.attempt(task) as first, owners.attempt(task) as second:
            assert (first.found, second.found) == ("process", "primary")
            first.backend.value_state("sum", int)[1] = 7
            assert second.backend.value_state("sum", int)[1] == 1


@pytest.mark.parametrize("ranges_cached_max", [0, 1, 2, 3])
async def test_so_many_ranges_are_cached(ranges_cached_max: int) -> None:
    """Of three that are used in turn, those used last: with fewer than three each has gone when its turn comes."""
    settings = msgspec.structs.replace(SETTINGS, ranges_cached_max=ranges_cached_max)
    store = MemoryStore()
    async with open_run(settings, 3, store) as run, open_range_owners(store=store) as owners:
        await run.batch(owners, batch(1))
        contributions = await run.batch(owners, batch(2))
        assert [each.found == "process" for each in contributions] == [ranges_cached_max == 3] * 3
        newest = run.owners[-1]
        (task,) = [task for task in run.tasks() if task.key_groups == newest]
        async with owners.attempt(task) as attempt:
            assert (attempt.found == "process") is (ranges_cached_max > 0)


def test_ranges_that_no_owner_has_any_more_are_not_cached() -> None:
    """When a job is cut otherwise the states of before are of no use, and nobody holds them; other jobs keep theirs."""
    other = msgspec.structs.replace(SETTINGS, job="other")
    (whole,), (left, right) = ranges_of(1, 12), ranges_of(2, 12)
    ranges, names = CachedRanges(), [range_name(SETTINGS, whole), range_name(SETTINGS, left), range_name(other, whole)]
    for name in names:
        cached = CachedRange(lineage_of(None, whole), CachedTables(heap_table), None, sb.ids.Epoch(1), b"", frozenset())
        ranges.put(name, cached, ranges_max=9)
    ranges.drop_others(SETTINGS, [left, right])
    assert [ranges.take(name) is not None for name in names] == [False, True, True]


async def test_states_may_be_declared_with_other_classes_the_next_time() -> None:
    """A worker unpickles the user's classes anew with each task."""
    store = MemoryStore()
    async with open_run(SETTINGS, 1, store) as run, open_range_owners(store=store) as owners:
        for number in range(3):
            leg = msgspec.defstruct("Leg", [("flown", int)])
            (task,) = run.tasks()
            async with owners.attempt(task) as attempt:
                legs = attempt.backend.value_state("legs", leg)
                assert [type(found) for found in legs.values()] == [leg] * (number > 0)
                legs["a"] = leg(number)
                contribution = await attempt.contribute()
            assert contribution.found == ("process" if number else "new")
            await run.commit([contribution])


@pytest.mark.parametrize("won", ["the second", "the first"])
async def test_operator_state_is_that_of_the_attempt_that_won(won: str) -> None:
    """Also where neither has changed anything under a key, so that what is cached of them differs in nothing else."""
    store, seen = MemoryStore(), list[list[int]]()

    def count(backend: sb.StateBackend) -> None:
        notes = backend.operator_state("notes", int)
        seen.append(list(notes))
        notes.append(len(notes))

    async with open_run(SETTINGS, 1, store) as run, open_range_owners(store=store) as owners:
        await run.commit([await owners.contribute(run.tasks()[0], count)])
        (task,) = run.tasks()
        attempts = [await owners.contribute(task, count) for _ in range(2)]  # its result was lost: Spark tries again
        await run.commit([attempts[won == "the second"]])
        await run.commit([await owners.contribute(run.tasks()[0], count)])
    assert seen == [[], [0], [0], [0, 1]]


async def test_states_that_others_have_declared_are_known() -> None:
    """Else the next one to be declared here would get the number of one of theirs."""
    store = MemoryStore()
    async with open_run(SETTINGS, 2, store) as run, open_range_owners(store=store) as owners:
        for names in (("a", "a"), ("a", "b"), ("c", "a"), ("b", "c")):
            contributions = []
            for name, task in zip(names, run.tasks(), strict=True):
                async with owners.attempt(task) as attempt:
                    attempt.backend.value_state(name, int)
                    contributions.append(await attempt.contribute())
            await run.commit(contributions)
        assert run.coordinator.base is not None
        assert [state.name for state in run.coordinator.base.states] == ["a", "b", "c"]


async def test_a_timer_that_another_process_has_set_is_heard_of() -> None:
    """A cached view of the timers would not know of it."""
    store = MemoryStore()
    async with open_run(SETTINGS, 1, store) as run, AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(open_range_owners(store=store)) for _ in range(2)]
        seen: list[list[tuple[float, sb.Key]]] = []
        for number, owners in enumerate((one, other, one, one)):
            async with owners.attempt(run.tasks()[0]) as attempt:
                timers = attempt.backend.timers("due")
                seen.append(list(timers.due(number)))
                timers.register("k", number + 1)
                contribution = await attempt.contribute()
            await run.commit([contribution])
        assert seen == [[], [(1, "k")], [(2, "k")], [(3, "k")]]


async def test_nothing_is_begun_when_the_context_was_left() -> None:
    store = MemoryStore()
    async with open_run(SETTINGS, 1, store) as run:
        async with open_range_owners(store=store) as owners:
            await run.batch(owners, batch(1))
        with pytest.raises(BackendClosedError):
            await run.batch(owners, batch(2))


@given(st.data())
@hypothesis.settings(deadline=None, max_examples=15)
async def test_whatever_becomes_of_attempts_the_state_is_that_of_the_batches(data: st.DataObject) -> None:
    """Three processes, several attempts at a range of which one wins, at a base that may be old, results that are lost,
    batches that fail, a new process, another number of ranges.
    """
    store, model, number = MemoryStore(), Model(), 0
    keys = st.lists(st.sampled_from(range(8)), max_size=4)
    settings = msgspec.structs.replace(
        SETTINGS, max_parallelism=4, inline_bytes_max=data.draw(st.sampled_from([0, 9999]))
    )
    async with AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(open_range_owners(store=store)) for _ in range(3)]
        for _ in range(data.draw(st.integers(1, 3))):
            async with open_run(settings, data.draw(st.sampled_from([1, 2, 3])), store) as run:
                older = run.tasks()
                for _ in range(data.draw(st.integers(1, 5))):
                    number += 1
                    changes: Changes = batch(number, data.draw(keys))
                    tasks, contributions = run.tasks(), []
                    for task in tasks:
                        places = data.draw(st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=3))
                        made = [await run.contribute(processes[place], task, changes) for place in places]
                        contributions.append(data.draw(st.sampled_from(made)))
                    if data.draw(st.sampled_from([False, False, True])):  # by somebody who has not heard of it
                        await run.contribute(processes[0], older[0], batch(-number))
                    if data.draw(st.sampled_from([True, True, False])):
                        await run.commit(contributions)
                        model.apply(changes)
                        older = tasks
            await model.check(settings, store)


async def test_an_attempt_that_is_cancelled_leaves_nothing() -> None:
    """While it works, and while what it has to say is on its way: the next one begins at the base."""
    settings = msgspec.structs.replace(SETTINGS, inline_bytes_max=0)
    hold = Hold(operation="put", key="*/segments/*", nth=2)
    store, model = FaultyStore(MemoryStore(), [hold]), Model()
    async with open_run(settings, 1, store) as run, open_range_owners(store=store) as owners:
        await run.batch(owners, batch(1))
        model.apply(batch(1))
        async with anyio.create_task_group() as tasks:

            async def attempt() -> None:
                await run.contribute(owners, run.tasks()[0], batch(100))

            tasks.start_soon(attempt)
            await hold.reached.wait()
            tasks.cancel_scope.cancel()
        (contribution,) = await run.batch(owners, batch(2))
        model.apply(batch(2))
        assert contribution.found == "primary"
        assert len([info async for info in store.list("fleet/segments/")]) == 2
    await model.check(settings, store)


async def test_a_forked_process_has_no_ranges() -> None:
    """It would share the loop, the connections and the locks of its parent."""
    store = MemoryStore()
    async with open_run(SETTINGS, 1, store) as run, open_range_owners(store=store) as owners:
        entering = owners.attempt(run.tasks()[0]).__aenter__()
        assert status_of_child(lambda: entering.send(None)) == 7
        entering.close()


def status_of_child(call: Callable[[], object]) -> int:
    """7 where that raises `BackendClosedError` in a forked process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of 3.12: there are threads
        child = os.fork()
    if child == 0:
        try:
            call()
        except BackendClosedError:
            os._exit(7)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def test_one_process_may_work_on_several_jobs(tmp_path: Path) -> None:
    """By turns and at once, each with the primary of its own settings."""
    jobs = [sb.Settings(job=name, primary=f"file://{tmp_path}/{name}", max_parallelism=12) for name in ("one", "two")]
    models = [Model(), Model()]
    async with open_run(jobs[0], 1) as first, open_run(jobs[1], 2) as second, open_range_owners() as owners:
        for number in range(3):
            for run, model in zip((first, second), models, strict=True):
                async with owners.attempt(first.tasks()[0]), owners.attempt(second.tasks()[0]):
                    await run.batch(owners, batch(number))
                model.apply(batch(number))
    for settings, model in zip(jobs, models, strict=True):
        await model.check(settings)
