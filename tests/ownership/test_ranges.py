"""Local copies of attempts at ranges, which share the roots of a host."""

import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

import statebackend as sb
from statebackend._log.outbox import Output
from statebackend._log.sweeping.local_sweep import sweep_roots
from statebackend._ranges.range_owners import Contribution, RangeTask, open_range_owners
from statebackend.owners import open_coordinator
from statebackend.testing.virtual_time import VirtualClock
from tests.at_work import plenty
from tests.ownership.disk import JOB, Disk, Watch, settle
from tests.ownership.table import Fate, row
from tests.ranges.parts import Run, open_run


async def attempt(disk: Disk, task: RangeTask, number: int = 1) -> Contribution:
    """By a process that has just begun."""
    async with open_range_owners(store=disk.primary, clock=VirtualClock()) as owners:
        return await owners.contribute(task, writing(number))


def writing(number: int) -> Callable[[sb.StateBackend], None]:
    def work(backend: sb.StateBackend) -> None:
        backend.value_state("n", int)["k"] = number

    return work


async def one_batch(disk: Disk, run: Run) -> None:
    await run.commit([await attempt(disk, task) for task in run.tasks()])


@row("copy-lost")
async def test_a_copy_of_an_attempt_that_lost_goes_when_a_later_one_comes_along(disk: Disk) -> Fate:
    """What the winners have written stays."""
    async with open_run(disk.settings(), 1, disk.primary) as run:
        await one_batch(disk, run)
        before = disk.copies
        await attempt(disk, run.tasks()[0], 99)
        watch = Watch(disk.copies - before)
        await one_batch(disk, run)
        assert watch.fate() == "stays"  # as far as anybody knew, it may have been the one that wins
        won = disk.copies - before
        await one_batch(disk, run)
        assert run.coordinator.base is not None
        assert len(disk.copies) == len(run.coordinator.base.segments()) == 3
        assert len(won & disk.copies) == 1
        return watch.fate()


@row("copy-running")
async def test_a_copy_of_an_attempt_under_way_is_not_removed_by_another(disk: Disk) -> Fate:
    """Though no commit needs it by now: the other one stands where it stands."""
    settings = disk.settings(preemptive_persist_threshold_bytes=0)
    async with open_run(settings, 1, disk.primary) as run:
        await one_batch(disk, run)
        before = disk.copies
        (task,) = run.tasks()
        async with (
            open_range_owners(store=disk.primary, clock=VirtualClock()) as owners,
            owners.attempt(task) as running,
        ):
            writing(5)(running.backend)
            contribution = await running.contribute()
            watch = Watch(disk.copies - before)
            await attempt(disk, task)
            fate = watch.fate()
        await run.commit([contribution])
        return fate


@row("copy-zombie")
async def test_an_attempt_of_an_epoch_that_is_over_removes_nothing(disk: Disk) -> Fate:
    """What it takes for lost may be what the newest commit needs."""
    async with open_run(disk.settings(), 1, disk.primary) as older:
        for _ in range(2):
            await one_batch(disk, older)
        (task,) = older.tasks()
        await attempt(disk, older.tasks()[0], 99)
        async with open_run(disk.settings(), 1, disk.primary) as newer:
            await one_batch(disk, newer)
            watch = Watch(disk.copies)
            await attempt(disk, task)
            return watch.fate()


@row("copy-whole")
async def test_attempts_change_nothing_where_a_backend_has_the_root_for_itself(disk: Disk) -> Fate:
    """They read what lies there, and write no copies of their own."""
    async with open_run(disk.settings(), 1, disk.primary) as run:
        for _ in range(3):
            await one_batch(disk, run)
        await attempt(disk, run.tasks()[0], 99)
        (task,) = run.tasks()
        async with disk.backend():
            watch, before = Watch(disk.copies), disk.copies
            contribution = await attempt(disk, task)
            assert contribution.found == "host"
            assert disk.copies == before
            return watch.fate()


@row("copy-of-parts")
async def test_a_backend_of_the_whole_job_removes_nothing_while_there_are_attempts(disk: Disk) -> Fate:
    """It only reads the root, for as long as it is open. A sweep passes it over."""
    async with open_run(disk.settings(), 1, disk.primary) as run:
        await one_batch(disk, run)
        (task,) = run.tasks()
        await attempt(disk, task, 99)
        watch = Watch(disk.copies)
        async with (
            open_range_owners(store=disk.primary, clock=VirtualClock()) as owners,
            owners.attempt(task),
        ):
            await disk.reopen()
            found = [
                file async for file in sweep_roots(disk.settings().local, JOB, frozenset(), plenty(), dry_run=False)
            ]
            assert {file.owned for file in found} == {False}
            return watch.fate()


