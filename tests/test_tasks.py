"""Threads are waited for, results come in order, and foreign code cannot end a task group without a word."""

import asyncio
import gc
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio._backends._asyncio import _task_states
from hypothesis import given
from hypothesis import strategies as st

from statebackend._tasks import (
    StrayCancellationError,
    finish,
    foreign,
    hops_under_way,
    in_order,
    in_thread,
    open_tasks,
    open_tasks_apart,
)
from statebackend.testing.virtual_time import VirtualClock, run_virtual

SAFETY_NET_S = 20.0  # ends a test that would otherwise hang; no test depends on it


class Interruption(BaseException):
    """Not an `Exception`."""


async def stray() -> None:
    """Raise `CancelledError` although nobody has cancelled anything, as broken code does."""
    await anyio.sleep(1)
    raise asyncio.CancelledError


# -------------------------------------------------------------------------------------------------------------- threads


async def test_a_thread_that_may_be_left_behind_is_left_behind() -> None:
    """It hangs, and was cancelled: the call ends, holds none of the limiter, and a thread that ends in time tells."""
    begun, may_end, gave_up = threading.Event(), threading.Event(), threading.Event()
    limiter = anyio.CapacityLimiter(1)

    def hang() -> None:
        begun.set()
        if not may_end.wait(SAFETY_NET_S):
            gave_up.set()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(in_thread, hang, limiter=limiter, abandon_after_s=0.0))
            while not begun.is_set():
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        assert hops_under_way(asyncio.get_running_loop()) == 0
        assert await in_thread(int, "7", limiter=limiter, abandon_after_s=0.0) == 7
        with pytest.raises(ValueError, match="invalid"):
            await in_thread(int, "x", limiter=limiter, abandon_after_s=0.0)
        assert not gave_up.is_set(), "somebody has waited for the thread"
    finally:
        may_end.set()


async def test_a_thread_that_may_be_left_behind_has_its_time_first() -> None:
    """What it does after the cancellation is waited for, as long as was said."""
    begun, may_end = threading.Event(), threading.Event()
    ended: list[str] = []

    def work() -> None:
        begun.set()
        may_end.wait(SAFETY_NET_S)
        ended.append("thread")

    async def call() -> None:
        try:
            await in_thread(work, limiter=anyio.CapacityLimiter(1), abandon_after_s=10 * SAFETY_NET_S)
        finally:
            ended.append("caller")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        while not begun.is_set():
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
        may_end.set()
    assert ended == ["thread", "caller"]


@run_virtual
async def test_a_cancelled_hop_runs_to_its_end_first() -> None:
    """No write goes on behind the back of a caller who was told that the call is over."""
    begun, let_go = threading.Event(), threading.Event()
    ended: list[str] = []

    def write() -> None:
        begun.set()
        let_go.wait()
        ended.append("thread")

    async def call(scope: anyio.CancelScope) -> None:
        with scope:
            await in_thread(write, limiter=anyio.CapacityLimiter(1))
        ended.append("caller")

    scope = anyio.CancelScope()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call, scope)
        while not begun.is_set():
            await anyio.lowlevel.checkpoint()
        scope.cancel()
        await anyio.lowlevel.checkpoint()
        assert ended == []
        let_go.set()
    assert ended == ["thread", "caller"]


@run_virtual
async def test_a_hop_cancelled_while_it_waits_for_a_thread_has_not_run() -> None:
    """Cancelled in the queue: nothing has happened, and nothing will."""
    limiter = anyio.CapacityLimiter(1)
    let_go = threading.Event()
    ran: list[str] = []
    scope = anyio.CancelScope()

    async def second() -> None:
        with scope:
            await in_thread(ran.append, "second", limiter=limiter)
        let_go.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: in_thread(let_go.wait, limiter=limiter))
        while not limiter.borrowed_tokens:
            await anyio.lowlevel.checkpoint()
        tasks.start_soon(second)
        await anyio.lowlevel.checkpoint()
        scope.cancel()
    assert ran == []


@run_virtual
async def test_hops_are_counted_while_they_are_under_way() -> None:
    """What the virtual loop goes by: one more when a hop begins, one less when it ends, however it does."""
    loop = asyncio.get_running_loop()
    limiter = anyio.CapacityLimiter(1)
    assert await in_thread(hops_under_way, loop, limiter=limiter) == 1
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 / 0, limiter=limiter)
    assert hops_under_way(loop) == 0


# --------------------------------------------------------------------------------------------------------- foreign code


@run_virtual
async def test_a_stray_cancellation_becomes_an_error() -> None:
    """Foreign code that raises `CancelledError` on its own is a defect there, and is called one."""
    with pytest.raises(StrayCancellationError):
        await foreign(stray())


@run_virtual
async def test_a_real_cancellation_stays_one() -> None:
    """Of a scope further out, of a deadline, and of the task itself."""
    with anyio.move_on_after(1) as scope:
        await foreign(anyio.sleep_forever())
    assert scope.cancelled_caught
    task = asyncio.ensure_future(foreign(anyio.sleep_forever()))
    await anyio.lowlevel.checkpoint()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@run_virtual
