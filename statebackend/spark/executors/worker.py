"""What runs in Spark's Python workers: one partition, all rows of one slot, becomes one result row.

    rows -> Arrow table -> the range, opened at its committed base -> KeyedWork -> durable -> the row is yielded

A worker is forked bare, lives through many tasks, one at a time, and is killed without a warning. So each process has
one loop and one `RangeOwners` for a job, made with its first task; and when the row is yielded nothing goes on.

What Spark pickles is the inner function of `task_of`, by value, and bytes: so a worker that lacks the package, or has
another release of it, is able to say that.
"""

import gc
import itertools
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import cache, partial
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from statebackend._backend.copy_writers import OpenUploader
from statebackend._clock import SystemClock
from statebackend._log.outbox import Staged
from statebackend._portal import OpenContext
from statebackend._ranges.owners import Contribution, RangeOwners, RangeTask, open_range_owners
from statebackend.abc import Observer
from statebackend.errors import BatchError
from statebackend.spark.bridge import process_portal
from statebackend.spark.executors.pickling import unpickled
from statebackend.spark.executors.placement import SALT
from statebackend.spark.outbox import output_of, stream_of
from statebackend.spark.processor_runner import KeyedWork

T = TypeVar("T")
_pa: Any = pa  # it ships no types

RESULT_SCHEMA: Final = "result binary"
"""A result row: a `Result` as MessagePack."""

FAILED_MARK: Final = "statebackend: the work on a range failed: "
"""What stands before the JSON of a `Failure` in the text of an error that Spark brings to the driver."""

UNFIT_MARK: Final = "statebackend: this worker cannot run the task: "
"""What stands before a sentence that says what the worker lacks."""

JOBS_MAX: Final = 4
"""Jobs of which a worker process keeps what it has open. Of more, those go that had their last task longest ago."""

CLOSE_GRACE_S: Final = 1.0
"""How much longer than a range itself takes at most the worker waits for it to be left."""

_logger = logging.getLogger(__name__)


class Program(msgspec.Struct, frozen=True):
    """What stays the same within a run of a query."""

    work: KeyedWork
    uploader: OpenUploader | None
    stages: bool = False
    """Rows that come out are staged by the task, for the driver to publish; otherwise they go to him."""


class Errand(msgspec.Struct, frozen=True):
    """What is new with a batch. `task` is that of every slot but for its key groups.

    `salts` are those of the slots; `columns` are the names of the rows' columns but for `SALT`, which is the last.
    """

    task: RangeTask
    salts: tuple[int, ...]
    columns: tuple[str, ...]
    batch_id: int


class Result(msgspec.Struct, frozen=True):
    """What one attempt at a range brings to the driver.

    `made`: the rows that came out, as an Arrow stream; `None` without an output. `staged`: where they are staged
    instead, for an outbox. `seconds`: how long it took to make the changes durable. `requests`: those to the primary,
    by kind.
    """

    contribution: Contribution
    made: bytes | None
    seconds: float
    requests: dict[str, int]
    usd: float
    staged: Staged | None = None


class Failure(msgspec.Struct, frozen=True):
    """How an attempt ended that did not come to its result."""

    key_groups: str
    attempt: int
    host: str
    raised: str


class _Requests(Observer):
    """Adds up what the requests to the primary were and cost."""

    def __init__(self) -> None:
        self._requests = Counter[str]()
        self._usd = 0.0

    def primary_requested(self, requests: Mapping[str, int], *, usd: float) -> None:
        self._requests.update(requests)
        self._usd += usd

    def take(self) -> tuple[dict[str, int], float]:
        """All since the last time, and of attempts that failed in between."""
        taken = dict(self._requests), self._usd
        self._requests, self._usd = Counter[str](), 0.0
        return taken


class _Running(msgspec.Struct):
    """A job's program in this process, and who owns its ranges here."""

    pickled: bytes
    program: Program
    requests: _Requests
    owners: OpenContext[RangeOwners]


_running: dict[tuple[int, str, str], _Running] = {}  # by process, job and primary; the one used last is last


def task_of(program: bytes, errand: bytes, release: str) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """The function for `mapInArrow`. `program` and `errand` are pickled; `release` is the driver's."""
    unfit = UNFIT_MARK

    def work(batches: Any) -> Any:
        import sys  # noqa: PLC0415 - this function is pickled by value, and arrives alone

        try:
            import statebackend  # noqa: PLC0415
            from statebackend.spark.executors.worker import run  # noqa: PLC0415
        except ImportError as error:
            raise RuntimeError(f"{unfit}{error}; it runs {sys.executable}") from error
        if statebackend.__version__ != release:
            raise RuntimeError(
                f"{unfit}it has statebackend {statebackend.__version__}, the driver {release}; it runs {sys.executable}"
            )
        yield from run(program, errand, batches)

    return work


