"""`execution="driver"`: the user's function works on the whole state in this process, then the batch is committed.

A synchronous function runs on Spark's callback thread, an asynchronous one on the process's event loop; the same goes
for the `process` of a processor. It gets the batch from Spark in a single action, as Arrow: every further action would
run the batch's plan again.
"""

import inspect
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import Any, Final, cast

import anyio
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from statebackend._backend.asked_to_open import AskedToOpen, BeforeClaim
from statebackend._backend.copy_writers import OpenUploader
from statebackend._backend.opening import open_restorable
from statebackend._checkpoint.backend import StateBackend
from statebackend._observers import Observers
from statebackend._processing.clockless import check_clock_moves
from statebackend._processing.event_time import EventTime
from statebackend._processing.output_rows import has_rows
from statebackend._processing.processor import KeyedProcessor
from statebackend._processing.runner import ProcessorRunner
from statebackend._processing.time_zones import in_zone, zone_of
from statebackend.abc import ObjectStore, Observer, StateChangeUploader
from statebackend.errors import BatchError, InputError, SettingsError
from statebackend.ids import CheckpointId, ClockMark, SourceMark
from statebackend.settings import Settings
from statebackend.spark.batch_clock import BatchClock
from statebackend.spark.bridge import QueryThread, attend, process_portal
from statebackend.spark.frames import allow_actions, check_types, collected
from statebackend.spark.output import Outbox, OutputFunction, call_output, rows_to_stage
from statebackend.spark.standby import Standby

BatchFunction = Callable[[DataFrame, int, StateBackend], object]
"""A user's function. If it returns an awaitable, that is awaited. With an outbox, the result is the output rows, a
`pyarrow.Table` or `None`; without one, rows of any shape are refused, and anything else is dropped."""

PROGRESS_EVERY_S: Final = 1.0
"""How often the observer is told of a batch that is under way."""


class InDriver:
    """Runs a function, or a processor, on a backend that owns every key group.

    `observer`, `store` and `uploader` go to `open_backend`. `standby` may have the state already.
    """

    def __init__(
        self,
        work: ProcessorRunner | BatchFunction,
        settings: Settings,
        *,
        output: OutputFunction | Outbox | None,
        clock: BatchClock | None,
        keeps_clock: bool,
        observer: Observer | None,
        store: ObjectStore | None,
        uploader: StateChangeUploader | OpenUploader | None,
        standby: Standby | None = None,
    ) -> None:
        self._stages_output: Final = isinstance(output, Outbox)
        self._work = work
        self._output = None if isinstance(output, Outbox) else output
        self._clock = clock
        self._keeps_clock = keeps_clock
        self._settings = settings
        self._observer = observer
        self._store = store
        self._uploader = uploader
        self._standby = standby

    def check(self, df: DataFrame) -> None:
        """Accept any frame: the driver can process those of Spark Connect, too."""

    def open(
        self, checkpoint_id: CheckpointId | None, before_claim: BeforeClaim
    ) -> AbstractAsyncContextManager[StateBackend]:
        """Open the state at its newest checkpoint, or at `checkpoint_id`."""
        asked = AskedToOpen(
            self._settings,
            checkpoint_id=checkpoint_id,
            store=self._store,
            uploader=self._uploader,
            observer=self._observer,
        )
        asked.before_claim = before_claim
        cold = cast("AbstractAsyncContextManager[StateBackend]", open_restorable(asked))
        if self._standby is None:
            return cold
        return self._standby.opened(cold, is_newest=checkpoint_id is None, before_claim=before_claim)

    def apply(self, df: DataFrame, delivered: SourceMark, job: StateBackend, query: QueryThread) -> None:
        """Run the function and commit. Raises what either raises, and `QueryStoppedError` if the query is stopped.

        Raises `SettingsError` if the job has a clock, and neither this sink nor the function moves it.
        """
        try:
            if self._clock is None:
                self._keep_clock(job)
            if isinstance(self._work, ProcessorRunner):
                result = self._processed(self._work, df, delivered, job, query)
            else:
                result = self._called(self._work, df, delivered.batch_id, job, query)
            output = rows_to_stage(result) if self._stages_output else None
            checkpoint = partial(job.checkpoint, source=delivered, output=output)
            attend(process_portal().start(lambda: checkpoint(job.next_checkpoint_id)), query)
        except BaseException:
            job.abandon()
            raise

    def _called(
        self, function: BatchFunction, df: DataFrame, batch_id: int, job: StateBackend, query: QueryThread
    ) -> Any:
        """Call the function for one batch, and return its output rows if the sink has an outbox."""
        rows = df if self._clock is None else self._in_time(df, job, self._clock)
        result = result_of(function(rows, batch_id, job), df, query)
        if self._clock is None and not job.clock_has_moved and not df.isEmpty():
            check_clock_moves(_committed_clock(job), by_function=True)
        if not self._stages_output and (isinstance(result, DataFrame) or has_rows(result)):
            raise InputError(
                "the function returns rows and the sink has no outbox, so they would be lost: give the sink "
                "output=Outbox(publish), or return nothing",
                returned=type(result),
            )
        return result

    def _processed(
        self, runner: ProcessorRunner, df: DataFrame, delivered: SourceMark, job: StateBackend, query: QueryThread
    ) -> Any:
        """Process one batch, and return the output rows unless the output function receives them."""
        batch_id = delivered.batch_id
        try:
            table, to_s = (collected(df), None) if self._clock is None else self._clock.rows_of(df)
        except PySparkException:
            check_types(df)  # asked for only now: a batch that can be collected has types that can
            raise
        if self._clock is not None and to_s is not None:
            job.advance_clock(to_s, self._clock.kind)
        table = in_zone(table, zone_of(delivered))
        with self._telling_progress(runner, batch_id, table.num_rows):
            rows = runner(table, batch_id, job, lambda calls: attend(process_portal().start(calls, once=True), query))
        self._tell_late(runner.late_rows)
        if self._output is None:
            return rows
        call_output(self._output, rows, df, batch_id)
        return None

    @contextmanager
    def _telling_progress(self, runner: ProcessorRunner, batch_id: int, of_rows: int) -> Generator[None]:
        """In this context the observer is told from the loop: a call that waits, there or here, holds nothing up."""
        if self._observer is None:
            yield
            return
        telling = process_portal().start(tell_progress, runner, self._observer, batch_id, of_rows)
        try:
            yield
        finally:
            telling.cancel()

    def _keep_clock(self, job: StateBackend) -> None:
        committed = _committed_clock(job)
        if self._keeps_clock and committed is not None:
            job.advance_clock(committed.now_s, committed.kind)
        elif isinstance(self._work, ProcessorRunner):
            check_clock_moves(committed)

    def _in_time(self, df: DataFrame, job: StateBackend, clock: BatchClock) -> DataFrame:
        """Move the job's clock by the times of a batch for a function, and return the rows that it is to get."""
        to_s, late = clock.of_frame(df, job.clock_s)
        job.advance_clock(to_s, clock.kind)
        self._tell_late(late)
        is_dropped = late and clock.event_time is not None and clock.event_time.late == "drop"
        return clock.in_time(df, job.clock_before_s) if is_dropped else df

    def _tell_late(self, rows: int) -> None:
        if rows and self._observer is not None:
            Observers(self._observer).rows_late(rows)

    def close(self) -> None:
        """Close the opened copy of the processor, and drop it."""
        if isinstance(self._work, ProcessorRunner):
            self._work.close(process_portal().call)


