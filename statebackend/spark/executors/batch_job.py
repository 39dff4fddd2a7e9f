"""A batch as one Spark job, of one task for each range of key groups with rows or due timers. Runs in the driver.

    place (placement.py) -> mapInArrow (worker.py) -> collect -> combine the contributions -> commit (claimed_job.py)

The driver has no state, only the claim on the job. It tells every task which commit to start from. If Spark makes
several attempts at a task, the one whose row `collect` returns is committed. A range without either stays as it was.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, cast

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

from statebackend._backend.asked_to_open import BeforeClaim
from statebackend._backend.copy_writers import OpenUploader
from statebackend._log.coordinator import CheckpointCoordinator
from statebackend._log.outbox import Staged, joined
from statebackend._observers import Observers
from statebackend._processing.clockless import check_clock_moves
from statebackend._processing.column_names import check_distinct
from statebackend._processing.runner import ProcessorRunner
from statebackend._processing.time_zones import zone_of
from statebackend._ranges.equal_ranges import ranges_of, ranges_with_due_timers
from statebackend._ranges.range_owners import Contribution, RangeTask
from statebackend._ranges.range_task import committed_base
from statebackend._state.time.job_clock import JobClock
from statebackend._version import __version__
from statebackend.abc import ObjectStore, Observer, StateChangeUploader
from statebackend.errors import SettingsError
from statebackend.ids import CheckpointId, ClockMark, SourceMark, all_key_groups
from statebackend.settings import Settings
from statebackend.spark.advice import advise_unix_sockets
from statebackend.spark.batch_clock import BatchClock
from statebackend.spark.bridge import QueryThread, attend, process_portal
from statebackend.spark.executors.claimed_job import ClaimedJob, open_claimed_job
from statebackend.spark.executors.pickling import pickled
from statebackend.spark.executors.placement import Placement
from statebackend.spark.executors.task_errors import error_in
from statebackend.spark.executors.worker import RESULT_SCHEMA, BatchSpec, RunSpec, TaskResult, task_of
from statebackend.spark.frames import check_types, context_of, without_adaptive_planning
from statebackend.spark.output import Outbox, OutputFunction, call_output

_pa: Any = pa  # it ships no types

BASE_BYTES_MAX: Final = 256 * 1024
"""A commit larger than this is not sent along with every task: each reads its own part of it from the primary."""

_logger = logging.getLogger(__name__)


class _QueryRun(msgspec.Struct, frozen=True):
    """The state of a run of a query: where rows go, and the pickled `RunSpec`."""

    placement: Placement
    spec: bytes


class OnExecutors:
    """Runs a processor on the executors, in `parallelism` ranges of key groups. `observer` is told of all of them.

    Raises `SettingsError` for what processes on several hosts cannot share.
    """

    def __init__(
        self,
        runner: ProcessorRunner,
        settings: Settings,
        *,
        parallelism: int,
        output: OutputFunction | Outbox | None,
        clock: BatchClock | None,
        keeps_clock: bool,
        observer: Observer | None,
        store: ObjectStore | None,
        uploader: StateChangeUploader | OpenUploader | None,
    ) -> None:
        self._ranges = ranges_of(parallelism, settings.max_parallelism)
        check_shared(settings, store, uploader)
        self._runner = runner
        self._settings = settings
        self._output = output
        self._clock = clock
        self._keeps_clock = keeps_clock
        self._observer = observer
        self._uploader = cast("OpenUploader | None", uploader)
        self._run: _QueryRun | None = None

    def check(self, df: DataFrame) -> None:
        """Raise `SettingsError` on Spark Connect: placing rows needs the JVM, which its sessions do not reach."""
        if context_of(df) is None:
            raise SettingsError("Spark Connect cannot place keys on executors: use execution='driver'")

    def open(
        self, checkpoint_id: CheckpointId | None, before_claim: BeforeClaim
    ) -> AbstractAsyncContextManager[ClaimedJob]:
        """Claim the job at its newest checkpoint, or at `checkpoint_id`."""
        return open_claimed_job(self._settings, checkpoint_id, Observers(self._observer or Observer()), before_claim)

    def apply(self, df: DataFrame, delivered: SourceMark, job: ClaimedJob, query: QueryThread) -> None:
        """Run the Spark job, call the output, and commit.

        Raises `BatchError` if all attempts at a range failed, `SettingsError` if the workers cannot run the task or the
        job's clock would stand still, `InputError` if columns share a name, cannot be a key, or have a type that the
        driver could not be given, and what the output and the commit raise.
        """
        check_distinct(df.columns)
        check_types(df)
        clock = self._moved_clock(df, job.coordinator)
        results = self._run_job(df, delivered, job.coordinator, clock)
        _log_found(delivered.batch_id, [result.contribution for result in results])
        staged = None
        if isinstance(self._output, Outbox):
            staged = self._staged_output(results)
        elif self._output is not None:
            call_output(self._output, self._output_rows(results), df, delivered.batch_id)
        attend(process_portal().start(job.commit, results, self._ranges, delivered, staged, clock), query)

    def close(self) -> None:
        """Release the anchor's cached rows. The next batch begins a run."""
        run, self._run = self._run, None
        if run is not None:
            run.placement.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_run": None}

    def _begin_run(self, df: DataFrame) -> _QueryRun:
        advise_unix_sockets(df)
        spec = pickled(RunSpec(self._runner, self._uploader, stages_output=isinstance(self._output, Outbox)))
        placement = Placement(
            df, self._runner.key, parallelism=len(self._ranges), max_parallelism=self._settings.max_parallelism
        )
        self._run = _QueryRun(placement, spec)
        return self._run

    def _moved_clock(self, df: DataFrame, coordinator: CheckpointCoordinator) -> ClockMark | None:
        """The job's clock in this batch; `None` without one, and before it has begun.

        Raises `SettingsError` if the job has a clock that this sink does not move.
        """
        committed = None if coordinator.base is None else coordinator.base.clock
        if self._clock is None:
            if not self._keeps_clock:
                check_clock_moves(committed)
            return committed
        clock = JobClock(committed)
        to_s, _ = self._clock.of_frame(df)
        clock.move(to_s, self._clock.kind)
        return clock.mark

    def _run_job(
        self, df: DataFrame, delivered: SourceMark, coordinator: CheckpointCoordinator, clock: ClockMark | None
    ) -> list[TaskResult]:
        run = self._run or self._begin_run(df)
        due = ranges_with_due_timers(coordinator.base, self._ranges, clock) if self._runner.fires_timers else ()
        task = RangeTask(
            settings=self._settings,
            key_groups=all_key_groups(self._settings.max_parallelism),  # a worker finds its own by its rows
            owners=self._ranges,
            epoch=coordinator.epoch,
            checkpoint_id=coordinator.next_checkpoint_id,
            base=committed_base(coordinator, self._ranges, body_bytes_max=BASE_BYTES_MAX),
            clock=clock,
        )
        columns, zone = tuple(df.columns), zone_of(delivered)
        spec = BatchSpec(task, run.placement.salts, columns, delivered.batch_id, wakes=bool(due), time_zone=zone)
        wake = [self._ranges.index(each) for each in due]
        placed: Any = run.placement.place(df, wake=wake)  # the types of mapInArrow are pyarrow's, which has none
        job: DataFrame = placed.mapInArrow(task_of(run.spec, pickled(spec), release=__version__), RESULT_SCHEMA)
        try:
            with without_adaptive_planning(df):
                rows = job.collect()
        except Exception as error:
            if (failure := error_in(str(error))) is None:
                raise
            raise failure from error
        return [msgspec.msgpack.decode(row.result, type=TaskResult) for row in rows]

    def _staged_output(self, results: Sequence[TaskResult]) -> Staged:
        nothing = Staged(bytes(self._runner.processor.output_schema.serialize()), 0)
        return joined([nothing, *(result.staged for result in results if result.staged is not None)])

    def _output_rows(self, results: Sequence[TaskResult]) -> Any:
        tables = [_pa.ipc.open_stream(result.output).read_all() for result in results if result.output is not None]
        return _pa.concat_tables([self._runner.processor.output_schema.empty_table(), *tables])


def check_shared(
    settings: Settings, store: ObjectStore | None, uploader: StateChangeUploader | OpenUploader | None
) -> None:
    """Raise `SettingsError` for what processes on several hosts cannot share."""
    if settings.primary.startswith("memory:"):
        raise SettingsError(
            "executors cannot reach a primary in the driver's memory: use file:// or s3://", primary=settings.primary
        )
    if store is not None:
        raise SettingsError("executors cannot reach an opened store: name it in Settings.primary", store=store)
    if isinstance(uploader, StateChangeUploader) and not isinstance(uploader, type):
        raise SettingsError(
            "executors cannot reach an opened uploader: give a function that opens one", uploader=uploader
        )
    if settings.put_budget_usd_month:
        raise SettingsError(
            "several processes cannot share one budget: on executors, set put_budget_usd_month to 0",
            put_budget_usd_month=settings.put_budget_usd_month,
        )


def _log_found(batch_id: int, contributions: Sequence[Contribution]) -> None:
    found = Counter(contribution.found for contribution in contributions)
    level = logging.DEBUG if found.keys() <= {"process"} else logging.INFO
    _logger.log(level, "batch %s: where the ranges found their state: %s", batch_id, dict(found))
