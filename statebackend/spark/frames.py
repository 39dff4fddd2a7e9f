"""The batch's frame: which batch it is, its rows for asynchronous code, and a run that only satisfies Spark.

Spark identifies a batch by the thread that runs it: query, run and job group are properties of Spark's callback thread.
A Spark action on any other thread has none of them: its job does not belong to the query, and stopping the query does
not stop the job. So the properties are captured on the callback thread, and a context variable carries them to the
threads on which an asynchronous function runs its Spark actions.
"""

import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final, TypeVar, TypeVarTuple, cast

import anyio
import msgspec
import pyarrow as pa
from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError
from pyspark import SparkContext, inheritable_thread_target  # pyright: ignore[reportUnknownVariableType]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas import types as pandas_types

from statebackend._portal import as_exception
from statebackend._processing.time_zones import UTC, zone_named
from statebackend._tasks import in_thread
from statebackend.errors import InputError, SettingsError
from statebackend.ids import SourceMark

Args = TypeVarTuple("Args")
T = TypeVar("T")
_pa: Any = pa  # it ships no types
_types: Any = pandas_types

QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"
BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"
RUN_ID_PROPERTY: Final = "spark.jobGroup.id"
"""The job group of a streaming query is its run id: Spark cancels it when the query is stopped."""
ADAPTIVE: Final = "spark.sql.adaptive.enabled"
"""Spark's setting of adaptive planning."""
TIME_ZONE: Final = "spark.sql.session.timeZone"
"""Spark's setting of the zone in which a session makes dates, hours and texts of instants."""
ACTIONS_MAX: Final = 8
"""Spark actions that one batch's asynchronous function may run at a time, each on a thread.

A bound of its own, not the `WorkerThreads` of the job: these threads wait for the JVM, neither computing nor touching
files. A slow action must not take a thread from a commit, nor a commit one from the user's function.
"""
SCHEMAS_MAX: Final = 16
"""Most Arrow schemas of frames that a process remembers. A query has one; beyond that, they are asked for again."""


_schemas: dict[bytes, Any] = {}  # by the schema that Spark sends, the one that `toArrow` makes of it


class _BatchThreads(msgspec.Struct, frozen=True):
    """How code on the event loop gets to a thread that has the properties of the batch."""

    inherit: Callable[[Callable[[], Any]], Callable[[], Any]]
    limiter: anyio.CapacityLimiter


_batch_threads: ContextVar[_BatchThreads] = ContextVar("_batch_threads")


def context_of(df: DataFrame) -> SparkContext | None:
    """The Spark context in this process. `None` on Spark Connect, whose sessions are of another class without one."""
    session = cast("object", df.sparkSession)
    return session.sparkContext if isinstance(session, SparkSession) else None


def source_mark(df: DataFrame, batch_id: int, query_id: str | None) -> SourceMark:
    """The query, batch, run and time zone that `df` belongs to. For Spark's callback thread.

    A given `query_id` takes precedence.

    Raises `SettingsError` if Spark does not name the query: on Spark Connect, or outside a streaming query; and
    `InputError` after `spark.stop()`, for another id than that of the batch that Spark is at, and on another thread.
    """
    context = context_of(df)
    if context is not None and getattr(context, "_jsc", context) is None:  # as `SparkContext.stop` leaves it
        raise InputError("the Spark session of this batch was stopped: start a session, and the query in it")
    spark_query_id = context.getLocalProperty(QUERY_ID_PROPERTY) if context is not None else None
    run_id = context.getLocalProperty(RUN_ID_PROPERTY) if context is not None else None
    spark_batch_id = context.getLocalProperty(BATCH_ID_PROPERTY) if context is not None else None
    if spark_batch_id is not None and spark_batch_id != str(batch_id):
        raise InputError(
            "this is not the batch that Spark is at: give the sink the batch_id that foreachBatch gives",
            batch_id=batch_id,
            spark_batch_id=spark_batch_id,
        )
    if spark_query_id is None and context is not None and _belongs_to_a_query(df, context):
        raise InputError(
            "the sink is called on a thread of your own, while its query runs: call it on the thread on which Spark "
            "calls foreachBatch. On any other it sees neither the run that a batch belongs to nor that the query is "
            "stopped, and would skip a second part of a batch as a replay",
            batch_id=batch_id,
        )
    if not (query_id := query_id or spark_query_id):
        raise SettingsError(
            "Spark does not say which query this batch belongs to (as on Spark Connect): give the sink a query_id of "
            "your own, the same at every start of the query",
            batch_id=batch_id,
        )
    zone = zone_named(df.sparkSession.conf.get(TIME_ZONE) or UTC)
    return SourceMark(query_id=query_id, batch_id=batch_id, run_id=run_id or "", time_zone=zone)