HALVES = (sb.owners.KeyGroupRange(0, 63), sb.owners.KeyGroupRange(64, 127))


def of_their_own(owner: sb.owners.OwnerBackend, number: int) -> None:
    owner.value_state("n", int).update(
        {key: number for key in range(20) if sb.owners.key_group(key, 128) in owner.key_groups}
    )


@asynccontextmanager
async def two_owners(disk: Disk) -> AsyncGenerator[Callable[[int], Awaitable[None]]]:
    """Each of half of the key groups, on one root; what is yielded has both of them change something, and commits."""
    async with (
        open_coordinator(disk.settings(), store=disk.primary, clock=VirtualClock()) as coordinator,
        disk.backend(key_groups=HALVES[0]) as first,
        disk.backend(key_groups=HALVES[1]) as second,
    ):

        async def commit_both(number: int) -> None:
            for owner in (first, second):
                of_their_own(owner, number)
            await coordinator.commit(number, [await owner.snapshot(number) for owner in (first, second)])
            for owner in (first, second):
                await owner.notify_complete(number)
            await settle()

        yield commit_both


@row("copy-of-owner")
async def test_an_owner_that_opens_leaves_what_another_has_not_committed_yet(disk: Disk) -> Fate:
    """No commit points to it, and the next one will."""
    async with two_owners(disk) as commit_both:
        await commit_both(1)
    committed = disk.copies
    async with (
        open_coordinator(disk.settings(), store=disk.primary, clock=VirtualClock()),
        disk.backend(key_groups=HALVES[0]) as first,
    ):
        of_their_own(first, 2)
        await first.snapshot(2)
        watch = Watch(disk.copies - committed)
        async with disk.backend(key_groups=HALVES[1]):
            return watch.fate()


@row("copy-of-owners-before")
async def test_an_owner_that_opens_removes_what_an_epoch_before_has_left(disk: Disk) -> Fate:
    """That epoch is over, and nothing of it is needed but what a commit needs."""
    async with two_owners(disk) as commit_both:
        await commit_both(1)
        (kept, _) = before = sorted(disk.copies)
    left = kept.with_name("00000001-00000099-" + "0" * 32)
    left.write_bytes(b"left by a process that was killed")
    watch = Watch({left})
    async with two_owners(disk):
        assert {*before} == disk.copies
        return watch.fate()


@row("copy-they-began-with")
async def test_what_owners_began_with_stays_on_the_host_until_they_open_again(disk: Disk) -> Fate:
    """In a later epoch, when no commit needs it any more."""
    async with two_owners(disk) as commit_both:
        await commit_both(1)
    watch = Watch(disk.copies)
    disk.changes |= {"materialize_handles_max": 1}
    async with two_owners(disk) as commit_both:
        for number in (2, 3, 4):
            await commit_both(number)
        fate = watch.fate()
    async with two_owners(disk):
        assert watch.fate() == "gone"
    return fate


@row("range-temporary")
async def test_a_temporary_file_goes_when_it_is_an_hour_old(disk: Disk) -> Fate:
    """A younger one may be being written, by another process."""
    async with open_run(disk.settings(), 1, disk.primary) as run:
        await one_batch(disk, run)
        directory = next(iter(disk.copies)).parent
        (directory / ".7-0123456789abcdef-0.tmp").touch()
        watch = Watch(disk.temporaries)
        await one_batch(disk, run)
        assert watch.fate() == "stays"
        os.utime(directory / ".7-0123456789abcdef-0.tmp", (1.0, 1.0))
        await one_batch(disk, run)
        return watch.fate()


def rocks(disk: Disk) -> sb.Settings:
    pytest.importorskip("rocksdict")
    return disk.settings(table="rocksdb", table_dir=f"{disk.directory}/tables", table_memory_bytes=4 << 20)


@row("range-files")
async def test_the_files_of_a_range_are_gone_on_from_by_the_next_process(disk: Disk) -> Fate:
    """Nothing of them is read again."""
    async with open_run(rocks(disk), 1, disk.primary) as run:
        await one_batch(disk, run)
        watch = Watch(disk.directory.glob("tables/job_fleet/kg_*/mark"))
        contribution = await attempt(disk, run.tasks()[0])
        assert (contribution.found, contribution.report) == ("host", None)
        return watch.fate()


