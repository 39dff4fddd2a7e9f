"""`ProcessorTester`: a processor on rows, without Spark, files or threads, in virtual time.

    rows -> those of each range -> ProcessorRunner, on the backend of the range -> output rows
                                                    -> snapshot -> commit, in memory

What runs is what runs in the driver and on executors: the same runner, backends of ranges of key groups and their
coordinator. Only the store is in memory, and the loop is a `VirtualTimeLoop`, so that awaiting takes no time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

import anyio
import anyio.lowlevel
import msgspec
import pyarrow as pa

from statebackend._backend.asked_to_open import HowToOpen
from statebackend._backend.coordinating import open_coordinator
from statebackend._backend.opening import open_backend
from statebackend._checkpoint.owner_backend import OwnerBackend
from statebackend._codec.plain import python_rows
from statebackend._log.coordinator import CheckpointCoordinator
from statebackend._processing.clockless import check_hooks
from statebackend._processing.event_time import Late, event_time_of
from statebackend._processing.processor import KeyedProcessor
from statebackend._processing.runner import ProcessorRunner
from statebackend._ranges.equal_ranges import ranges_of
from statebackend._state.time.job_clock import NOT_BEGUN
from statebackend._tables.key_groups import SEED, key_group
from statebackend._tasks import simulate_threads
from statebackend.abc import ObjectStore
from statebackend.errors import BackendClosedError, InputError, SettingsError
from statebackend.ids import CheckpointId, ClockKind, ClockMark, Key, SourceMark
from statebackend.objectstore import MemoryStore
from statebackend.settings import Settings
from statebackend.testing.virtual_time import VirtualClock, VirtualTimeLoop

_pa: Any = pa  # it ships no types
T = TypeVar("T")


class _TestedJob(msgspec.Struct, frozen=True):
    """The job, opened by `task`, which leaves it when `leave` is set."""

    coordinator: CheckpointCoordinator
    backends: tuple[OwnerBackend, ...]
    leave: anyio.Event


class _TestedBatch(msgspec.Struct, frozen=True):
    """A batch: its id, its rows and its clock, and the checkpoint before it."""

    batch_id: int
    table: Any
    clock_s: float | None
    before: int


class ProcessorTester:
    """Tests a `KeyedProcessor`: rows in, rows out, and the state in between.

        with ProcessorTester(Fleet(), key="tailnum") as tester:
            assert tester.batch([{"tailnum": "N14228", "dest": "IAH"}]) == [{"tailnum": "N14228", "flown": 1}]
            assert tester.backend().value_state("flown", int)["N14228"] == 1

    `key`, `order_by`, `concurrency`, `event_time`, `lateness_s` and `late` are those of `StatefulSink`. `ranges`: how
    many ranges of key groups there are; one is the driver, several are executors. `schema`: a `pyarrow.Schema` of the
    rows, by default that of the first batch. `clock`: the kind of the job's clock, if `batch` moves it by `clock_s`.

    `settings`: those of the job, for RocksDB, bases, local copies, inline sizes; its primary is opened if there is no
    `store`. `store`: an `ObjectStore` in place of one in memory, such as a `FaultyStore`. Work on files takes real time
    and none of the virtual; what waits for a socket does not belong here.

    Use it as a context, once, from synchronous code. Raises `SettingsError` as `StatefulSink` does.
    """

    def __init__(
        self,
        processor: KeyedProcessor,
        *,
        key: str | Sequence[str],
        order_by: str | Sequence[str] = (),
        concurrency: int | None = None,
        event_time: str | None = None,
        lateness_s: float | None = None,
        late: Late | None = None,
        schema: Any = None,
        clock: ClockKind = "event",
        ranges: int = 1,
        max_parallelism: int | None = None,
        settings: Settings | None = None,
        store: ObjectStore | None = None,
    ) -> None:
        self._event_time = event_time_of(event_time, lateness_s, late)
        self._runner = ProcessorRunner(
            processor,
            key=key,
            order_by=order_by,
            has_output=getattr(processor, "output_schema", None) is not None,
            concurrency=concurrency,
            event_time=self._event_time,
        )
        check_hooks(processor, event_time=self._event_time, late=late, clock=clock)
        if settings is not None and max_parallelism is not None:
            raise SettingsError("the settings have a max_parallelism: leave out the other", job=settings.job)
        self._store = MemoryStore() if settings is None and store is None else store
        self._settings: Final = settings or Settings(
            job="tested",
            primary="memory://tested",
            max_parallelism=128 if max_parallelism is None else max_parallelism,
            persist_delay_s=0.0,
            sweep_interval_s=0.0,
            materialize_interval_s=0.0,
        )
        self._ranges = ranges_of(ranges, self._settings.max_parallelism)
        self._schema = schema
        self._kind: Final[ClockKind] = "event" if event_time is not None else clock
        self._loop: asyncio.Runner | None = None
        self._is_left = False
        self._opened: _TestedJob | None = None
        self._task: asyncio.Task[None] | None = None
        self._last: _TestedBatch | None = None
        self._unanswered: _TestedBatch | None = None

    def __enter__(self) -> Self:
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise InputError("the tester has a loop of its own: use it in a test that is not `async def`")
        self._loop = asyncio.Runner(loop_factory=VirtualTimeLoop)
        simulate_threads(self._loop.get_loop(), anyio.lowlevel.checkpoint)
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._loop is not None, "not entered"
        self._is_left = True
        try:
            self._close()
        finally:
            self._loop.close()

    # --------------------------------------------------------------------------------------------------------- batches

    def batch(
        self, rows: Iterable[Mapping[str, Any]] | Any, *, clock_s: float | None = None, commit: bool = True
    ) -> list[dict[str, Any]]:
        """Process one batch and commit it. Returns its output rows, range by range; none without an `output_schema`.

        `rows`: mappings that all have the same columns, or a `pyarrow.Table` or `RecordBatch`. `clock_s` moves the
        job's clock first; without it, the event time of the rows does, if there is one.
        `commit=False`: the process dies before the commit, and the next one goes on from the state as it was.

        Raises what the processor raises, and `InputError` for rows of another schema than those before, and for keys
        and output rows that the sink would refuse. Then nothing was committed either. Raises what the store raises: a
        commit whose answer was lost may have been made. Give it the same rows again, as Spark does: if it was, they are
        passed over, and nothing is put out.
        """
        table, opened = self._table_of(rows), self._now()
        if self._is_committed(table):
            return []
        try:
            self._run(self._commit)  # of what was set by hand
            batch = _TestedBatch(self._newest_batch_id + 1, table, clock_s, opened.coordinator.next_checkpoint_id - 1)
            output = self._process(batch, opened.backends)
            if commit:
                self._unanswered = batch
                self._run(self._commit, SourceMark("tested", batch.batch_id))
        except BaseException as error:
            self._reopen_after(error)
            raise
        self._unanswered = None
        if table.num_columns:
            self._schema = table.schema
        if commit:
            self._last = batch
        else:
            self._reopen()
        return output

    def advance_clock(self, to_s: float) -> list[dict[str, Any]]:
        """Move the job's clock by a batch without rows, and fire the timers that are due. Returns the output rows."""
        return self.batch([], clock_s=to_s)

    def replay(self) -> list[dict[str, Any]]:
        """Process the newest batch again, on the state before it, as if its process had died before the commit.

        Returns the output rows. They and the state are the same if the processor can be relied on after a crash. What
        was set by hand since is forgotten. Raises `InputError` if no batch was committed since the tester or the last
        replay began.
        """
        if (last := self._last) is None:
            raise InputError("there is no batch that could come again: commit one first")
        self._close()
        self._last = None
        self._open(last.before)
        return self.batch(last.table, clock_s=last.clock_s)

    # ------------------------------------------------------------------------------------------------------- the state

    @property
    def backends(self) -> tuple[OwnerBackend, ...]:
        """The state of each range, in the order of the ranges."""
        return self._now().backends

    def backend(self, key: Key | None = None) -> OwnerBackend:
        """The state of the range that has the key; without a key, that of the only range.

        Declare a state as the processor does, to look at it or to set it: `tester.backend().value_state("flown", int)`.
        What is set is committed before the next batch. Raises `InputError` if there are several ranges and no key.
        """
        if key is None:
            if len(self._ranges) != 1:
                raise InputError("the keys are in several ranges: name the key", ranges=len(self._ranges))
            return self.backends[0]
        group = key_group(key, self._settings.max_parallelism)
        return next(backend for backend in self.backends if group in backend.key_groups)

    @property
    def clock_s(self) -> float | None:
        """The job's clock, in seconds; `None` before it was moved."""
        return self.backends[0].clock_s

    def restart(self, *, ranges: int | None = None) -> None:
        """Go on from what is committed, as another process does: with a new copy of the processor.

        `ranges`: rescale to so many ranges. Raises `SettingsError` for fewer than one or more than `max_parallelism`.
        """
        following = self._ranges if ranges is None else ranges_of(ranges, self._settings.max_parallelism)
        self._now()
        self._run(self._commit)
        self._ranges = following
        self._reopen()

    # ------------------------------------------------------------------------------------------------------- one batch

    @property
    def _newest_batch_id(self) -> int:
        """That of the newest batch in the state, and -1 before the first."""
        newest = self._now().coordinator.newest
        mark = None if newest is None else newest.newest_mark
        return -1 if mark is None else mark.batch_id

    def _is_committed(self, table: Any) -> bool:
        """True if these are the rows of the batch before, whose commit got no answer and was made."""
        unanswered, self._unanswered = self._unanswered, None
        if unanswered is None or unanswered.batch_id != self._newest_batch_id:
            return False
        if unanswered.table.num_columns:
            self._schema = unanswered.table.schema
        self._last = unanswered
        return bool(unanswered.table.equals(table))

    def _process(self, batch: _TestedBatch, backends: Sequence[OwnerBackend]) -> list[dict[str, Any]]:
        output: list[dict[str, Any]] = []
        table, clock_s = batch.table, batch.clock_s
        if clock_s is None and self._event_time is not None:  # without rows there may be no columns either
            clock_s = self._event_time.latest_s(table) if table.num_rows else NOT_BEGUN
        for backend, part in zip(backends, self._parts(table), strict=True):
            if clock_s is not None:
                backend.advance_clock(clock_s, self._kind)
            rows = self._runner(part, batch.batch_id, backend, self._run)
            output += [] if rows is None else python_rows(rows)
        return output

    def _parts(self, table: Any) -> list[Any]:
        """The rows of each range. Raises `InputError` for what is no key."""
        names = self._runner.key
        if len(self._ranges) == 1 or not table.num_rows or not {*names} <= {*table.column_names}:
            return [table] * len(self._ranges)  # without a key: the runner tells
        columns = [table.column(name).to_pylist() for name in names]
        groups = [self._group_of(tuple(part for part in key if part is not None)) for key in zip(*columns, strict=True)]
        return [table.filter(_pa.array([group in part for group in groups])) for part in self._ranges]

    def _group_of(self, parts: tuple[Any, ...]) -> int:
        """The key group that Spark computes. It passes over null parts; a key without any other has the seed's."""
        groups = self._settings.max_parallelism
        return key_group(parts, groups) if parts else SEED % groups

    def _table_of(self, rows: Any) -> Any:
        """The rows as a table of the schema that all batches have. Raises `InputError`."""
        rows = _pa.Table.from_batches([rows]) if isinstance(rows, _pa.RecordBatch) else rows
        if not isinstance(rows, _pa.Table):
            rows = self._table_of_rows(list(rows))
        elif self._schema is not None and not rows.schema.equals(self._schema):
            raise InputError(
                "the table has another schema than the rows before: a stream has one",
                schema=str(rows.schema),
                expected=str(self._schema),
            )
        return rows

    def _table_of_rows(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        if not rows:
            return _pa.table({}) if self._schema is None else self._schema.empty_table()
        for row in cast("Sequence[object]", rows):
            if not isinstance(row, Mapping):
                raise InputError("a batch is a list of mappings, or a pyarrow.Table", row=repr(row)[:80])
        expected = list(rows[0]) if self._schema is None else list(self._schema.names)
        if (wrong := next((row for row in rows if set(row) != set(expected)), None)) is not None:
            raise InputError(
                "a row has other columns than those before: a stream has one schema", row=wrong, expected=expected
            )
        try:
            table = _pa.Table.from_pylist(list(rows), schema=self._schema)
            for name in [field.name for field in table.schema if _pa.types.is_integer(field.type)]:
                if any(type(row[name]) is float for row in rows):  # Arrow would cut them off
                    raise ValueError(f"column {name} has whole numbers")
            return table
        except (_pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"a row does not fit the schema of those before; if that was taken from too few, give the tester a "
                f"schema: {error}",
                expected=str(self._schema),
            ) from error

    # --------------------------------------------------------------------------------------------------------- the job

    def _now(self) -> _TestedJob:
        if self._loop is None or self._is_left:
            raise BackendClosedError("the tester is not open: use it inside `with ProcessorTester(...) as tester`")
        if self._opened is None:  # opening it again has failed
            self._open()
        assert self._opened is not None
        return self._opened

    def _run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run a coroutine function on the loop, to its end."""
        assert self._loop is not None, "not entered"

        async def run() -> T:
            return await function(*args)

        return self._loop.run(run())

    def _open(self, checkpoint_id: int | None = None) -> None:
        self._opened = self._run(self._begin, checkpoint_id)

    def _close(self) -> None:
        self._opened, opened = None, self._opened
        self._runner.close(self._run)
        if opened is not None:
            self._run(self._end, opened)

    def _reopen(self) -> None:
        self._close()
        self._open()

    def _reopen_after(self, error: BaseException) -> None:
        """Go on from what is committed. What that raises must not hide `error`; the next call tries again."""
        try:
            self._reopen()
        except Exception as another:  # noqa: BLE001  # of the store, or of the processor's `open`
            error.add_note(f"and then the state could not be opened again: {another!r}")

    async def _begin(self, checkpoint_id: int | None) -> _TestedJob:
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[_TestedJob] = loop.create_future()
        self._task = loop.create_task(self._live(opened, checkpoint_id))  # what it enters it has to leave
        return await opened

    async def _end(self, opened: _TestedJob) -> None:
        assert self._task is not None, "opened by nobody"
        opened.leave.set()
        await self._task

    async def _live(self, opened: "asyncio.Future[_TestedJob]", checkpoint_id: int | None) -> None:
        try:
            async with AsyncExitStack() as stack:
                asked, clock = CheckpointId(checkpoint_id) if checkpoint_id is not None else None, VirtualClock()
                opening = open_coordinator(self._settings, checkpoint_id=asked, store=self._store, clock=clock)
                coordinator = await stack.enter_async_context(opening)
                how: HowToOpen = {"checkpoint_id": asked, "store": self._store, "clock": clock}
                backends = [
                    await stack.enter_async_context(
                        open_backend(self._settings, key_groups=part, owners=self._ranges, **how)
                    )
                    for part in self._ranges
                ]
                leave = anyio.Event()
                opened.set_result(_TestedJob(coordinator, tuple(backends), leave))
                await leave.wait()
        except BaseException as error:
            if opened.done():
                raise
            opened.set_exception(error)

    async def _commit(self, source: SourceMark | None = None) -> None:
        opened, now_s = self._now(), self.clock_s
        checkpoint_id = opened.coordinator.next_checkpoint_id
        snapshots = [await backend.snapshot(checkpoint_id) for backend in opened.backends]
        clock = None if now_s is None else ClockMark(now_s, self._kind)
        await opened.coordinator.commit(checkpoint_id, snapshots, source, clock=clock)
        for backend in opened.backends:
            await backend.notify_complete(checkpoint_id)
