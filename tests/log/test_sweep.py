"""A sweep deletes what nobody needs, says why, and hurts nobody: killed, refused, late, or beside a writer."""

import contextlib
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

import statebackend as sb
from statebackend._backend.stores import threads_of
from statebackend._backend.sweeping import AT_ONCE_EVERY
from statebackend._codec.commit import VERSION
from statebackend._local.job_directories import lock_root
from statebackend._log.log_reader import LogReader
from statebackend._log.names import COMMITS, entry_key, entry_prefixes
from statebackend._log.sweeping.local_sweep import LocalFile
from statebackend._log.sweeping.log_sweep import Sweep, SweepReport
from statebackend._log.sweeping.retention import SweepReason
from statebackend._upkeep.sweep import _with_local
from statebackend.abc import Capability, ObjectInfo
from statebackend.errors import (
    CheckpointNotFoundError,
    CorruptCommitError,
    InputError,
    SavepointNotFoundError,
    StateBackendError,
    StoreUnavailableError,
    UnsupportedVersionError,
    WrongJobError,
)
from statebackend.ids import Handle
from statebackend.objectstore import LocalStore, MemoryStore
from statebackend.objectstore.scoped import ScopedStore
from statebackend.observers import Metrics
from statebackend.testing import Fail, Fault, FaultyStore, Hold
from statebackend.testing.virtual_time import VirtualClock, run_virtual
from tests.committed import committed_handles, stand_on
from tests.log.swept import JOB, Job, forget, put

HEX = "0123456789abcdef" * 2


async def worked(**changes: Any) -> Job:
    """A job of five checkpoints, each of which points into one object of its own, and then two more an hour later."""
    job = Job(**changes)
    async with job.backend() as backend:
        for value in range(5):
            forget(backend)
            await put(backend, value)
    job.pass_time(3700.0)
    async with job.backend() as backend:
        for value in (5, 6):
            forget(backend)
            await put(backend, value)
    return job


async def assert_whole(job: Job) -> None:
    """Every commit that exists has all that it points into, and the newest can be opened."""
    there = set(await job.keys())
    for commit in (await job.commits()).values():
        assert commit.segments() <= there
    assert await job.read() == max(await job.commits())


async def assert_swept(job: Job) -> None:
    """The retained commits and what they point into; no other object, and no other entry that is old enough."""
    commits = await job.commits()
    assert sorted(commits) == [5, 6]
    needed = {key for commit in commits.values() for key in commit.segments()}
    assert set(await job.keys("segments/")) == needed


async def test_what_no_retained_commit_needs_goes() -> None:
    """Entries of the log, and what only they point into."""
    job = await worked()
    report = await job.sweep()
    await assert_swept(job)
    assert (
        report.total(sb.reports.SweepReason.SUPERSEDED)[0] == len(report.deleted) == 11
    )  # a claim, five commits, their objects
    assert report.failures == ()
    assert report.stopped is None
    assert await job.read() == 6
    assert (await job.sweep()).garbage == ()


async def test_a_dry_run_finds_the_same_and_deletes_nothing() -> None:
    """Key for key, with the same reasons."""
    job = await worked()
    before = await job.keys()
    dry = await job.sweep(dry_run=True)
    assert await job.keys() == before
    wet = await job.sweep()
    assert dry.garbage == wet.garbage
    assert list(dry.lines())[:-1] == list(wet.lines())[:-1]
    assert all(any(each.key in line and each.reason in line for line in dry.lines()) for each in dry.garbage)


async def test_retained_checkpoints_can_be_opened_and_others_are_not_found() -> None:
    """As many as the settings say."""
    job = await worked(checkpoints_retained=4)
    await job.sweep()
    for checkpoint_id in (3, 4, 5, 6):
        assert await job.read(checkpoint_id=checkpoint_id) == checkpoint_id
    for checkpoint_id in (0, 1, 2):
        with pytest.raises(CheckpointNotFoundError):
            await job.read(checkpoint_id=checkpoint_id)


async def test_a_commit_that_exists_is_whole() -> None:
    """An entry that is kept only because it is young keeps all that it points into."""
    job = Job()
    async with job.backend() as backend:
        for value in range(5):
            forget(backend)
            await put(backend, value)
    report = await job.sweep()
    assert report.garbage == ()
    for checkpoint_id in range(5):
        assert await job.read(checkpoint_id=checkpoint_id) == checkpoint_id


async def test_the_hint_does_not_name_an_entry_that_goes() -> None:
    """The next opening finds the newest commit, without listing more than what may follow it."""
    job = await worked()
    await job.store.put(f"{JOB}/newest", [b"2 stamp"])
    await job.sweep()
    store = FaultyStore(job.store)
    async with sb.open_backend(job.settings, store=store, clock=job.clock, read_only=True) as backend:
        assert backend.value_state("n", int)["k"] == 6
    listed = [key for operation, key in store.calls if operation == "list"]
    assert listed == [f"{JOB}/{prefix}" for prefix in entry_prefixes(0, 1)]