def _belongs_to_a_query(df: DataFrame, context: SparkContext) -> bool:
    """True if `df` is of the session that a running query has for its batches. False where the JVM does not say."""
    inner = cast("Any", context)  # private to PySpark, and without types
    if not isinstance(inner._gateway, ClientServer):  # noqa: SLF001 - without pinned threads no thread is the query's
        return False
    return _query_of(df) is not None


def _query_of(df: DataFrame) -> Any:
    """The running query that `df` is a batch of, in the JVM; `None` without one, or where the JVM does not say."""
    frame = cast("Any", df)
    try:
        session: Any = frame._jdf.sparkSession()  # noqa: SLF001
        queries: Any = session.sharedState().activeStreamingQueries().values()
        return next((query for query in queries if query.sparkSessionForStream().equals(session)), None)
    except (AttributeError, Py4JError, TypeError):  # PySpark has no public way to it, so another release may have none
        return None


def batch_starts(df: DataFrame) -> list[Any]:
    """The offsets at which the sources of the query begin this batch, as far as they can be had, as JSON has them.

    Those of the first batch are told by sources that know where they begin, as Kafka's does and files do not. Of later
    batches all are known. Nothing on Spark Connect.
    """
    if (query := None if context_of(df) is None else _query_of(df)) is None:
        return []
    found: list[Any] = []
    with suppress(AttributeError, Py4JError, TypeError):
        sources: Any = query.sources()
        for place in range(sources.size()):
            with suppress(Py4JError, ValueError, TypeError):
                found.append(msgspec.json.decode(_start_of(query, sources.apply(place)).encode()))
    return found


def _start_of(query: Any, source: Any) -> str:
    committed = query.committedOffsets().get(source)
    return str((committed.get() if committed.isDefined() else source.initialOffset()).json())


def frame_of(table: Any, session: SparkSession) -> DataFrame:
    """A frame with the rows of a `pyarrow.Table`, if any. Raises `InputError` for types that Spark lacks."""
    # Spark takes an empty batch among others for the end: the rows behind it would be lost.
    if filled := [batch for batch in table.to_batches() if batch.num_rows]:
        table = _pa.Table.from_batches(filled, table.schema)
    create = cast("Callable[[Any], DataFrame]", session.createDataFrame)  # pyright: ignore[reportUnknownMemberType]
    try:
        if table.num_rows or isinstance(cast("object", session), SparkSession):
            return create(table)
        # Spark Connect refuses to create a frame from a table without rows, whatever its schema says.
        row = [_pa.nulls(1, field.type) for field in table.schema]
        return create(_pa.table(row, names=table.schema.names)).limit(0)
    except (TypeError, ValueError, _pa.ArrowException) as error:  # Spark's own are among the first two
        raise InputError(
            f"Spark makes no frame of these rows: give them types that Spark has, or publish them by `table` of the "
            f"publication: {error}",
            types=[str(type_) for type_ in table.schema.types],
        ) from error


def collected(df: DataFrame) -> Any:
    """The rows of `df` as a `pyarrow.Table`: what `df.toArrow()` returns, with half of its calls into the JVM.

    `toArrow` asks for settings and for the schema each time, and casts to that. But what it casts to depends only on
    the schema that Spark sends along with the rows, and that is the same for all batches of a query.
    """
    collect = getattr(type(df), "_collect_as_arrow", None)
    if collect is None:  # Spark Connect has its own way, and another release may have another
        return _to_arrow(df)
    if not (batches := collect(df)):
        return _to_arrow(df.limit(0))  # runs nothing
    table = _pa.Table.from_batches(batches)
    sent = table.schema.serialize().to_pybytes()
    if (schema := _schemas.get(sent)) is None:
        schema = _to_arrow(df.limit(0)).schema
        if len(_schemas) >= SCHEMAS_MAX:
            _schemas.clear()
        _schemas[sent] = schema
    return table.cast(schema)


