"""`StatefulSink`: the callable given to `foreachBatch`, and what it does with each delivered batch.

    identify the batch -> open the job, once per run -> decide: new or a replay? (replay.py) -> publish what is pending
                       -> process and commit (driver.py, executors/) -> publish its own output

If any step fails, the state in memory is dropped and the next delivery starts from the last commit, so a half-applied
batch never survives. Commits are numbered by the log (`next_checkpoint_id`), not by the batch: batch ids restart at 0
with a new query and repeat after a rollback, while checkpoint ids must grow.
"""

import logging
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import msgspec
import pyspark
from pyspark.sql import DataFrame

from statebackend._backend.copy_writers import OpenUploader
from statebackend._backend.stores import roots_with_copies
from statebackend._log.savepoint_markers import SavepointInfo
from statebackend._mirroring.mirrors import Mirror
from statebackend._observers import Observers
from statebackend._portal import OpenContext, as_exception
from statebackend._processing.clockless import check_hooks
from statebackend._processing.event_time import Late, event_time_of
from statebackend._processing.processor import KeyedProcessor
from statebackend._processing.runner import ProcessorRunner
from statebackend._processing.time_zones import check_zone
from statebackend.abc import ObjectStore, Observer, StateChangeUploader
from statebackend.errors import InputError, SettingsError, StateGoneError
from statebackend.ids import CheckpointId, CommitSummary, SourceMark
from statebackend.settings import Settings
from statebackend.spark.advice import advise_checkpoint_files
from statebackend.spark.batch_clock import ClockMode, batch_clock_of
from statebackend.spark.bridge import QueryThread, attend, process_portal
from statebackend.spark.driver import BatchFunction, InDriver, work_of
from statebackend.spark.execution import Execution, ExecutionMode, OpenedJob, check_place
from statebackend.spark.executors.batch_job import OnExecutors
from statebackend.spark.failed_frames import clear_frames
from statebackend.spark.frames import batch_starts, drain, source_mark
from statebackend.spark.given_batch import GivenBatch, given_batch_of
from statebackend.spark.mirrors_beside import MirrorsBeside
from statebackend.spark.output import Outbox, OutputFunction
from statebackend.spark.publishing import Publishing
from statebackend.spark.reading.registration import register_in_active_session
from statebackend.spark.release import check_release
from statebackend.spark.replay import (
    Adopt,
    FirstBatch,
    Marks,
    OnRewind,
    Policies,
    Step,
    check_query,
    decide,
    gap_after,
    newest_marks,
    rollback_to,
)
from statebackend.spark.standby import Standby
from statebackend.spark.starts import as_told, check_start
from statebackend.spark.stream_savepoints import SavepointRequests, StartFromSavepoint

CLOSE_GRACE_S: Final = 1.0
"""Seconds beyond `Settings.close_timeout_s` that the sink waits for its backend to close."""

_logger = logging.getLogger(__name__)


