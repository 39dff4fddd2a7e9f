"""The rows of all states of a seed: read into sorted runs, looked through for keys that come twice, written as bases.

One step goes on beside the next: rows are read while those before them are encoded and sorted, a run is stored while
the next one is made, and a segment is uploaded while the one behind it is put together.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from statebackend._checkpoint.materialization.bases import Piece, pack
from statebackend._codec.change_sets.changes import Changes
from statebackend._local.scratch import open_scratch_in, scratch_parents
from statebackend._tasks import open_tasks
from statebackend._threads import WorkerThreads
from statebackend._upkeep.offline.offline_commit import Uploads
from statebackend._upkeep.progress import Meter, Tell
from statebackend._upkeep.seeding.duplicates import (
    Duplicates,
    changes_that_count,
    may_repeat,
    rows_of,
    rows_that_count,
)
from statebackend._upkeep.seeding.encoders import Encoder
from statebackend._upkeep.seeding.runs import Bins, HeldRun, Run, RunFile, windows
from statebackend._upkeep.seeding.source_rows import Source, SourceRows
from statebackend.errors import InputError, TableDiskError
from statebackend.ids import Base, KeyGroupRange
from statebackend.settings import KiB, MiB, Settings

T = TypeVar("T")

RUN_BYTES: Final = 32 * MiB
"""Encoded rows of a state that are sorted together."""
RUN_ROWS: Final = 1 << 20
UNKNOWN_ROWS: Final = 1 << 62
"""In place of the number of rows where it is not known: then the share of what was read stays 0."""
WINDOW_BYTES: Final = 256 * KiB
"""Bins that are smaller are read together."""


class _Beside(Generic[T]):
    """One call at a time beside its caller, in `tasks`. Its error is raised by the next `begin`, or by `wait`."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._ended: anyio.Event | None = None
        self._result: T | None = None
        self._error: Exception | None = None

    async def begin(self, call: Callable[[], Awaitable[T]]) -> None:
        """Wait for the call before, and begin this one."""
        await self.wait()
        self._ended = anyio.Event()
        self._tasks.start_soon(self._run, call, self._ended)

    async def wait(self) -> T | None:
        """Wait for the call under way, if there is one, and return what the last one did."""
        if self._ended is not None:
            await self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._result

    async def _run(self, call: Callable[[], Awaitable[T]], ended: anyio.Event) -> None:
        try:
            self._result = await call()
        except Exception as error:  # noqa: BLE001  # raised to the caller: a task group would wrap it
            self._error = error
        finally:
            ended.set()


