"""Bases are written in the background: when, what becomes of them, and that nothing is ever lost."""

from itertools import pairwise
from typing import Any

import anyio
import pytest

import statebackend as sb
from statebackend._log.names import entry_key
from statebackend.errors import (
    FencedError,
    InputError,
    MaterializationError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UploadError,
)
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fail, FaultyStore, Hold, run_virtual
from statebackend.testing.virtual_time import settle
from tests import invariants
from tests.checkpoint.bases import JOB, Job, checkpoint, keys_in, shape

NO_ANSWER = StoreUnavailableError("no answer")


async def contents(job: Job, **options: Any) -> dict[sb.Key, int]:
    """What a restore brings back, without writing a base."""
    job = _reader(job)
    async with job.open(**options) as backend:
        return dict(backend.value_state("n", int))


def _reader(job: Job) -> Job:
    reader = Job()
    reader.store = job.store
    return reader


# ------------------------------------------------------------------------------------------------------------ triggers


@run_virtual
async def test_bases_take_the_place_of_the_changelog_in_the_next_commit() -> None:
    """Two handles, then bases are written; the third commit has them and its own handle, and restores to all of it."""
    job = Job(materialize_handles_max=2)
    async with job.open() as backend:
        for number in range(3):
            await checkpoint(backend, **{f"k{number}": number})
    assert [shape(commit) for commit in await job.commits()] == [(1, 0), (2, 0), (1, 1)]
    assert await contents(job) == {"k0": 0, "k1": 1, "k2": 2}


@run_virtual
async def test_the_interval_is_spread_at_first_and_then_begins_at_the_end_of_the_last_time() -> None:
    """Section 13.1. Nothing changed, nothing is written; and no checkpoint, no base."""
    job = Job(materialize_interval_s=100)
    async with job.open() as backend:
        begun: list[float] = []
        for _ in range(60):
            told = len(job.watcher.begun)
            await checkpoint(backend, k=len(begun))
            if len(job.watcher.begun) > told:
                begun.append(anyio.current_time())
            await anyio.sleep(10)
        assert begun[0] < 110
        assert [later - earlier for earlier, later in pairwise(begun)] == [100] * (len(begun) - 1)
        assert len(begun) >= 5
        await checkpoint(backend)  # takes the bases, if any are left
        told = len(job.watcher.begun)
        await anyio.sleep(1000)
        await settle()
        assert len(job.watcher.begun) == told


@run_virtual
async def test_changelog_bytes_against_base_bytes_trigger() -> None:
    """With the floor the first base waits for 2,000 bytes of changes; then the changelog has to outgrow the base."""
    job = Job(materialize_changelog_ratio=1.0, materialize_changelog_bytes_min=2000, compression="none")
    async with job.open() as backend:
        texts = backend.value_state("t", str)
        while not job.watcher.written:
            texts["a"] = "x" * 200
            texts[f"b{anyio.current_time()}"] = "y" * 200
            await checkpoint(backend)
            await anyio.sleep(1)
        (part,) = (await job.newest()).ranges
        assert 2000 <= sum(handle.length for handle in part.changelog) < 2000 + 600
        assert not part.bases


@run_virtual
async def test_bases_of_a_state_that_does_not_change_any_more_are_written_once() -> None:
    """Checkpoints without a change add no handle: nothing is due."""
    job = Job(materialize_handles_max=1)
    async with job.open() as backend:
        await checkpoint(backend, k=1)
        for _ in range(5):
            await checkpoint(backend)
    assert [shape(commit) for commit in await job.commits()] == [(1, 0)] + [(0, 1)] * 5
    assert len(job.watcher.written) == 1


@run_virtual
async def test_only_key_groups_that_were_changed_are_written_anew() -> None:
    """The first base stands for the rest; a restore, from both, is whole."""
    job = Job(materialize_handles_max=1)
    keys = {group: keys_in(group, 1)[0] for group in range(16)}
    async with job.open() as backend:
        await checkpoint(backend, **dict.fromkeys(keys.values(), 0))
        await checkpoint(backend, **{keys[3]: 1, keys[4]: 1})
        await checkpoint(backend)
        (part,) = (await job.newest()).ranges
    assert [[*map(str, base.key_groups)] for base in part.bases] == [["[0, 2]", "[5, 15]"], ["[3, 4]"]]
    assert job.watcher.begun == [16, 2]
    assert await contents(job) == {key: int(group in (3, 4)) for group, key in keys.items()}


