"""Settings bound the threads, a local root that hangs leaves the primary its own, bases give way to checkpoints."""

import asyncio
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from statebackend._tasks import simulate_threads
from statebackend._threads import FileThreads, Foreground, WorkerThreads
from tests.at_work import SAFETY_NET_S, AtWork, begun_of


def threads_with(*, cpu: int = 2, io: int = 8, roots: tuple[str, ...] = ("/a",)) -> WorkerThreads:
    return WorkerThreads(cpu_threads_max=cpu, io_threads_max=io, roots=roots)


async def read(threads: FileThreads, at_work: AtWork) -> None:
    """As aiofiles does it."""
    async with threads.executor() as executor:
        await asyncio.get_running_loop().run_in_executor(executor, at_work.work)


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_no_more_threads_compute_than_the_setting_says(count: int) -> None:
    """Bases and checkpoints together."""
    threads = threads_with(cpu=count)
    assert await begun_of(*[threads.background] * 3, *[threads.cpu] * 3) == count


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_no_more_threads_touch_files_than_the_setting_says(count: int) -> None:
    """Those of a library that makes its own hops among them."""
    threads = threads_with(io=count, roots=())
    at_work = AtWork()
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(threads.io, at_work.work)
            tasks.start_soon(read, threads, at_work)
        begun = await at_work.all_begun()
        at_work.may_end.set()
    assert (begun, at_work.most) == (count, count)


@pytest.mark.parametrize(("here", "elsewhere", "most"), [(2, 2, 2), (1, 3, 3), (3, 1, 3)])
async def test_jobs_write_to_a_directory_with_as_many_threads_as_the_one_that_has_most(
    here: int, elsewhere: int, most: int
) -> None:
    """Also those that opened before it. More at a time would only make the disk slower."""
    jobs = [threads_with(io=count, roots=()) for count in (here, elsewhere)]
    calls = [partial(job.io, writing_to=Path("/data")) for job in jobs]
    assert await begun_of(*calls * 4) == most


async def test_another_directory_has_a_bound_of_its_own() -> None:
    """It may be another disk: one that hangs keeps nothing from it."""
    jobs = [threads_with(io=2, roots=()) for _ in range(2)]
    calls = [partial(job.io, writing_to=Path(f"/{number}")) for number, job in enumerate(jobs)]
    assert await begun_of(*calls * 4) == 4


async def test_a_local_root_shares_no_more_than_its_part() -> None:
    """The disk of a root is asked by no more threads than one job has for it."""
    jobs = [threads_with(io=8, roots=("/a",)) for _ in range(3)]
    calls = [partial(job.of_root("/a").io, writing_to=Path("/a")) for job in jobs]
    assert await begun_of(*calls * 4) == 4


@pytest.mark.parametrize(
    ("io", "roots", "per_root", "all_roots", "in_all"),
    [
        (8, ("/a",), 4, 4, 8),
        (8, ("/a", "/b"), 2, 4, 8),
        (8, ("/a", "/b", "/c"), 1, 3, 8),
        (5, ("/a",), 2, 2, 5),
        (2, ("/a", "/b"), 1, 1, 2),
        (1, ("/a",), 1, 1, 2),  # the primary's only thread is not for a root: it has one of its own
        (1, ("/a", "/b"), 1, 1, 2),
    ],
)
async def test_local_roots_share_half_of_the_threads_for_files(
    io: int, roots: tuple[str, ...], per_root: int, all_roots: int, in_all: int
) -> None:
    """However much is to be done there, the other half is the primary's. A root has its part of that share."""
    threads = threads_with(io=io, roots=roots)
    by_root = [threads.of_root(root).io for root in roots]
    assert await begun_of(*by_root[:1] * 9) == per_root
    assert await begun_of(*by_root * 9) == all_roots
    assert await begun_of(*by_root * 9, *[threads.io] * 9) == in_all
    assert await begun_of(*[threads.io] * 9) == io


