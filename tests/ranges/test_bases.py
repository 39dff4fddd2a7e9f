"""Bases of ranges are written within an attempt, or by the owner of a part behind its snapshots."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import anyio
import msgspec
import pytest

import statebackend as sb
from statebackend._checkpoint.materialization.base_schedule import OPENING_HANDLES_MAX
from statebackend._checkpoint.materialization.tiers import members
from statebackend._checkpoint.rescale import range_of
from statebackend._ranges.range_owners import open_range_owners
from statebackend.errors import MaterializationError, StoreAccessError
from statebackend.objectstore import MemoryStore
from statebackend.owners import OwnerBackend
from statebackend.testing import Fail, FaultyStore, run_virtual
from statebackend.testing.virtual_time import VirtualClock, settle
from tests.ranges.parts import Model, Run, add, open_run

SETTINGS = sb.Settings(
    job="fleet",
    primary="memory://unused",
    max_parallelism=12,
    materialize_handles_max=4,
    materialize_interval_s=0.0,
    persist_delay_s=0.0,
)


def batch(number: int, key: int) -> list[tuple[sb.Key, int]]:
    return [(key, number)]


def sizes(run: Run) -> list[tuple[int, int]]:
    """Change sets and bases of each range in the newest commit."""
    parts = run.coordinator.base.ranges if run.coordinator.base else ()
    return [(sum(map(members, part.changelog)), len(part.bases)) for part in parts]


async def test_the_changelog_of_ranges_does_not_grow_for_ever() -> None:
    """Whoever comes next finds the bases, and a kept state goes on across those that it has written itself."""
    store, model = MemoryStore(), Model()
    async with (
        open_run(SETTINGS, 2, store) as run,
        open_range_owners(store=store) as one,
        open_range_owners(store=store) as other,
    ):
        found: list[str] = []
        for number in range(24):
            changes = [(key, number) for key in range(number % 5, 20, 3)]
            owners = other if number % 12 == 11 else one
            found += [each.found for each in await run.batch(owners, changes)]
            model.apply(changes)
            assert all(handles <= 5 for handles, _ in sizes(run))
        await model.check(SETTINGS, store)
        assert all(bases > 0 for _, bases in sizes(run))
    assert found == ["new"] * 2 + ["process"] * 20 + ["primary"] * 2 + ["process"] * 22 + ["primary"] * 2


async def test_a_process_that_has_read_many_change_sets_writes_bases_at_once() -> None:
    """One that keeps the state goes on to `materialize_handles_max`; one that comes new has opened as many files."""
    store, settings = MemoryStore(), msgspec.structs.replace(SETTINGS, materialize_handles_max=512)
    async with open_run(settings, 1, store) as run:
        async with open_range_owners(store=store) as first:
            for number in range(OPENING_HANDLES_MAX):
                await run.batch(first, batch(number, 1))
        assert sizes(run) == [(OPENING_HANDLES_MAX, 0)]
        async with open_range_owners(store=store) as fresh:
            await run.batch(fresh, batch(OPENING_HANDLES_MAX, 1))
        assert sizes(run) == [(1, 1)]


async def test_only_groups_that_were_changed_are_written_anew() -> None:
    """Whether the state was kept or restored: the others keep the base that they have."""
    store = MemoryStore()
    async with open_run(SETTINGS, 1, store) as run, open_range_owners(store=store) as kept:
        for number in range(4):
            await run.batch(kept, [(key, number) for key in range(60)])
        await run.batch(kept, batch(4, 1))
        assert sizes(run) == [(1, 1)]
        for owners in (kept, None):
            for number in range(4):
                if owners is not None:
                    await run.batch(owners, batch(number, 1))
                else:
                    async with open_range_owners(store=store) as fresh:
                        await run.batch(fresh, batch(number, 1))
            assert run.coordinator.base is not None
            newest = range_of(run.coordinator.base, run.owners[0]).bases[-1]
            assert newest.live == 1


async def test_nothing_goes_on_when_an_attempt_is_over() -> None:
    """Its bases are durable when it has contributed, and gone where it did not."""
    store = MemoryStore()
    async with open_run(SETTINGS, 1, store) as run, open_range_owners(store=store) as owners:
        for number in range(4):
            await run.batch(owners, batch(number, number))
        async with owners.attempt(run.tasks()[0]) as attempt:
            add(attempt.backend, [])
        assert [info async for info in store.list("fleet/segments/")] == []
        contribution = await run.contribute(owners, run.tasks()[0], batch(4, 4))
        assert len(contribution.snapshot.state.bases) == 1
        assert len([info async for info in store.list("fleet/segments/")]) == 1
        await run.commit([contribution])
        assert sizes(run) == [(1, 1)]


@run_virtual
async def test_bases_that_cannot_be_written_do_not_hold_a_batch_up() -> None:
    """Not soon again, and not for ever: after so many times somebody has to look."""
    fault = Fail(operation="put", key="*/segments/*", error=StoreAccessError("full"))
    store, clock, model = FaultyStore(MemoryStore()), VirtualClock(), Model()
    settings = msgspec.structs.replace(SETTINGS, materialize_failures_max=1, materialize_retry_delay_s=10.0)
    async with (
        open_run(settings, 1, store) as run,
        open_range_owners(store=store, clock=clock) as owners,
    ):
        for number in range(4):
            await run.batch(owners, batch(number, 1))
        store.plan.append(fault)
        for number in range(4, 8):  # tried at the first of them, and after ten seconds
            await run.batch(owners, batch(number, 1))
            await anyio.sleep(4)
        with pytest.raises(MaterializationError):
            await run.batch(owners, batch(8, 1))
        store.plan.clear()
        async with open_run(settings, 1, store) as newer:
            await newer.batch(owners, batch(8, 1))
            assert sizes(newer) == [(1, 1)]
        for number in range(9):
            model.apply(batch(number, 1))
        await model.check(settings, store)


@run_virtual
async def test_an_attempt_does_not_write_bases_just_after_it_could_not() -> None:
    """Also if it is asked to again: the pause is the store's, not the caller's."""
    store, clock = FaultyStore(MemoryStore()), VirtualClock()
    settings = msgspec.structs.replace(SETTINGS, materialize_retry_delay_s=10.0)
    async with open_run(settings, 1, store) as run, open_range_owners(store=store, clock=clock) as owners:
        for number in range(4):
            await run.batch(owners, batch(number, 1))
        store.plan.append(Fail(operation="put", key="*/segments/*", error=StoreAccessError("full")))
        async with owners.attempt(run.tasks()[0]) as attempt:
            failures: list[int] = []
            for _ in range(3):
                await anyio.sleep(6)
                failures.append(attempt.backend.base_failures)
                await attempt.backend.begin_bases()
        assert failures == [1, 1, 2]


@run_virtual
async def test_an_interval_counts_from_the_bases_whoever_wrote_them() -> None:
    """Two processes by turns: one base in each interval, though both count."""
    settings = msgspec.structs.replace(SETTINGS, materialize_handles_max=0, materialize_interval_s=100.0)
    store, clock = MemoryStore(), VirtualClock()
    async with (
        open_run(settings, 1, store) as run,
        open_range_owners(store=store, clock=clock) as one,
        open_range_owners(store=store, clock=clock) as other,
    ):
        written: list[str] = []
        for number in range(100):
            await run.batch(other if number % 2 else one, batch(number, 1))
            assert run.coordinator.base is not None
            written.append(run.coordinator.base.ranges[0].bases[-1].segment.key if sizes(run)[0][1] else "")
            await anyio.sleep(10)
    assert 9 <= len(set(written) - {""}) <= 11


@run_virtual
async def test_jobs_that_share_a_process_do_not_disturb_each_others_intervals() -> None:
    """By turns, each in an epoch of another number."""
    settings = msgspec.structs.replace(SETTINGS, materialize_handles_max=0, materialize_interval_s=100.0)
    store, clock = MemoryStore(), VirtualClock()
    async with (
        open_run(settings, 1, store),
        open_run(settings, 1, store) as one,
        open_run(msgspec.structs.replace(settings, job="other"), 1, store) as other,
        open_range_owners(store=store, clock=clock) as owners,
    ):
        for number in range(15):
            for run in (one, other):
                await run.batch(owners, batch(number, 1))
            await anyio.sleep(10)
    assert [bases for run in (one, other) for _, bases in sizes(run)] == [1, 1]


@run_virtual
async def test_owners_of_parts_write_bases_behind_their_snapshots() -> None:
    """Also when checkpoints overlap, and one of two is aborted: what was in it is in the other, or in the next."""
    store, model, clock = MemoryStore(), Model(), VirtualClock()
    async with open_run(SETTINGS, 3, store) as run, AsyncExitStack() as stack:
        owners = [
            await stack.enter_async_context(sb.open_backend(SETTINGS, store=store, key_groups=part, clock=clock))
            for part in run.owners
        ]
        for number in range(30):
            changes = [(key, number) for key in range(number % 5, 20, 3)]
            for task, owner in zip(run.tasks(), owners, strict=True):
                add(owner, run.changes_of(task, changes))
            model.apply(changes)
            ids = [3 * number + place for place in range(1 + number % 3)]
            snapshots = [[await owner.snapshot(checkpoint_id) for owner in owners] for checkpoint_id in ids]
            committed = number % len(ids)
            if number % 2:
                await tell(owners, ids[:committed], OwnerBackend.notify_aborted)
            await run.coordinator.commit(ids[committed], snapshots[committed])
            await tell(owners, ids[committed : committed + 1], OwnerBackend.notify_complete)
            await tell(owners, ids[committed + 1 :], OwnerBackend.notify_aborted)
            await settle()
            await model.check(SETTINGS, store)
        assert all(handles <= 8 and bases for handles, bases in sizes(run))


@run_virtual
async def test_bases_in_a_snapshot_that_may_be_committed_are_not_deleted() -> None:
    """Though another one with the same bases was aborted, and the owners have left."""
    store, model, clock = MemoryStore(), Model(), VirtualClock()
    async with open_run(SETTINGS, 2, store) as run:
        async with AsyncExitStack() as stack:
            owners = [
                await stack.enter_async_context(sb.open_backend(SETTINGS, store=store, key_groups=part, clock=clock))
                for part in run.owners
            ]
            number, snapshots = 0, [await owner.snapshot(0) for owner in owners]
            while not all(snapshot.state.bases for snapshot in snapshots):
                await run.coordinator.commit(number, snapshots)
                await tell(owners, [number], OwnerBackend.notify_complete)
                await settle()
                number += 1
                changes = [(key, number) for key in range(20)]
                for task, owner in zip(run.tasks(), owners, strict=True):
                    add(owner, run.changes_of(task, changes))
                model.apply(changes)
                snapshots = [await owner.snapshot(number) for owner in owners]
            again = [await owner.snapshot(number + 1) for owner in owners]
            await tell(owners, [number], OwnerBackend.notify_aborted)
        await settle()
        await run.coordinator.commit(number + 1, again)
    await model.check(SETTINGS, store)


async def test_bases_of_a_lost_attempt_are_not_counted_on() -> None:
    """A process that has written bases and lost, with no changes of its own, goes on from the others' commit."""
    store, model = MemoryStore(), Model()
    patient = msgspec.structs.replace(SETTINGS, materialize_handles_max=0)
    async with (
        open_run(SETTINGS, 1, store) as run,
        open_range_owners(store=store) as one,
        open_range_owners(store=store) as other,
    ):
        for number in range(4):
            await run.batch(one, [(key, number) for key in range(20)])
            model.apply([(key, number) for key in range(20)])
        (task,) = run.tasks()
        lost = await run.contribute(one, task, [])
        assert lost.snapshot.state.bases
        run.settings = patient
        await run.batch(other, batch(4, 1))
        model.apply(batch(4, 1))
        run.settings = SETTINGS
        (contribution,) = await run.batch(one, batch(5, 1))
        model.apply(batch(5, 1))
        assert (contribution.found, len(contribution.snapshot.state.changelog)) == ("process", 1)
    await model.check(SETTINGS, store)


async def tell(
    owners: Sequence[OwnerBackend],
    checkpoint_ids: Sequence[int],
    what: Callable[[OwnerBackend, int], Awaitable[None]],
) -> None:
    for checkpoint_id in checkpoint_ids:
        for owner in owners:
            await what(owner, checkpoint_id)