@row("range-files-killed")
async def test_the_files_of_a_range_without_a_mark_are_made_anew(disk: Disk) -> Fate:
    """As they are left by a process that was killed while it worked there."""
    async with open_run(rocks(disk), 1, disk.primary) as run:
        await one_batch(disk, run)
        (mark,) = disk.directory.glob("tables/job_fleet/kg_*/mark")
        mark.unlink()
        watch = Watch(disk.directory.glob("tables/job_fleet/kg_*/files/IDENTITY"))
        contribution = await attempt(disk, run.tasks()[0])
        assert contribution.found != "host" or contribution.report is not None
        return watch.fate()


@row("range-files-left")
async def test_the_files_of_a_range_that_nobody_comes_to_again_stay(disk: Disk) -> Fate:
    """Whoever sweeps cannot know that nobody will."""
    settings = rocks(disk)
    async with open_run(settings, 1, disk.primary) as run:
        await one_batch(disk, run)
    watch = Watch(path for path in disk.directory.glob("tables/job_fleet/kg_*/files/*") if path.is_file())
    _ = [file async for file in sweep_roots(settings.local, JOB, frozenset(), plenty(), dry_run=False)]
    return watch.fate()


@row("range-files-other")
async def test_the_files_of_a_range_go_when_the_job_is_cut_otherwise(disk: Disk) -> Fate:
    async with open_run(rocks(disk), 1, disk.primary) as run:
        await one_batch(disk, run)
        watch = Watch(path for path in disk.directory.glob("tables/job_fleet/kg_*/files/*") if path.is_file())
    async with open_run(rocks(disk), 2, disk.primary) as run:
        await attempt(disk, run.tasks()[0])
    return watch.fate()


@row("range-files-whole")
async def test_the_files_of_ranges_go_when_one_process_takes_the_whole_job(disk: Disk) -> Fate:
    """Whatever its own tables are. One that only reads leaves them."""
    async with open_run(rocks(disk), 1, disk.primary) as run:
        await one_batch(disk, run)
        watch = Watch(path for path in disk.directory.glob("tables/job_fleet/kg_*/files/*") if path.is_file())
    heap = msgspec.structs.replace(rocks(disk), table="heap")
    async with sb.open_backend(heap, store=disk.primary, read_only=True):
        assert watch.fate() == "stays"
    async with sb.open_backend(heap, store=disk.primary):
        return watch.fate()


@row("swept-unnamed-lost")
async def test_what_an_attempt_staged_that_lost_is_swept_while_the_job_goes_on(disk: Disk) -> Fate:
    """As its segments are: when another one was committed in its place, and not before."""
    rows = Output(b"schema", 1, (b"rows",))
    async with open_run(disk.settings(), 1, disk.primary) as run:
        await one_batch(disk, run)
        async with (
            open_range_owners(store=disk.primary, clock=VirtualClock()) as owners,
            owners.attempt(run.tasks()[0]) as losing,
        ):
            (part,) = (await losing.backend.outbox.stage(rows)).parts
        watch = Watch([disk.directory / "primary" / JOB / part.key])
        await sb.sweep(disk.settings(), dry_run=False, min_age_s=0.0)
        assert watch.fate() == "stays"
        await one_batch(disk, run)
        await sb.sweep(disk.settings(), dry_run=False, min_age_s=0.0)
        return watch.fate()


@row("swept-lost")
async def test_what_an_attempt_left_that_lost_is_swept_while_the_job_goes_on(disk: Disk) -> Fate:
    """As soon as another one was committed in its place, and not before."""
    async with open_run(disk.settings(), 1, disk.primary) as run:
        await one_batch(disk, run)
        before = disk.segments
        await attempt(disk, run.tasks()[0], 99)
        watch = Watch(disk.segments - before)
        await sb.sweep(disk.settings(), dry_run=False, min_age_s=0.0)
        assert watch.fate() == "stays"
        await one_batch(disk, run)
        await attempt(disk, run.tasks()[0], 99)  # may yet be committed
        await sb.sweep(disk.settings(), dry_run=False, min_age_s=0.0)
        assert run.coordinator.base is not None
        assert len(disk.segments) == len(run.coordinator.base.segments()) + 1
        return watch.fate()