@pytest.mark.parametrize("io", [1, 2, 8])
async def test_the_primary_has_threads_while_a_root_hangs(io: int) -> None:
    """Nobody has even given up yet. Once they have, the root's threads are free for others."""
    threads = threads_with(io=io)
    hung, ran = AtWork(), list[str]()
    try:
        async with anyio.create_task_group() as copies:
            for _ in range(9):
                copies.start_soon(partial(threads.of_root("/a").io, hung.work, abandon_after_s=0.0))
            assert await hung.all_begun() == max(1, io // 2)
            with anyio.fail_after(SAFETY_NET_S):
                await threads.io(ran.append, "primary")
            copies.cancel_scope.cancel()
        with anyio.fail_after(SAFETY_NET_S):
            await threads.of_root("/a").io(ran.append, "root")
        assert not hung.gave_up, "somebody has waited for the disk"
    finally:
        hung.may_end.set()
    assert ran == ["primary", "root"]


async def test_what_was_cancelled_while_it_waited_for_a_root_never_runs() -> None:
    """Nor later, when the root answers: a copy that was given up does not appear after all."""
    threads, hung, ran = threads_with(io=2), AtWork(), list[int]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(threads.of_root("/a").io, hung.work)
        await hung.all_begun()
        async with anyio.create_task_group() as given_up:
            given_up.start_soon(partial(threads.of_root("/a").io, ran.append, 1, abandon_after_s=SAFETY_NET_S))
            await anyio.wait_all_tasks_blocked()
            given_up.cancel_scope.cancel()
        hung.may_end.set()
    await threads.of_root("/a").io(int)
    assert ran == []


@pytest.mark.parametrize("count", [1, 2])
async def test_bases_give_way_to_checkpoints(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads write bases, and do not end. A checkpoint's compression runs; a base goes on when that has ended."""
    threads, at_work = threads_with(cpu=count), AtWork()
    enough, urgent_ended, went_on = threading.Event(), threading.Event(), list[bool]()
    really_wait = WorkerThreads._wait_behind

    async def wait_behind(self: WorkerThreads, borrower: object) -> None:
        at_work.now -= 1  # it does nothing while it waits
        await really_wait(self, borrower)
        at_work.now += 1
        went_on.append(urgent_ended.is_set())

    monkeypatch.setattr(WorkerThreads, "_wait_behind", wait_behind)

    def write_bases() -> None:
        with at_work.counted():
            while not enough.is_set():
                threads.give_way()

    def compress() -> None:
        with at_work.counted():
            pass
        urgent_ended.set()

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(threads.background, write_bases)
        await at_work.all_begun()
        with anyio.move_on_after(SAFETY_NET_S) as bounded:
            await threads.cpu(compress)
            while not went_on:
                await anyio.lowlevel.checkpoint()
        enough.set()
    assert not bounded.cancelled_caught, "bases block a checkpoint"
    assert went_on == [True], "a base went on before the checkpoint, or had to make room twice"
    assert at_work.most == count
    assert await begun_of(*[threads.cpu] * 3) == count  # each place was given back, once


async def test_bases_wait_while_a_checkpoint_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though both have a thread: side by side they would take the interpreter from each other with every array."""
    monkeypatch.setattr("statebackend._threads.FOR_FOREGROUND_S", SAFETY_NET_S)
    threads, urgent, ended = threads_with(cpu=2), AtWork(), list[str]()
    begun = threading.Event()

    def compress() -> None:
        urgent.work()
        ended.append("checkpoint")

    def write_bases() -> None:
        begun.set()
        threads.give_way()
        ended.append("bases")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(threads.cpu, compress)
        await urgent.all_begun()
        tasks.start_soon(threads.background, write_bases)
        while not begun.is_set():
            await anyio.lowlevel.checkpoint()
        await urgent.all_begun()
        urgent.may_end.set()
    assert ended == ["checkpoint", "bases"]


def test_several_are_in_the_foreground_until_all_have_ended() -> None:
    """Two jobs of one process, or a look-up and a checkpoint."""
    foreground = Foreground()
    assert foreground.wait(0)
    with foreground.under_way():
        with pytest.raises(KeyError), foreground.under_way():
            raise KeyError
        assert not foreground.wait(0)
    assert foreground.wait(0)


FORKED = """
import os, signal
from statebackend._threads import FOREGROUND

with FOREGROUND.under_way(), FOREGROUND._turn:
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends what would otherwise hang
        with FOREGROUND.under_way():
            pass
        os._exit(0 if FOREGROUND.wait(0) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_has_an_empty_foreground() -> None:
    """The threads that would end what was under way are not there; nor is one that has the lock."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


async def test_bases_that_are_cancelled_while_others_go_first_end_all_the_same() -> None:
    """They wait for their place again, and end then; nothing is counted twice."""
    threads, urgent = threads_with(cpu=1), AtWork()
    begun, stop = threading.Event(), threading.Event()

    def write_bases() -> None:
        begun.set()
        while not stop.is_set():
            threads.give_way()

    async with anyio.create_task_group() as outer, anyio.create_task_group() as bases:
        bases.start_soon(threads.background, write_bases)
        while not begun.is_set():
            await anyio.lowlevel.checkpoint()
        outer.start_soon(threads.cpu, urgent.work)
        assert await urgent.all_begun() == 1
        bases.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()
        stop.set()
        urgent.may_end.set()
    assert await begun_of(*[threads.cpu] * 3) == 1


async def test_simulated_threads_give_way_to_nobody() -> None:
    """On the loop itself there is nothing to wait for."""
    threads, ran = threads_with(cpu=1), list[str]()

    async def background() -> None:
        await threads.background(lambda: (threads.give_way(), ran.append("background")))

    simulate_threads(asyncio.get_running_loop(), anyio.lowlevel.checkpoint)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(background)
        tasks.start_soon(threads.cpu, ran.append, "cpu")
    assert ran == ["background", "cpu"]
