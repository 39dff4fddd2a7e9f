"""`StatefulSink`: the callable given to `foreachBatch`, and what happens to one delivered batch.

    identify the batch -> open the state, once -> decide (replay.py) -> publish what is left (outbox.py)
                       -> run the function -> commit -> publish

Whatever fails on the way, the state in memory is dropped and the next delivery starts from what is committed: a batch
that was applied by half never survives. The commit is numbered by the log (`next_checkpoint_id`), not by the batch:
batch ids begin again at 0 with a new query, and come again after a rollback, where ids of commits have to grow.
"""

import logging
import threading
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, get_args

from pyspark.sql import DataFrame

from statebackend._backend.copy_writers import OpenUploader
from statebackend._portal import OpenContext, as_exception
from statebackend.abc import ObjectStore, Observer, StateChangeUploader
from statebackend.errors import InputError, RewindError, SettingsError
from statebackend.ids import CheckpointId, CommitSummary, SourceMark, StagedOutput
from statebackend.settings import Settings
from statebackend.spark.bridge import QueryThread, attend, process_portal
from statebackend.spark.driver import BatchFunction, InDriver, KeyedBatches, Output, result_of
from statebackend.spark.executors.batch_job import OnExecutors
from statebackend.spark.frames import drain, source_mark
from statebackend.spark.outbox import Outbox, Publication, Publishes
from statebackend.spark.processor import KeyedProcessor
from statebackend.spark.processor_runner import KeyedWork
from statebackend.spark.replay import OnRewind, Step, can_stand_under, decide

Where = Literal["driver", "executors"]

CLOSE_GRACE_S: Final = 1.0
"""How much longer than `Settings.close_timeout_s` the sink waits for its backend to be left."""

_logger = logging.getLogger(__name__)


class Applied(Publishes, Protocol):
    """What a batch is applied to: all key groups, or the claim on them. It stands on a commit."""

    def history(self) -> AsyncIterator[CommitSummary]:
        """The commit that it stands on, its parent, and so on."""
        ...


class Execution(Protocol):
    """Where the work of a batch is done. `check` and `apply` are called on Spark's callback thread."""

    def check(self, df: DataFrame) -> None:
        """Raise `SettingsError` where it cannot be done there. Before the job is opened: nobody is fenced for it."""
        ...

    def open(self, checkpoint_id: CheckpointId | None) -> AbstractAsyncContextManager[Any]:
        """The job, claimed, as of its newest checkpoint or of `checkpoint_id`: an `Applied`."""
        ...

    def apply(self, df: DataFrame, delivered: SourceMark, state: Any, query: QueryThread) -> None:
        """Take a batch that is new through to its commit, on what `open` gave. Raises where nothing is committed."""
        ...

    def close(self) -> None:
        """Let go of what is held between batches besides the state. Raises nothing; may be called again."""
        ...


