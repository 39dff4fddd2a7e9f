"""The batch's frame where Spark is not needed to show it: who sent it, and how asynchronous code gets off the loop."""

import asyncio
import contextvars
import threading
from collections.abc import Iterator

import anyio
import pyarrow as pa
import pytest
from pyspark.errors import PySparkTypeError
from pyspark.sql import functions

import statebackend as sb
from statebackend.errors import BatchError, InputError, SettingsError
from statebackend.spark import frames
from statebackend.spark.bridge import QueryThread
from tests.programs.frames import Session
from tests.spark.conftest import configured
from tests.spark.frames_without_spark import session_in


class ConnectSession:
    """A Spark Connect session: another class than the classic one, without a context."""

    conf = session_in("Etc/UTC").conf


class ConnectFrame:
    """A frame of such a session."""

    sparkSession = ConnectSession()  # noqa: N815 - Spark's name


@pytest.fixture
def _inherited() -> Iterator[None]:
    """As within a sink, with nothing to inherit."""
    threads = frames._BatchThreads(inherit=lambda function: function, limiter=anyio.CapacityLimiter(1))
    token = frames._batch_threads.set(threads)
    yield
    frames._batch_threads.reset(token)


def test_on_connect_the_query_has_to_be_named() -> None:
    """Nothing there tells which query a batch belongs to; guessing would apply batches twice."""
    with pytest.raises(SettingsError):
        frames.source_mark(ConnectFrame(), 3, None)
    assert frames.source_mark(ConnectFrame(), 3, "mine") == sb.SourceMark("mine", 3, "", "UTC")


def test_on_connect_there_is_no_stop_to_ask_for_and_no_job_group_to_cancel() -> None:
    """Both do nothing, instead of failing every batch."""
    query = QueryThread(ConnectFrame(), "")
    query.raise_if_stopped()
    query.cancel_jobs()


async def test_without_pinned_threads_an_action_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark 4.0 gives back the session then, in the place of what would make a thread inherit: nothing to call."""
    monkeypatch.setattr(frames, "inheritable_thread_target", lambda session: session)
    with frames.allow_actions(Session().frame(pa.table({}))):
        assert await frames.run(lambda: 7) == 7


def test_outside_a_streaming_query_the_query_has_to_be_named(spark) -> None:
    """The same on a classic session, when the sink is called by hand."""
    df = spark.range(1)
    with pytest.raises(SettingsError):
        frames.source_mark(df, 0, None)
    assert frames.source_mark(df, 0, "mine").query_id == "mine"


def test_a_sink_called_by_hand_applies_its_batches(stream, spark, open_sink, read) -> None:
    """With a query id of its own it needs no stream."""

    async def function(df, batch_id, backend) -> None:
        rows = await sb.spark.to_arrow(df)
        backend.value_state("counts", int)["rows"] = rows.num_rows

    sink = open_sink(function, stream.settings, query_id="by hand")
    sink(spark.range(3), 0)
    sink(spark.range(4), 0)
    assert read(stream.settings).counts == {"rows": 3}
    sink(spark.range(5), 1)
    assert read(stream.settings).counts == {"rows": 5}


async def test_spark_actions_outside_a_sink_are_refused() -> None:
    """There is no batch whose properties they could carry."""
    with pytest.raises(InputError):
        await sb.spark.run(int)


@pytest.mark.usefixtures("_inherited")
async def test_running_raises_what_the_function_raises_as_it_is() -> None:
    """Not in a group; and what is no exception becomes one."""
    error = ValueError()

    def fail(error: BaseException) -> None:
        raise error

    with pytest.raises(ValueError) as caught:
        await sb.spark.run(fail, error)
    assert caught.value is error
    with pytest.raises(BatchError):
        await sb.spark.run(fail, KeyboardInterrupt())
    assert await sb.spark.run(divmod, 7, 2) == (3, 1)


@pytest.mark.usefixtures("_inherited")
@pytest.mark.parametrize("how", ["task", "scope"])
async def test_a_cancelled_run_waits_for_its_thread(how) -> None:
    """However it is cancelled: a Spark action that still runs behind a batch's back would meet the next delivery."""
    begun, may_end, ended = anyio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert may_end.wait(60)
        ended.set()

    async def cancelled() -> bool:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await sb.spark.run(work)
        return scope.cancelled_caught

    scopes: list[anyio.CancelScope] = []
    task = loop.create_task(cancelled(), context=contextvars.copy_context())
    await begun.wait()
    task.cancel() if how == "task" else scopes[0].cancel()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    await asyncio.wait([task])
    assert ended.is_set()
    assert task.cancelled() if how == "task" else task.result()