class StatefulSink:
    """Gives a batch function its state, and commits the state once per batch: `foreachBatch(StatefulSink(...))`.

    `function(df, batch_id, backend)` may be synchronous: then it runs on Spark's own thread and may use `df` freely. Or
    it may be `async def`: then it runs on the process's one event loop, and Spark actions go through
    `sb.spark.to_arrow` or `sb.spark.run`. Its changes are committed when it returns; if it raises, they are discarded
    and the query fails. A batch that the state already contains does not reach the function. So each batch is given in
    one call, with all of its rows: another frame of the same batch raises `InputError`. Stopping the query cancels a
    coroutine and waits for its cleanup, but interrupts a synchronous function only in a Spark action.

    Instead of a function, a `KeyedProcessor` is called key by key, or with an Arrow table. `key` names the key column,
    or several; `order_by` the columns that order the rows of a key. If its `process` is `async def`, `concurrency` keys
    are under way at a time on the event loop: 64 unless given. `output(df, batch_id)` receives the output rows
    once per batch, before the commit: for a receiver that drops batches it has seen. With `output=Outbox(publish)` the
    rows are part of the commit and published after it, the same rows even after a crash; a batch function then returns
    them as a `pyarrow.Table`.

    `execution="executors"` runs a processor on Spark's executors, in `parallelism` ranges of the keys, a number that
    may change at the next start; the driver only commits. The processor is pickled, and everything that `settings`
    names must be reachable from every host. `observer` stays in the driver.

    `event_time`: the column of timestamps that moves the job's clock, to the largest of them less `lateness_s` seconds;
    `clock="batch"`: the time at which a batch began moves it; `clock="kept"`: it stays where it stands, unless a
    function moves it by `advance_clock`. The clock is part of the commit; time-to-live and timers go by it, and timers
    that are due are given to `on_timer` of the processor. A job that has a clock is refused by a sink that names none.
    Rows that are older than the clock was before their batch are counted, and dropped; with `late="keep"` processed
    like any others, with `late="output"` given to `process_late`. A function, and executors, cost one more Spark job
    for the largest time of each batch.

    A processor sees instants in the time zone of the session, `spark.sql.session.timeZone`, which each commit keeps: a
    session of another zone is refused, because dates and hours made of the same instants would differ. `time_zone`: the
    zone that the session has to have, and that the job goes on with, whichever it had.

    `query_id`: names the query where Spark does not (Spark Connect); takes precedence where it does.
    `on_rewind="rollback"`: if Spark returns to an earlier batch, take the state back with it, unless that would undo
    commits of another hand; by default raise `RewindError`. `adopt`: the id of another query, to continue from its
    state; by default raise `WrongQueryError`. True accepts every query, and so a Spark checkpoint that was lost, whose
    rows come again.
    `first_batch_id`: the batch that the state begins with, if the query ran before it had this sink, or goes on with,
    if it is to lack those before. Any other batch but the one that follows raises `StateGoneError`, so give the sink
    empty ones, too. "any" accepts every batch, and so a lost state.
    `savepoint`: start from the state that is kept under this name, with the batch after it; any other raises
    `RewindError`. Once the query has gone on from there, later starts go on from the newest commit as ever.
    `starts_from`: where the query begins, for a job that was seeded with the same: any other, or none, raises
    `StateGoneError` before the first batch, as does a source that says itself that it begins elsewhere.
    `standby`: for the driver that takes over. It follows the job from now on, in memory, and claims it with the first
    batch. Until then nobody is fenced, and nothing is written. In the driver only.
    `mirrors`: tables that are kept at the newest commit beside the stream, from the first batch until `close`.
    `observer`, `store` and `uploader` go to `open_backend`. The job can be read by `format("statebackend")` in the
    session that is active where the sink is made: see `register`. A sink serves one query at a time. It pickles without
    its state, which is opened with the first batch.

    Raises `SettingsError` for invalid arguments, and for PySpark 3.
    """

    _job: OpenContext[OpenedJob] | None
    _run_id: str
    _given: GivenBatch

    def __init__(
        self,
        function: BatchFunction | KeyedProcessor,
        settings: Settings,
        *,
        key: str | Sequence[str] = (),
        order_by: str | Sequence[str] = (),
        concurrency: int | None = None,
        event_time: str | None = None,
        lateness_s: float | None = None,
        late: Late | None = None,
        clock: ClockMode | None = None,
        time_zone: str | None = None,
        output: OutputFunction | Outbox | None = None,
        execution: ExecutionMode = "driver",
        parallelism: int | None = None,
        query_id: str | None = None,
        on_rewind: OnRewind = "fail",
        adopt: Adopt = False,
        first_batch_id: FirstBatch = 0,
        savepoint: str | None = None,
        starts_from: Any = None,
        standby: bool = False,
        mirrors: Sequence[Mirror] = (),
        observer: Observer | None = None,
        store: ObjectStore | None = None,
        uploader: StateChangeUploader | OpenUploader | None = None,
    ) -> None:
        _check_ground(settings, time_zone)
        times = event_time_of(event_time, lateness_s, late)
        work = work_of(function, key=key, order_by=order_by, concurrency=concurrency, output=output, event_time=times)
        if isinstance(work, ProcessorRunner):
            check_hooks(work.processor, event_time=times, late=late, clock=clock)
        check_place(work, execution, parallelism, standby=standby)
        self.settings: Final = settings
        self._query_id = query_id
        self._policies = Policies(on_rewind, adopt, first_batch_id)
        self._time_zone = time_zone
        self._starts_from = as_told(starts_from)
        self._start = StartFromSavepoint(savepoint, settings, store, on_rewind)
        self._requests = SavepointRequests()
        self._observer = observer
        self._outbox = output if isinstance(output, Outbox) else None
        self._standby = Standby(settings, observer=observer, store=store, uploader=uploader) if standby else None
        self._mirrors = MirrorsBeside(settings, mirrors, store=store, observer=observer)
        self._has_store = store is not None
        self._execution: Final[Execution] = _place_of(work, parallelism, self._standby)(
            settings,
            output=output,
            clock=batch_clock_of(times, clock),
            keeps_clock=clock == "kept",
            observer=observer,
            store=store,
            uploader=uploader,
        )
        self._reset()
        if store is None:
            register_in_active_session(settings)
        if self._standby is not None:
            self._standby.begin()

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Apply one delivered batch, or recognize that it was applied. Spark calls this once per delivery.

        Raises `WrongQueryError`, `RewindError`, `StateGoneError`, `InputError` for a part of a batch, and whatever
        opening, the function or the commit raises. Always an `Exception`: anything else becomes the cause of a
        `BatchError`.
        """
        try:
            with self._one_at_a_time():
                self._deliver(df, batch_id)
        except Exception:
            raise
        except BaseException as error:
            # py4j answers the JVM only for an `Exception`. After anything else the query waits for ever, and so does
            # its `stop()`.
            raise as_exception(error) from error

    def savepoint(self, name: str) -> Future[SavepointInfo]:
        """Keep the next commit under this name. Called by any thread, while the query runs or before; fences nobody.

        Returns a `concurrent.futures.Future`: its `result(timeout_s)` waits for the commit of the next batch, and
        raises `SavepointExistsError` if the name is taken, `InputError` for a store that cannot list, or `StoreError`;
        the batch is committed all the same. Raises `InputError` for an impossible name. With Spark Connect the query
        runs in another process: there, use `statebackend.savepoint`.
        """
        return self._requests.add(name)

    def close(self) -> None:
        """Release the state, within `close_timeout_s` and two seconds. A later batch opens it again.

        A batch in progress fails with `BackendClosedError` and is delivered again. May be called twice. A sink on
        standby does not follow any more.
        """
        self._release()
        if self._standby is not None:
            self._standby.close()
        self._mirrors.close()

    def _release(self) -> None:
        if (job := self._job) is None:
            return
        job.portal.refuse_on_loop()
        self._job = None
        if job.portal is process_portal():  # after a fork this may be the parent's, whose thread is not here
            self._execution.close()
            try:
                job.close(self.settings.close_timeout_s + CLOSE_GRACE_S)
            finally:
                if (left := job.left()) is not None:
                    left.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_job", "_run_id", "_given", "_busy")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()

    def _reset(self) -> None:
        self._job = None
        self._run_id = ""
        self._given = GivenBatch() if self._has_store else given_batch_of(self.settings)
        self._publishing = Publishing(self._outbox, self._observer)
        self._busy = threading.Lock()

    @contextmanager
    def _one_at_a_time(self) -> Generator[None, None, None]:
        # Spark runs each query's callback on a thread of its own, so two queries with one sink would meet here.
        if not self._busy.acquire(blocking=False):
            raise InputError("the sink is busy with another batch: give each query a sink of its own")
        try:
            yield
        finally:
            self._busy.release()

    # ---------------------------------------------------------------------- one batch, on Spark's callback thread

    def _deliver(self, df: DataFrame, batch_id: int) -> None:
        delivered = source_mark(df, batch_id, self._query_id)
        self._execution.check(df)
        self._given.take(df, delivered, self._is_open)
        query = QueryThread(df, delivered.run_id)
        try:
            self._apply(df, delivered, query)
        except BaseException as error:
            self._drop_state()
            clear_frames(error)  # PySpark keeps the error for as long as the session lives
            # Spark cancels a stopped query's jobs an instant before it interrupts the thread, so this error may be
            # a consequence of the stop. Then raise what Spark takes for a stop and not for a failure.
            query.raise_if_stopped(error)
            raise

    def _apply(self, df: DataFrame, delivered: SourceMark, query: QueryThread) -> None:
        job = self._job_of(df, delivered, query)
        self._mirrors.begin()
        marks = self._marks(job, delivered, query)
        step = self._decide(delivered, marks, job, query)
        if step is Step.ROLL_BACK:
            job = self._roll_back(job, delivered, query)
            marks = self._marks(job, delivered, query)
        elif (after := gap_after(delivered, marks.own)) is not None:
            attend(process_portal().start(self._tell_missed, delivered, after), query)
        if step is not Step.SKIP and marks.newest is None:
            self._check_start(df, marks)
        self._publishing.run(df, job, query)  # left by an earlier run, and to come before anything newer
        if step is Step.SKIP:
            drain(df)
            return
        check_zone(delivered, marks.newest, told=self._time_zone)
        if self._start.is_due:
            attend(process_portal().start(self._start.record, job.epoch), query)
        self._execution.apply(df, delivered, job, query)
        if self._requests:
            attend(process_portal().start(self._requests.make, job), query)
        self._publishing.run(df, job, query)

    def _marks(self, job: OpenedJob, delivered: SourceMark, query: QueryThread) -> Marks:
        query_id, adopt = delivered.query_id, self._policies.adopt
        return attend(process_portal().start(lambda: newest_marks(job.history(), query_id, adopt=adopt)), query)

    def _check_start(self, df: DataFrame, marks: Marks) -> None:
        if marks.starts_from is not None or self._starts_from is not None:
            check_start(marks.starts_from, self._starts_from, batch_starts(df))

    def _decide(self, delivered: SourceMark, marks: Marks, job: OpenedJob, query: QueryThread) -> Step:
        told = msgspec.structs.replace(self._policies, first_batch_id="any") if job.fell_back else self._policies
        try:
            return decide(delivered, marks, told)
        except StateGoneError as error:
            left = attend(process_portal().start(roots_with_copies, self.settings), query)
            facts = {"job": self.settings.job, "primary": self.settings.primary, "local_copies": left}
            raise StateGoneError(error.message, **error.facts, **facts) from None

    async def _tell_missed(self, delivered: SourceMark, after: int) -> None:
        _logger.warning(
            "batch %d of query %s follows batch %d in the state, as first_batch_id or fall_back_to_older allows: those "
            "between are missing",
            delivered.batch_id,
            delivered.query_id,
            after,
        )
        Observers(self._observer or Observer()).batches_missed(delivered, after=after)

    def _job_of(self, df: DataFrame, delivered: SourceMark, query: QueryThread) -> OpenedJob:
        """The job, open since an earlier batch of this run, or opened now.

        Each run opens it anew: another process may have owned the job since the run before.
        """
        job = self._job
        if job is not None and job.is_open and (job.portal, self._run_id) == (process_portal(), delivered.run_id):
            return job.result()
        self._drop_state()
        advise_checkpoint_files(df)
        opened = self._open(query, delivered, attend(process_portal().start(self._start.checkpoint, delivered), query))
        self._run_id = delivered.run_id
        return opened

    def _open(self, query: QueryThread, delivered: SourceMark, checkpoint_id: CheckpointId | None) -> OpenedJob:
        def before_claim(newest: CommitSummary | None) -> None:  # or a refused query would fence the one at work
            check_query(delivered, None if newest is None else newest.newest_mark, self._policies.adopt)

        job: OpenContext[OpenedJob] = process_portal().hold(self._execution.open(checkpoint_id, before_claim))
        self._job = job
        return attend(job, query)

    def _roll_back(self, job: OpenedJob, delivered: SourceMark, query: QueryThread) -> OpenedJob:
        first = self._policies.first_batch_id
        base = attend(process_portal().start(lambda: rollback_to(job.history(), delivered, first)), query)
        _logger.warning("rolling the state back to checkpoint %s for batch %s", base, delivered.batch_id)
        self._release()
        return self._open(query, delivered, base)

    def _is_open(self) -> bool:
        return self._job is not None

    def _drop_state(self) -> None:
        try:
            self._release()
        except Exception:
            _logger.warning("the state of a failed batch did not close cleanly", exc_info=True)


def _check_ground(settings: object, time_zone: object) -> None:
    check_release(pyspark.__version__)
    if not isinstance(settings, Settings):
        raise SettingsError("a sink needs Settings: make them of a mapping by Settings.from_mapping", settings=settings)
    if not isinstance(time_zone, str | None):
        raise SettingsError("time_zone must be the name of a zone, or left out", time_zone=repr(time_zone))


def _place_of(
    work: ProcessorRunner | BatchFunction, parallelism: int | None, standby: Standby | None
) -> Callable[..., Execution]:
    if isinstance(work, ProcessorRunner) and parallelism is not None:
        return partial(OnExecutors, work, parallelism=parallelism)
    return partial(InDriver, work, standby=standby)