async def test_foreign_code_passes_on_results_and_errors() -> None:
    """Anything else comes through as it is."""

    async def answer(*, right: bool) -> int:
        if right:
            return 42
        raise Interruption

    assert await foreign(answer(right=True)) == 42
    with pytest.raises(Interruption):
        await foreign(answer(right=False))


# ------------------------------------------------------------------------------------------------- tasks behind a block


@run_virtual
async def test_a_stray_cancellation_in_a_task_is_not_taken_for_the_end_of_the_block() -> None:
    """Anyio's group would cancel the block and go on after it as if it had ended: half of it would be skipped."""
    ended: list[str] = []

    async def run() -> None:
        async with open_tasks() as tasks:
            tasks.start_soon(stray)
            await anyio.sleep(5)
            ended.append("block")

    with pytest.raises(StrayCancellationError):
        await run()
    assert ended == []


@run_virtual
async def test_tasks_end_with_their_block_and_its_error_comes_out_as_it_is() -> None:
    """What still runs is cancelled and awaited; the user's exception is not wrapped."""
    cancelled: list[str] = []

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append("work")

    async with open_tasks() as tasks:
        tasks.start_soon(work)
        await anyio.sleep(1)
    assert cancelled == ["work"]
    with pytest.raises(KeyError):
        async with open_tasks() as tasks:
            raise KeyError
    with anyio.move_on_after(1) as scope:
        async with open_tasks():
            await anyio.sleep_forever()
    assert scope.cancelled_caught


@pytest.mark.parametrize("how", ["end", "error", "scope", "task", "task, twice"])
@run_virtual
async def test_tasks_apart_end_with_their_block_however_it_ends(how: str) -> None:
    """What still runs is cancelled and awaited, also if that takes a while; then the block's outcome is delivered."""
    ended: list[str] = []

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(5)
            ended.append("work")

    async def block() -> None:
        async with open_tasks_apart() as tasks:
            tasks.start_soon(work)
            await anyio.sleep(1)
            if how == "error":
                raise KeyError
            if how != "end":
                await anyio.sleep_forever()

    async def call() -> None:
        try:
            with anyio.move_on_after(2 if how == "scope" else 100):
                await block()
        finally:
            ended.append("caller")

    task = asyncio.ensure_future(call())
    await anyio.sleep(2)
    for _ in range({"task": 1, "task, twice": 2}.get(how, 0)):
        task.cancel()
        await anyio.sleep(1)
    await asyncio.wait([task])
    assert ended == ["work", "caller"]
    assert task.cancelled() == how.startswith("task")
    if how == "error":
        assert isinstance(task.exception(), KeyError)


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
@run_virtual
async def test_tasks_apart_that_are_cancelled_while_they_open_end_quietly(turns: int) -> None:
    """The cancellation is delivered, and the loop is told of no error that nobody asked for."""
    told: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context))

    async def block() -> None:
        async with open_tasks_apart():
            await anyio.sleep_forever()

    task = asyncio.ensure_future(block())
    for _ in range(turns):
        await anyio.lowlevel.checkpoint()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    del task
    gc.collect()
    assert told == []


