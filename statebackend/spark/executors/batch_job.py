"""A batch whose work is done on Spark's executors: one job, of one task for each range of key groups that has rows.

    place (placement.py) -> mapInArrow (worker.py) -> collect -> combine what the ranges contribute -> commit

The driver holds no state, only the claim on the job. Each task is told the commit that it stands on. Of several
attempts at a task the one is committed whose row Spark gives to `collect`. A range without rows stays as it was.
"""

import logging
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Final, cast

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

from statebackend._backend.copy_writers import OpenUploader
from statebackend._backend.opening import open_counted_coordinator
from statebackend._checkpoint.spending import Spending
from statebackend._clock import SystemClock
from statebackend._codec.commit import Commit
from statebackend._log.coordinator import CheckpointCoordinator
from statebackend._log.outbox import Outbox, Staged, joined
from statebackend._observers import Observers
from statebackend._ranges.owners import Contribution, RangeTask, combine
from statebackend._version import __version__
from statebackend.abc import Buffer, CheckpointInfo, Clock, ObjectStore, Observer, StateChangeUploader
from statebackend.errors import BatchError, SettingsError
from statebackend.ids import (
    CheckpointId,
    CommitSummary,
    Epoch,
    KeyGroupRange,
    SourceMark,
    StagedOutput,
    all_key_groups,
)
from statebackend.settings import Settings
from statebackend.spark.bridge import QueryThread, attend, process_portal
from statebackend.spark.driver import Output, put_out
from statebackend.spark.executors.pickling import pickled
from statebackend.spark.executors.placement import Placement, ranges_of
from statebackend.spark.executors.worker import (
    FAILED_MARK,
    RESULT_SCHEMA,
    UNFIT_MARK,
    Errand,
    Failure,
    Program,
    Result,
    task_of,
)
from statebackend.spark.frames import context_of
from statebackend.spark.processor_runner import KeyedWork

_pa: Any = pa  # it ships no types

BASE_BYTES_MAX: Final = 256 * 1024
"""A commit larger than this is not sent along with each task: a task reads it from the primary."""

ADAPTIVE: Final = "spark.sql.adaptive.enabled"
"""Spark's setting of adaptive planning."""

UNIX_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
"""Spark's setting (since 4.1): how it talks with its Python workers. By TCP, its default, each task waits 40 ms for
its rows: Spark sends them in a second small write, which the kernel holds back until the first is acknowledged."""

_UNFIT: Final = (
    (re.escape(UNFIT_MARK) + "(.*)", "the workers need the package of the driver: install it, or ship it (--py-files)"),
    (r"(\[PYTHON_VERSION_MISMATCH\].*)", "the workers need the driver's minor version of Python: set PYSPARK_PYTHON"),
    (r"(No module named '(?:pyarrow|pandas)'.*)", "the workers need pyarrow: install it there, or set PYSPARK_PYTHON"),
    (r"(\[(?:PACKAGE_NOT_INSTALLED|UNSUPPORTED_PACKAGE_VERSION)\].*)", "the workers need the packages of the driver"),
    (r"(Cannot run program .*)", "the workers have no such Python: set PYSPARK_PYTHON to one that they have"),
)
"""What the text of a failed job says of workers that cannot do the work, and what to do then."""

_logger = logging.getLogger(__name__)