@run_virtual
async def test_after_a_restore_the_restored_changelog_counts_as_changed() -> None:
    """Its groups are read from the changes: a handle's span says only between which they lie."""
    first, last = keys_in(0, 1)[0], keys_in(15, 1)[0]
    job = Job()
    async with job.open() as backend:
        await checkpoint(backend, **{first: 1, last: 1})
    job = _reader(job)
    job.settings = Job(materialize_handles_max=1).settings
    async with job.open() as backend:
        await checkpoint(backend)
        await checkpoint(backend)
    assert job.watcher.begun == [2]
    assert shape(await job.newest()) == (0, 1)
    assert await contents(job) == {first: 1, last: 1}


@run_virtual
async def test_a_state_that_was_emptied_needs_no_base() -> None:
    """Deleted is deleted: neither the old base nor a new one brings it back."""
    job = Job(materialize_handles_max=1)
    async with job.open() as backend:
        await checkpoint(backend, k=1)
        await checkpoint(backend)
        backend.value_state("n", int).clear()
        await checkpoint(backend)
        await checkpoint(backend)
    assert shape(await job.newest()) == (0, 0)
    assert job.watcher.written == [(1, 1), (1, 0)]
    assert await contents(job) == {}


# ----------------------------------------------------------------------------------------- beside the checkpoints


@run_virtual
async def test_checkpoints_go_on_while_bases_are_written() -> None:
    """They list the changelog, and what came meanwhile stays in it behind the bases."""
    job = Job(materialize_handles_max=2)
    async with job.open() as backend:
        job.uploader.held = True
        for number in range(5):
            await checkpoint(backend, k=number, **{f"k{number}": number})
        job.uploader.release()
        await settle()
        await checkpoint(backend)
    assert [shape(commit) for commit in await job.commits()] == [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (3, 1)]
    assert await contents(job) == {"k": 4, "k0": 0, "k1": 1, "k2": 2, "k3": 3, "k4": 4}


@run_virtual
async def test_what_is_written_meanwhile_is_not_in_the_base() -> None:
    """A base is the state of one commit: a key that is removed while it is written does not come back."""
    job = Job(materialize_handles_max=1)
    async with job.open() as backend:
        job.uploader.held = True
        await checkpoint(backend, gone=1, kept=1)
        del backend.value_state("n", int)["gone"]
        await checkpoint(backend)
        job.uploader.release()
        await settle()
        await checkpoint(backend, kept=2)
    assert await contents(job) == {"kept": 2}


@run_virtual
async def test_a_checkpoint_waits_for_no_base() -> None:
    """Bases under way take some of the room in flight; enough remains for everybody else."""
    job = Job(materialize_handles_max=1, in_flight_bytes_max=600_000, compression="none")
    async with job.open() as backend:
        texts = backend.value_state("t", str)
        texts.update({key: "x" * 60_000 for group in range(8) for key in keys_in(group, 1)})
        job.uploader.held = True
        await checkpoint(backend)
        assert 0 < job.watcher.in_flight[-1] <= 300_000, "a base is on its way, within half of the limit"
        with anyio.fail_after(1):
            for number in range(10):
                texts[f"more {number}"] = "y" * 60_000
                await checkpoint(backend)
        job.uploader.release()
        await settle()
    assert job.watcher.in_flight[-1] == 0


@run_virtual
async def test_never_two_that_no_commit_has_confirmed() -> None:
    """Section 13.2: neither while one is being written, nor while its bases wait for a commit.

    A commit confirms by the bases that it lists, and not by its id: FLINK-25524.
    """
    job = Job(materialize_handles_max=1)
    async with job.open() as backend:
        job.uploader.held = True
        for number in range(4):
            await checkpoint(backend, k=number)
        assert (len(job.watcher.begun), len(job.watcher.written)) == (1, 0)
        job.uploader.release()
        await settle()
        assert (len(job.watcher.begun), len(job.watcher.written)) == (1, 1)
        await checkpoint(backend, k=4)  # confirms the first, and begins the second
        assert len(job.watcher.begun) == 2


