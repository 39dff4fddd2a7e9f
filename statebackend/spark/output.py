"""Output rows go to a function before the commit, or to the outbox, which publishes them after it.

    a table -> Arrow streams -> staged (`_log/outbox.py`) -> commit -> `publish(Publication)`

A publication is always read from what was staged, even the first time, so every publication of a batch is the same. In
the driver a batch gives one table. On executors each task stages its own rows, through the outbox of the backend that
it works on, and reports to the driver what it staged.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from statebackend._log.outbox import Output as StagedRows
from statebackend._processing.column_names import check_distinct
from statebackend._processing.output_rows import checked_nulls
from statebackend.abc import Buffer
from statebackend.errors import BatchError, CorruptObjectError, InputError, SettingsError
from statebackend.ids import Epoch, StagedOutput
from statebackend.settings import MiB
from statebackend.spark.frames import frame_of

_pa: Any = pa  # it ships no types

PART_BYTES_MAX: Final = 32 * MiB
"""Approximate bytes of rows in a part: one object, or one piece of the commit."""

OutputFunction = Callable[[DataFrame, int], object]
"""Receives the output rows of one batch, and its id, before the commit. What it returns is dropped."""


def call_output(output: OutputFunction, rows: Any, df: DataFrame, batch_id: int) -> None:
    """Give `output` the rows of the batch `df`, a `pyarrow.Table`. Called once per batch, even without rows.

    It may get a batch again, with other rows if the processor is not deterministic. Raises `BatchError` if calling it
    ran nothing.
    """
    returned = output(frame_of(rows, df.sparkSession), batch_id)
    if inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        raise BatchError(
            "output is asynchronous, or a generator, so nothing of it has run: make it a plain function, or use "
            "Outbox(publish), whose function may be async"
        )


class Publication:
    """The output rows of one batch, to be published. Repeated publications have the same rows in the same order."""

    def __init__(self, output: StagedOutput, streams: Sequence[Buffer], *, epoch: Epoch, session: SparkSession) -> None:
        self.query_id: Final = output.source.query_id
        """Together with `batch_id` the key by which a receiver recognizes what it already has."""
        self.batch_id: Final = output.source.batch_id
        self.epoch: Final[int] = epoch
        """The publisher's epoch. It grows with each opening of the job, so a receiver can refuse an older writer."""
        self.rows: Final = output.rows
        self._output = output
        self._streams = streams
        self._session = session
        self._table: Any = None

    @property
    def table(self) -> Any:
        """The rows as a `pyarrow.Table`. Raises `CorruptObjectError` if they are not what the commit names."""
        if self._table is None:
            self._table = _table_of(self._output, self._streams)
        return self._table

    def df(self) -> DataFrame:
        """The rows as a frame of the batch's session. A Spark action: on the event loop, use `sb.spark.run`.

        Raises `InputError` where Spark lacks the type of a column, as of whole numbers without a sign.
        """
        return frame_of(self.table, self._session)

    def __repr__(self) -> str:
        return (
            f"Publication(query_id={self.query_id!r}, batch_id={self.batch_id}, epoch={self.epoch}, rows={self.rows})"
        )


PublishFunction = Callable[[Publication], object]
"""Takes the rows of one batch to their receiver. If it returns an awaitable, that is awaited."""


class Outbox:
    """For `StatefulSink(..., output=Outbox(publish))`: output rows are published once they are committed.

    `publish(publication)` is called at least once for each committed batch that gave rows, or a table without rows; in
    the order of the batches; never for a batch that is not committed. After a crash, or if it raises, it is called
    again, with the same rows under the same (query id, batch id), until it has returned. So it must drop or overwrite
    what the receiver already has under that key. It may be `async def`. While it fails, the query fails.

    Raises `SettingsError` if `publish` is not callable.
    """

    def __init__(self, publish: PublishFunction) -> None:
        if not callable(publish):
            raise SettingsError("an outbox needs a function that takes a Publication", publish=publish)
        self.publish: Final = publish


def rows_to_stage(table: Any, *, part_bytes_max: int = PART_BYTES_MAX) -> StagedRows | None:
    """The rows of a `pyarrow.Table`, as parts for the outbox to stage; `None` for `None`.

    Raises `InputError` for anything else, for columns that share a name, and for a null that the table's schema rules
    out.
    """
    if table is None:
        return None
    if not isinstance(table, _pa.Table):
        hint = " (await it)" if inspect.isawaitable(table) else ""
        raise InputError(f"with an outbox, a function must return a pyarrow.Table or None{hint}", returned=type(table))
    check_distinct(table.column_names)
    schema = bytes(checked_nulls(table).schema.serialize())
    if not table.num_rows:
        return StagedRows(schema, 0)
    rows_max = max(1, table.num_rows * part_bytes_max // max(1, table.nbytes))
    begins = range(0, table.num_rows, rows_max)
    return StagedRows(schema, table.num_rows, tuple(stream_of(table.slice(begin, rows_max)) for begin in begins))


def stream_of(table: Any) -> bytes:
    """The rows of a `pyarrow.Table` as one Arrow IPC stream."""
    sink = _pa.BufferOutputStream()
    with _pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def _table_of(output: StagedOutput, streams: Sequence[Buffer]) -> Any:
    try:
        schema = _pa.ipc.read_schema(_pa.py_buffer(output.schema))
        tables = [_pa.ipc.open_stream(_pa.py_buffer(stream)).read_all() for stream in streams]
        table = _pa.concat_tables([schema.empty_table(), *tables])
    except _pa.ArrowException as error:
        raise CorruptObjectError(f"staged output is not an Arrow stream: {error}", source=output.source) from error
    if table.num_rows != output.rows:
        raise CorruptObjectError(
            "staged output has another number of rows than its commit names", source=output.source, rows=table.num_rows
        )
    return table