def run(program: bytes, errand: bytes, batches: Iterable[Any]) -> Iterator[Any]:
    """The one result row of a partition; none for a partition without rows.

    Raises `BatchError` with a `Failure` in its message. Nothing of the attempt goes on then, and what it has uploaded
    nobody will name.
    """
    arriving = (batch for batch in batches if batch.num_rows)
    first = next(arriving, None)
    if first is None:
        return
    arrived: Errand = unpickled(errand)
    slot = arrived.salts.index(first.column(SALT)[0].as_py())
    task = msgspec.structs.replace(arrived.task, key_groups=arrived.task.owners[slot])
    rows = partial(_gathered, itertools.chain([first], arriving), arrived.salts[slot], arrived.columns)
    try:
        result = _attempt(_of_job(program, task), task, rows, arrived.batch_id)
    except BaseException as error:
        raise _failed(error, task) from error
    row = _pa.array([msgspec.msgpack.encode(result)], type=_pa.binary())
    yield _pa.RecordBatch.from_arrays([row], names=["result"])


def _gathered(batches: Iterable[Any], salt: int, columns: Sequence[str]) -> Any:
    """All rows of the partition, under their names. Raises `BatchError` for a row of another slot."""
    table = _pa.Table.from_batches(batches)
    if (found := table.column(SALT).unique().to_pylist()) != [salt]:
        raise BatchError("Spark has put rows of several slots into one partition", salts=found)
    return table.drop_columns([SALT]).rename_columns(columns)


def _attempt(running: _Running, task: RangeTask, rows: Callable[[], Any], batch_id: int) -> Result:
    """The user's code runs here, on the worker's main thread, and everything else on the loop.

    The rest of the rows arrives while the range is being opened.
    """
    patience_s = 2 * task.settings.close_timeout_s + CLOSE_GRACE_S
    clock = SystemClock()
    with _held(running.owners.result().attempt(task), patience_s) as held:
        table = rows()
        held.wait()
        attempt = held.result()
        made = running.program.work(table, batch_id, attempt.backend)
        begun = clock.monotonic()
        staged = None
        if running.program.stages and (output := output_of(made)) is not None:
            made, staged = None, process_portal().call(attempt.backend.outbox.stage, output)
        contribution = process_portal().call(attempt.contribute)
        seconds = clock.monotonic() - begun
    requests, usd = running.requests.take()
    return Result(contribution, None if made is None else stream_of(made), seconds, requests, usd, staged)


def _of_job(pickled: bytes, task: RangeTask) -> _Running:
    """What this process has open for the task's job. Another program of the job, such as a changed one, begins anew."""
    settings = task.settings
    identity = (os.getpid(), settings.job, settings.primary)
    running = _running.pop(identity, None)
    if running is not None and (running.pickled != pickled or not running.owners.is_open):
        _close(running)
        running = None
    if running is None:
        while len(_running) >= JOBS_MAX:
            _close(_running.pop(next(iter(_running))))
        program: Program = unpickled(pickled)
        requests = _Requests()
        owners = process_portal().hold(open_range_owners(uploader=program.uploader, observer=requests))
        owners.wait()
        _spare_what_is_loaded(os.getpid())
        running = _Running(pickled, program, requests, owners)
    _running[identity] = running
    return running


@cache
def _spare_what_is_loaded(_process: int) -> None:
    """Have the garbage collector pass over the modules that a process has loaded. Once, before there is any state.

    Spark collects after each task, in every worker: 30 ms for the modules of Arrow and Spark alone, while the driver
    would go on.
    """
    gc.collect()
    gc.freeze()


def _close(running: _Running) -> None:
    try:
        running.owners.close()
    except Exception:
        _logger.warning("the ranges of an earlier program were not left cleanly", exc_info=True)


@contextmanager
def _held(context: AbstractAsyncContextManager[T], patience_s: float) -> Generator[OpenContext[T], None, None]:
    held = process_portal().hold(context)
    try:
        yield held
    finally:
        held.close(patience_s)


def _failed(error: BaseException, task: RangeTask) -> BatchError:
    context = TaskContext.get()
    failure = Failure(
        key_groups=str(task.key_groups),
        attempt=0 if context is None else context.attemptNumber(),
        host=socket.gethostname(),
        raised=f"{type(error).__name__}: {error}",
    )
    return BatchError(FAILED_MARK + msgspec.json.encode(failure).decode())