class StatefulSink:
    """Gives a batch function its state, and commits the state once per batch: `foreachBatch(StatefulSink(...))`.

    `function(df, batch_id, backend)` is synchronous, and then runs on Spark's own thread and may use `df` freely; or
    `async def`, and then runs on the process's one loop, where Spark actions go through `sb.spark.to_arrow` or
    `sb.spark.run`. When it has returned, its changes are committed; when it raises, they are gone and the query fails.
    A batch that is in the state already does not reach the function. Stopping the query cancels a coroutine and
    waits for its cleanup; a synchronous function it interrupts only in a Spark action.

    In place of the function, a `KeyedProcessor` is called key by key, or with an Arrow table. `key` names the column of
    the key, or several; `order_by` the columns in whose order the rows of a key come. `output(df, batch_id)` is called
    with the rows that came out, once per batch, before the commit: for a place that drops a batch it has seen. With
    `output=Outbox(publish)` they are part of the commit and published after it, the same rows after a crash, too; a
    function in place of a processor then returns them as a `pyarrow.Table`.

    `execution="executors"` has a processor's work done by Spark's executors, in `parallelism` ranges of the keys, which
    may be another number at the next start; the driver only commits. The processor is pickled then, and what `settings`
    name has to be within reach of every host; `observer` stays in the driver.

    `query_id`: names the query where Spark does not (Spark Connect), and wins where it does. `on_rewind="rollback"`:
    when Spark comes back to an earlier batch, take the state back with it; otherwise `RewindError`. `adopt=True`: go on
    with a state that another query has made; otherwise `WrongQueryError`. `observer`, `store` and `uploader` go to
    `open_backend`. One sink serves one query at a time. It pickles without its state, which opens at the first batch.

    Raises `SettingsError` for arguments that are none of these.
    """

    _held: OpenContext[Applied] | None
    _run_id: str

    def __init__(
        self,
        function: BatchFunction | KeyedProcessor,
        settings: Settings,
        *,
        key: str | Sequence[str] = (),
        order_by: str | Sequence[str] = (),
        output: Output | Outbox | None = None,
        execution: Where = "driver",
        parallelism: int | None = None,
        query_id: str | None = None,
        on_rewind: OnRewind = "fail",
        adopt: bool = False,
        observer: Observer | None = None,
        store: ObjectStore | None = None,
        uploader: StateChangeUploader | OpenUploader | None = None,
    ) -> None:
        work = _work_of(function, key=key, order_by=order_by, output=output)
        if on_rewind not in get_args(OnRewind):
            raise SettingsError("on_rewind must be 'fail' or 'rollback'", on_rewind=on_rewind)
        if execution not in get_args(Where) or (execution == "executors") != (parallelism is not None):
            raise SettingsError(
                "execution must be 'driver', or 'executors' and parallelism a number",
                execution=execution,
                parallelism=parallelism,
            )
        self.settings: Final = settings
        self._query_id = query_id
        self._on_rewind: OnRewind = on_rewind
        self._adopt = adopt
        self._outbox = output if isinstance(output, Outbox) else None
        called = None if isinstance(output, Outbox) else output
        self._execution: Execution
        if parallelism is None:
            self._execution = InDriver(
                KeyedBatches(work, called) if isinstance(work, KeyedWork) else work,
                settings,
                stages=self._outbox is not None,
                observer=observer,
                store=store,
                uploader=uploader,
            )
        elif isinstance(work, KeyedWork):
            self._execution = OnExecutors(
                work,
                settings,
                parallelism=parallelism,
                output=called,
                stages=self._outbox is not None,
                observer=observer,
                store=store,
                uploader=uploader,
            )
        else:
            raise SettingsError("execution='executors' goes with a KeyedProcessor", function=function)
        self._start_afresh()

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Apply one delivered batch, or find that it is applied. Spark calls this, once per delivery.

        Raises `WrongQueryError`, `RewindError`, what opening and committing raise, and what the function raises;
        always an `Exception`: anything else becomes the cause of a `BatchError`.
        """
        try:
            with self._one_at_a_time():
                self._deliver(df, batch_id)
        except Exception:
            raise
        except BaseException as error:
            raise as_exception(error) from error

    def close(self) -> None:
        """Let go of the state, within `close_timeout_s` and two seconds. A later batch opens it again.

        A batch under way fails with `BackendClosedError` and is delivered again. Closing twice is fine.
        """
        if (held := self._held) is None:
            return
        held.portal.refuse_on_loop()
        self._held = None
        if held.portal is process_portal():  # not the parent's, before a fork
            self._execution.close()
            held.close(self.settings.close_timeout_s + CLOSE_GRACE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_held", "_run_id", "_busy")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._held = None
        self._run_id = ""
        self._warned = False
        self._busy = threading.Lock()

    @contextmanager
    def _one_at_a_time(self) -> Generator[None, None, None]:
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
        query = QueryThread(df, delivered.run_id)
        try:
            self._apply(df, delivered, query)
        except BaseException as error:
            self._drop()
            # A stopped query's jobs are cancelled an instant before its thread is interrupted, so what failed may be a
            # consequence. If so, this raises what Spark takes for a stop and not for a failure.
            query.raise_if_stopped(error)
            raise

    def _apply(self, df: DataFrame, delivered: SourceMark, query: QueryThread) -> None:
        state = self._state_for(delivered, query)
        newest, own = attend(process_portal().start(_marks, state, delivered.query_id, self._adopt), query)
        step = decide(delivered, newest=newest, own=own, on_rewind=self._on_rewind, adopt=self._adopt)
        if step is Step.ROLL_BACK:
            state = self._roll_back(state, delivered, query)
        self._publish(df, state, query)
        if step is Step.SKIP:
            drain(df)
            return
        self._execution.apply(df, delivered, state, query)
        self._publish(df, state, query)

    def _publish(self, df: DataFrame, state: Applied, query: QueryThread) -> None:
        """Publish what is committed and not known to be published. Raises what the outbox's function raises."""
        outbox = self._outbox
        if outbox is None:
            if state.outbox.pending and not self._warned:
                _logger.warning("output is committed that may not be published, and this sink has no outbox to do it")
                self._warned = True
            return
        while state.outbox.pending:
            taken = attend(process_portal().start(state.take_output), query)
            assert taken is not None, "another one publishes"
            output, streams = taken
            publication = Publication(output, streams, epoch=state.epoch, session=df.sparkSession)
            result_of(outbox.publish(publication), df, query)
            attend(process_portal().start(_published, state, output), query)

    # ---------------------------------------------------------------------- the state

    def _state_for(self, delivered: SourceMark, query: QueryThread) -> Applied:
        held = self._held
        if held is not None and held.is_open and (held.portal, self._run_id) == (process_portal(), delivered.run_id):
            return held.result()
        self._drop()
        state = self._open(query)
        self._run_id = delivered.run_id
        return state

    def _open(self, query: QueryThread, checkpoint_id: CheckpointId | None = None) -> Applied:
        held: OpenContext[Applied] = process_portal().hold(self._execution.open(checkpoint_id))
        self._held = held
        return attend(held, query)

    def _roll_back(self, state: Applied, delivered: SourceMark, query: QueryThread) -> Applied:
        base = attend(process_portal().start(_base_of, state, delivered), query)
        if base is None:
            raise RewindError(
                "no commit of this query is left from before the delivered batch: there is nothing to roll back to",
                query_id=delivered.query_id,
                batch_id=delivered.batch_id,
            )
        _logger.warning("rolling the state back to checkpoint %s for batch %s", base, delivered.batch_id)
        self.close()
        return self._open(query, base)

    def _drop(self) -> None:
        try:
            self.close()
        except Exception:
            _logger.warning("the state of a failed batch was not left cleanly", exc_info=True)


