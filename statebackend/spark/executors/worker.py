"""The task in Spark's Python workers: one partition, all rows of one slot, becomes one result row.

    rows -> Arrow table -> the range, opened at its committed base -> processor -> durable -> one result row

A worker is forked bare, runs many tasks, one at a time, and is killed without warning. So each process has one event
loop, and one `RangeOwners` per job, both made with its first task; and nothing is still going on when the row is
yielded.

Spark pickles the inner function of `task_of` by value, and bytes. So a worker that lacks the package, or has another
release of it, is still able to say so.
"""

import gc
import itertools
import logging
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import cache, partial
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from statebackend._backend.copy_writers import OpenUploader
from statebackend._log.outbox import Staged
from statebackend._portal import OpenContext
from statebackend._processing.runner import ProcessorRunner
from statebackend._processing.time_zones import UTC, in_zone
from statebackend._ranges.range_owners import Contribution, RangeOwners, RangeTask, open_range_owners
from statebackend.abc import Observer
from statebackend.abc.clock import SystemClock
from statebackend.errors import BatchError
from statebackend.spark.bridge import process_portal
from statebackend.spark.executors.pickling import unpickled
from statebackend.spark.executors.placement import SALT, WAKE
from statebackend.spark.executors.task_errors import UNFIT_MARK, range_failed
from statebackend.spark.output import rows_to_stage, stream_of

T = TypeVar("T")
_pa: Any = pa  # it ships no types

RESULT_SCHEMA: Final = StructType([StructField("result", BinaryType())])
"""Spark's schema of a result row: a `TaskResult` as MessagePack. As text, Spark would parse it with each batch."""

JOBS_MAX: Final = 4
"""Most jobs that a worker process keeps open. Beyond that, it closes the one whose last task was longest ago."""

CLOSE_GRACE_S: Final = 1.0
"""Seconds that the worker waits for a range to close, beyond the longest that closing takes by itself."""

_logger = logging.getLogger(__name__)


class RunSpec(msgspec.Struct, frozen=True):
    """The input of a task that stays the same during a run of a query."""

    runner: ProcessorRunner
    uploader: OpenUploader | None
    stages_output: bool = False
    """True if the task stages output rows, for the driver to publish; otherwise it sends them to the driver."""


class BatchSpec(msgspec.Struct, frozen=True):
    """The input of a task that is new with each batch.

    `task`: the same for every slot but for its key groups. `salts`: those of the slots. `columns`: the names of the
    rows' columns, without `SALT`, which is the last.
    """

    task: RangeTask
    salts: tuple[int, ...]
    columns: tuple[str, ...]
    batch_id: int
    wakes: bool = False
    """True if there are rows that only wake their range: see `Placement.place`."""
    time_zone: str = UTC
    """The zone in which the processor sees instants."""


class TaskResult(msgspec.Struct, frozen=True):
    """The result of one attempt at a range, for the driver.

    `output`: the output rows as an Arrow stream; `None` if there is no output, or if they are `staged` for an outbox.
    `seconds`: how long it took to make the changes durable. `requests`: requests to the primary, by kind.
    """

    contribution: Contribution
    output: bytes | None
    seconds: float
    requests: dict[str, int]
    usd: float
    staged: Staged | None = None
    late_rows: int = 0


class _Requests(Observer):
    """Adds up the requests to the primary, and their price."""

    def __init__(self) -> None:
        self._requests = Counter[str]()
        self._usd = 0.0

    def primary_requested(self, requests: Mapping[str, int], *, usd: float) -> None:
        self._requests.update(requests)
        self._usd += usd

    def take(self) -> tuple[dict[str, int], float]:
        """Return the sums since the last call, failed attempts included, and start again from zero."""
        taken = dict(self._requests), self._usd
        self._requests, self._usd = Counter[str](), 0.0
        return taken


class _OpenJob(msgspec.Struct):
    """A job that this process has open: what it runs, and the owners of its ranges here."""

    pickled: bytes
    spec: RunSpec
    requests: _Requests
    owners: OpenContext[RangeOwners]


_open_jobs: dict[tuple[int, str, str], _OpenJob] = {}  # by process, job and primary; the most recently used is last


def task_of(*specs: bytes, release: str, module: str = __name__) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """The function for `mapInArrow`: `run` of the module. The specs are pickled; `release` is the driver's."""
    unfit = UNFIT_MARK

    def work(batches: Any) -> Any:
        import importlib  # noqa: PLC0415 - this function is pickled by value, and arrives alone
        import sys  # noqa: PLC0415

        try:
            import statebackend  # noqa: PLC0415

            run = importlib.import_module(module).run
        except ImportError as error:
            raise RuntimeError(f"{unfit}{error}; it runs {sys.executable}") from error
        if statebackend.__version__ != release:
            raise RuntimeError(
                f"{unfit}it has statebackend {statebackend.__version__}, the driver {release}; it runs {sys.executable}"
            )
        yield from run(*specs, batches)

    return work


