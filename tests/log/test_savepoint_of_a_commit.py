"""A commit that exists is given a name: beside whoever is at work, and never one that a sweep has begun to take."""

import contextlib
from typing import Any

import anyio
import pytest

import statebackend as sb
from statebackend._log.names import SavepointMarker, SavepointPin, SavepointStart, beside_marker
from statebackend._upkeep.savepoints import find_start, record_start
from statebackend.errors import (
    CheckpointNotFoundError,
    InputError,
    SavepointExistsError,
    SavepointNotFoundError,
    StateBackendError,
    StoreUnavailableError,
)
from statebackend.ids import CommitSequence, Epoch
from statebackend.testing import Fail, Fault, FaultyStore, Hold
from statebackend.testing.virtual_time import run_virtual
from tests.log.swept import Job, forget, put
from tests.log.test_savepoints import names
from tests.log.test_sweep import Blind


async def keep(job: Job, name: str, *faults: Any, **options: Any) -> sb.reports.SavepointInfo:
    return await sb.savepoint(job.settings, name, store=FaultyStore(job.store, faults), **options)


async def aged() -> Job:
    """A job of six checkpoints, 0 to 5, none of which points into what another does; all but the newest two can go."""
    job = Job()
    async with job.backend() as backend:
        for value in range(4):
            forget(backend)
            await put(backend, value)
    job.pass_time(3700.0)
    await job.commit(4, 5)
    return job


async def test_a_checkpoint_is_kept_by_a_name_beside_its_writer() -> None:
    """The newest by default. Nobody is fenced, and no sweep takes it until the name is dropped."""
    job = await aged()
    async with job.backend() as backend:
        assert (await keep(job, "old", checkpoint_id=1)).checkpoint_id == 1
        assert (await keep(job, "new")).checkpoint_id == 5
        await put(backend, 6)
        await put(backend, 7)
    job.pass_time(3700.0)
    await job.commit(8, 9)
    await job.sweep()
    assert sorted(await job.commits()) == [1, 5, 8, 9]
    assert (await job.read(savepoint="old"), await job.read(savepoint="new")) == (1, 5)
    await sb.drop_savepoint(job.settings, "old", store=job.store)
    await job.sweep()
    assert sorted(await job.commits()) == [5, 8, 9]
    assert len(await job.keys("savepoints/")) == 1


async def test_the_state_that_a_backend_stands_on_is_kept_by_a_name() -> None:
    """Of a whole job, and of a coordinator. One that only reads writes nothing."""
    job = await aged()
    async with job.backend(checkpoint_id=2) as backend:
        assert (await backend.savepoint("two")).checkpoint_id == 2
        await put(backend, 6)
        assert (await backend.savepoint("six")).checkpoint_id == 6
    async with sb.owners.open_coordinator(job.settings, store=job.store, savepoint="two") as coordinator:
        assert (await coordinator.savepoint("again")).checkpoint_id == 2
    assert await names(job) == ["again", "two", "six"]
    async with job.backend(read_only=True) as backend:
        with pytest.raises(InputError, match="opened for reading"):
            await backend.savepoint("read")
    async with Job().backend() as backend:
        with pytest.raises(InputError, match="nothing is committed"):
            await backend.savepoint("empty")


async def test_a_savepoint_of_a_savepoint_outlives_it() -> None:
    """Also where only the other name still keeps that checkpoint."""
    job = await aged()
    await keep(job, "one", checkpoint_id=1)
    await job.sweep()
    await keep(job, "two", checkpoint_id=1)
    await sb.drop_savepoint(job.settings, "one", store=job.store)
    await job.sweep()
    assert await job.read(savepoint="two") == 1


async def test_bad_calls_are_refused_and_leave_nothing() -> None:
    """A name that is taken or impossible, a checkpoint that is not there or swept, no job, a store that cannot list."""
    job = await aged()
    await keep(job, "s", checkpoint_id=3)
    await job.sweep()
    before = await job.keys()
    with pytest.raises(SavepointExistsError) as taken:
        await keep(job, "s")
    assert taken.value.facts == {"name": "s", "checkpoint_id": 3}
    for wrong, options in ((CheckpointNotFoundError, {"checkpoint_id": 1}), (InputError, {"checkpoint_id": -1})):
        with pytest.raises(wrong):
            await keep(job, "t", **options)
    with pytest.raises(InputError, match="a savepoint's name"):
        await keep(job, "a/b")
    assert await job.keys() == before
    with pytest.raises(InputError, match="the job has no checkpoint"):
        await keep(Job(), "s")
    blind = Job()
    blind.store = Blind(clock=blind.clock)
    await blind.commit(1)
    with pytest.raises(InputError, match="can list"):
        await keep(blind, "s")
    assert await blind.commits() != {}


class KilledError(StateBackendError):
    """The process has ended."""


@pytest.mark.parametrize("after", [False, True])
async def test_killed_at_any_request_a_name_is_whole_or_not_there(after: bool) -> None:
    """Before it, or after it. What was left behind is swept, and a name that was not made keeps nothing."""
    nth, made, seen = 0, None, set[bool]()
    while made is None:
        nth, job = nth + 1, await aged()
        last = Fail(nth=nth, moment="after", error=KilledError("killed")) if after else Fault(nth=0)
        dead = Fail(nth=nth + after, onwards=True, error=KilledError("killed"))
        with contextlib.suppress(KilledError):
            made = await keep(job, "s", last, dead, checkpoint_id=1)
        found = await names(job)
        seen.add(bool(found))
        for _ in range(2):
            await job.sweep()
        assert (1 in await job.commits()) == bool(found)
        assert len(await job.keys("savepoints/")) == len(found)
        if found:
            assert await job.read(savepoint="s") == 1
    assert seen == {False, True}
    assert nth > 5


