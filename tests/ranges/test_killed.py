"""Processes that work on ranges are killed with SIGKILL, lose results, work twice: the state is that of the batches.

STATEBACKEND_RANGE_BATCHES makes it longer.
"""

import multiprocessing
import os
import random
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

import statebackend as sb
from statebackend._ranges.range_owners import Contribution, RangeTask
from tests.ranges.parts import Changes, Model, Run, open_run
from tests.ranges.range_worker import Request, work

BATCHES = int(os.environ.get("STATEBACKEND_RANGE_BATCHES", "12"))
ANSWER_TIMEOUT_S = 60.0

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.ranges.range_worker", "statebackend._tables.rocksdb"])


class Worker:
    """A process on one of the hosts; another one when it has died."""

    def __init__(self, directory: Path, host: int) -> None:
        self.host = host
        self._directory = directory
        self._start()

    def _start(self) -> None:
        self._connection, theirs = _processes.Pipe()
        self._process = _processes.Process(target=work, args=(theirs, self._directory), daemon=True)
        self._process.start()
        theirs.close()

    async def attempt(self, run: Run, task: RangeTask, changes: Changes, chance: random.Random) -> Contribution | None:
        """One attempt, which may die of it: then there is no result."""
        settings = on_host(run.settings, self._directory, self.host)
        mine = run.changes_of(task, changes)
        request = Request(msgspec.structs.replace(task, settings=settings), mine, draw_death(chance))
        answer = await anyio.to_thread.run_sync(self._ask, request)
        return None if answer is None else msgspec.msgpack.decode(answer, type=Contribution)

    def _ask(self, request: Request) -> bytes | None:
        try:
            self._connection.send(request)
            assert self._connection.poll(ANSWER_TIMEOUT_S), "no answer, and alive"
            return self._connection.recv_bytes()
        except (EOFError, ConnectionError):
            self.close()
            self._start()
            return None

    def close(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.join()
        self._process.close()


def draw_death(chance: random.Random) -> Any:
    if chance.random() > 0.15:
        return None
    steps = ["opened", "worked", "contributed", "left"]
    return chance.choice([*steps, *((nth, moment) for nth in (1, 2) for moment in ("before", "after"))])


def on_host(settings: sb.Settings, directory: Path, host: int) -> sb.Settings:
    return msgspec.structs.replace(
        settings,
        local=(f"{directory}/host{host}/a", f"{directory}/host{host}/b"),
        table_dir=f"{directory}/host{host}/tables",
    )


@contextmanager
def workers_of(directory: Path) -> Generator[list[Worker]]:
    workers: list[Worker] = []
    try:
        workers += [Worker(directory, host) for host in (0, 0, 1)]
        yield workers
    finally:
        for worker in workers:
            worker.close()


async def contributed(
    run: Run, workers: list[Worker], task: RangeTask, changes: Changes, chance: random.Random
) -> Contribution:
    """The result of one of several attempts, at once or one after the other; those of the others are lost."""
    results: list[Contribution] = []

    async def attempt(worker: Worker) -> None:
        result = await worker.attempt(run, task, changes, chance)
        if result is not None and chance.random() > 0.1:
            results.append(result)

    while not results:
        async with anyio.create_task_group() as tasks:
            for worker in chance.sample(workers, 2 if chance.random() < 0.2 else 1):
                tasks.start_soon(attempt, worker)
    return chance.choice(results)


@pytest.mark.parametrize(("table", "inline_bytes_max"), [("heap", 0), ("rocksdb", 64 * 1024)])
async def test_killed_again_and_again(tmp_path: Path, table: Any, inline_bytes_max: int) -> None:
    """On two hosts, in several epochs, cut into more and fewer ranges; and after a sweep."""
    chance, model = random.Random(f"{table} {BATCHES}"), Model()
    settings = sb.Settings(
        job="fleet",
        primary=f"file://{tmp_path}/primary",
        max_parallelism=12,
        table=table,
        inline_bytes_max=inline_bytes_max,
        table_memory_bytes=4 << 20,
        materialize_handles_max=5,
        materialize_interval_s=0.0,
    )
    found: list[str] = []
    number = 0
    with workers_of(tmp_path) as workers:
        for parts in (2, 3, 1):
            async with open_run(settings, parts) as run:
                for _ in range(BATCHES // 3):
                    changes = [(chance.randrange(50), number) for _ in range(chance.choice([1, 5, 30]))]
                    contributions = [
                        await contributed(run, workers, task, changes, chance)
                        for task in run.tasks()
                        if run.changes_of(task, changes)
                    ]
                    found += [each.found for each in contributions]
                    await run.commit(contributions)
                    model.apply(changes)
                    number += 1
            await model.check(settings)
    assert {"process" if table == "heap" else "host", "primary"} <= set(found)
    report = await sb.sweep(settings, dry_run=False, min_age_s=0.0)
    assert report.failures == ()
    await model.check(settings)
    for host in (0, 1):
        async with sb.open_backend(on_host(settings, tmp_path, host)) as backend:
            assert backend.restored is not None
