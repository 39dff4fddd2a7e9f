"""The batch's frame: who sent it, its rows for asynchronous code, and a run that only satisfies Spark.

Spark knows a batch by the thread that runs it: query, run and job group are properties of Spark's callback thread. So
they are read there, and carried in a context variable to whatever thread an asynchronous function hops to. Without them
a job does not belong to its query any more, and stopping the query does not stop the job.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar, TypeVarTuple, cast

import anyio
import msgspec
import pyarrow as pa
from pyspark import SparkContext, inheritable_thread_target  # pyright: ignore[reportUnknownVariableType]
from pyspark.sql import DataFrame, SparkSession

from statebackend._portal import as_exception
from statebackend._tasks import in_thread
from statebackend.errors import InputError, SettingsError
from statebackend.ids import SourceMark

Args = TypeVarTuple("Args")
T = TypeVar("T")
_pa: Any = pa  # it ships no types

QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"
RUN_ID_PROPERTY: Final = "spark.jobGroup.id"
THREADS_MAX: Final = 8
"""Threads that one batch's asynchronous function may occupy with Spark actions at a time."""


class _Hops(msgspec.Struct, frozen=True):
    """How to get from the loop to a thread that Spark takes for the batch's own."""

    inherit: Callable[[Callable[[], Any]], Callable[[], Any]]
    limiter: anyio.CapacityLimiter


_hops: ContextVar[_Hops] = ContextVar("_hops")


def context_of(df: DataFrame) -> SparkContext | None:
    """The Spark context in this process, `None` on Spark Connect, whose sessions are another class and have none."""
    session = cast("object", df.sparkSession)
    return session.sparkContext if isinstance(session, SparkSession) else None


def source_mark(df: DataFrame, batch_id: int, query_id: str | None) -> SourceMark:
    """Which batch of which query `df` is. To be asked on Spark's callback thread; `query_id`, if given, wins.

    Raises `SettingsError` where Spark does not tell the query: on Spark Connect, or outside a streaming query.
    """
    context = context_of(df)
    told = context.getLocalProperty(QUERY_ID_PROPERTY) if context is not None else None
    run_id = context.getLocalProperty(RUN_ID_PROPERTY) if context is not None else None
    if not (query_id := query_id or told):
        raise SettingsError(
            "Spark does not tell which query this batch belongs to (as on Spark Connect): give the sink a query_id of "
            "your own, the same at every start of the query",
            batch_id=batch_id,
        )
    return SourceMark(query_id=query_id, batch_id=batch_id, run_id=run_id or "")


def frame_of(table: Any, session: SparkSession) -> DataFrame:
    """A frame of the rows of a `pyarrow.Table`, also of none."""
    create = cast("Callable[[Any], DataFrame]", session.createDataFrame)  # pyright: ignore[reportUnknownMemberType]
    if table.num_rows or isinstance(cast("object", session), SparkSession):
        return create(table)
    # Spark Connect refuses to make a frame of an empty table, whatever its schema says.
    row = [_pa.nulls(1, field.type) for field in table.schema]
    return create(_pa.table(row, names=table.schema.names)).limit(0)


def drain(df: DataFrame) -> None:
    """Run the frame once and keep nothing: stateful operators upstream must see each batch exactly that often."""
    df.write.format("noop").mode("overwrite").save()


@contextmanager
def hops_inherit(df: DataFrame) -> Generator[None, None, None]:
    """Within, what is started on the loop can `run` actions on `df`. To be entered on Spark's callback thread.

    That is where the thread's properties are captured: on the loop thread there are none.
    """
    inherit = cast("Callable[[Callable[[], Any]], Callable[[], Any]]", inheritable_thread_target(df.sparkSession))
    token = _hops.set(_Hops(inherit=inherit, limiter=anyio.CapacityLimiter(THREADS_MAX)))
    try:
        yield
    finally:
        _hops.reset(token)


async def run(function: Callable[[*Args], T], *args: *Args) -> T:
    """What blocking `function(*args)` returns or raises, run in a thread that belongs to the batch, off the loop.

    For Spark actions within an asynchronous function: `await sb.spark.run(df.count)`. The thread carries the batch's
    job group, so that stopping the query stops the job. A cancelled call waits for the thread, however cancelled.

    Raises `InputError` outside a function that a `StatefulSink` runs.
    """
    hops = _hops.get(None)
    if hops is None:
        raise InputError("Spark actions can be awaited only in an asynchronous function that a StatefulSink runs")
    inherited = hops.inherit(lambda: function(*args))
    results: list[T] = []
    failures: list[Exception] = []

    async def hop() -> None:
        try:
            results.append(await in_thread(inherited, limiter=hops.limiter))
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - raised below: the task group would wrap it
            failures.append(as_exception(error))

    # A task of its own, since cancelling a task the way asyncio does it breaks through the shield around a thread
    # that has begun, and leaves that thread running. The group turns it into a cancellation by scope, which waits.
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hop)
    if failures:
        raise failures[0]
    return results[0]


async def to_arrow(df: DataFrame) -> Any:
    """The rows of `df` as a `pyarrow.Table` in the driver's memory. For asynchronous functions; else `df.toArrow()`.

    Cancelling and errors as with `run`.
    """
    collect = cast("Callable[[], Any]", df.toArrow)  # pyright: ignore[reportUnknownMemberType]
    return await run(collect)