TYPES = {
    "bool": "id % 2 = 0",
    "tiny": "cast(id AS tinyint)",
    "long": "if(id = 1, NULL, id)",
    "double": "cast(id AS double)",
    "decimal": "cast(id AS decimal(20, 3))",
    "text": "cast(id AS string)",
    "bytes": "cast(cast(id AS string) AS binary)",
    "date": "date_add(DATE'2024-03-09', cast(id AS int))",
    "at": "TIMESTAMP'2024-03-10 01:30:00' + make_dt_interval(0, cast(id AS int))",
    "no_zone": "TIMESTAMP_NTZ'2024-03-10 02:30:00'",
    "duration": "make_dt_interval(0, cast(id AS int))",
    "nothing": "NULL",
    "array": "array(TIMESTAMP'2024-11-03 01:30:00', NULL)",
    "map": "map(cast(id AS string), TIMESTAMP'2024-11-03 01:30:00')",
    "struct": "struct(id, array(struct(map(id, TIMESTAMP'2024-11-03 01:30:00') AS deep)) AS nested)",
    "variant": "parse_json('{\"a\": 1}')",
}
TYPES_SINCE = {"time": "TIME'10:00:00'"}


@pytest.mark.parametrize("settings", [{}, {"spark.sql.execution.arrow.useLargeVarTypes": "true"}])
def test_rows_are_collected_as_by_spark(spark, settings) -> None:
    """The same table, to the metadata of its fields: of no rows, of one batch and of many; whatever was seen before."""
    with configured(spark, {"spark.sql.session.timeZone": "America/New_York", **settings}):
        since = TYPES_SINCE if spark.version >= "4.1" else {}
        columns = [functions.expr(text).alias(name) for name, text in (TYPES | since).items()]
        noted = functions.col("id").alias("noted", metadata={"unit": "miles"})
        for rows in (5, 0, 5):
            df = spark.range(0, rows, 1, 3).select(*columns, noted, noted)
            table, expected = frames.collected(df), df.toArrow()
            assert table.schema.equals(expected.schema, check_metadata=True)
            assert table.equals(expected)
        assert table.num_rows == 5


def test_rows_of_another_schema_do_not_take_the_schema_of_those_before(spark) -> None:
    """A name, a type or a note makes a schema another."""
    for column in (
        functions.col("id").alias("a"),
        functions.col("id").alias("b"),
        functions.col("id").cast("string").alias("b"),
        functions.col("id").cast("string").alias("b", metadata={"unit": "miles"}),
    ):
        df = spark.range(2).select(column)
        assert frames.collected(df).schema.equals(df.toArrow().schema, check_metadata=True)


def test_spark_is_asked_for_a_schema_once(spark, monkeypatch) -> None:
    """And not with each batch."""
    first = frames.collected(spark.range(3).selectExpr("id AS asked_once"))
    monkeypatch.setattr(type(spark.range(1)), "toArrow", None)
    again = frames.collected(spark.range(3).selectExpr("id AS asked_once"))
    assert again.equals(first)


def test_types_without_an_arrow_type_are_refused_as_by_spark(spark) -> None:
    """With its own words."""
    with pytest.raises(PySparkTypeError, match="UNSUPPORTED_DATA_TYPE"):
        frames.collected(spark.range(1).selectExpr("make_interval(1, 2)"))


def test_a_frame_without_the_way_of_classic_spark_is_collected_by_its_own() -> None:
    """As on Spark Connect."""

    class Frame(ConnectFrame):
        def toArrow(self):  # noqa: N802 - Spark's name
            return "rows"

    assert frames.collected(Frame()) == "rows"


def test_a_frame_has_the_rows_behind_an_empty_batch(spark) -> None:
    """A range that puts out nothing comes between others that do. Spark alone takes it for the end."""
    schema = pa.schema([("n", pa.int64())])
    parts = [pa.table([pa.array(numbers, pa.int64())], schema=schema) for numbers in ([], [1], [], [2, 3], [])]
    assert [row.n for row in frames.frame_of(pa.concat_tables(parts), spark).collect()] == [1, 2, 3]
    assert frames.frame_of(parts[0], spark).collect() == []


@pytest.mark.parametrize("type_", [pa.uint64(), pa.decimal256(50, 2), pa.struct([("n", pa.uint32())])])
def test_rows_of_types_that_spark_lacks_say_what_to_do(spark, type_) -> None:
    """An outbox has them committed by then; their table is there in any case."""
    with pytest.raises(InputError, match="`table` of the publication"):
        frames.frame_of(pa.table({"n": pa.nulls(1, type_)}), spark)
