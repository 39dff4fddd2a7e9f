"""However much is going on in one opened backend, no more threads are at work than its settings say."""

from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import statebackend as sb
from statebackend import _threads
from statebackend._ranges.range_owners import open_range_owners
from statebackend._threads import FileThreads, WorkerThreads
from tests.at_work import SAFETY_NET_S, AtWork
from tests.knobs import settings_with
from tests.ranges.parts import open_run

CPU, IO = 2, 4


class Crowd:
    """All threads of one opened thing. Each call is held until no other can begin: so as many are at work as may be."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.at_work = AtWork()


@pytest.fixture
def crowds(monkeypatch: pytest.MonkeyPatch) -> list[Crowd]:
    """One for each component that owns threads, in the order in which they were opened."""
    found: list[Crowd] = []
    by_limiter: dict[int, Crowd] = {}
    really_make, really_hop, really_read = WorkerThreads.__init__, _threads.in_thread, FileThreads.executor
    really_wait, really_share = WorkerThreads._wait_behind, FileThreads._writers_in

    def make(self: WorkerThreads, **options: Any) -> None:
        really_make(self, **options)
        found.append(Crowd(options["cpu_threads_max"] + options["io_threads_max"]))
        by_limiter.update({id(self._cpu): found[-1], id(self._io): found[-1]})

    def writers_in(self: FileThreads, directory: Path) -> anyio.CapacityLimiter:
        shared = really_share(self, directory)
        by_limiter[id(shared)] = by_limiter[id(self._io)]  # the hop that follows is in a thread of this one
        return shared

    async def hop(function: Callable[..., Any], *args: Any, limiter: anyio.CapacityLimiter, **options: Any) -> Any:
        at_work = by_limiter[id(limiter)].at_work

        def held(*args: Any) -> Any:
            with at_work.counted():
                assert at_work.may_end.wait(SAFETY_NET_S)
                return function(*args)

        return await really_hop(held, *args, limiter=limiter, **options)

    @asynccontextmanager
    async def read(self: FileThreads) -> AsyncGenerator[Executor]:
        async with really_read(self) as executor:
            with by_limiter[id(self._io)].at_work.counted():
                yield executor

    async def wait_behind(self: WorkerThreads, borrower: object) -> None:
        at_work = by_limiter[id(self._cpu)].at_work
        at_work.now -= 1  # it does nothing meanwhile
        await really_wait(self, borrower)
        at_work.now += 1

    monkeypatch.setattr(WorkerThreads, "__init__", make)
    monkeypatch.setattr(_threads, "in_thread", hop)
    monkeypatch.setattr(FileThreads, "executor", read)
    monkeypatch.setattr(FileThreads, "_writers_in", writers_in)
    monkeypatch.setattr(WorkerThreads, "_wait_behind", wait_behind)
    return found


@asynccontextmanager
async def let_go_together(crowds: list[Crowd]) -> AsyncGenerator[None]:
    """Within, threads go on whenever no further one can begin."""

    async def conduct() -> None:
        while True:
            await anyio.wait_all_tasks_blocked()
            held = [crowd.at_work.may_end for crowd in crowds]
            if crowds:
                await crowds[-1].at_work.all_begun()  # no more can begin in the others, either
            for gate in held:
                gate.set()
            await anyio.lowlevel.checkpoint()
            for gate in held:
                gate.clear()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(conduct)
        yield
        tasks.cancel_scope.cancel()


def settings_at(path: Path) -> sb.Settings:
    """Both copies on disks, two local roots, everything in segments, and bases after each checkpoint."""
    return settings_with(
        job="fleet",
        primary=f"file://{path / 'primary'}",
        local=(str(path / "a"), str(path / "b")),
        cpu_threads_max=CPU,
        io_threads_max=IO,
        max_parallelism=8,
        materialize_handles_max=1,
        inline_bytes_max=0,
        preemptive_persist_threshold_bytes=50_000,
        secondary_grace_s=60.0,
        upload__timeout_s=0,
        local_read_timeout_s=60.0,
    )


async def test_no_more_threads_are_at_work_than_the_settings_say(tmp_path: Path, crowds: list[Crowd]) -> None:
    """Segments and bases written, both copies of each, restored with a cache and without, ranges, sweep and verify."""
    settings = settings_at(tmp_path)
    async with let_go_together(crowds):
        async with sb.open_backend(settings) as backend:
            state = backend.value_state("n", str)
            for checkpoint_id in (1, 2):
                for number in range(400):
                    state[f"key {number}"] = str(checkpoint_id) * 500
                await backend.checkpoint(checkpoint_id)
        async with sb.owners.open_download_cache(settings) as cache:
            for root in ("a", "b"):  # the half is to come from the primary
                for path in sorted((tmp_path / root).rglob("*"))[::2]:
                    if path.is_file() and path.name != "lock":
                        path.unlink()
            async with sb.open_backend(settings, cache=cache) as backend:
                assert backend.value_state("n", str)["key 7"] == "2" * 500
        async with open_run(settings, 4) as run, open_range_owners() as owners:
            for batch in range(2):
                await run.batch(owners, [(f"key {number}", batch) for number in range(500)])
        await sb.sweep(settings, dry_run=False, min_age_s=0.0)
        assert not (await sb.verify(settings)).damages
    assert [crowd.at_work.most for crowd in crowds if crowd.at_work.most > crowd.limit] == []
    assert max(crowd.at_work.most for crowd in crowds) > max(CPU, IO), "not enough was going on"
