"""Output by the outbox: a batch's rows are staged, named in its commit, and only then published.

    a table -> Arrow streams -> staged (`_log/outbox.py`) -> commit -> `publish(Publication)`

What is published is read from what was staged, the first time too: so it is the same, however often. In the driver a
batch is one table. An executor's task stages its own rows, by the outbox of the backend that it works on, and brings
the driver what it has staged: `output_of` makes what `Outbox.stage` takes, and `joined` makes one of what tasks bring.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from statebackend._log.outbox import Outbox as JobOutbox
from statebackend._log.outbox import Output as StagedRows
from statebackend.abc import Buffer
from statebackend.errors import CorruptObjectError, InputError, SettingsError
from statebackend.ids import Epoch, StagedOutput
from statebackend.settings import MiB
from statebackend.spark.frames import frame_of

_pa: Any = pa  # it ships no types

PART_BYTES_MAX: Final = 32 * MiB
"""Rows of about so many bytes make a part: an object of its own, or a piece of the commit."""


class Publication:
    """What is to be published of one batch. Whoever gets it again, gets the same rows in the same order."""

    def __init__(self, output: StagedOutput, streams: Sequence[Buffer], *, epoch: Epoch, session: SparkSession) -> None:
        self.query_id: Final = output.source.query_id
        """With `batch_id` the key by which a receiver knows what it has already."""
        self.batch_id: Final = output.source.batch_id
        self.epoch: Final[int] = epoch
        """Of who publishes. It grows with each opening of the job, so a receiver can refuse an older writer."""
        self.rows: Final = output.rows
        self._output = output
        self._streams = streams
        self._session = session
        self._table: Any = None

    @property
    def table(self) -> Any:
        """The rows as a `pyarrow.Table`. Raises `CorruptObjectError` where they are not what the commit says."""
        if self._table is None:
            self._table = _table_of(self._output, self._streams)
        return self._table

    def df(self) -> DataFrame:
        """The rows as a frame of the session that runs the batch. A Spark action: not on a loop, see `sb.spark.run`."""
        return frame_of(self.table, self._session)

    def __repr__(self) -> str:
        return (
            f"Publication(query_id={self.query_id!r}, batch_id={self.batch_id}, epoch={self.epoch}, rows={self.rows})"
        )


Publish = Callable[[Publication], object]
"""Takes the rows of one batch to where they are wanted. An awaitable that it returns is awaited."""


class Outbox:
    """For `StatefulSink(..., output=Outbox(publish))`: rows that come out are published once they are committed.

    `publish(publication)` is called at least once for each batch that is committed and gave rows, or a table without
    any; in the order of the batches, and never for one that is not committed. It is called again, with the same rows
    under the same (query id, batch id), after a crash or an error of its own, until it has returned: so it has to drop
    or overwrite what is there under that key. It may be `async def`. While it fails, the query fails.

    Raises `SettingsError` for what cannot be called.
    """

    def __init__(self, publish: Publish) -> None:
        if not callable(publish):
            raise SettingsError("an outbox needs a function of a Publication", publish=publish)
        self.publish: Final = publish


class Publishes(Protocol):
    """Who commits, and so knows what is to be published: a backend, or the claim of a driver without one."""

    @property
    def epoch(self) -> Epoch: ...
    @property
    def outbox(self) -> JobOutbox: ...

    async def take_output(self) -> tuple[StagedOutput, tuple[Buffer, ...]] | None:
        """The oldest output that is not known to be published."""
        ...

    def published(self, output: StagedOutput) -> None:
        """It is where it was to go."""
        ...


def output_of(table: Any, *, part_bytes_max: int = PART_BYTES_MAX) -> StagedRows | None:
    """What is to be staged of a table that came out; `None` for none. Raises `InputError` for anything else."""
    if table is None:
        return None
    if not isinstance(table, _pa.Table):
        hint = " (await it)" if inspect.isawaitable(table) else ""
        raise InputError(f"with an outbox a function returns a pyarrow.Table or None{hint}", returned=type(table))
    schema = bytes(table.schema.serialize())
    if not table.num_rows:
        return StagedRows(schema, 0)
    rows_max = max(1, table.num_rows * part_bytes_max // max(1, table.nbytes))
    begins = range(0, table.num_rows, rows_max)
    return StagedRows(schema, table.num_rows, tuple(stream_of(table.slice(begin, rows_max)) for begin in begins))


def stream_of(table: Any) -> bytes:
    """The rows of a `pyarrow.Table` as an Arrow IPC stream, whole."""
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
        raise CorruptObjectError(f"staged output is no Arrow: {error}", source=output.source) from error
    if table.num_rows != output.rows:
        raise CorruptObjectError(
            "staged output has not the rows that its commit says", source=output.source, rows=table.num_rows
        )
    return table
