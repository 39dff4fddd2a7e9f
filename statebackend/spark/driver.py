"""A batch whose work is done in the driver: the user's function on the whole state, then the commit.

A synchronous function runs on Spark's callback thread, an asynchronous one on the process's loop; a processor gets the
batch from Spark in a single action, through Arrow.
"""

import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, cast

from pyspark.sql import DataFrame

from statebackend._backend.copies import OpenUploader
from statebackend._backend.opening import open_backend
from statebackend._checkpoint.backend import StateBackend
from statebackend.abc import ObjectStore, Observer, StateChangeUploader
from statebackend.errors import BatchError
from statebackend.ids import CheckpointId, SourceMark
from statebackend.settings import Settings
from statebackend.spark.bridge import QueryThread, attend, process_portal
from statebackend.spark.frames import hops_inherit
from statebackend.spark.keyed import KeyedWork

BatchFunction = Callable[[DataFrame, int, StateBackend], object]
"""What a user writes. An awaitable that it returns is awaited; anything else is dropped."""

Output = Callable[[DataFrame, int], object]
"""Takes the rows of one batch to where they are wanted. What it returns is dropped."""


class InDriver:
    """Runs `function` on a backend that owns every key group. The arguments behind it go to `open_backend`."""

    def __init__(
        self,
        function: BatchFunction,
        settings: Settings,
        *,
        observer: Observer | None,
        store: ObjectStore | None,
        uploader: StateChangeUploader | OpenUploader | None,
    ) -> None:
        self._function = function
        self._settings = settings
        self._observer = observer
        self._store = store
        self._uploader = uploader

    def open(self, checkpoint_id: CheckpointId | None) -> AbstractAsyncContextManager[StateBackend]:
        """The state, as of the newest checkpoint or of `checkpoint_id`."""
        return open_backend(
            self._settings,
            checkpoint_id=checkpoint_id,
            store=self._store,
            uploader=self._uploader,
            observer=self._observer,
        )

    def apply(self, df: DataFrame, delivered: SourceMark, backend: StateBackend, query: QueryThread) -> None:
        """Run the function and commit. Raises what either raises, and the interrupt of a query that is stopped."""
        self._run_function(df, delivered, backend, query)
        commit = process_portal().start(lambda: backend.checkpoint(backend.next_checkpoint_id, source=delivered))
        attend(commit, query)

    def close(self) -> None:
        """Nothing is held between batches but the state."""

    def _run_function(self, df: DataFrame, delivered: SourceMark, backend: StateBackend, query: QueryThread) -> None:
        outcome = self._function(df, delivered.batch_id, backend)
        # Asked of the outcome and not of the function: partials, callable objects and decorated functions are
        # asynchronous as well. Dropping the coroutine would commit a batch for which nothing has run.
        if inspect.isawaitable(outcome):
            with hops_inherit(df):
                attend(process_portal().start(_await, outcome, once=True), query)
        elif inspect.isgenerator(outcome) or inspect.isasyncgen(outcome):
            raise BatchError("the function is a generator: nothing of it has run; remove its yield")


class KeyedBatches:
    """The batch function that a processor makes.

    `output` is called once for each batch, before its commit, also with no rows: it may see a batch again, and then
    perhaps with other rows, unless the processor is deterministic.
    """

    def __init__(self, work: KeyedWork, output: Output | None) -> None:
        self.work: Final = work
        self._output = output

    def __call__(self, df: DataFrame, batch_id: int, backend: StateBackend) -> None:
        """Process one batch. Raises as `KeyedWork`, and what `output` raises."""
        collect = cast("Callable[[], Any]", df.toArrow)  # pyright: ignore[reportUnknownMemberType]
        made = self.work(collect(), batch_id, backend)
        if self._output is not None:
            put_out(df, made, batch_id, self._output)


def put_out(df: DataFrame, made: Any, batch_id: int, output: Output) -> None:
    """Give `output` the rows that came out of the batch `df`. Raises `BatchError` where it would run nothing."""
    create = cast("Callable[[Any], DataFrame]", df.sparkSession.createDataFrame)  # pyright: ignore[reportUnknownMemberType]
    outcome = output(create(made), batch_id)
    if inspect.isawaitable(outcome) or inspect.isgenerator(outcome) or inspect.isasyncgen(outcome):
        raise BatchError("output is asynchronous, or a generator: nothing of it has run")


async def _await(outcome: Awaitable[object]) -> None:
    await outcome
