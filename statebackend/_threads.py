"""The worker threads of one opened job: how many are at work at a time, and which work goes first.

    cpu          compression, checksums, decoding            at most `cpu_threads_max`
    background   the same, for work that nobody waits for    among those, and gives way to them
    io           files                                       at most `io_threads_max`
    of_root      files in a local root, which may hang       at most half of the io threads, divided among the roots
    writing_to   durable writes to one directory             of all jobs on a loop, as many as one of them may have

The composition root makes one for each backend, coordinator, download cache, set of range owners or upkeep call that it
opens, and hands it to every component that leaves the event loop. `docs/decisions/worker-threads.md` says why the
shares are what they are.
"""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from typing import Final, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import anyio
import anyio.from_thread
import anyio.lowlevel

from statebackend._tasks import HomeProcess, breathe, in_thread

Args = TypeVarTuple("Args")
T = TypeVar("T")

_disks: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[Path, anyio.CapacityLimiter]]] = (
    WeakKeyDictionary()
)
"""By the directory: how many threads may write there at a time, of all jobs on that loop."""
_borrower: ContextVar[object] = ContextVar("_borrower")
"""The task that a background thread's place among the cpu threads is counted for."""
FOR_FOREGROUND_S: Final = 0.01
"""A background thread waits no longer at a time for what goes first: twice as long as it works in between."""