class ClaimedJob:
    """The job as the driver of a run has claimed it. Made by `OnExecutors.open`; its coroutines run on the loop."""

    def __init__(
        self, coordinator: CheckpointCoordinator, spending: Spending, *, clock: Clock, observer: Observer
    ) -> None:
        self.coordinator: Final = coordinator
        self._spending = spending
        self._clock = clock
        self._observer = observer

    def history(self) -> AsyncIterator[CommitSummary]:
        """The commit that the state stands on, its parent, and so on."""
        return self.coordinator.history()

    @property
    def epoch(self) -> Epoch:
        """Of the claim."""
        return self.coordinator.epoch

    @property
    def outbox(self) -> Outbox:
        """What is to be published."""
        return self.coordinator.outbox

    async def take_output(self) -> tuple[StagedOutput, tuple[Buffer, ...]] | None:
        """As `CheckpointCoordinator.take_output`."""
        return await self.coordinator.take_output()

    def published(self, output: StagedOutput) -> None:
        """As `CheckpointCoordinator.published`."""
        self.coordinator.published(output)

    async def commit(
        self,
        results: Sequence[Result],
        ranges: Sequence[KeyGroupRange],
        source: SourceMark,
        staged: Staged | None = None,
    ) -> None:
        """Make the next checkpoint of these results. Raises as `CheckpointCoordinator.commit`."""
        coordinator, begun, before = self.coordinator, self._clock.monotonic(), self._spending.requests
        checkpoint_id, base = coordinator.next_checkpoint_id, coordinator.base
        contributions = [result.contribution for result in results]
        snapshots, inline = combine(contributions, base, ranges, checkpoint_id=checkpoint_id, epoch=coordinator.epoch)
        committed = await coordinator.commit(checkpoint_id, snapshots, source, inline=inline, staged=staged)
        spent = self._spending.since(before)
        requests = sum((Counter(result.requests) for result in results), spent.requests)
        self._spending.tell()
        for result in results:
            self._tell(result)
        self._observer.checkpoint_committed(
            CheckpointInfo(
                checkpoint_id=checkpoint_id,
                sequence=committed.commit.sequence,
                changes=_new_changes(contributions, base),
                primary_bytes=committed.size_bytes
                + sum(each.snapshot.primary_bytes for each in contributions)
                + (staged.uploaded_bytes if staged is not None else 0),
                local_bytes=sum(each.snapshot.local_bytes for each in contributions),
                requests=requests.total(),
                seconds=self._clock.monotonic() - begun + max((result.seconds for result in results), default=0.0),
                local=committed.local and all(each.snapshot.local for each in contributions),
                requests_by_kind=dict(requests),
                usd=spent.usd + sum(result.usd for result in results),
                usd_month=spent.usd_month,
                persist_delay_s=spent.persist_delay_s,
            )
        )

    def _tell(self, result: Result) -> None:
        """Tell the driver's observer what its like would have been told where the range was open."""
        self._observer.range_opened(result.contribution.found)
        if result.requests:
            self._observer.primary_requested(result.requests, usd=result.usd)
        if result.contribution.report is not None:
            self._observer.restored(result.contribution.report)


class _Run(msgspec.Struct, frozen=True):
    """What stays the same within a run of a query: where rows go, and the pickled `Program`."""

    placement: Placement
    program: bytes


class OnExecutors:
    """Runs `work` on the executors, in `parallelism` ranges of key groups. The driver's observer hears of all of them.

    Raises `SettingsError` for what processes on several hosts cannot share.
    """

    def __init__(
        self,
        work: KeyedWork,
        settings: Settings,
        *,
        parallelism: int,
        output: Output | None,
        stages: bool,
        observer: Observer | None,
        store: ObjectStore | None,
        uploader: StateChangeUploader | OpenUploader | None,
    ) -> None:
        self._ranges = ranges_of(parallelism, settings.max_parallelism)
        _check_shared(settings, store, uploader)
        self._work = work
        self._settings = settings
        self._output = output
        self._stages = stages
        self._observer = observer
        self._uploader = cast("OpenUploader | None", uploader)
        self._run: _Run | None = None

    def check(self, df: DataFrame) -> None:
        """Placing rows needs the JVM, which a session of Spark Connect does not reach."""
        if context_of(df) is None:
            raise SettingsError("Spark Connect has no way to place keys on executors: use execution='driver'")

    def open(self, checkpoint_id: CheckpointId | None) -> AbstractAsyncContextManager[ClaimedJob]:
        """The job, claimed, on its newest checkpoint or on `checkpoint_id`."""
        return _open_claimed(self._settings, checkpoint_id, Observers(self._observer or Observer()))

    def apply(self, df: DataFrame, delivered: SourceMark, state: ClaimedJob, query: QueryThread) -> None:
        """Run the job, put out what came out, and commit.

        Raises `BatchError` for a range whose attempts failed, `SettingsError` for workers that cannot do the work, and
        what the output and the commit raise.
        """
        results = self._run_job(df, delivered, state.coordinator)
        _log_found(delivered.batch_id, [result.contribution for result in results])
        if self._output is not None:
            put_out(df, self._made_of(results), delivered.batch_id, self._output)
        staged = self._staged_of(results) if self._stages else None
        attend(process_portal().start(state.commit, results, self._ranges, delivered, staged), query)

    def close(self) -> None:
        """Let go of the anchor. The next batch begins a run."""
        run, self._run = self._run, None
        if run is not None:
            run.placement.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_run": None}

    def _begin(self, df: DataFrame) -> _Run:
        _advise_unix_sockets(df)
        program = pickled(Program(self._work, self._uploader, stages=self._stages))
        placement = Placement(
            df, self._work.key, parallelism=len(self._ranges), max_parallelism=self._settings.max_parallelism
        )
        self._run = _Run(placement, program)
        return self._run

    def _run_job(self, df: DataFrame, delivered: SourceMark, coordinator: CheckpointCoordinator) -> list[Result]:
        run = self._run or self._begin(df)
        task = RangeTask(
            settings=self._settings,
            key_groups=all_key_groups(self._settings.max_parallelism),  # each worker knows its own by its rows
            owners=self._ranges,
            epoch=coordinator.epoch,
            checkpoint_id=coordinator.next_checkpoint_id,
            base=coordinator.committed(BASE_BYTES_MAX),
        )
        errand = pickled(Errand(task, run.placement.salts, tuple(df.columns), delivered.batch_id))
        placed: Any = run.placement.place(df)  # the types of mapInArrow are those of pyarrow, which has none
        job: DataFrame = placed.mapInArrow(task_of(run.program, errand, __version__), RESULT_SCHEMA)
        try:
            with planned_at_once(df):
                rows = job.collect()
        except Exception as error:
            if (failure := in_our_words(str(error))) is None:
                raise
            raise failure from error
        return [msgspec.msgpack.decode(row.result, type=Result) for row in rows]

    def _staged_of(self, results: Sequence[Result]) -> Staged:
        nothing = Staged(bytes(self._work.processor.output_schema.serialize()), 0)
        return joined([nothing, *(result.staged for result in results if result.staged is not None)])

    def _made_of(self, results: Sequence[Result]) -> Any:
        tables = [_pa.ipc.open_stream(result.made).read_all() for result in results if result.made is not None]
        return _pa.concat_tables([self._work.processor.output_schema.empty_table(), *tables])


