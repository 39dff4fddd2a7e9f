"""The contract between the sink and the place where batches are processed: `InDriver` or `OnExecutors`."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, get_args

from pyspark.sql import DataFrame

from statebackend._backend.asked_to_open import BeforeClaim
from statebackend._log.outbox import JobOutbox
from statebackend._log.savepoint_markers import SavepointInfo
from statebackend._processing.runner import ProcessorRunner
from statebackend.abc import Buffer
from statebackend.errors import SettingsError
from statebackend.ids import CheckpointId, CommitSummary, Epoch, SourceMark, StagedOutput
from statebackend.spark.bridge import QueryThread

ExecutionMode = Literal["driver", "executors"]


class OpenedJob(Protocol):
    """The job, claimed and opened at one commit: a `StateBackend`, or, for executors, a `ClaimedJob` without state."""

    @property
    def epoch(self) -> Epoch: ...
    @property
    def outbox(self) -> JobOutbox: ...
    @property
    def fell_back(self) -> bool:
        """True before the first commit if an older one was opened, since the newest could not be had."""
        ...

    def history(self) -> AsyncIterator[CommitSummary]:
        """The commit that the state is at, its parent, and so on."""
        ...

    async def savepoint(self, name: str) -> SavepointInfo:
        """Keep the commit that the state is at under this name. As `CheckpointCoordinator.savepoint`."""
        ...

    async def take_output(self) -> tuple[StagedOutput, tuple[Buffer, ...]] | None:
        """The oldest committed output that may be unpublished, with its rows, if this process still owns the job."""
        ...

    def forget(self) -> None:
        """Drop the state from memory, also what others still refer to. Called when the job is closed."""
        ...

    def published(self, output: StagedOutput) -> None:
        """Mark `output` as published, so that the next commit does not name it."""
        ...


class Execution(Protocol):
    """A place where batches are processed. The sink calls `check` and `apply` on Spark's callback thread."""

    def check(self, df: DataFrame) -> None:
        """Raise `SettingsError` if `df` cannot be processed there. Called before claiming, so nobody is fenced."""
        ...

    def open(self, checkpoint_id: CheckpointId | None, before_claim: BeforeClaim) -> AbstractAsyncContextManager[Any]:
        """Claim the job and open it at its newest checkpoint, or at `checkpoint_id`: an `OpenedJob`."""
        ...

    def apply(self, df: DataFrame, delivered: SourceMark, job: Any, query: QueryThread) -> None:
        """Process a new batch on the job from `open`, and commit it. If this raises, nothing was committed."""
        ...

    def close(self) -> None:
        """Release what is cached between batches, other than the job. Raises nothing. May be called twice."""
        ...


def check_place(work: object, execution: str, parallelism: int | None, *, standby: bool) -> None:
    """Raise `SettingsError` for an execution that there is not, or that does not go with the other arguments."""
    if execution not in get_args(ExecutionMode) or (execution == "executors") != (parallelism is not None):
        raise SettingsError(
            "set execution to 'driver' without parallelism, or to 'executors' with a number as parallelism",
            execution=execution,
            parallelism=parallelism,
        )
    if parallelism is not None and not isinstance(work, ProcessorRunner):
        raise SettingsError(
            "executors run a KeyedProcessor, not a function: write one, or use execution='driver'", function=work
        )
    if parallelism is not None and standby:
        raise SettingsError("a driver on standby holds the state itself: use execution='driver'", execution=execution)