@pytest.mark.parametrize("held", [False, True])
@run_virtual
async def test_a_savepoint_stops_no_materialization(held: bool) -> None:
    """It is a commit like any other, which confirms the bases that it takes. Hazard 14, FLINK-40302.

    Row: section 30, materialise: RocksDB savepoint between two materialisations. Also while the first is under way.
    """
    job = Job(materialize_handles_max=1)
    async with job.open() as backend:
        job.uploader.held = held
        await checkpoint(backend, k=0)
        backend.value_state("n", int)["k"] = 1
        await backend.checkpoint(backend.next_checkpoint_id, savepoint="between")
        job.uploader.release()
        await settle()
        told = len(job.watcher.written)
        for number in range(2, 6):
            await checkpoint(backend, k=number)
        assert len(job.watcher.written) >= told + 3
    assert await contents(job) == {"k": 5}
    assert await contents(job, savepoint="between") == {"k": 1}


@run_virtual
async def test_bases_of_a_refused_commit_are_offered_to_the_next() -> None:
    """Nothing was written: they are as good as before. FLINK-25816."""
    job = Job(materialize_handles_max=1)
    async with job.open() as backend:
        await checkpoint(backend, k=1)
        with pytest.raises(InputError):
            await backend.checkpoint(7, source=sb.SourceMark("query", "no number"))  # type: ignore[arg-type]
        await checkpoint(backend, k=2)
    assert [shape(commit) for commit in await job.commits()] == [(1, 0), (1, 1)]
    (part,) = (await job.newest()).ranges
    assert part.bases[0].segment == job.uploader.bases[0].primary
    assert await contents(job) == {"k": 2}


@run_virtual
async def test_bases_of_a_cancelled_checkpoint_are_taken_by_the_next() -> None:
    """Cancelled before its commit is sent."""
    job = Job(materialize_handles_max=1)
    hold = Hold(operation="put", key="*segments*", nth=3)  # a change set, a base, and then this
    async with job.open(store=FaultyStore(job.store, [hold])) as backend:
        await checkpoint(backend, k=1)
        backend.value_state("n", int)["k"] = 2
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(backend.checkpoint, 5)
            await hold.reached.wait()
            tasks.cancel_scope.cancel()
        hold.release()
        await checkpoint(backend)
    assert shape(await job.newest()) == (1, 1)
    assert await contents(job) == {"k": 2}


@run_virtual
async def test_bases_of_a_checkpoint_that_is_cancelled_while_the_budget_holds_it_are_ours_again() -> None:
    """Nothing was sent: the next commit takes them, and without one they are deleted at the end."""
    job = Job(materialize_handles_max=1, put_budget_usd_month=1e-6, persist_delay_max_s=10)
    async with job.open() as backend:
        await checkpoint(backend, k=1)
        with anyio.move_on_after(5) as scope:
            await backend.checkpoint(7)
        assert scope.cancelled_caught
    assert job.uploader.discarded == job.uploader.bases
    assert len(job.uploader.bases) == 1
    assert await contents(job) == {"k": 1}


@run_virtual
async def test_bases_of_a_snapshot_stay_though_one_that_was_made_without_them_is_aborted() -> None:
    """The newer one may be committed: leaving does not delete them."""
    job = Job(materialize_handles_max=1)
    parts = [sb.owners.KeyGroupRange(0, 7), sb.owners.KeyGroupRange(8, 15)]
    (key,) = keys_in(0, 1)
    async with sb.owners.open_coordinator(job.settings, store=job.store) as coordinator:
        async with job.open(key_groups=parts[1]) as other:
            idle = await other.snapshot(2)
        async with job.open(key_groups=parts[0]) as owner:
            job.uploader.held = True
            owner.value_state("n", int)[key] = 1
            await owner.snapshot(1)
            job.uploader.release()
            await settle()
            owner.value_state("n", int)[key] = 2
            snapshot = await owner.snapshot(2)
            assert len(snapshot.state.bases) == 1
            await owner.notify_aborted(1)
            await coordinator.commit(2, [snapshot, idle])
    assert job.uploader.discarded == []
    assert await contents(job) == {key: 2}