@pytest.mark.parametrize("how", ["error", "cancelled"])
@run_virtual
async def test_an_error_of_a_task_apart_is_logged_beside_that_of_its_block(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Only one of them can be raised. The loop has nothing to tell."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    async def block() -> None:
        async with open_tasks_apart() as tasks:
            tasks.start_soon(_raise, OSError("a task's own"))
            await anyio.sleep(1)
            if how == "error":
                raise KeyError
            await anyio.sleep_forever()

    task = asyncio.ensure_future(block())
    await anyio.sleep(2)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() if how == "cancelled" else isinstance(task.exception(), KeyError)
    del task
    gc.collect()
    assert told == []
    assert ["a task's own" in record.exc_text for record in caplog.records if record.exc_text] == [True]


@run_virtual
async def test_an_error_of_a_task_apart_ends_the_others_and_is_raised_after_the_block() -> None:
    """Nothing can be started any more; the block itself, which has scopes of its own, is not cut short."""
    ended: list[str] = []

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("work")

    async def block() -> None:
        async with open_tasks_apart() as tasks:
            tasks.start_soon(work)
            tasks.start_soon(_raise, KeyError())
            await anyio.sleep(1)
            assert ended == ["work"]
            with pytest.raises(RuntimeError):
                tasks.start_soon(work)
            ended.append("block")

    with pytest.raises(ExceptionGroup) as raised:
        await block()
    assert raised.group_contains(KeyError)
    assert ended == ["work", "block"]


@run_virtual
async def test_tasks_apart_add_no_scope_around_their_block() -> None:
    """Asking whether a call is cancelled takes as long as there are scopes: with 256 owners, half of a checkpoint."""

    def depth() -> int:
        state = _task_states.get(asyncio.current_task())
        scope, found = None if state is None else state.cancel_scope, 0
        while scope is not None:
            scope, found = scope._parent_scope, found + 1
        return found

    inside: list[int] = []

    async def work() -> None:
        inside.append(depth())

    with anyio.CancelScope():
        async with open_tasks():
            assert depth() == 2
        async with open_tasks_apart() as tasks, open_tasks_apart(), open_tasks_apart() as last:
            assert depth() == 1
            tasks.start_soon(work)
            last.start_soon(work)
            await anyio.sleep(1)
    assert inside in ([2, 2], [1, 1])  # its group's, and with anyio 4.14 its own, however many groups there are


@pytest.mark.parametrize("how", ["scope", "task", "task, twice"])
@run_virtual
async def test_what_is_to_finish_runs_to_its_end_however_its_caller_is_cancelled(how: str) -> None:
    """Then the cancellation is delivered, and not before."""
    ended: list[str] = []
    clock = VirtualClock()

    async def work() -> None:
        await anyio.sleep(10)
        ended.append("work")

    async def call() -> None:
        try:
            await finish(work)
        finally:
            ended.append("caller")

    async def cancel_scope() -> None:
        with anyio.move_on_after(1) as scope:
            await call()
        assert scope.cancelled_caught

    task = asyncio.ensure_future(cancel_scope() if how == "scope" else call())
    await anyio.sleep(1)
    for _ in range({"scope": 0, "task": 1, "task, twice": 2}[how]):
        task.cancel()
        await anyio.sleep(1)
    await asyncio.wait([task])
    assert task.cancelled() == (how != "scope")
    assert ended == ["work", "caller"]
    assert clock.monotonic() == 10


@run_virtual
async def test_what_finishes_gives_its_result_or_its_error() -> None:
    """As it is; a stray `CancelledError` of its own is an error as well, and not taken for one of the caller's."""

    async def add(first: int, second: int) -> int:
        return first + second

    assert await finish(add, 1, 2) == 3
    with pytest.raises(KeyError):
        await finish(_raise, KeyError())
    with pytest.raises(StrayCancellationError):
        await finish(stray)


# ------------------------------------------------------------------------------------------------------------- in order


@given(st.lists(st.integers(0, 50)), st.integers(1, 5))
@run_virtual
async def test_results_are_consumed_in_order_and_few_are_on_their_way(delays: list[int], concurrency_max: int) -> None:
    """However long each fetch takes: every item is consumed once, in order, and the bound holds at every moment."""
    consumed: list[tuple[int, int]] = []
    on_their_way = 0
    most = 0

    async def fetch(index: int) -> int:
        nonlocal on_their_way, most
        on_their_way += 1
        most = max(most, on_their_way)
        await anyio.sleep(delays[index])
        return index * 2

    async def consume(index: int, result: int) -> None:
        nonlocal on_their_way
        await anyio.sleep(1)
        consumed.append((index, result))
        on_their_way -= 1

    await in_order(range(len(delays)), fetch, consume, concurrency_max=concurrency_max)
    assert consumed == [(index, index * 2) for index in range(len(delays))]
    assert most <= concurrency_max


@run_virtual
async def test_fetches_run_beside_each_other_and_beside_the_consumer() -> None:
    """Ten fetches of 10 s, four at a time, take 30 s and not 100."""
    clock = VirtualClock()

    async def fetch(_: int) -> None:
        await anyio.sleep(10)

    async def consume(_: int, __: None) -> None:
        pass

    await in_order(range(10), fetch, consume, concurrency_max=4)
    assert clock.monotonic() == 30


@pytest.mark.parametrize("who", ["fetch", "consume"])
@pytest.mark.parametrize(
    ("fail", "error"), [(lambda: _raise(KeyError("gone")), KeyError), (stray, StrayCancellationError)]
)
def test_an_error_ends_it_as_it_is(who: str, fail: Callable[[], object], error: type[Exception]) -> None:
    """The first error in order cancels the rest; nothing after it is consumed. A stray `CancelledError` is one too.

    Let through by a task group, the latter would end a restore half way and call it done.
    """
    consumed: list[int] = []
    begun: list[int] = []
    cancelled: list[int] = []

    async def fetch(index: int) -> None:
        if who == "fetch" and index == 2:
            await fail()  # type: ignore[misc]
        if index > 3:
            begun.append(index)
            try:
                await anyio.sleep_forever()
            finally:
                cancelled.append(index)

    async def consume(index: int, _: None) -> None:
        if who == "consume" and index == 2:
            await fail()  # type: ignore[misc]
        consumed.append(index)

    @run_virtual
    async def run() -> None:
        await in_order(range(6), fetch, consume, concurrency_max=6)

    with pytest.raises(error):
        run()
    assert consumed == [0, 1]
    assert sorted(cancelled) == sorted(begun)


async def _raise(error: Exception) -> None:
    raise error


@run_virtual
async def test_a_cancelled_run_cancels_its_fetches() -> None:
    """Cancelling it leaves no fetch behind, and consumes nothing more."""
    cancelled: list[int] = []

    async def fetch(index: int) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append(index)

    async def consume(_: int, __: None) -> None:
        raise AssertionError

    with anyio.move_on_after(1):
        await in_order(range(5), fetch, consume, concurrency_max=2)
    assert sorted(cancelled) == [0, 1]
