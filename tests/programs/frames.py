"""A stand-in for Spark without a JVM: sessions and frames that hold Arrow and answer the calls that a sink makes.

    Session     a `SparkSession` with a zone, the query and run of the batch, and an interrupt flag
    Frame       the rows of a batch. `toArrow` shows instants in UTC, `mapInArrow` in the session's zone, as Spark does
    Functions   stands in for `pyspark.sql.functions` where the sink uses them, see `without_jvm`

The SQL that a sink writes is evaluated where its form is known, and refused where it is not. That this is what Spark
does is shown by the same programs on a real session: `python -m tests.programs --spark 300`.
"""

import re
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from statebackend._tables.key_groups import SEED, key_group
from statebackend.spark import batch_clock
from statebackend.spark.executors import placement
from statebackend.spark.frames import QUERY_ID_PROPERTY, RUN_ID_PROPERTY

STOPPED = "py4j.protocol.Py4JJavaError: An error occurred while calling sleep: java.lang.InterruptedException"


class Session(SparkSession):
    """The session of one query. `stop_query` interrupts the batch that runs, as Spark does."""

    def __init__(self, zone: str = "UTC", query_id: str = "query", *, master: str = "local[2]") -> None:
        self.zone = zone
        self.is_stopped = False
        self._properties = {QUERY_ID_PROPERTY: query_id, RUN_ID_PROPERTY: "run-0"}
        self._settings = _Conf({"spark.sql.session.timeZone": zone})
        self._context = SimpleNamespace(
            _jsc=object(),
            _jvm=SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(Thread=SimpleNamespace(sleep=self._sleep)))),
            master=master,
            getLocalProperty=self._properties.get,
            getConf=lambda: _Conf({}),
            cancelJobGroup=lambda run_id: None,
        )

    @property
    def sparkContext(self) -> Any:  # noqa: N802  # Spark's name
        return self._context

    @property
    def conf(self) -> Any:
        return self._settings

    def begin_run(self, number: int, query_id: str) -> None:
        """Each start of a query is a run of its own."""
        self.is_stopped = False
        self._properties.update({RUN_ID_PROPERTY: f"run-{number}", QUERY_ID_PROPERTY: query_id})

    def stop_query(self) -> None:
        self.is_stopped = True

    def getTags(self) -> set[str]:  # noqa: N802
        """Asked for where the process has a real session as well."""
        return set()

    def _sleep(self, _millis: int) -> None:
        if self.is_stopped:
            raise RuntimeError(STOPPED)

    def frame(self, table: pa.Table, *, pieces: int = 0, plan: object = None) -> "Frame":
        """The rows of a batch, in pieces of so many rows."""
        return Frame(self, table, rows_max=pieces, plan=plan)

    def createDataFrame(self, table: pa.Table) -> "Frame":  # type: ignore[override]  # noqa: N802
        unfit = [field for field in table.schema if pa.types.is_unsigned_integer(field.type)]
        if unfit:
            raise TypeError(f"[UNSUPPORTED_DATA_TYPE_FOR_ARROW_CONVERSION] {unfit}")
        return Frame(self, _in_zone(table, self.zone))

    def range(self, end: int) -> "Frame":  # type: ignore[override]
        return Frame(self, pa.table({"id": pa.array(range(end), pa.int64())}))


class _Conf:
    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings

    def get(self, name: str, default: str | None = None) -> str | None:
        return self._settings.get(name, default)

    def set(self, name: str, value: str) -> None:
        self._settings[name] = value