@run_virtual
@pytest.mark.parametrize("outcome", ["aborted", "complete"])
async def test_the_outcome_of_a_snapshot_with_earlier_bases_is_none_of_later_ones(outcome: str) -> None:
    """Those that a pending snapshot holds are not deleted when the owner leaves; those that none holds are offered."""
    job = Job(materialize_handles_max=1)
    async with sb.owners.open_coordinator(job.settings, store=job.store) as coordinator:
        async with job.open(key_groups=sb.owners.KeyGroupRange(0, 15)) as owner:

            async def snapshot(checkpoint_id: int) -> sb.owners.SnapshotResult:
                owner.value_state("n", int)["k"] = checkpoint_id
                taken = await owner.snapshot(checkpoint_id)
                await settle()
                return taken

            await snapshot(0)
            first, second = [await snapshot(1), await snapshot(2)]
            assert first.state.bases == second.state.bases != ()
            await coordinator.commit(1, [first])
            await owner.notify_complete(1)
            await snapshot(3)
            newest = await snapshot(4)
            (later,) = newest.state.bases
            assert later not in second.state.bases
            if outcome == "aborted":
                await owner.notify_aborted(2)
            else:
                await coordinator.commit(2, [second])
                await owner.notify_complete(2)
                await owner.notify_aborted(3)
                await owner.notify_aborted(4)
                newest = await snapshot(5)
                assert newest.state.bases == (later,)
        await coordinator.commit(newest.checkpoint_id, [newest])
    assert job.uploader.discarded == []
    assert await contents(job) == {"k": newest.checkpoint_id}


@run_virtual
async def test_bases_of_an_aborted_snapshot_go_though_one_without_them_is_pending() -> None:
    """Nobody can commit them any more when the owner has left."""
    job = Job(materialize_handles_max=1)
    async with job.open(key_groups=sb.owners.KeyGroupRange(0, 15)) as owner:
        owner.value_state("n", int)["k"] = 1
        await owner.snapshot(1)
        await settle()
        assert (await owner.snapshot(2)).state.bases
        await owner.notify_aborted(2)
    assert job.uploader.discarded == job.uploader.bases
    assert len(job.uploader.bases) == 1


# -------------------------------------------------------------------------------------------------------- failures


@run_virtual
async def test_failures_are_tolerated_up_to_the_limit_and_then_told_at_a_checkpoint() -> None:
    """Counted in a row. What is committed is safe, and a reopened backend, on a store that is well, goes on."""
    job = Job(materialize_handles_max=1, materialize_failures_max=2)
    async with job.open() as backend:
        job.uploader.error = NO_ANSWER
        for number in range(3):
            await checkpoint(backend, k=number)
        with pytest.raises(MaterializationError) as caught:
            await backend.checkpoint(100)
        assert isinstance(caught.value, UploadError)
        assert caught.value.__cause__ is NO_ANSWER
        assert caught.value.facts["failures"] == 3
    assert len(job.watcher.failed) == 3
    assert await contents(job) == {"k": 2}
    job.watcher.failed.clear()
    async with job.open() as backend:
        await checkpoint(backend, k=3)
        await checkpoint(backend)
    assert shape(await job.newest()) == (0, 1)


@run_virtual
async def test_a_success_ends_the_count() -> None:
    """Only failures in a row say that something is wrong."""
    job = Job(materialize_handles_max=1, materialize_failures_max=1)
    async with job.open() as backend:
        for number in range(4):
            job.uploader.error = NO_ANSWER
            await checkpoint(backend, k=number)
            job.uploader.error = None
            await checkpoint(backend, k=number)
            await checkpoint(backend)
            assert len(job.watcher.failed) == 1
            job.watcher.failed.clear()


@run_virtual
async def test_after_a_failure_it_is_not_tried_again_at_once() -> None:
    """Ten seconds, then twenty: a store that is away for a minute is not the end of the job."""
    job = Job(materialize_handles_max=1, materialize_retry_delay_s=10, materialize_failures_max=1000)
    tries: list[float] = []
    async with job.open() as backend:
        job.uploader.error = NO_ANSWER
        begun_s = anyio.current_time()
        while len(tries) < 4:
            await checkpoint(backend, k=1)
            if len(job.watcher.begun) > len(tries):
                tries.append(anyio.current_time() - begun_s)
            await anyio.sleep(1)
    assert tries == [0, 10, 30, 70]