def _work_of(
    function: BatchFunction | KeyedProcessor,
    *,
    key: str | Sequence[str],
    order_by: str | Sequence[str],
    output: Output | Outbox | None,
) -> KeyedWork | BatchFunction:
    """The work of a processor, or the function. Raises `SettingsError` for what is neither."""
    if not (output is None or isinstance(output, Outbox) or callable(output)):
        raise SettingsError("output must be a function of (df, batch_id), or an Outbox", output=output)
    if isinstance(function, KeyedProcessor):
        return KeyedWork(function, key=key, order_by=order_by, has_output=output is not None)
    if key or order_by or not (output is None or isinstance(output, Outbox)):
        raise SettingsError(
            "key, order_by and an output that is a function go with a KeyedProcessor", function=function
        )
    if not callable(function):
        raise SettingsError("the sink needs a function of (df, batch_id, backend)", function=function)
    return function


async def _published(state: Applied, output: StagedOutput) -> None:
    state.published(output)


async def _marks(state: Applied, query_id: str, adopt: bool) -> tuple[SourceMark | None, SourceMark | None]:
    """The newest source mark of any query, and the newest of this one, which only an adopting query looks for further.

    A commit that was made by hand has no mark; the state still holds what lies below it.
    """
    newest = None
    async for summary in state.history():
        newest = newest or summary.source
        if summary.source is not None and summary.source.query_id == query_id:
            return newest, summary.source
        if newest is not None and not adopt:
            break
    return newest, None


async def _base_of(state: Applied, delivered: SourceMark) -> CheckpointId | None:
    async for summary in state.history():
        if can_stand_under(summary, delivered):
            return summary.checkpoint_id
    return None
