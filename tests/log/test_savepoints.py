"""Savepoints: a name and its checkpoint come to exist in one moment, and stay until the name is dropped."""

from typing import Any

import anyio
import pytest

import statebackend as sb
from statebackend._log.names import entry_key, marker_of
from statebackend.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    CorruptCommitError,
    FencedError,
    InputError,
    SavepointExistsError,
    SavepointNotFoundError,
    StateBackendError,
    StoreUnavailableError,
)
from statebackend.testing import Fail, Hold
from statebackend.testing.virtual_time import run_virtual
from tests.log.swept import JOB, Job, forget, put
from tests.log.test_sweep import Blind


async def names(job: Job) -> list[str]:
    return [info.name for info in await sb.savepoints(job.settings, store=job.store)]


async def worked() -> Job:
    """A job with a savepoint at its second checkpoint, and enough after it that nothing else keeps that."""
    job = Job()
    async with job.backend() as backend:
        for value in range(6):
            forget(backend)
            await put(backend, value, **({"savepoint": "before-migration"} if value == 1 else {}))
    job.pass_time(3700.0)
    await job.commit(6, 7)
    return job


async def test_a_savepoint_outlives_every_sweep_until_it_is_dropped() -> None:
    """By its name and by its checkpoint's id; then both are gone."""
    job = await worked()
    await job.sweep()
    assert sorted(await job.commits()) == [1, 6, 7]
    assert await job.read(savepoint="before-migration") == 1
    assert await job.read(checkpoint_id=1) == 1
    await sb.drop_savepoint(job.settings, "before-migration", store=job.store)
    assert await names(job) == []
    report = await job.sweep()
    assert sorted(await job.commits()) == [6, 7]
    assert len(report.deleted) == 2
    with pytest.raises(SavepointNotFoundError):
        await job.read(savepoint="before-migration")


async def test_a_savepoint_is_listed_with_what_it_keeps() -> None:
    """In the order of their commits."""
    job = Job()
    async with job.backend() as backend:
        await put(backend, 1, savepoint="z")
        job.pass_time(60.0)
        await put(backend, 2, savepoint="a.b-C_9")
    commits = await job.commits()
    assert list(await sb.savepoints(job.settings, store=job.store)) == [
        sb.reports.SavepointInfo(
            name, checkpoint_id, commits[checkpoint_id].sequence, commits[checkpoint_id].committed_at_s
        )
        for name, checkpoint_id in (("z", sb.ids.CheckpointId(0)), ("a.b-C_9", sb.ids.CheckpointId(1)))
    ]


async def test_work_goes_on_from_a_savepoint() -> None:
    """It begins a branch, as any older checkpoint does, also where the log between them was swept."""
    job = await worked()
    await job.sweep()
    async with job.backend(savepoint="before-migration") as backend:
        assert backend.newest is not None
        assert backend.newest.checkpoint_id == 1
        assert backend.value_state("n", int)["k"] == 1
        await put(backend, 8)
        assert [each.checkpoint_id async for each in backend.history()] == [8, 1]
    assert await job.read() == 8
    await sb.drop_savepoint(job.settings, "before-migration", store=job.store)
    await job.sweep()
    assert await job.read() == 8
    assert 1 in await job.commits()  # one of the newest two of its branch


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a b", "ä", "a" * 101, "..", "-x", None, 7])
async def test_a_name_that_none_can_have_is_refused(name: Any) -> None:
    """Before anything is written, and the next checkpoint is none the worse."""
    job = Job()
    async with job.backend() as backend:
        before = await job.keys()
        if name is not None:
            with pytest.raises(InputError):
                await put(backend, 1, savepoint=name)
        with pytest.raises(InputError):
            await sb.drop_savepoint(job.settings, name, store=job.store)
        assert await job.keys() == before
        await put(backend, 2, savepoint="a" * 100)
    assert await job.read(savepoint="a" * 100) == 2