@run_virtual
async def test_what_failed_is_deleted_and_written_later() -> None:
    """One segment of several was stored: it goes, and the key groups count as changed as before."""
    job = Job(materialize_handles_max=1, in_flight_bytes_max=4, preemptive_persist_threshold_bytes=2 * 10**6)
    store = FaultyStore(
        job.store, [Fail(operation="put", key="*segments*", nth=4)]
    )  # a change set, two bases, and this
    keys = [keys_in(group, 1)[0] for group in range(16)]
    async with job.open(store=store) as backend:
        backend.value_state("t", str).update(dict.fromkeys(keys, "x" * 70_000))
        await checkpoint(backend)
        assert len(job.watcher.failed) == 1
        assert len(job.uploader.discarded) == 2
        assert await job.segments() == (await job.newest()).segments()
        await checkpoint(backend)
        await checkpoint(backend)
    assert job.watcher.begun == [16, 16]
    commit = await job.newest()
    assert shape(commit)[0] == 0
    assert await job.segments() > commit.segments()  # the old commits' too
    invariants.assert_commit_is_whole(commit, {k: await job.store.get(f"{JOB}/{k}") for k in commit.segments()})


@run_virtual
async def test_leaving_ends_the_writing_and_deletes_what_was_written() -> None:
    """Within the bound, and without a failure being counted. The next owner begins anew. FLINK-26455."""
    job = Job(materialize_handles_max=1, in_flight_bytes_max=4, preemptive_persist_threshold_bytes=2 * 10**6)
    hold = Hold(operation="put", key="*segments*", nth=3)
    keys = [keys_in(group, 1)[0] for group in range(16)]
    async with job.open(store=FaultyStore(job.store, [hold])) as backend:
        backend.value_state("t", str).update(dict.fromkeys(keys, "x" * 70_000))
        await checkpoint(backend)
        assert hold.reached.is_set()
        assert await job.segments() > (await job.newest()).segments(), "one base is stored"
        left_s = anyio.current_time()
    assert anyio.current_time() - left_s <= job.settings.close_timeout_s
    assert await job.segments() == (await job.newest()).segments()
    assert job.watcher.failed == []
    assert job.watcher.in_flight[-1] == 0


@run_virtual
async def test_leaving_deletes_bases_that_no_commit_has_taken() -> None:
    """They are complete, and nobody will ever know of them."""
    job = Job(materialize_handles_max=1)
    async with job.open() as backend:
        await checkpoint(backend, k=1)
        assert len(job.uploader.bases) == 1
    assert await job.segments() == (await job.newest()).segments()


@run_virtual
async def test_bases_that_a_commit_may_hold_are_not_deleted() -> None:
    """Its answer was lost, again and again: the outcome is unknown. Opened again, the commit is there and is whole."""
    job = Job(materialize_handles_max=1, upload__attempts_max=1)
    store = FaultyStore(
        job.store, [Fail(operation="put_if_absent", key="*commits*", nth=3, moment="after")]
    )  # a claim first
    async with job.open(store=store) as backend:
        await checkpoint(backend, k=1)
        backend.value_state("n", int)["k"] = 2
        with pytest.raises(OutcomeUnknownError):
            await backend.checkpoint(2)
    assert job.uploader.discarded == []
    assert await contents(job) == {"k": 2}
    assert shape(await job.newest()) == (1, 1)


@run_virtual
async def test_a_fenced_writer_deletes_nothing_and_loses_nothing() -> None:
    """A zombie that writes bases leaves them for a sweep; what the newer writer committed is what there is."""
    job = Job(materialize_handles_max=1)
    newer = _reader(job)
    async with job.open() as backend:
        job.uploader.held = True
        await checkpoint(backend, k=1)
        async with newer.open() as other:
            await checkpoint(other, k=2)
        job.uploader.release()
        await settle()
        with pytest.raises(FencedError):
            await backend.checkpoint(100)
    assert job.uploader.discarded == []
    assert await contents(job) == {"k": 2}
    assert len(await job.segments() - (await job.newest()).segments()) == 1, "its base"


@run_virtual
async def test_killed_while_bases_are_written_nothing_is_lost() -> None:
    """What was stored is unreferenced and harmless. The next owner, with its own bases, has all of the state."""
    job = Job(materialize_handles_max=1, in_flight_bytes_max=4, preemptive_persist_threshold_bytes=2 * 10**6)
    keys = [keys_in(group, 1)[0] for group in range(16)]
    copy = MemoryStore()
    async with job.open(
        store=FaultyStore(job.store, [hold := Hold(operation="put", key="*segments*", nth=4)])
    ) as backend:
        backend.value_state("t", str).update(dict.fromkeys(keys, "x" * 70_000))
        await checkpoint(backend, k=1)
        await hold.reached.wait()
        async for info in job.store.list(""):  # what lies there at the moment of the kill
            await copy.put(info.key, [await job.store.get(info.key)])
    job.store = copy
    assert len(await job.segments() - (await job.newest()).segments()) == 2
    async with job.open() as backend:
        await checkpoint(backend, k=2)
        await checkpoint(backend, k=3)
        assert backend.value_state("t", str) == dict.fromkeys(keys, "x" * 70_000)
    assert shape(await job.newest())[1] == 16
    assert await contents(job) == {"k": 3}