class Frame:
    """Rows of a session, in pieces of `rows_max`. `partitions`: the rows of each, once they were placed.

    `plan`: says which frames have the same one; by default no other has.
    """

    def __init__(
        self,
        session: Session,
        table: pa.Table,
        *,
        rows_max: int = 0,
        partitions: Sequence[pa.Table] | None = None,
        plan: object = None,
    ) -> None:
        self.sparkSession = session
        self.plan = object() if plan is None else plan
        self._table = table
        self._rows_max = rows_max
        self._partitions = partitions
        self.drained = 0

    @property
    def columns(self) -> list[str]:
        return list(self._table.column_names)

    @property
    def schema(self) -> Any:
        return from_arrow_schema(_in_zone(self._table, "UTC").schema)

    def __getitem__(self, name: str) -> "Column":
        return Column(lambda table: table.column(name))

    def sameSemantics(self, other: "Frame") -> bool:  # noqa: N802
        """True for a frame that was made of the same plan."""
        return self.plan == other.plan

    # ------------------------------------------------------------------------------------------------------ actions

    def toArrow(self) -> pa.Table:  # noqa: N802
        return _in_zone(self._table, "UTC")

    def _collect_as_arrow(self) -> list[pa.RecordBatch]:
        return self._pieces(self._table)

    def collect(self) -> list[Any]:
        return [Row(**row) for row in self._table.to_pylist()]

    def count(self) -> int:
        return self._table.num_rows

    def isEmpty(self) -> bool:  # noqa: N802
        return not self._table.num_rows

    def mapInArrow(self, work: Callable[[Iterable[Any]], Iterator[Any]], schema: Any) -> "_Mapped":  # noqa: N802
        """A task for each partition, one after the other. What one raises has its traceback in the text."""

        def run() -> pa.Table:
            found: list[pa.RecordBatch] = []
            for part in self._partitions or [self._table]:
                try:
                    found += list(work(iter(self._pieces(part))))
                except Exception as error:  # noqa: BLE001  # Spark passes on nothing but the text
                    lines = "".join(traceback.format_exception(error, chain=False))
                    raise RuntimeError(f"Job aborted due to stage failure: {lines}") from None
            return pa.Table.from_batches(found, pa.schema([("result", pa.binary())]))

        return _Mapped(run)

    @property
    def write(self) -> Any:
        def save() -> None:
            self.drained += 1

        writer = SimpleNamespace(save=save)
        writer.format = writer.mode = lambda _: writer
        return writer

    def _pieces(self, table: pa.Table) -> list[pa.RecordBatch]:
        pieces = table.to_batches(max_chunksize=self._rows_max or None)
        return [piece for piece in pieces if piece.num_rows] if table.num_rows else []

    # ---------------------------------------------------------------------------------------------- transformations

    def limit(self, rows: int) -> "Frame":
        return self._with(self._table.slice(0, rows))

    def where(self, condition: str) -> "Frame":
        negated = re.fullmatch(r"NOT \((.*)\)", condition)
        assert negated is not None, condition
        return self._with(self._table.filter(pc.invert(_condition(negated[1], self._table))))

    def toDF(self, *names: str) -> "Frame":  # noqa: N802
        return self._with(self._table.rename_columns(list(names)))

    def select(self, *names: str) -> "Frame":
        parts = None if self._partitions is None else [part.select(names) for part in self._partitions]
        return Frame(self.sparkSession, self._table.select(names), rows_max=self._rows_max, partitions=parts)

    def agg(self, *columns: "Column") -> "Frame":
        found = [column.of(self._table) for column in columns]
        return self._with(pa.table([pa.array([each.as_py()], each.type) for each in found], list("abc")[: len(found)]))

    def selectExpr(self, *expressions: str) -> "Frame":  # noqa: N802
        arrays, names = [], []
        for expression in expressions:
            text, _, name = expression.rpartition(" AS ")
            names.append(name)
            arrays.append(_expression(text, self._table))
        rows = max(map(len, arrays))
        arrays = [array if len(array) == rows else pa.array([array[0].as_py()] * rows, array.type) for array in arrays]
        return self._with(pa.table(arrays, names))

    def unionByName(self, other: "Frame", allowMissingColumns: bool = False) -> "Frame":  # noqa: N802, N803
        return self._with(pa.concat_tables([self._table, other._table], promote_options="default"))

    def repartition(self, partitions: int, by: Any) -> "Frame":
        """As Spark, by the hash of the salt; the rows of different salts never share a partition here."""
        column = self._table.column("salt")
        found = [self._table.filter(pc.equal(column, salt)) for salt in column.unique()]
        assert len(found) <= partitions
        return Frame(self.sparkSession, self._table, rows_max=self._rows_max, partitions=found)

    def _with(self, table: pa.Table) -> "Frame":
        return Frame(self.sparkSession, table, rows_max=self._rows_max)