def run(run_spec: bytes, batch_spec: bytes, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the one result row of a partition; nothing for a partition without rows. A range with due timers has one.

    Raises the `BatchError` of `range_failed`. Then nothing of the attempt is still going on, and no commit will name
    what it has uploaded.
    """
    arriving = (batch for batch in batches if batch.num_rows)
    first = next(arriving, None)
    if first is None:
        return
    batch: BatchSpec = unpickled(batch_spec)
    slot = batch.salts.index(first.column(SALT)[0].as_py())
    task = msgspec.structs.replace(batch.task, key_groups=batch.task.owners[slot])
    rows = partial(_gathered, itertools.chain([first], arriving), batch.salts[slot], batch)
    try:
        result = _attempt(_open_job(run_spec, task), task, rows, batch.batch_id)
    except BaseException as error:
        raise range_failed(error, task.key_groups) from error
    row = _pa.array([msgspec.msgpack.encode(result)], type=_pa.binary())
    yield _pa.RecordBatch.from_arrays([row], names=["result"])


def _gathered(batches: Iterable[Any], salt: int, batch: BatchSpec) -> Any:
    """All rows of the partition, with the names of their columns. Raises `BatchError` for a row of another slot."""
    table = _pa.Table.from_batches(batches)
    if (found := table.column(SALT).unique().to_pylist()) != [salt]:
        raise BatchError("Spark has put rows of several slots into one partition: please report it", salts=found)
    if batch.wakes:
        table = table.filter(table.column(WAKE).is_null()).drop_columns([WAKE])
    return in_zone(table.drop_columns([SALT]).rename_columns(batch.columns), batch.time_zone)


def _attempt(job: _OpenJob, task: RangeTask, rows: Callable[[], Any], batch_id: int) -> TaskResult:
    """Process the rows of one range. Synchronous user code runs here, on the worker's main thread, else on the loop."""
    close_within_s = 2 * task.settings.close_timeout_s + CLOSE_GRACE_S
    clock = SystemClock()
    with _opened(job.owners.result().attempt(task), close_within_s) as opened:
        table = rows()  # the rest of the rows arrives while the range is being opened
        opened.wait()
        attempt = opened.result()
        try:
            output = job.spec.runner(table, batch_id, attempt.backend, process_portal().call)
        finally:
            # Now, as an iterator that the processor has kept would keep the range's files open.
            job.spec.runner.close(process_portal().call)
        begun = clock.monotonic()
        staged = None
        if job.spec.stages_output and (to_stage := rows_to_stage(output)) is not None:
            output, staged = None, process_portal().call(attempt.backend.outbox.stage, to_stage)
        contribution = process_portal().call(attempt.contribute)
        seconds = clock.monotonic() - begun
    requests, usd = job.requests.take()
    return TaskResult(
        contribution,
        None if output is None else stream_of(output),
        seconds,
        requests,
        usd,
        staged,
        job.spec.runner.late_rows,
    )


def _open_job(run_spec: bytes, task: RangeTask) -> _OpenJob:
    """The task's job, open in this process. If its run spec has changed, as after an update, it is opened anew."""
    settings = task.settings
    identity = (os.getpid(), settings.job, settings.primary)
    job = _open_jobs.pop(identity, None)
    if job is not None and (job.pickled != run_spec or not job.owners.is_open):
        _close(job)
        job = None
    if job is None:
        while len(_open_jobs) >= JOBS_MAX:
            _close(_open_jobs.pop(next(iter(_open_jobs))))
        spec: RunSpec = unpickled(run_spec)
        requests = _Requests()
        owners = process_portal().hold(open_range_owners(uploader=spec.uploader, observer=requests))
        owners.wait()
        _freeze_loaded_modules(os.getpid())
        job = _OpenJob(run_spec, spec, requests, owners)
    _open_jobs[identity] = job
    return job


@cache
def _freeze_loaded_modules(_process: int) -> None:
    """Exempt the modules that a process has loaded from garbage collection. Once, before there is any state.

    Spark collects in every worker after every task. For the modules of Arrow and Spark alone that takes 30 ms, just
    when the driver could continue. State is not frozen, because that of a range that moves away must be collectable.
    """
    gc.collect()
    gc.freeze()


def _close(job: _OpenJob) -> None:
    try:
        job.owners.close()
    except Exception:
        _logger.warning("the ranges of an earlier run did not close cleanly", exc_info=True)


@contextmanager
def _opened(context: AbstractAsyncContextManager[T], close_within_s: float) -> Generator[OpenContext[T], None, None]:
    """Begin to open `context` on the loop; close it at the end, within `close_within_s` seconds."""
    opened = process_portal().hold(context)
    try:
        yield opened
    finally:
        opened.close(close_within_s)