async def test_a_pin_that_is_left_refuses_its_name_until_it_is_dropped_or_swept() -> None:
    """Its process may live, and a name is given once."""
    job = await aged()
    pin = SavepointPin(SavepointMarker("s", CommitSequence(1), "a" * 32), "b" * 32)
    for free in (lambda: sb.drop_savepoint(job.settings, "s", store=job.store), job.sweep):
        await job.store.put(f"swept/{pin.key}", ())
        with pytest.raises(SavepointExistsError, match="a process died"):
            await keep(job, "s")
        async with job.backend() as backend:
            with pytest.raises(SavepointExistsError):
                await put(backend, 6, savepoint="s")
        await free()
        await keep(job, "s")
        await sb.drop_savepoint(job.settings, "s", store=job.store)


@pytest.mark.parametrize("request_", [("put", 1), ("list", 2), ("put", 2), ("head", 1), ("delete", 1)])
async def test_a_name_is_given_once_though_two_ask_at_once(request_: tuple[Any, int]) -> None:
    """The other comes while one waits with its pin, its look for others, its marker or its look for the pin."""
    job = await aged()
    operation, nth = request_
    hold = Hold(operation=operation, key="*/savepoints/*", nth=nth)
    made: list[int] = []

    async def ask(checkpoint_id: int, *faults: Any) -> None:
        with contextlib.suppress(SavepointExistsError):
            made.append((await keep(job, "s", *faults, checkpoint_id=checkpoint_id)).checkpoint_id)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, 1, hold)
        await hold.reached.wait()
        await ask(4)
        hold.release()
    (only,) = made
    assert await job.read(savepoint="s") == only
    assert await names(job) == ["s"]


async def test_a_commit_that_takes_a_name_and_a_call_that_does_are_not_both_told_so() -> None:
    """The call comes between the look of the commit for the name and its marker, or between that and the commit."""
    for operation, key in (("put", "*/savepoints/*"), ("put_if_absent", "*/commits/*9")):
        job = await aged()
        hold = Hold(operation=operation, key=key)
        outcomes: list[bool] = []

        async def commit(job: Job = job, hold: Hold = hold, outcomes: list[bool] = outcomes) -> None:
            async with job.backend(hold) as backend:
                try:
                    await put(backend, 6, savepoint="s")
                except SavepointExistsError:
                    outcomes.append(False)
                else:
                    outcomes.append(True)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit)
            await hold.reached.wait()
            try:
                await keep(job, "s", checkpoint_id=4)
            except SavepointExistsError:
                outcomes.append(False)
            else:
                outcomes.append(True)
            hold.release()
        assert sum(outcomes) == 1
        assert await names(job) == ["s"]


async def test_a_pin_that_was_swept_meanwhile_ends_the_call() -> None:
    """It was held up for as long as pins are kept: its marker would keep what is no longer there."""
    job = await aged()
    hold = Hold(operation="put", key="*/savepoints/*", nth=2)

    async def ask() -> None:
        with pytest.raises(StoreUnavailableError, match="took too long"):
            await keep(job, "s", hold, checkpoint_id=1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await hold.reached.wait()
        await job.sweep()  # of pins of any age
        await job.sweep()
        assert 1 not in await job.commits()
        hold.release()
    assert await job.keys("savepoints/") == []


@pytest.mark.parametrize("operation", ["list", "put"])
@run_virtual
async def test_a_store_that_does_not_answer_ends_the_call_in_time(operation: Any) -> None:
    """Asked if the name is free, or to make the pin: the commit stands, and the next batch is not held up."""
    job = Job()
    async with job.backend(Hold(operation=operation, key="*/savepoints/*")) as backend:
        await put(backend, 1)
        with pytest.raises(StoreUnavailableError, match="in time"), anyio.fail_after(job.settings.commit_timeout_s + 1):
            await backend.savepoint("s")
        await put(backend, 2)
    assert await names(job) == []
    assert await job.read() == 2


async def test_a_start_is_known_while_its_savepoint_is() -> None:
    """From the first commit of its epoch on; another savepoint of that name has not been started from."""
    job = await aged()
    await keep(job, "s", checkpoint_id=1)
    assert not (await find_start(job.settings, "s", store=job.store)).is_begun
    async with job.backend(savepoint="s") as backend:
        await record_start(job.settings, "s", backend.epoch, store=job.store)
        assert not (await find_start(job.settings, "s", store=job.store)).is_begun
        await put(backend, 6)
        await job.sweep()
        start = await find_start(job.settings, "s", store=job.store)
        assert (start.is_begun, start.newest.checkpoint_id, start.kept.checkpoint_id) == (True, 6, 1)
    await sb.drop_savepoint(job.settings, "s", store=job.store)
    assert await job.keys("savepoints/") == []
    await keep(job, "s")
    assert not (await find_start(job.settings, "s", store=job.store)).is_begun
    with pytest.raises(SavepointNotFoundError):
        await find_start(job.settings, "t", store=job.store)


def test_what_lies_beside_a_marker_is_told_apart_by_its_name() -> None:
    """A release that knows neither takes it for no marker."""
    marker = SavepointMarker("a-1.b_c", CommitSequence(7), "c" * 32)
    pin, start = SavepointPin(marker, "0" * 32), SavepointStart(marker, Epoch(3))
    assert (beside_marker(pin.key), beside_marker(start.key), beside_marker(marker.key)) == (pin, start, None)
    for key in (pin.key + "0", start.key[:-1], "savepoints/x/1-a-00000001", f"{start.key}-00000003", f"x{pin.key}"):
        assert beside_marker(key) is None