async def test_nothing_goes_while_the_hint_cannot_be_moved() -> None:
    """Who begins to search at a savepoint would take it for the end, when what follows it is gone."""
    job = await worked()
    await job.store.put(f"{JOB}/newest", [b"2 stamp"])
    with pytest.raises(StoreUnavailableError):
        await job.sweep(Fail(operation="put", key="*/newest"))
    assert len(await job.commits()) == 7


async def test_a_hint_that_is_late_is_not_written() -> None:
    """A writer that was fenced hours ago leaves; its last entry is a savepoint, and what followed it was swept."""
    job = Job()
    async with job.backend() as late:
        await put(late, 0, savepoint="s")
        for value in range(1, 4):
            job.pass_time(3700.0)
            await job.commit(value, value)
        await job.sweep()
        assert sorted(await job.commits()) == [0, 5, 6]
    async with job.backend() as backend:
        assert backend.value_state("n", int)["k"] == 3
        await put(backend, 7)
    assert await job.read() == 7


async def test_a_sweep_that_took_too_long_to_look_deletes_nothing() -> None:
    """Its hint would be as late as that of such a writer."""
    job = await worked()
    await job.store.put(f"{JOB}/newest", [b"2 stamp"])
    hold = Hold(operation="get", key=f"*/{entry_key(5)}", moment="after")
    reports: list[sb.reports.SweepReport] = []

    async def sweep() -> None:
        reports.append(await job.sweep(hold))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sweep)
        await hold.reached.wait()
        job.pass_time(1801.0)
        hold.release()
    assert reports[0].stopped is not None
    assert len(await job.commits()) == 7


async def test_an_entry_stays_that_carries_change_sets_of_newer_commits() -> None:
    """As an object; as a checkpoint it is gone, with what only it needed."""
    job = await worked()
    carrier = entry_key(3)  # checkpoint 2
    async with job.backend() as backend:
        here = Handle(carrier, 0, len(await job.store.get(f"{JOB}/{carrier}")), 0)
        (handle,) = (await job.commits())[6].ranges[0].changelog
        stand_on(backend, msgspec.structs.replace(handle, segment=here))
        for value in (7, 8):
            await put(backend, value)
            stand_on(backend, *committed_handles(backend)[:1])
    report = await job.sweep()
    assert carrier in await job.keys()
    (kept,) = [each for each in report.objects if each.key == carrier]
    assert kept.verdict is sb.reports.SweepReason.NEEDED
    commits = await job.commits()
    assert not commits[2].segments() <= set(await job.keys())
    with pytest.raises(CheckpointNotFoundError):
        await job.read(checkpoint_id=2)
    with pytest.raises(CheckpointNotFoundError):
        async with job.backend(checkpoint_id=2):
            raise AssertionError("opened")


async def test_entries_go_before_data_and_the_oldest_first() -> None:
    """One at a time here: a kill between any two leaves no commit without its data."""
    job = await worked(restore_concurrency_max=1)
    store = FaultyStore(job.store)
    await sb.sweep(job.settings, dry_run=False, min_age_s=0.0, store=store, clock=job.clock)
    deleted = [key.removeprefix(f"{JOB}/") for operation, key in store.calls if operation == "delete"]
    entries, data = deleted[:6], deleted[6:]
    assert entries == [entry_key(sequence) for sequence in range(6)]
    assert data == sorted(data)
    assert all(key.startswith("segments/") for key in data)


async def test_deletions_under_way_are_bounded() -> None:
    """By the setting, and no fewer where there is enough to do."""
    job = await worked(restore_concurrency_max=3)
    hold = Hold(operation="delete")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(job.sweep, hold)
        await hold.reached.wait()
        await anyio.wait_all_tasks_blocked()
        assert hold.held == 3
        hold.release()
    await assert_swept(job)


async def test_what_a_killed_writer_left_goes_when_its_epoch_is_over() -> None:
    """While the writer may live, it may be about to commit it; the next claim ends that."""
    job = Job()
    with pytest.raises(StateBackendError):
        async with job.backend(
            Fail(operation="put_if_absent", nth=2, onwards=True, error=KilledError("killed"))
        ) as backend:
            await put(backend, 1)
    (left,) = await job.keys("segments/")
    (found,) = [each for each in (await job.sweep()).objects if each.key == left]
    assert found.verdict is sb.reports.SweepReason.LIVE
    await job.commit(2)
    report = await job.sweep()
    assert left in report.deleted
    assert left not in await job.keys()
    assert await job.read() == 2