async def test_a_name_that_is_taken_is_refused_and_nothing_is_lost() -> None:
    """The next checkpoint has the changes."""
    job = Job()
    async with job.backend() as backend:
        await put(backend, 1, savepoint="s")
        with pytest.raises(SavepointExistsError):
            await put(backend, 2, savepoint="s")
        assert sorted(await job.commits()) == [0]
        await backend.checkpoint(1, savepoint="t")
    assert await job.read(savepoint="s") == 1
    assert await job.read(savepoint="t") == 2
    await sb.drop_savepoint(job.settings, "s", store=job.store)
    async with job.backend() as backend:
        await put(backend, 3, savepoint="s")
    assert await job.read(savepoint="s") == 3


async def test_a_checkpoint_id_that_exists_is_refused_first() -> None:
    """No mark is left for it."""
    job = Job()
    async with job.backend() as backend:
        await put(backend, 1)
        with pytest.raises(CheckpointExistsError):
            await backend.checkpoint(0, savepoint="s")
    assert await job.keys("savepoints/") == []


class KilledError(StateBackendError):
    """The process has ended."""


@pytest.mark.parametrize(
    ("operation", "key", "moment", "exists"),
    [
        ("put", "*/savepoints/*", "before", False),
        ("put", "*/savepoints/*", "after", False),
        ("put_if_absent", "*/commits/*2", "before", False),
        ("put_if_absent", "*/commits/*2", "after", True),
    ],
)
async def test_killed_at_any_request_a_savepoint_exists_if_its_checkpoint_does(
    operation: Any, key: str, moment: Any, exists: bool
) -> None:
    """Never one without the other; and the name can be used again where it does not."""
    job = Job()
    await _expect_end(job, Fail(operation=operation, key=key, moment=moment, error=KilledError("killed")))
    assert (await names(job) == ["s"]) == exists
    assert (1 in await job.commits()) == exists
    if exists:
        assert await job.read(savepoint="s") == 2
        return
    async with job.backend() as backend:
        await put(backend, 3, savepoint="s")
    assert await job.read(savepoint="s") == 3
    await job.sweep()
    assert len(await job.keys("savepoints/")) == 1
    assert await job.read(savepoint="s") == 3


async def _expect_end(job: Job, fault: Fail) -> None:
    async with job.backend(fault) as backend:
        await put(backend, 1)
        with pytest.raises(StateBackendError):
            await put(backend, 2, savepoint="s")


async def test_a_mark_whose_commit_is_being_made_is_left_alone() -> None:
    """A sweep comes between the two."""
    job = Job()
    hold = Hold(operation="put_if_absent", key="*/commits/*", nth=2)

    async def commit() -> None:
        async with job.backend(hold) as backend:
            await put(backend, 1, savepoint="s")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(commit)
        await hold.reached.wait()
        report = await job.sweep()
        assert report.total(sb.reports.SweepReason.LIVE)[0] == 2  # the mark and the segment
        hold.release()
    assert await job.read(savepoint="s") == 1


async def test_a_fenced_writers_mark_means_nothing() -> None:
    """Its savepoint does not exist, and the newer writer's of that name does."""
    job = Job()
    async with job.backend() as late:
        await job.commit(1, 2)
        async with job.backend() as newer:
            await put(newer, 3, savepoint="s")
        with pytest.raises(FencedError):
            await put(late, 9)
    async with job.backend() as late:
        await job.commit(4)
        with pytest.raises(FencedError):
            await put(late, 9, savepoint="t")
    assert await names(job) == ["s"]
    assert await job.read(savepoint="s") == 3
    await job.sweep()
    assert len(await job.keys("savepoints/")) == 1


@run_virtual
async def test_a_store_that_does_not_answer_a_mark_ends_the_checkpoint_in_time() -> None:
    """Nothing was committed."""
    job = Job()
    async with job.backend(Hold(operation="put", key="*/savepoints/*")) as backend:
        with pytest.raises(StoreUnavailableError):
            await put(backend, 1, savepoint="s")
    assert await job.commits() == {}


