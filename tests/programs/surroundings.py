"""What is around a program that runs: what its sink tells, the time, its files, and the workers of its executors."""

import asyncio
import datetime as dt
import os
import re
import shutil
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock
from zoneinfo import ZoneInfo

import anyio.lowlevel

import statebackend as sb
from statebackend import _tasks, _threads
from statebackend.spark.executors import worker

T = TypeVar("T")


def attend(work: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, on a loop that stays: with each loop its threads would be made anew."""
    return _runner(os.getpid()).run(work)


@cache
def _runner(_process: int) -> asyncio.Runner:
    return asyncio.Runner()


@contextmanager
def without_worker_threads() -> Generator[None]:
    """In this context loops do themselves what worker threads would do: a fifth of the work was to hand it over."""
    with (
        mock.patch.multiple(_tasks, _pauses=_EveryLoop(), _on_loop=_at_once),
        mock.patch.object(_threads.FileThreads, "_executor", _AtOnce()),
    ):
        yield


async def _at_once(_pause: object, function: Callable[..., T], *args: Any, limiter: object) -> T:
    """In place of a thread, and of the queue for one: whoever asks gives way to others once."""
    await anyio.lowlevel.checkpoint()
    return function(*args)


class _EveryLoop:
    """Says of every loop that it has no worker threads."""

    def get(self, _loop: object) -> object:
        return self


class _AtOnce(Executor):
    """In place of the threads that read files."""

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future = Future[T]()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  # handed to whoever waits
            future.set_exception(error)
        return future


class Told(sb.Observer):
    """What the sink tells while it works."""

    def __init__(self) -> None:
        self.late = 0
        self.on_commit: Callable[[], None] | None = None
        self._followed = threading.Event()

    def checkpoint_committed(self, info: Any) -> None:
        if self.on_commit is not None:
            self.on_commit()

    def follower_looked(self, staleness_s: float) -> None:
        self._followed.set()

    def wait_for_follower(self) -> None:
        """Wait until a sink that stands by has looked once."""
        self._followed.clear()
        assert self._followed.wait(60.0), "nobody follows"

    def rows_late(self, rows: int) -> None:
        self.late += rows


class BatchTime:
    """The time at which batches begin, for `clock="batch"`."""

    def __init__(self) -> None:
        self.now_s = 1_700_000_000.0

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s


def zone_of(name: str) -> dt.tzinfo:
    """The zone of a session of Spark: a place, or an offset such as +05:45."""
    if (found := re.fullmatch(r"([+-])(\d\d):(\d\d)", name)) is None:
        return ZoneInfo(name)
    offset = dt.timedelta(hours=int(found[2]), minutes=int(found[3]))
    return dt.timezone(offset if found[1] == "+" else -offset)


def copy_tree(source: Path, target: Path) -> None:
    """As `shutil.copytree`, of a directory in which files may come and go. Tables are left out: they are scratch."""
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        with suppress(FileNotFoundError):
            if path.is_dir():
                place.mkdir(parents=True, exist_ok=True)
            elif "tables" not in path.relative_to(source).parts[:1]:
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, place)


def close_workers() -> None:
    """The Python workers of the executors die."""
    while worker._open_jobs:
        _, job = worker._open_jobs.popitem()
        worker._close(job)