async def test_what_is_uploaded_and_not_yet_committed_stays() -> None:
    """The writer is about to commit; a sweep takes its turn just then."""
    job = await worked()
    hold = Hold(operation="put_if_absent", key="*/commits/*", nth=2)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_commit_held, job, hold)
        await hold.reached.wait()
        report = await job.sweep()
        assert report.total(sb.reports.SweepReason.LIVE)[0] == 1
        hold.release()
    assert await job.read() == 7
    await assert_whole(job)


async def _commit_held(job: Job, hold: Hold) -> None:
    async with job.backend(hold) as backend:
        await put(backend, 7)


async def test_the_minimum_age_is_honoured() -> None:
    """Garbage is named as such, and stays until it has that age."""
    job = await worked()
    await job.store.put(f"{JOB}/segments/00000001-00000099-{HEX}", [b"left"])
    assert (await job.sweep(min_age_s=1.0)).total(sb.reports.SweepReason.YOUNG) == (1, 4)
    job.pass_time(2.0)
    await job.commit(7)
    assert (await job.sweep(min_age_s=1.0)).total(sb.reports.SweepReason.ORPHAN) == (1, 4)


@pytest.mark.parametrize("min_age_s", [-1.0, float("nan")])
async def test_a_minimum_age_that_is_none_is_refused(min_age_s: float) -> None:
    """Nothing was looked at."""
    with pytest.raises(InputError):
        await (await worked()).sweep(min_age_s=min_age_s)


async def test_what_is_not_ours_is_reported_and_stays() -> None:
    """Wherever it lies under the job, however old it is; and what lies beside the job is not looked at."""
    job = Job()
    foreign = [f"{JOB}/README", f"{JOB}/segments/notes", f"{JOB}/commits/last", f"{JOB}/savepoints/mine"]
    for key in (*foreign, f"{JOB}2/segments/x"):
        await job.store.put(key, [b"theirs"])
    job.pass_time(10 * 86_400.0)
    await job.commit(1)
    report = await job.sweep()
    found = [each.key for each in report.objects if each.verdict is sb.reports.SweepReason.FOREIGN]
    assert sorted(f"{JOB}/{key}" for key in found) == sorted(foreign)
    assert all(any(key in line for line in report.lines()) for key in found)
    for key in (*foreign, f"{JOB}2/segments/x"):
        assert await job.store.get(key) == b"theirs"


class KilledError(StateBackendError):
    """The process has ended."""


@dataclass(kw_only=True, eq=False)
class Kill(Fault):
    """From the nth request on nothing comes through; the nth itself may still take effect."""

    def strikes(self, operation: Any, key: str) -> bool:
        assert self.nth is not None
        self.matched += 1
        if self.matched > self.nth:
            self.moment = "before"
        return self.matched >= self.nth

    async def strike(self) -> None:
        raise KilledError("killed")


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_sweep_that_is_killed_at_any_request_leaves_a_job_that_is_whole(moment: Any) -> None:
    """And the sweeps after it, once the next writer has opened the job, leave nothing that is not needed."""
    nth, done = 0, False
    while not done:
        nth += 1
        job = await worked()
        with contextlib.suppress(KilledError):
            await job.sweep(Kill(nth=nth, moment=moment))
            done = True
        await assert_whole(job)
        job.pass_time(3700.0)
        await job.commit(5, 6)
        await job.sweep()
        commits = await job.commits()
        assert sorted(commits)[-2:] == [7, 8]
        needed = {key for commit in commits.values() for key in commit.segments()}
        assert set(await job.keys("segments/")) == needed
    assert nth > 15


@pytest.mark.parametrize("nth", [1, 4, 9])
async def test_a_cancelled_sweep_leaves_a_job_that_is_whole(nth: int) -> None:
    """In the middle of its deletions; the next sweep goes on."""
    job = await worked(restore_concurrency_max=1)
    hold = Hold(operation="delete", nth=nth)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(job.sweep, hold)
        await hold.reached.wait()
        tasks.cancel_scope.cancel()
    await assert_whole(job)
    assert (await job.sweep()).failures == ()
    await assert_whole(job)


async def test_what_cannot_be_deleted_is_reported_and_tried_again() -> None:
    """The rest goes."""
    job = await worked()
    stuck = (await job.keys("segments/"))[0]
    report = await job.sweep(Fail(operation="delete", key=f"*/{stuck}"))
    assert [failure.key for failure in report.failures] == [stuck]
    assert len(report.deleted) == 10
    await assert_whole(job)