async def test_a_store_that_cannot_list_has_no_savepoints() -> None:
    """Told before the commit, and other checkpoints work."""
    job = Job()
    job.store = Blind(clock=job.clock)
    async with job.backend() as backend:
        with pytest.raises(InputError):
            await put(backend, 1, savepoint="s")
        await put(backend, 2)
        with pytest.raises(InputError):
            await names(job)
    assert await job.read(checkpoint_id=0) == 2


async def test_a_savepoint_and_a_checkpoint_id_exclude_each_other() -> None:
    """Also where they mean the same."""
    job = await worked()
    with pytest.raises(InputError):
        await job.read(savepoint="before-migration", checkpoint_id=1)


async def test_a_savepoint_that_is_not_there_is_named_in_the_error() -> None:
    """To open it, or to drop it."""
    job = await worked()
    for call in (job.read(savepoint="none"), sb.drop_savepoint(job.settings, "none", store=job.store)):
        with pytest.raises(SavepointNotFoundError) as caught:
            await call
        assert caught.value.facts["name"] == "none"


async def test_a_damaged_savepoint_can_be_dropped() -> None:
    """It stops the sweep until then: nobody knows what it needs."""
    job = await worked()
    (marker,) = [marker_of(key) for key in await job.keys("savepoints/")]
    assert marker is not None
    await job.store.put(f"{JOB}/commits/{marker.sequence:012d}", [b"nonsense"])
    with pytest.raises(sb.StateBackendError):
        await job.sweep()
    await sb.drop_savepoint(job.settings, "before-migration", store=job.store)
    job.pass_time(3700.0)
    await job.commit(8, 9)
    await job.sweep()
    assert sorted(await job.commits())[-2:] == [8, 9]


async def test_a_damaged_savepoint_hides_no_other_checkpoint() -> None:
    """Neither one that only a savepoint keeps, nor that one is gone; and the list says which to drop."""
    job = Job()
    async with job.backend() as backend:
        for value in range(6):
            forget(backend)
            await put(backend, value, **({"savepoint": f"of-{value}"} if value in (1, 2) else {}))
    job.pass_time(3700.0)
    await job.commit(6, 7)
    await job.sweep()
    (marker,) = [each for key in await job.keys("savepoints/of-1/") if (each := marker_of(key))]
    await job.store.put(f"{JOB}/{entry_key(marker.sequence)}", [b"nonsense"])
    assert await job.read(checkpoint_id=2) == 2
    with pytest.raises(CheckpointNotFoundError):
        await job.read(checkpoint_id=4)
    with pytest.raises(CorruptCommitError) as caught:
        await names(job)
    await sb.drop_savepoint(job.settings, caught.value.facts["savepoint"], store=job.store)
    assert await names(job) == ["of-2"]


async def test_those_of_a_series_are_dropped_when_they_are_old_enough() -> None:
    """And no others: neither one that was made by hand, nor one of another series, however its name begins."""
    job, day_s, old = await worked(), 86_400.0, "19000101T000000Z"
    for name in ("nightly-by-hand", f"nightly-{old[:-1]}", f"nightly-x-{old}", f"nightly-{old}"):
        await sb.savepoint(job.settings, name, store=job.store)
    others = {*await names(job)} - {f"nightly-{old}"}
    made = list[str]()
    for _ in range(4):
        kept = await sb.savepoint(job.settings, "nightly", keep_s=2 * day_s, store=job.store, clock=job.clock)
        made.append(kept.name)
        job.pass_time(day_s)
    assert {*await names(job)} == {*others, *made[1:]}  # exactly two days are not more than two days
    assert made == sorted({*made})


@pytest.mark.parametrize("keep_s", [0, -1.0, float("nan"), float("inf")])
async def test_a_series_that_keeps_nothing_or_all_is_refused(keep_s: float) -> None:
    """Before anything is made. To keep all, name them yourself."""
    job = await worked()
    with pytest.raises(InputError, match="keep_s"):
        await sb.savepoint(job.settings, "nightly", keep_s=keep_s, store=job.store)
    assert await names(job) == ["before-migration"]