def check_types(df: DataFrame) -> None:
    """Raise `InputError` for a column that Spark has no way to give to Python by `toArrow`, as of some intervals.

    By `mapInArrow` some of them come to a worker all the same, so that one job would do in one place only.
    """
    takes_zone = "timezone" in inspect.signature(_types.to_arrow_schema).parameters  # not of every release
    in_utc = {"timezone": "UTC"} if takes_zone else {}
    try:
        _types.to_arrow_schema(df.schema, error_on_duplicated_field_names_in_struct=True, **in_utc)
    except (PySparkException, TypeError, ValueError, _pa.ArrowException) as error:
        raise InputError(
            f"a column has a type that Python cannot be given: cast it, or drop it before the sink: {error}",
            types={field.name: field.dataType.simpleString() for field in df.schema.fields},
        ) from error


def _to_arrow(df: DataFrame) -> Any:
    return cast("Callable[[], Any]", df.toArrow)()  # pyright: ignore[reportUnknownMemberType]


@contextmanager
def without_adaptive_planning(df: DataFrame) -> Generator[None, None, None]:
    """Plan Spark's work in this context as a whole: adaptive planning makes a job of each stage.

    That costs more than a small batch, and it has nothing to choose for ranges that are given, or for one row. The
    setting is changed in the batch's own session, a clone, so the user's stays as it is. The plan of the stream
    upstream was made before the batch came here.
    """
    conf = df.sparkSession.conf
    before = conf.get(ADAPTIVE)
    conf.set(ADAPTIVE, "false")
    try:
        yield
    finally:
        conf.set(ADAPTIVE, before or "true")


def drain(df: DataFrame) -> None:
    """Run the frame once and drop its rows.

    Stateful operators of Spark's upstream must see every batch exactly once, including one that we skip: otherwise
    Spark fails the query (STATE_STORE_COMMIT_VALIDATION_FAILED), or before 4.1 silently corrupts their state.
    """
    df.write.format("noop").mode("overwrite").save()


@contextmanager
def allow_actions(df: DataFrame) -> Generator[None, None, None]:
    """Coroutines that are started in this context can `run` Spark actions on `df`. Enter it on the callback thread.

    The callback thread's properties are captured here, because the loop's thread has none.
    """
    session = df.sparkSession
    inherit = cast("Callable[[Callable[[], Any]], Callable[[], Any]]", inheritable_thread_target(session))
    if cast("object", inherit) is session:  # so PySpark 4.0 answers without pinned threads: nothing to inherit
        inherit = _unchanged
    token = _batch_threads.set(_BatchThreads(inherit=inherit, limiter=anyio.CapacityLimiter(ACTIONS_MAX)))
    try:
        yield
    finally:
        _batch_threads.reset(token)


def _unchanged(function: Callable[[], Any]) -> Callable[[], Any]:
    return function


async def run(function: Callable[[*Args], T], *args: *Args) -> T:
    """Run blocking `function(*args)` in a thread that belongs to the batch; return or raise what it does.

    For Spark actions in an asynchronous function: `await sb.spark.run(df.count)`. The thread carries the batch's job
    group, so stopping the query stops the job. A cancelled call waits until the thread has finished.

    Raises `InputError` outside a function that a `StatefulSink` runs.
    """
    threads = _batch_threads.get(None)
    if threads is None:
        raise InputError("await Spark actions only in an asynchronous function that a StatefulSink runs")
    inherited = threads.inherit(lambda: function(*args))
    results: list[T] = []
    failures: list[Exception] = []

    async def in_batch_thread() -> None:
        try:
            results.append(await in_thread(inherited, limiter=threads.limiter))
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - raised below: the task group would wrap it
            failures.append(as_exception(error))

    # In a task of its own, because cancelling a task the way asyncio does it breaks through the shield around a running
    # thread, and leaves the thread behind. The group turns it into a cancellation by scope, which waits.
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(in_batch_thread)
    if failures:
        raise failures[0]
    return results[0]


async def to_arrow(df: DataFrame) -> Any:
    """The rows of `df` as a `pyarrow.Table` in the driver's memory. Synchronous functions use `df.toArrow()`.

    Raises, and is cancelled, as `run`.
    """
    return await run(collected, df)