async def test_an_entry_that_cannot_be_deleted_keeps_what_it_points_into() -> None:
    """A commit that exists is whole. Orphans go nevertheless."""
    job = await worked()
    orphan = f"segments/00000001-00000099-{HEX}"
    await job.store.put(f"{JOB}/{orphan}", [b"left"])
    report = await job.sweep(Fail(operation="delete", key=f"*/{entry_key(3)}"))
    assert [failure.key for failure in report.failures] == [entry_key(3)]
    await assert_whole(job)
    assert 2 in await job.commits()
    assert orphan in report.deleted
    await job.sweep()
    assert 2 not in await job.commits()


async def test_a_sweep_finds_a_claim_that_opened_an_old_checkpoint_meanwhile() -> None:
    """The sweep was about to say how far it goes, and to delete that checkpoint: nothing goes."""
    job = await worked()
    hold = Hold(operation="put", key="*/swept/*")
    reports: list[sb.reports.SweepReport] = []

    async def sweep() -> None:
        reports.append(await job.sweep(hold))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sweep)
        await hold.reached.wait()
        async with job.backend(checkpoint_id=2) as backend:
            hold.release()
            while not reports:
                await anyio.lowlevel.checkpoint()
            assert reports[0].stopped is not None
            assert reports[0].deleted == ()
            again = await job.sweep()  # another finds the claim at the end, and keeps what it names
            assert again.stopped is None
            assert sorted(await job.commits()) == [2, 5, 6]
            backend.value_state("n", int)["other"] = 1
            await backend.checkpoint(backend.next_checkpoint_id)
    assert await job.read() == 2
    await job.sweep()
    assert await job.read() == 2


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(("operation", "key"), [("delete", "*/commits/*"), ("delete", "*/segments/*")])
async def test_opening_a_checkpoint_while_a_sweep_deletes_it_is_refused(operation: Any, key: str, moment: Any) -> None:
    """The sweep has raised the floor and looked for claims: too late. Local copies must not make it seem whole."""
    job = await worked()
    hold = Hold(operation=operation, key=key, moment=moment, nth=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(job.sweep, hold)
        await hold.reached.wait()
        with pytest.raises(CheckpointNotFoundError):
            async with job.backend(checkpoint_id=4):
                raise AssertionError("opened")
        hold.release()
    await assert_swept(job)
    assert await job.read() == 6


async def test_a_claim_on_a_checkpoint_that_was_found_before_a_sweep_is_refused_after_it() -> None:
    """The whole sweep came between the two."""
    job = await worked()
    hold = Hold(operation="put_if_absent")

    async def open_old() -> None:
        with pytest.raises(CheckpointNotFoundError):
            async with job.backend(hold, checkpoint_id=2):
                raise AssertionError("opened")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(open_old)
        await hold.reached.wait()
        await job.sweep()
        hold.release()
    assert await job.read() == 6


async def test_opening_a_savepoint_that_is_dropped_and_swept_meanwhile_is_refused() -> None:
    """As with any other checkpoint."""
    job = Job()
    async with job.backend() as backend:
        for value in range(4):
            forget(backend)
            await put(backend, value, **({"savepoint": "s"} if value == 0 else {}))
    job.pass_time(3700.0)
    await job.commit(4, 5)
    hold = Hold(operation="put_if_absent")

    async def open_savepoint() -> None:
        with pytest.raises(SavepointNotFoundError):
            async with job.backend(hold, savepoint="s"):
                raise AssertionError("opened")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(open_savepoint)
        await hold.reached.wait()
        await sb.drop_savepoint(job.settings, "s", store=job.store)
        await job.sweep()
        hold.release()
    assert await job.read() == 5


async def test_the_base_of_a_writer_that_has_not_committed_stays() -> None:
    """It may take days to its first commit."""
    job = await worked()
    async with job.backend(checkpoint_id=2) as backend:
        job.pass_time(3700.0)
        report = await job.sweep()
        assert 2 in await job.commits()
        assert 1 not in await job.commits()
        assert report.stopped is None
        await put(backend, 7)
    await assert_whole(job)


@pytest.mark.parametrize("sequence", [7, 8])
async def test_a_damaged_entry_that_is_retained_stops_the_sweep(sequence: int) -> None:
    """It cannot be known what it needs: nothing goes."""
    job = await worked()
    before = await job.keys()
    key = f"{JOB}/{entry_key(sequence)}"
    body = bytearray(await job.store.get(key))
    body[-1] ^= 1
    await job.store.put(key, [bytes(body)])
    with pytest.raises(CorruptCommitError) as caught:
        await job.sweep()
    assert caught.value.facts["object"] == entry_key(sequence)
    assert await job.keys() == before


async def test_a_damaged_entry_that_is_not_retained_goes() -> None:
    """What only it pointed into is found by the epoch it was made in."""
    job = await worked()
    await job.store.put(f"{JOB}/{entry_key(3)}", [b"nonsense"])
    job.clock.now_s += 3700.0
    await job.commit(7)
    job.pass_time(3700.0)
    await job.commit(8, 9)
    await job.sweep()
    await assert_whole(job)
    assert entry_key(3) not in await job.keys()


async def test_an_entry_of_a_newer_release_stops_the_sweep() -> None:
    """It may point into more than we know of."""
    job = await worked()
    key = f"{JOB}/{entry_key(2)}"
    await job.store.put(key, [_of_version(await job.store.get(key), VERSION + 1)])
    before = await job.keys()
    with pytest.raises(UnsupportedVersionError):
        await job.sweep()
    assert await job.keys() == before


def _of_version(body: bytes, version: int) -> bytes:
    """The same entry with another version and the right checksum."""
    head = body[:7] + bytes([version])
    return head + zlib.crc32(head + body[12:]).to_bytes(4, "little") + body[12:]


async def test_another_jobs_entry_stops_the_sweep() -> None:
    """Somebody copied it there."""
    job, other = await worked(), Job(job="other")
    await other.commit(1)
    await job.store.put(f"{JOB}/{entry_key(8)}", [await other.store.get(f"other/{entry_key(1)}")])
    with pytest.raises(WrongJobError):
        await job.sweep()


class Blind(MemoryStore):
    """Cannot list."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        return super().capabilities - {Capability.LIST}


async def test_a_store_that_cannot_list_is_refused() -> None:
    """With the reason."""
    job = Job()
    job.store = Blind()
    await job.commit(1)
    with pytest.raises(InputError, match="list"):
        await job.sweep()


async def test_a_job_that_is_not_there_is_refused() -> None:
    """A wrong name must not look like a clean job."""
    with pytest.raises(InputError):
        await Job().sweep()


# ------------------------------------------------------------------------------------------------- by the backend


@run_virtual
async def test_a_backend_sweeps_behind_its_checkpoints() -> None:
    """As often as the setting says, and it goes on where one sweep fails; what bases replace goes with its commits."""
    job = Job(sweep_interval_s=600.0, materialize_interval_s=600.0)
    job.clock = VirtualClock()  # type: ignore[assignment]
    job.store = MemoryStore(clock=job.clock)
    async with job.backend(Fail(operation="list", nth=2)) as backend:
        for value in range(14):
            await put(backend, value)
            await anyio.sleep(600.0)
        commits = await job.commits()
        assert sorted(commits) == [value for value in range(14) if (13 - value) * 600.0 < 3600.0]
        report = await job.sweep(dry_run=True)
        needed = {key for commit in commits.values() for key in commit.segments()}
        live = {each.key for each in report.objects if each.verdict is sb.reports.SweepReason.LIVE}
        assert set(await job.keys("segments/")) == needed | live
        assert len(live) <= 1  # the base that the next commit takes
        assert any(part.bases for part in commits[13].ranges)
        await put(backend, 14)
    assert await job.read() == 14


@run_virtual
async def test_an_observer_is_told_of_each_sweep() -> None:
    """What it has deleted, or that it has failed."""
    job = Job(sweep_interval_s=3600.0)
    job.clock = VirtualClock()  # type: ignore[assignment]
    job.store = MemoryStore(clock=job.clock)
    metrics = Metrics()
    store = FaultyStore(job.store)
    async with sb.open_backend(job.settings, store=store, clock=job.clock, observer=metrics) as backend:
        for value in range(4):
            await put(backend, value)
            await anyio.sleep(3600.0)
        swept = (metrics.sweeps, metrics.failed_sweeps, metrics.unswept_objects)
        assert swept == (4, 0, 0)
        assert metrics.swept_objects > 0
        store.plan.append(Fail(operation="list"))
        await anyio.sleep(3600.0)
        assert (metrics.sweeps, metrics.failed_sweeps) == (4, 1)


@run_virtual
async def test_a_backend_that_was_told_not_to_does_not_sweep() -> None:
    """Each sweep is requests that cost."""
    job = Job(sweep_interval_s=0.0)
    store = FaultyStore(job.store)
    async with sb.open_backend(job.settings, store=store, clock=VirtualClock()) as backend:
        await put(backend, 1)
        await anyio.sleep(80_000.0)
    assert "delete" not in {operation for operation, _ in store.calls}


@run_virtual
async def test_by_default_a_backend_sweeps_every_hour() -> None:
    """After a minute, and then each hour: what nobody needs is gone when it is two hours old."""
    job = Job()
    job.clock = VirtualClock()  # type: ignore[assignment]
    job.store = MemoryStore(clock=job.clock)
    async with job.backend() as backend:
        for value in range(30):
            forget(backend)
            await put(backend, value)
            await anyio.sleep(600.0)
    assert min(await job.commits()) >= 30 - 2 * 6 - 1
    await assert_whole(job)


async def test_runs_of_one_batch_are_swept() -> None:
    """They end within the first minute: every sixteenth begins with a sweep, and leaving waits for it."""
    job, most = Job(), 0
    for value in range(34):
        job.pass_time(600.0)
        await job.commit(value)
        most = max(most, len(await job.keys(COMMITS)))
    assert most <= 2 * 6 + 2 * AT_ONCE_EVERY  # a claim and a commit each ten minutes


async def test_a_store_that_cannot_list_is_not_swept_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """The job works as ever. Who has said that it is not to be swept is not told."""
    job, store = Job(), Blind()
    for _ in range(2):
        async with sb.open_backend(job.settings, store=store, clock=job.clock) as backend:
            await put(backend, backend.next_checkpoint_id)
        (told,) = [message for message in caplog.messages if "cannot be swept" in message]
        assert JOB in told
        caplog.clear()
    settings = msgspec.structs.replace(job.settings, sweep_interval_s=0.0)
    async with sb.open_backend(settings, store=store, clock=job.clock) as backend:
        await put(backend, 2)
    assert not caplog.messages


@run_virtual
async def test_each_opening_each_base_and_each_sweep_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """At the level of information: what was read from where, what was written, what was deleted."""
    caplog.set_level("INFO", logger="statebackend")
    job = Job(materialize_handles_max=1)
    job.clock = VirtualClock()  # type: ignore[assignment]
    job.store = MemoryStore(clock=job.clock)
    for seconds in (1.0, 61.0):
        async with job.backend() as backend:
            await put(backend, 0)
            await anyio.sleep(seconds)
    told = [record.message for record in caplog.records if record.levelname == "INFO"]
    assert [line.partition(":")[0] for line in told] == [
        "opened",
        "bases written",
        "opened",
        *["bases written"] * 2,
        "swept",
    ]
    assert told[0].startswith(f"opened: job={JOB} checkpoint=None epoch=1 ")
    assert told[2].startswith(f"opened: job={JOB} checkpoint=0 epoch=2 ")
    assert "primary=1 files" in told[2]
    assert told[3].startswith("bases written: key_groups=1 segments=1 ")


# ------------------------------------------------------------------------------------------------- a long log


async def long_log(commits: int = 18, **changes: Any) -> Job:
    """A log of old entries in one epoch, each of which points into an object of its own, and into that of the last."""
    job = Job(**changes)
    async with job.backend() as backend:
        for value in range(commits):
            stand_on(backend, *committed_handles(backend)[-1:])
            await put(backend, value)
    job.pass_time(3700.0)
    await job.commit(commits, commits + 1)
    return job


async def clear(job: Job, *faults: Fault, part_entries: int = 4) -> sb.reports.SweepReport:
    store = ScopedStore(FaultyStore(job.store, faults), f"{JOB}/")
    log = LogReader(store, JOB, threads_of(job.settings))
    sweep = Sweep(store, log, checkpoints_retained=2, clock=job.clock, min_age_s=0.0, part_entries=part_entries)
    return await sweep.run(dry_run=False)


async def test_a_long_log_goes_in_parts_and_leaves_what_a_sweep_of_the_whole_leaves() -> None:
    """Whatever the size of a part. What was deleted before the last part is counted, not named."""
    left = {}
    for part_entries in (1, 4, 1000):
        job = await long_log()
        before = await job.keys()
        report = await clear(job, part_entries=part_entries)
        left[part_entries] = [key.partition("-")[0] for key in await job.keys()]
        assert len(report.deleted) + report.cleared + len(await job.keys()) == len(before) + 1  # the floor
        assert bool(report.cleared) == (part_entries < 1000)
        assert len([key for key in report.deleted if key.startswith(COMMITS)]) <= part_entries or not report.cleared
        await assert_whole(job)
        assert (await job.sweep()).garbage == ()
    assert len(set(map(tuple, left.values()))) == 1


async def test_a_savepoint_in_a_long_log_stays_whole() -> None:
    """With all that it points into, in whichever part it lies."""
    job = Job()
    async with job.backend() as backend:
        for value in range(20):
            stand_on(backend, *committed_handles(backend)[-1:])
            await put(backend, value, savepoint="kept" if value == 7 else None)
    job.pass_time(3700.0)
    await job.commit(20, 21)
    await clear(job, part_entries=3)
    assert sorted(await job.commits()) == [7, 20, 21]
    assert await job.read(savepoint="kept") == 7
    await assert_whole(job)


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_sweep_that_is_killed_in_a_long_log_leaves_a_job_that_is_whole(moment: Any) -> None:
    """Before its first deletion, at its last, and in between; what it has deleted need not be deleted again."""
    part_entries = 3
    for nth in (27, 33, 39, 49):
        job = await long_log(12)
        with contextlib.suppress(KilledError):
            await clear(job, Kill(nth=nth, moment=moment), part_entries=part_entries)
        await assert_whole(job)
        await job.commit(50)
        await clear(job, part_entries=part_entries)
        job.pass_time(3700.0)
        await job.commit(51, 52)
        await clear(job, part_entries=part_entries)
        commits = await job.commits()
        assert len(commits) == 2
        assert await job.read() == 52
        assert set(await job.keys("segments/")) == {key for commit in commits.values() for key in commit.segments()}


async def test_a_claim_on_an_old_checkpoint_stops_the_clearing_of_a_long_log() -> None:
    """It was made after the look, and before the floor was raised."""
    job = await long_log(12)
    hold = Hold(operation="put", key="*/swept/*")
    reports: list[sb.reports.SweepReport] = []

    async def sweep() -> None:
        reports.append(await clear(job, hold))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sweep)
        await hold.reached.wait()
        async with job.backend(checkpoint_id=5) as backend:
            hold.release()
            while not reports:
                await anyio.lowlevel.checkpoint()
            await put(backend, 14)  # as its id
    await assert_whole(job)


# ------------------------------------------------------------------------------------------------- local copies


def copies(root: Path) -> Sequence[str]:
    """Names of the local copies of the job in `root`."""
    return sorted(path.name for path in (root / f"job_{JOB}" / "taskowned" / "segments").iterdir())


def made_in(root: Path) -> Sequence[Path]:
    """What lies in a directory."""
    return list(root.iterdir())


@pytest.fixture
async def with_local(tmp_path: Path) -> Job:
    """A job whose local copies are all needed, and a copy and a temporary file that nobody needs."""
    job = Job(local=(f"{tmp_path}/local",))
    await job.commit(1, 2)
    directory = tmp_path / "local" / f"job_{JOB}" / "taskowned" / "segments"
    (directory / f"00000001-00000099-{HEX}").write_bytes(b"left")
    (directory / ".7-x-0.tmp").write_bytes(b"le")
    return job


async def test_local_copies_of_nothing_that_is_kept_go(with_local: Job, tmp_path: Path) -> None:
    """Of processes that are gone; a dry run says so and leaves them."""
    before = copies(tmp_path / "local")
    dry = await with_local.sweep(dry_run=True)
    assert [Path(each.key).name for each in dry.garbage] == [f"00000001-00000099-{HEX}"]
    assert copies(tmp_path / "local") == before
    report = await with_local.sweep()
    assert report.garbage == dry.garbage
    assert [Path(key).name for key in report.deleted] == [f"00000001-00000099-{HEX}"]
    assert [name for name in before if not name.endswith((HEX, ".tmp"))] == copies(tmp_path / "local")


async def test_a_root_that_cannot_be_read_is_an_error_of_the_store(with_local: Job, tmp_path: Path) -> None:
    """Whatever the disk says: here there is a file where a RocksDB base would be."""
    directory = tmp_path / "local" / f"job_{JOB}" / "op_state_kg_0_3"
    directory.mkdir()
    (directory / "chk_1").write_bytes(b"")
    with pytest.raises(StoreUnavailableError):
        await with_local.sweep(dry_run=True)


async def test_a_root_that_a_living_process_owns_is_left_alone(with_local: Job, tmp_path: Path) -> None:
    """Only it knows what it needs there."""
    before = copies(tmp_path / "local")
    with contextlib.closing(lock_root(tmp_path / "local", JOB)) as owner:
        assert owner.owned
        report = await with_local.sweep()
    assert copies(tmp_path / "local") == before
    assert {each.verdict for each in report.local} == {sb.reports.SweepReason.NEEDED, sb.reports.SweepReason.LIVE}


async def test_a_sweep_makes_no_directories(tmp_path: Path) -> None:
    """Of a root that this host does not have, or where the job never was."""
    job = await worked()
    job.settings = sb.Settings.from_mapping(
        {"job": JOB, "primary": "memory://unused", "local": (f"{tmp_path}/a", str(tmp_path))}
    )
    await job.sweep()
    assert made_in(tmp_path) == []


async def test_the_next_backend_owns_its_root_again(with_local: Job) -> None:
    """The sweep lets go of the lock."""
    await with_local.sweep()
    async with with_local.backend() as backend:
        backend.value_state("n", int)["k"] = 3
        assert (await backend.checkpoint(backend.next_checkpoint_id)).local


@pytest.mark.parametrize("age_min_s", [3600.0, 7200.0])
async def test_half_a_file_in_the_primary_goes_when_no_clock_can_be_so_wrong(age_min_s: float, tmp_path: Path) -> None:
    """A file server's clock may be a day off: a younger file may be one that its writer is still at."""
    job, store = Job(), LocalStore(tmp_path)
    async with sb.open_backend(job.settings, store=store, clock=job.clock) as backend:
        await put(backend, 0)
    oldest_s = job.clock.time() - 86_400.0 - age_min_s
    kept, gone, others = (tmp_path / where / ".7-dead-0.tmp" for where in (JOB, f"{JOB}/segments", "other"))
    for path, modified_s in ((kept, oldest_s), (gone, oldest_s - 1.0), (others, oldest_s - 1.0)):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
        os.utime(path, (modified_s, modified_s))
    for dry_run in (True, False):
        min_age_s = age_min_s if age_min_s > 3600.0 else 0.0
        await sb.sweep(job.settings, dry_run=dry_run, min_age_s=min_age_s, store=store, clock=job.clock)
        assert (kept.exists(), gone.exists(), others.exists()) == (True, dry_run, True)


async def test_a_store_that_does_not_answer_ends_the_sweep() -> None:
    """While it looks: nothing was deleted."""
    job = await worked()
    before = await job.keys()
    with pytest.raises(StoreUnavailableError):
        await job.sweep(Fail(operation="get", key="*/commits/*"))
    assert await job.keys() == before


# ------------------------------------------------------------------------------------------------- in batches


class Batching(MemoryStore):
    """Deletes many objects at once, those that are stuck excepted."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.batches: list[Sequence[str]] = []
        self.stuck = ""

    async def delete(self, key: str) -> None:
        if key == self.stuck:
            raise StoreUnavailableError("stuck", key=key)
        await super().delete(key)

    async def delete_many(self, keys: Sequence[str]) -> None:
        self.batches.append(keys)
        for key in keys:
            if key != self.stuck:
                await self.delete(key)
        if self.stuck in keys:
            raise StoreUnavailableError("one of them is stuck")


async def worked_in_batches() -> tuple[Job, Batching]:
    job, before = Job(), await worked()
    job.clock = before.clock
    job.store = store = Batching(clock=job.clock)
    async for info in before.store.list(""):
        job.clock.now_s = info.modified_s
        await store.put(info.key, [await before.store.get(info.key)])
    return job, store


async def test_a_store_that_can_deletes_many_at_once() -> None:
    """Entries of the log in one call, what only they needed in the next."""
    job, store = await worked_in_batches()
    report = await sb.sweep(job.settings, dry_run=False, min_age_s=0.0, store=store, clock=job.clock)
    assert [len(batch) for batch in store.batches] == [6, 5]
    assert len(report.deleted) == 11
    await assert_swept(job)


async def test_what_stays_of_a_batch_is_named() -> None:
    """The call says only that something stayed: each is tried again."""
    job, store = await worked_in_batches()
    (stuck, *_) = await job.keys("segments/")
    store.stuck = f"{JOB}/{stuck}"
    report = await sb.sweep(job.settings, dry_run=False, min_age_s=0.0, store=store, clock=job.clock)
    assert [failure.key for failure in report.failures] == [stuck]
    assert len(report.deleted) == 10
    await assert_whole(job)


@pytest.mark.parametrize("failure", [None, "it is busy"])
@pytest.mark.parametrize("deleting", [False, True])
@pytest.mark.parametrize(
    ("owned", "needed", "foreign", "verdict"),
    [
        (True, False, False, SweepReason.ORPHAN),
        (False, False, False, SweepReason.LIVE),
        (True, True, False, SweepReason.NEEDED),
        (False, True, False, SweepReason.NEEDED),
        (True, False, True, SweepReason.FOREIGN),
        (False, False, True, SweepReason.FOREIGN),
    ],
)
def test_a_sweep_tells_of_local_copies_as_it_has_dealt_with_them(
    verdict: SweepReason, failure: str | None, *, owned: bool, needed: bool, foreign: bool, deleting: bool
) -> None:
    """Only a copy of nothing, in a root that nobody works in, is deleted, or is told as what could not be."""
    file = LocalFile(ObjectInfo("segments/a", 7, 5.0), "/local/a", owned, needed, failure, foreign)
    found = _with_local(SweepReport(not deleting, ()), [file], deleting=deleting)
    assert [(each.key, each.size_bytes, each.verdict) for each in found.local] == [("/local/a", 7, verdict)]
    is_removed = deleting and verdict is SweepReason.ORPHAN
    assert found.deleted == (("/local/a",) if is_removed and failure is None else ())
    assert [(each.key, each.reason) for each in found.failures] == (
        [("/local/a", failure)] if is_removed and failure is not None else []
    )