@asynccontextmanager
async def _open_claimed(
    settings: Settings, checkpoint_id: CheckpointId | None, observer: Observer
) -> AsyncGenerator[ClaimedJob]:
    clock = SystemClock()
    opening = open_counted_coordinator(settings, checkpoint_id=checkpoint_id, clock=clock, observer=observer)
    async with opening as (coordinator, spending):
        yield ClaimedJob(coordinator, spending, clock=clock, observer=observer)


@contextmanager
def planned_at_once(df: DataFrame) -> Generator[None, None, None]:
    """Without adaptive planning, which makes a job of each stage: the number of ranges is given, and so is the rest.

    The batch has a session of its own, and what lies upstream was planned before it came here.
    """
    conf = df.sparkSession.conf
    before = conf.get(ADAPTIVE)
    conf.set(ADAPTIVE, "false")
    try:
        yield
    finally:
        conf.set(ADAPTIVE, before or "true")


def _advise_unix_sockets(df: DataFrame) -> None:
    context = context_of(df)
    if context is not None and str(context.getConf().get(UNIX_SOCKETS, "false")).lower() != "true":
        _logger.info(
            "each batch waits 40 ms for its Python workers: start Spark with %s=true (4.1 or newer)", UNIX_SOCKETS
        )


def _check_shared(
    settings: Settings, store: ObjectStore | None, uploader: StateChangeUploader | OpenUploader | None
) -> None:
    if settings.primary.startswith("memory:"):
        raise SettingsError(
            "a primary in the driver's memory is out of the executors' reach: use file:// or s3://",
            primary=settings.primary,
        )
    if store is not None:
        raise SettingsError("an opened store is out of the executors' reach: name it in Settings.primary", store=store)
    if isinstance(uploader, StateChangeUploader) and not isinstance(uploader, type):
        raise SettingsError(
            "an opened uploader is out of the executors' reach: give a callable that opens one", uploader=uploader
        )
    if settings.put_budget_usd_month:
        raise SettingsError(
            "several processes cannot keep one budget: set put_budget_usd_month to 0 on executors",
            put_budget_usd_month=settings.put_budget_usd_month,
        )


def _new_changes(contributions: Sequence[Contribution], base: Commit | None) -> int:
    """How many changes they have that the base has not. A frame is known by where it lies."""
    parts = () if base is None else base.ranges
    before = {(each.segment.key, each.offset) for part in parts for each in part.changelog}
    handles = (handle for contribution in contributions for handle in contribution.snapshot.state.changelog)
    return sum(each.records for each in handles if (each.segment.key, each.offset) not in before)


def in_our_words(text: str) -> Exception | None:
    """What the text of a failed job says of a range or of the workers; `None` where it says something else."""
    if failures := re.findall(re.escape(FAILED_MARK) + r"(\{.*\})", text):
        failure = msgspec.json.decode(failures[-1], type=Failure)
        return BatchError(
            "the work on a range of key groups failed on an executor",
            key_groups=failure.key_groups,
            attempt=failure.attempt,
            host=failure.host,
            raised=failure.raised,
        )
    for pattern, advice in _UNFIT:
        if found := re.search(pattern, text):
            return SettingsError(advice, found=found[1].strip())
    return None


def _log_found(batch_id: int, contributions: Sequence[Contribution]) -> None:
    found = Counter(contribution.found for contribution in contributions)
    level = logging.DEBUG if found.keys() <= {"process"} else logging.INFO
    _logger.log(level, "batch %s: where the ranges found their state: %s", batch_id, dict(found))
