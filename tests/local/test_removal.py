"""Superseded local copies go, behind everybody's back: nobody waits for it, and nobody fails."""

import logging

import anyio
import anyio.lowlevel
import pytest

from statebackend._local.removal import LocalRetention
from statebackend._local.segments import LocalSegments
from statebackend.ids import CheckpointId
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fail, FaultyStore, Hold

COPIES = ["segments/a", "segments/b", "segments/c"]


class Bench:
    """Three copies on a store that fails on command, all of checkpoint 1; the third is of checkpoint 2 as well."""

    def __init__(self) -> None:
        self.store = FaultyStore(MemoryStore())
        self.segments = LocalSegments([self.store], bytes_max=100)

    async def open(self, tasks) -> LocalRetention:
        for key in COPIES:
            await self.store.put(key, [b"x"])
        await self.segments.take_stock()
        self.store.calls.clear()
        retention = LocalRetention(self.segments, tasks=tasks)
        retention.register(COPIES, CheckpointId(1))
        retention.register(COPIES[2:], CheckpointId(2))
        return retention

    async def keys(self) -> list[str]:
        self.store.plan.clear()
        return [info.key async for info in self.store.list("")]


async def test_what_only_older_checkpoints_use_is_removed_and_the_rest_stays() -> None:
    """Before the commit nothing is; afterwards the two of checkpoint 1 alone, and their room is free again."""
    bench = Bench()
    async with anyio.create_task_group() as tasks:
        retention = await bench.open(tasks)
        retention.confirm(CheckpointId(1))
        await anyio.wait_all_tasks_blocked()
        assert bench.store.calls == []
        retention.confirm(CheckpointId(2))
    assert await bench.keys() == COPIES[2:]
    assert bench.segments.held_bytes == [1]


async def test_copies_that_others_may_need_are_left_to_them() -> None:
    """Of an owner who shares the root: it removes its own."""
    store = MemoryStore()
    for key in COPIES:
        await store.put(key, [b"x"])
    segments = LocalSegments([store])
    async with anyio.create_task_group() as tasks:
        retention = LocalRetention(segments, tasks=tasks, is_own=lambda key: key != COPIES[1])
        retention.register(COPIES, CheckpointId(1))
        retention.confirm(CheckpointId(2))
    assert [info.key async for info in store.list("")] == [COPIES[1]]


async def test_confirming_does_not_wait_for_a_disk_that_hangs_and_holds_one_thread_of_it() -> None:
    """A commit is a commit. What is superseded meanwhile waits its turn."""
    bench, hold = Bench(), Hold(operation="delete", stubborn=True)
    async with anyio.create_task_group() as tasks:
        retention = await bench.open(tasks)
        bench.store.plan.append(hold)
        retention.confirm(CheckpointId(2))
        await hold.reached.wait()
        retention.confirm(CheckpointId(3))
        await anyio.wait_all_tasks_blocked()
        begun = len(bench.store.calls)
        hold.release()
    assert begun == 1
    assert await bench.keys() == []


async def test_a_copy_that_cannot_be_removed_is_logged_and_does_not_keep_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever the error; the next open prunes it, and until then it counts."""
    bench = Bench()
    async with anyio.create_task_group() as tasks:
        retention = await bench.open(tasks)
        bench.store.plan += [
            Fail(operation="delete", key=COPIES[0]),
            Fail(operation="delete", key=COPIES[1], error=RuntimeError("a bug")),
        ]
        with caplog.at_level(logging.WARNING):
            retention.confirm(CheckpointId(3))
            await anyio.wait_all_tasks_blocked()
    assert len(caplog.records) == 2
    assert await bench.keys() == COPIES[:2]
    assert bench.segments.held_bytes == [2]


async def test_after_an_end_of_its_tasks_a_commit_is_still_confirmed() -> None:
    """A checkpoint may outlast the block it began in; it does not fail for a file that is not deleted."""
    bench = Bench()
    async with anyio.create_task_group() as tasks:
        retention = await bench.open(tasks)
    retention.confirm(CheckpointId(2))
    assert await bench.keys() == COPIES


async def test_when_its_tasks_end_what_is_left_stays_for_the_next_open() -> None:
    """Closing does not wait for a long list of deletions."""
    bench, hold = Bench(), Hold(operation="delete")
    async with anyio.create_task_group() as tasks:
        retention = await bench.open(tasks)
        bench.store.plan.append(hold)
        retention.confirm(CheckpointId(3))
        await hold.reached.wait()
        tasks.cancel_scope.cancel()
    assert len(bench.store.calls) == 1
    assert await bench.keys() == COPIES


async def test_an_abort_removes_nothing() -> None:
    """Not at once, and of the last good checkpoint nothing later either."""
    bench = Bench()
    async with anyio.create_task_group() as tasks:
        retention = await bench.open(tasks)
        retention.confirm(CheckpointId(1))
        retention.abort(CheckpointId(2))
        await anyio.wait_all_tasks_blocked()
    assert await bench.keys() == COPIES