class SortedRuns:
    """The rows of all states of a seed, or those of one range of its key groups, sorted in runs."""

    def __init__(
        self,
        bins: Bins,
        key_groups: KeyGroupRange,
        threads: WorkerThreads,
        open_file: Callable[[], Awaitable[RunFile]],
    ) -> None:
        self._bins = bins
        self._key_groups = key_groups
        self._threads = threads
        self._open_file = open_file
        self._runs: dict[str, list[Run]] = {}
        self._kept: Duplicates = "refuse"
        self._repeated: set[tuple[str, int]] = set()  # states and bins in which hashes come twice
        self.rows: dict[str, int] = {}
        self.keys: dict[str, int] = {}

    async def read(self, sources: Mapping[str, Source], encoders: Mapping[str, Encoder], tell: Tell) -> None:
        """Read and sort the rows of each state. Raises what the sources and encoders raise."""
        totals = [UNKNOWN_ROWS if each.total is None else each.total for each in sources.values()]
        rows = ((name, some) for name, source in sources.items() for some in source.rows())
        await self.read_mixed(rows, encoders, Meter("reading", sum(totals), tell))
        for name, source in sources.items():
            if source.is_read_once and not self.rows[name]:
                raise InputError(
                    "a generator or reader has no rows, perhaps since it was read before: make it anew, or give []",
                    state=name,
                )

    async def read_mixed(
        self, rows: Iterator[tuple[str, SourceRows]], encoders: Mapping[str, Encoder], meter: Meter
    ) -> None:
        """Read and sort rows of any of the states, in any order. Raises what iterating and the encoders raise."""
        self._runs = {name: [] for name in encoders}
        self.rows, self.keys = dict.fromkeys(encoders, 0), dict.fromkeys(encoders, 0)
        async with open_tasks() as tasks:
            storing, reading = _Beside[None](tasks), _Beside[tuple[str, SourceRows] | None](tasks)

            def next_rows() -> tuple[str, SourceRows] | None:
                return next(rows, None)

            read_next = partial(self._threads.io, next_rows)
            await reading.begin(read_next)
            while (found := await reading.wait()) is not None:
                await reading.begin(read_next)
                name, some = found
                before = encoders[name].size_bytes
                await self._threads.cpu(encoders[name].add, some)
                self.rows[name] += len(some)
                meter.step(len(some), changes=len(some), size_bytes=encoders[name].size_bytes - before)
                gathered = encoders.values()
                if (
                    sum(each.size_bytes for each in gathered) >= RUN_BYTES
                    or sum(each.rows for each in gathered) >= RUN_ROWS
                ):
                    await self._end_run(max(gathered, key=lambda each: (each.size_bytes, each.rows)), storing)
            for each in encoders.values():
                if each.rows:
                    await self._end_run(each, storing)
            await storing.wait()

    async def _end_run(self, encoder: Encoder, storing: _Beside[None]) -> None:
        """Sort what the encoder has, and begin to store what memory is not to hold any longer."""
        run = await self._threads.cpu(lambda: HeldRun(encoder.take(), self._bins))
        self.keys[encoder.name] += run.keys
        self._runs[encoder.name].append(run)
        await storing.begin(self._store_others)

    async def _store_others(self) -> None:
        """Store all runs but the newest of each state; and these, too, if they are large together."""
        newest = [runs[-1] for runs in self._runs.values() if runs]
        is_large = sum(run.size_bytes for run in newest if isinstance(run, HeldRun)) > RUN_BYTES
        for runs in self._runs.values():
            for place, run in enumerate(runs):
                if isinstance(run, HeldRun) and (is_large or place < len(runs) - 1):
                    runs[place] = await self._threads.io(_stored, await self._open_file(), run)

    async def check(self, duplicates: Duplicates) -> None:
        """Look for keys that come twice. Raises `InputError` if they are refused."""
        self._kept = duplicates
        for name in self._runs:
            self.keys[name] -= await self._threads.cpu(self._dropped, name)

    def _dropped(self, name: str) -> int:
        """How many rows of keys that come twice are not kept."""
        runs, dropped = self._runs[name], 0
        for place in range(self._bins.number if runs else 0):
            if may_repeat([run.hashes_in(place) for run in runs]):
                self._repeated.add((name, place))
                kept = rows_that_count(rows_of(runs, (place, place + 1)), self._kept, name)
                dropped += sum(int((~each).sum()) for each in kept)
        return dropped

    async def write(self, uploads: Uploads, segment_bytes_max: int, tell: Tell) -> Sequence[Base]:
        """Write the bases of all states. A segment or two at a time are in memory."""
        groups = self._key_groups
        pieces = pack(self._changes(), groups, segment_bytes_max=segment_bytes_max)
        meter, reached, bases = Meter("writing", len(groups), tell), groups.first, list[Base]()

        async def upload(piece: Piece) -> None:
            nonlocal reached
            changes = sum(frame.records for frame in piece.frames)  # before the upload, which empties the frames
            bases.append(base := await uploads.base(piece))
            end = piece.key_groups[-1].last + 1
            meter.step(end - reached, changes=changes, size_bytes=base.size_bytes)
            reached = end

        async with open_tasks() as tasks:
            uploading = _Beside[None](tasks)
            while (piece := await self._threads.cpu(next, pieces, None)) is not None:
                await uploading.begin(partial(upload, piece))
            await uploading.wait()
        return bases

    def _changes(self) -> Iterator[Changes]:
        for window in windows(list(self._runs.values()), self._bins, WINDOW_BYTES):
            for name, runs in self._runs.items():
                found = rows_of(runs, window)
                if any((name, place) in self._repeated for place in range(*window)):
                    kept = rows_that_count(found, self._kept, name)
                    parts: Iterable[Sequence[Changes]] = map(changes_that_count, found, kept)
                else:
                    parts = [each.changes for each in found]
                for each in parts:
                    yield from each


def _stored(file: RunFile, run: HeldRun) -> Run:
    try:
        return file.store(run)
    except OSError as error:
        raise TableDiskError(
            "the disk for scratch files takes no more: make room, or set table_dir", reason=error.strerror
        ) from error


@asynccontextmanager
async def open_runs(
    settings: Settings, key_groups: KeyGroupRange, threads: WorkerThreads
) -> AsyncGenerator[SortedRuns]:
    """The rows of a seed in these key groups, none of them yet.

    Their file is made when it is needed, and gone when the context ends.
    """
    async with AsyncExitStack() as stack:
        made: list[RunFile] = []

        async def opened(directory: Path) -> RunFile:
            return RunFile(directory / "runs")

        async def open_file() -> RunFile:
            if not made:
                parents = scratch_parents(settings.table_dir, settings.local)
                file = await stack.enter_async_context(open_scratch_in(parents, threads, opened))
                stack.callback(file.close)
                made.append(file)
            return made[0]

        yield SortedRuns(Bins.of(settings.max_parallelism), key_groups, threads, open_file)