class _Mapped:
    """The outcome of tasks, which run when it is collected."""

    def __init__(self, run: Callable[[], pa.Table]) -> None:
        self._run = run

    def collect(self) -> list[Any]:
        return [Row(**row) for row in self._run().to_pylist()]


class Column:
    """What becomes of a table: a column of it, or one number."""

    def __init__(self, of: Callable[[pa.Table], Any]) -> None:
        self.of = of

    def isNull(self) -> "Column":  # noqa: N802
        return Column(lambda table: pc.is_null(self.of(table)))


class Functions:
    """`pyspark.sql.functions`, as far as a sink needs them."""

    @staticmethod
    def col(name: str) -> Column:
        return Column(lambda table: table.column(name.removeprefix("`").removesuffix("`").replace("``", "`")))

    @staticmethod
    def max(column: Column) -> Column:
        return Column(lambda table: pc.max(column.of(table)))

    @staticmethod
    def count_if(column: Column) -> Column:
        return Column(lambda table: pa.scalar(pc.sum(column.of(table).cast(pa.int64())).as_py() or 0))

    @staticmethod
    def expr(text: str) -> Column:
        return Column(lambda table: _condition(text, table))


@contextmanager
def without_jvm() -> Generator[None]:
    """In this context sinks take frames of this module."""
    with mock.patch.object(batch_clock, "f", Functions), mock.patch.object(placement, "f", Functions):
        yield


def _in_zone(table: pa.Table, zone: str) -> pa.Table:
    """Instants are shown in this zone; they stay the same instants, and times without a zone stay without one."""
    fields = [
        field.with_type(pa.timestamp("us", zone)) if pa.types.is_timestamp(field.type) and field.type.tz else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


_TIMESTAMP = re.compile(r"`(.*)` < timestamp_micros\((-?\d+)L\)")
_WITHOUT_ZONE = re.compile(
    r"`(.*)` < \(TIMESTAMP_NTZ '1970-01-01 00:00:00' \+ make_dt_interval\((-?\d+), 0, 0, (\d+)\.(\d{6})\)\)"
)


def _condition(text: str, table: pa.Table) -> pa.ChunkedArray:
    if text == "false":
        return pa.chunked_array([[False] * table.num_rows], pa.bool_())
    if found := _TIMESTAMP.fullmatch(text):
        before_us = int(found[2])
    elif found := _WITHOUT_ZONE.fullmatch(text):
        before_us = (int(found[2]) * 86_400 + int(found[3])) * 1_000_000 + int(found[4])
    else:
        raise NotImplementedError(text)
    times = table.column(found[1].replace("``", "`"))
    return pc.less(times.cast(pa.int64()), before_us)


_PLACED = re.compile(
    r"element_at\(array\((.*?)\), cast\(pmod\(xxhash64\((.*)\), (\d+)L\) \* (\d+) div (\d+) AS int\) \+ 1\)"
)
_EXPLODED = re.compile(r"explode\(array\((.*)\)\)")


def _expression(text: str, table: pa.Table) -> Any:
    if text == "true":
        return pa.array([True])
    if found := _EXPLODED.fullmatch(text):
        return pa.array([int(salt) for salt in found[1].split(", ")], pa.int32())
    if found := _PLACED.fullmatch(text):
        return pa.array(_salts(found, table), pa.int32())
    if text.startswith("`"):
        return table.column(text[1:-1].replace("``", "`"))
    raise NotImplementedError(text)


def _salts(found: Mapping[int, str] | re.Match[str], table: pa.Table) -> list[int]:
    salts = [int(salt) for salt in found[1].split(", ")]
    names = re.findall(r"cast\(`(.*?)` AS (?:bigint|string|binary)\)", found[2])
    groups, parallelism = int(found[3]), int(found[4])
    assert groups == int(found[5])
    columns = [table.column(name.replace("``", "`")).to_pylist() for name in names]
    slots = [_group(key, groups) * parallelism // groups for key in zip(*columns, strict=True)]
    return [salts[slot] for slot in slots]


def _group(parts: Iterable[Any], groups: int) -> int:
    """As Spark: null parts are passed over."""
    known = tuple(part for part in parts if part is not None)
    return key_group(known, groups) if known else SEED % groups
