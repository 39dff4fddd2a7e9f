"""Runs of one batch, which leave or are killed right after it: bases come in all the same, and nothing grows."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

import statebackend as sb
from statebackend._checkpoint.materialization.base_writer import FIRST_WAIT_MIN_S, FIRST_WAIT_SHARE
from statebackend.errors import StoreUnavailableError
from statebackend.objectstore.scoped import CountingStore
from statebackend.settings import KiB
from statebackend.testing import run_virtual
from statebackend.testing.virtual_time import VirtualClock, settle
from tests.checkpoint.bases import Job, checkpoint, keys_in, shape
from tests.mortal_store import MortalStore


@asynccontextmanager
async def run_of(job: Job, *, killed: bool) -> AsyncGenerator[sb.StateBackend]:
    """One run: its first batch is the caller's, and then it is left or killed, whatever is being written."""
    process = MortalStore(job.store, "")
    async with job.open(store=process) as backend:
        yield backend
        process.dead = killed


async def batch(backend: sb.StateBackend, number: int) -> None:
    """One batch: nothing that runs in the background gets more time than it takes."""
    backend.value_state("n", int).update({"k": number, f"k{number % 16}": number})
    await backend.checkpoint(backend.next_checkpoint_id)


@pytest.mark.parametrize("killed", [False, True])
@run_virtual
async def test_runs_of_one_batch_get_bases(killed: bool) -> None:
    """As many change sets as are allowed, and one; never more, and the state is whole."""
    job = Job(materialize_handles_max=4)
    for number in range(30):
        async with run_of(job, killed=killed) as backend:
            await batch(backend, number)
    handles = [shape(commit)[0] for commit in await job.commits()]
    assert max(handles) == 4
    assert shape(await job.newest())[1] > 0
    async with job.open(read_only=True) as backend:
        expected = {f"k{number % 16}": number for number in range(14, 30)}
        assert dict(backend.value_state("n", int)) == expected | {"k": 29}


@run_virtual
async def test_owners_of_parts_get_bases_in_runs_of_one_snapshot() -> None:
    """Their first snapshot waits for them, as a checkpoint does."""
    job = Job(materialize_handles_max=3)
    parts = [sb.owners.KeyGroupRange(0, 7), sb.owners.KeyGroupRange(8, 15)]
    keys = [keys_in(0, 1)[0], keys_in(8, 1)[0]]
    for number in range(1, 7):
        async with sb.owners.open_coordinator(job.settings, store=job.store) as coordinator:
            snapshots: list[sb.owners.SnapshotResult] = []
            for part, key in zip(parts, keys, strict=True):
                async with job.open(key_groups=part) as owner:
                    owner.value_state("n", int)[key] = number
                    snapshots.append(await owner.snapshot(number))
                    await owner.notify_complete(number)
            await coordinator.commit(number, snapshots)
    newest = await job.newest()
    assert [(len(part.changelog) <= 3, len(part.bases)) for part in newest.ranges] == [(True, 1)] * 2
    async with job.open(read_only=True) as backend:
        assert dict(backend.value_state("n", int)) == dict.fromkeys(keys, 6)


@run_virtual
async def test_the_first_checkpoint_waits_for_bases_but_not_for_ever_and_the_second_not_at_all() -> None:
    """A store that takes changes and hangs with bases holds up one checkpoint, by a second or a few restores."""
    job = Job(materialize_handles_max=1, upload__timeout_s=0)
    async with job.open() as backend:
        await batch(backend, 0)
    async with job.open() as backend:
        job.uploader.held = True
        begun_s = anyio.current_time()
        await batch(backend, 1)
        waited_s = anyio.current_time() - begun_s
        assert backend.restored is not None
        assert waited_s == max(FIRST_WAIT_MIN_S, FIRST_WAIT_SHARE * backend.restored.seconds)
        await batch(backend, 2)
        assert anyio.current_time() - begun_s == waited_s
        job.uploader.release()
        await settle()
        await checkpoint(backend)
    assert [shape(commit) for commit in await job.commits()] == [(1, 0), (2, 0), (3, 0), (2, 1)]


@run_virtual
async def test_a_cancelled_first_checkpoint_waits_again() -> None:
    """It has lost nothing: not the bases either."""
    job = Job(materialize_handles_max=1)
    async with job.open() as backend:
        await batch(backend, 0)
    async with job.open() as backend:
        job.uploader.held = True
        with anyio.move_on_after(FIRST_WAIT_MIN_S / 2) as scope:
            await batch(backend, 1)
        assert scope.cancelled_caught
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(batch, backend, 1)
            await settle()
            job.uploader.release()
    assert [shape(commit) for commit in await job.commits()] == [(1, 0), (2, 1)]  # what was uploaded before, and again


@run_virtual
async def test_bases_that_cannot_be_written_hold_up_nothing() -> None:
    """The first checkpoint goes on when they have failed, and commits the change sets."""
    job = Job(materialize_handles_max=1, materialize_failures_max=0)
    async with job.open() as backend:
        await batch(backend, 0)
    async with job.open() as backend:
        job.uploader.error = StoreUnavailableError("no answer")
        await batch(backend, 1)
    assert len(job.watcher.failed) == 1
    assert shape(await job.newest()) == (2, 0)


@run_virtual
async def test_who_only_reads_writes_no_bases() -> None:
    """Not even where they are due."""
    job = Job(materialize_handles_max=1)
    async with job.open() as backend:
        await batch(backend, 0)
    before = await job.segments()
    begun = len(job.watcher.begun)
    async with job.open(read_only=True):
        await settle()
    assert len(job.watcher.begun) == begun
    assert await job.segments() == before


@run_virtual
async def test_opening_does_not_cost_more_after_many_runs_than_after_a_few() -> None:
    """Requests, bytes and files: the most of each in a row of openings that has bases written once."""
    job = Job(materialize_handles_max=6, inline_bytes_max=64 * KiB)
    costs: list[tuple[int, int, int]] = []
    for number in range(60):
        store = CountingStore(job.store)
        async with sb.open_backend(job.settings, store=store, clock=VirtualClock()) as backend:
            if (report := backend.restored) is not None:
                costs.append((store.requests.total(), report.bytes_primary, report.files_primary))
            await batch(backend, number)
    early = [max(each) for each in zip(*costs[8:16], strict=True)]
    late = [max(each) for each in zip(*costs[-8:], strict=True)]
    assert all(after <= 2 * before for before, after in zip(early, late, strict=True)), (early, late)
    assert late[2] <= 6 + 2
