"""A batch whose work is done in the driver: the user's function on the whole state, then the commit.

A synchronous function runs on Spark's callback thread, an asynchronous one on the process's loop; a processor gets the
batch from Spark in a single action, through Arrow.
"""

import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, cast

from pyspark.sql import DataFrame

from statebackend._backend.copy_writers import OpenUploader
from statebackend._backend.opening import open_backend
from statebackend._checkpoint.backend import StateBackend
from statebackend.abc import ObjectStore, Observer, StateChangeUploader
from statebackend.errors import BatchError
from statebackend.ids import CheckpointId, SourceMark
from statebackend.settings import Settings
from statebackend.spark.bridge import QueryThread, attend, process_portal
from statebackend.spark.frames import frame_of, hops_inherit
from statebackend.spark.outbox import output_of
from statebackend.spark.processor_runner import KeyedWork

BatchFunction = Callable[[DataFrame, int, StateBackend], object]
"""What a user writes. An awaitable that it returns is awaited. With an outbox what comes out are the rows that go
there, a `pyarrow.Table` or `None`; without one it is dropped."""

Output = Callable[[DataFrame, int], object]
"""Takes the rows of one batch to where they are wanted. What it returns is dropped."""


class InDriver:
    """Runs `function` on a backend that owns every key group. The last three arguments go to `open_backend`.

    `stages`: what the function returns goes to the outbox.
    """

    def __init__(
        self,
        function: BatchFunction,
        settings: Settings,
        *,
        stages: bool,
        observer: Observer | None,
        store: ObjectStore | None,
        uploader: StateChangeUploader | OpenUploader | None,
    ) -> None:
        self._function = function
        self._stages = stages
        self._settings = settings
        self._observer = observer
        self._store = store
        self._uploader = uploader

    def check(self, df: DataFrame) -> None:
        """A frame of any session will do."""

    def open(self, checkpoint_id: CheckpointId | None) -> AbstractAsyncContextManager[StateBackend]:
        """The state, as of the newest checkpoint or of `checkpoint_id`."""
        return open_backend(
            self._settings,
            checkpoint_id=checkpoint_id,
            store=self._store,
            uploader=self._uploader,
            observer=self._observer,
        )

    def apply(self, df: DataFrame, delivered: SourceMark, state: StateBackend, query: QueryThread) -> None:
        """Run the function and commit. Raises what either raises, and the interrupt of a query that is stopped."""
        made = result_of(self._function(df, delivered.batch_id, state), df, query)
        output = output_of(made) if self._stages else None
        commit = process_portal().start(
            lambda: state.checkpoint(state.next_checkpoint_id, source=delivered, output=output)
        )
        attend(commit, query)

    def close(self) -> None:
        """Nothing is held between batches but the state."""


def result_of(outcome: object, df: DataFrame, query: QueryThread) -> object:
    """What a user's function for the batch `df` comes to, once what it returned is awaited, if that has to be.

    Raises `BatchError` for a generator, of which nothing has run.
    """
    # Asked of the outcome and not of the function: partials, callable objects and decorated functions are
    # asynchronous as well. Dropping the coroutine would commit a batch for which nothing has run.
    if inspect.isawaitable(outcome):
        with hops_inherit(df):
            return attend(process_portal().start(_await, outcome, once=True), query)
    if inspect.isgenerator(outcome) or inspect.isasyncgen(outcome):
        raise BatchError("the function is a generator: nothing of it has run; remove its yield")
    return outcome


class KeyedBatches:
    """The batch function that a processor makes. It returns what came out, unless that goes to `output`.

    `output` is called once for each batch, before its commit, also with no rows: it may see a batch again, and then
    perhaps with other rows, unless the processor is deterministic.
    """

    def __init__(self, work: KeyedWork, output: Output | None) -> None:
        self.work: Final = work
        self._output = output

    def __call__(self, df: DataFrame, batch_id: int, backend: StateBackend) -> Any:
        """Process one batch. Raises as `KeyedWork`, and what `output` raises."""
        collect = cast("Callable[[], Any]", df.toArrow)  # pyright: ignore[reportUnknownMemberType]
        made = self.work(collect(), batch_id, backend)
        if self._output is None:
            return made
        put_out(df, made, batch_id, self._output)
        return None


def put_out(df: DataFrame, made: Any, batch_id: int, output: Output) -> None:
    """Give `output` the rows that came out of the batch `df`. Raises `BatchError` where it would run nothing."""
    outcome = output(frame_of(made, df.sparkSession), batch_id)
    if inspect.isawaitable(outcome) or inspect.isgenerator(outcome) or inspect.isasyncgen(outcome):
        raise BatchError("output is asynchronous, or a generator: nothing of it has run")


async def _await(outcome: Awaitable[object]) -> object:
    return await outcome