# ------------------------------------------------------------------------------------------------------ in the long run


@run_virtual
async def test_a_commit_stays_small_for_ever() -> None:
    """1,000 checkpoints of one change: 10 handles of some 130 bytes, and 16 bases at most.

    Each waits for the bases that it set off: what comes while threads write them is more on a busy machine.
    """
    job = Job(materialize_handles_max=10, compression="none")
    largest = 0
    async with job.open() as backend:
        for number in range(1000):
            await checkpoint(backend, **{f"k{number % 100}": number})
            largest = max(largest, len(await job.store.get(await _last_key(job, backend))))
    assert largest < 5000
    assert await contents(job) == {f"k{number % 100}": number for number in range(900, 1000)}


async def _last_key(job: Job, backend: sb.StateBackend) -> str:
    assert backend.newest is not None
    return f"{JOB}/commits/{backend.newest.sequence:012d}"


@run_virtual
async def test_an_older_checkpoint_is_restored_from_its_own_bases() -> None:
    """Time travel: each commit brings back its own state, and a branch from an old one goes on with old bases.

    A base outlives the commit that took it: FLINK-25478, 26101.
    """
    job = Job(materialize_handles_max=2)
    async with job.open() as backend:
        for number in range(9):
            await checkpoint(backend, k=number, **{f"k{number}": number})
    commits = await job.commits()
    assert len({base.segment for commit in commits for part in commit.ranges for base in part.bases}) > 2
    for number, commit in enumerate(commits):
        expected = {"k": number} | {f"k{each}": each for each in range(number + 1)}
        assert await contents(job, checkpoint_id=commit.checkpoint_id) == expected
    async with job.open(checkpoint_id=commits[4].checkpoint_id) as backend:
        for number in range(3):
            await checkpoint(backend, branch=number)
    assert await contents(job) == {"k": 4, "branch": 2} | {f"k{each}": each for each in range(5)}


# ---------------------------------------------------------------------------------------------------- the local copies


@run_virtual
async def test_a_checkpoint_with_bases_is_local_only_if_they_are() -> None:
    """FLINK-34667: a local copy of the changes alone restores wrong state. With new bases it is whole again."""
    local = MemoryStore()
    job = Job(materialize_handles_max=2)
    job.settings = Job(materialize_handles_max=2, local_bytes_max=0).settings
    told: list[bool] = []
    faulty = FaultyStore(local, [Fail(operation="put", key="*", nth=1), Fail(operation="put", key="*", nth=6)])
    options: dict[str, Any] = {"local_stores": [faulty], "uploader": None}
    async with job.open(**options) as backend:
        for number in range(8):
            backend.value_state("n", int)["k"] = number
            info = await backend.checkpoint(number)
            told.append(info.local)
            if info.local:
                commit = await job.newest()
                primary = {key: await job.store.get(f"{JOB}/{key}") for key in commit.segments()}
                stored = {key: await local.get(key) for key in commit.segments()}
                invariants.assert_local_copy_is_complete(commit, stored, primary)
            await settle()
    assert told[:3] == [False, False, True], "the first copy failed, and the bases made up for it"
    assert not all(told[3:])
    assert told[-1], "so did later ones"


@run_virtual
async def test_local_copies_of_superseded_bases_are_removed() -> None:
    """The local registry knows bases like change sets: what the newest commit does not use is deleted."""
    local = MemoryStore()
    job = Job(materialize_handles_max=1)
    async with job.open(local_stores=[local], uploader=None) as backend:
        for number in range(10):
            await checkpoint(backend, k=number)
        await checkpoint(backend)
        newest = await job.newest()
        copies = {info.key async for info in local.list("")}
        assert copies == newest.segments() | {entry_key(newest.sequence)}
    async with job.open(local_stores=[local], uploader=None) as backend:
        assert backend.restored is not None
        assert (backend.restored.files_primary, backend.restored.fallbacks) == (0, ())
        assert dict(backend.value_state("n", int)) == {"k": 9}