class Foreground:
    """Computing that somebody waits for, in this process: checkpoints', and look-ups in pages in the caller's thread.

    A thread that merges takes the interpreter from them with every array, though each needs it for a small part of its
    time only: batches took twice as long beside it. So it works for a third of the time that they take, and at other
    times for all.
    """

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget what is under way: in a process that was forked meanwhile, nobody would end it."""
        self._count = 0
        self._turn = threading.Lock()
        self._is_empty = threading.Event()
        self._is_empty.set()

    @contextmanager
    def under_way(self) -> Generator[None]:
        """Within, background threads wait, again and again."""
        with self._turn:
            self._count += 1
            self._is_empty.clear()
        try:
            yield
        finally:
            with self._turn:
                self._count -= 1
                if not self._count:
                    self._is_empty.set()

    def wait(self, at_most_s: float) -> bool:
        """Wait until nothing is under way, or for so long. True if nothing is."""
        return self._is_empty.wait(at_most_s)


FOREGROUND: Final = Foreground()
os.register_at_fork(after_in_child=FOREGROUND.begin_anew)


class FileThreads:
    """Runs functions that touch files in worker threads, at most `threads_max` at a time, as `in_thread` does.

    In a process that is forked from the one that made it, every call raises `ForkedProcessError`.
    """

    def __init__(self, threads_max: int) -> None:
        self._home = HomeProcess()
        self._io = anyio.CapacityLimiter(threads_max)

    @property
    def threads_max(self) -> int:
        """How many threads may be at work at a time."""
        return int(self._io.total_tokens)

    async def io(
        self,
        function: Callable[[*Args], T],
        *args: *Args,
        abandon_after_s: float | None = None,
        writing_to: Path | None = None,
    ) -> T:
        """Run `function(*args)`. `abandon_after_s`: as for `in_thread`.

        `writing_to`: the store's directory for a durable write. All jobs on the loop together write there with as many
        threads as the job that may have most: 256 backends have threads of their own each, and so many fsyncs at a time
        make a disk slower.
        """
        self._home.check()
        if writing_to is None:
            return await in_thread(function, *args, limiter=self._io, abandon_after_s=abandon_after_s)
        # In this order: what holds a place at the disk is at work, and never waits for one of its job's threads.
        async with self._io:
            return await in_thread(
                function, *args, limiter=self._writers_in(writing_to), abandon_after_s=abandon_after_s
            )

    def _writers_in(self, directory: Path) -> anyio.CapacityLimiter:
        disks = _disks.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
        found = disks.setdefault(directory, anyio.CapacityLimiter(self.threads_max))
        found.total_tokens = max(found.total_tokens, self.threads_max)
        return found

    @asynccontextmanager
    async def executor(self) -> AsyncGenerator[Executor]:
        """One of the threads, for a library that makes its own hops: an executor to be asked for one call at a time."""
        self._home.check()
        async with self._io:
            yield self._executor

    def close(self) -> None:
        """End the threads of `executor`, of which none may be in use. Asked again, it has new ones."""
        if (executor := self.__dict__.pop("_executor", None)) is not None:
            executor.shutdown(wait=False)

    @cached_property
    def _executor(self) -> Executor:
        # Not asyncio's default pool: that one is small, and shared with name resolution and the user's own code.
        return ThreadPoolExecutor(int(self._io.total_tokens), thread_name_prefix="statebackend-read")


class RootThreads(FileThreads):
    """The threads for the files of a local root: a share of the job's threads for files. Made by `WorkerThreads`.

    Even if all of them hang, the primary keeps half of the job's threads, and roots with another share keep theirs.
    """

    def __init__(self, share: anyio.CapacityLimiter, io: anyio.CapacityLimiter) -> None:
        self._home = HomeProcess()
        self._share = share
        self._io = io

    @property
    def threads_max(self) -> int:
        """As `FileThreads.threads_max`."""
        return min(int(self._share.total_tokens), super().threads_max)

    async def io(
        self,
        function: Callable[[*Args], T],
        *args: *Args,
        abandon_after_s: float | None = None,
        writing_to: Path | None = None,
    ) -> T:
        """As `FileThreads.io`."""
        self._home.check()
        async with self._share:
            return await super().io(function, *args, abandon_after_s=abandon_after_s, writing_to=writing_to)


class WorkerThreads(FileThreads):
    """All worker threads of one opened job. For one event loop.

    `roots`: the local roots, for `of_root`.
    """

    def __init__(
        self, *, cpu_threads_max: int, io_threads_max: int, roots: Sequence[str | os.PathLike[str]] = ()
    ) -> None:
        super().__init__(io_threads_max)
        self._cpu = anyio.CapacityLimiter(cpu_threads_max)
        # Background threads that have given way and wait. Nobody gives way to them, or two would take turns for ever.
        self._parked = 0
        # A root that hangs would keep the only thread from the primary. So with one thread the roots get a second one.
        io = self._io if io_threads_max > 1 else anyio.CapacityLimiter(1)
        half = max(1, io_threads_max // 2)
        count = max(1, min(half, len(roots)))
        shares = [anyio.CapacityLimiter(half // count) for _ in range(count)]
        self._roots = {Path(root): RootThreads(shares[place % count], io) for place, root in enumerate(roots)}

    @property
    def cpu_threads_max(self) -> int:
        """How many calls of `cpu` may be at work at a time."""
        return int(self._cpu.total_tokens)

    async def cpu(self, function: Callable[[*Args], T], *args: *Args) -> T:
        """Run `function(*args)`, which computes, as `in_thread` does."""
        self._home.check()
        return await in_thread(_in_foreground, function, *args, limiter=self._cpu)

    async def background(self, function: Callable[[*Args], T], *args: *Args) -> T:
        """As `cpu`, for a long computation that no checkpoint may wait for: it calls `give_way` again and again.

        Only for a task that asyncio's own `task.cancel()` never cancels, such as one of a task group: the thread would
        go on without a place to give away.
        """
        self._home.check()
        token = _borrower.set(asyncio.current_task())  # the thread gets a copy of this context
        try:
            return await in_thread(function, *args, limiter=self._cpu)
        finally:
            _borrower.reset(token)

    def give_way(self) -> None:
        """Let what is in the foreground, and the loop, go first. A `background` thread calls it 100 times a second.

        Until it has its place again this thread does nothing, and does not count as one at work. A simulated thread
        does not wait at all: it is on the loop, which could do nothing meanwhile.
        """
        if _is_on_loop():
            return
        if self._is_wanted():
            anyio.from_thread.run(self._queue_again, _borrower.get())
        FOREGROUND.wait(FOR_FOREGROUND_S)
        breathe()

    def of_root(self, root: str | os.PathLike[str]) -> RootThreads:
        """The threads for the files of a local root."""
        return self._roots[Path(root)]

    def _is_wanted(self) -> bool:
        """True if a call waits for a cpu thread, other than those that have given way."""
        return self._cpu.statistics().tasks_waiting > self._parked

    async def _queue_again(self, borrower: object) -> None:
        if self._is_wanted():  # still: another background thread may have been quicker
            await self._wait_behind(borrower)

    async def _wait_behind(self, borrower: object) -> None:
        with anyio.CancelScope(shield=True):  # `in_thread` gives the place back in the end, so it must have one then
            self._cpu.release_on_behalf_of(borrower)
            await anyio.lowlevel.cancel_shielded_checkpoint()  # before anyio 4.14.2 who was woken takes it only now
            self._parked += 1
            await self._cpu.acquire_on_behalf_of(borrower)  # behind all who wait now
            self._parked -= 1


def _in_foreground(function: Callable[[*Args], T], *args: *Args) -> T:
    with FOREGROUND.under_way():
        return function(*args)


def _is_on_loop() -> bool:
    """True on the thread of an event loop, where simulated threads run."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