async def tell_progress(runner: ProcessorRunner, observer: Observer, batch_id: int, of_rows: int) -> None:
    """Tell the observer how far a batch of `of_rows` is, every `PROGRESS_EVERY_S`, until cancelled."""
    observers, begun_s = Observers(observer), anyio.current_time()
    while True:
        await anyio.sleep(PROGRESS_EVERY_S)
        observers.batch_progressed(
            batch_id,
            rows=runner.begun_rows,
            of_rows=of_rows,
            seconds=anyio.current_time() - begun_s,
            keys_under_way=runner.keys_under_way,
        )


def _committed_clock(job: StateBackend) -> ClockMark | None:
    return None if job.newest is None else job.newest.clock


def work_of(
    function: BatchFunction | KeyedProcessor,
    *,
    key: str | Sequence[str],
    order_by: str | Sequence[str],
    concurrency: int | None,
    output: OutputFunction | Outbox | None,
    event_time: EventTime | None,
) -> ProcessorRunner | BatchFunction:
    """Return the processor's runner, or the function. Raises `SettingsError` for anything else."""
    if not (output is None or isinstance(output, Outbox) or callable(output)):
        raise SettingsError("output must be a function of (df, batch_id), or an Outbox", output=output)
    class_ = cast("object", function)
    if isinstance(function, KeyedProcessor) or (isinstance(class_, type) and issubclass(class_, KeyedProcessor)):
        return ProcessorRunner(  # which refuses the class itself
            cast("KeyedProcessor", function),
            key=key,
            order_by=order_by,
            has_output=output is not None,
            concurrency=concurrency,
            event_time=event_time,
        )
    if event_time is not None and event_time.late == "output":
        raise SettingsError("late='output' needs a KeyedProcessor: filter late rows yourself", function=function)
    if key or order_by or concurrency is not None or not (output is None or isinstance(output, Outbox)):
        raise SettingsError(
            "key, order_by, concurrency and an output function need a KeyedProcessor: remove them, or write one",
            function=function,
        )
    if not callable(cast("object", function)):
        raise SettingsError(
            "the sink needs a function of (df, batch_id, backend), or a KeyedProcessor", function=function
        )
    return function


def result_of(returned: object, df: DataFrame, query: QueryThread) -> object:
    """The result of a user's function for the batch `df`, given what the call `returned`. Awaits it if it is awaitable.

    Raises `BatchError` for a generator, whose body has not run.
    """
    # Look at what was returned and not at the function: partials, callable objects and decorated functions can be
    # asynchronous, too. Spark itself drops a coroutine and records the batch as done, though nothing has run.
    if inspect.isawaitable(returned):
        try:
            with allow_actions(df):
                return attend(process_portal().start(_await, returned, once=True), query)
        finally:
            _close_unbegun(returned)
    if inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        raise BatchError("the function is a generator, so nothing of it has run: remove its yield")
    return returned


async def _await(returned: Awaitable[object]) -> object:
    return await returned


def _close_unbegun(returned: object) -> None:
    """Close a coroutine that never began, as where the query was stopped first: Python would warn of it."""
    if inspect.iscoroutine(returned) and inspect.getcoroutinestate(returned) == inspect.CORO_CREATED:
        returned.close()
