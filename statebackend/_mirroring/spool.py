"""Holds the rows of a step until a target has written them: in memory, and beyond a limit in a file."""

import base64
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from statebackend._columns.arrow import DataType, RecordBatch, Schema, pa
from statebackend._mirroring.target import EarlyRows
from statebackend._reading.rows.layouts import KEY
from statebackend.errors import KeyTypeError
from statebackend.settings import MiB

HELD_BYTES_MAX: Final = 64 * MiB


class Spool:
    """The rows of one step, to be read any number of times. Its calls may touch a disk: make them in threads.

    `ahead`: the target's own, which is given the rows as they come.
    """

    def __init__(self, ahead: EarlyRows | None = None) -> None:
        self.ahead: Final = ahead
        self.rows = 0
        self.schema: Schema | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._held: list[RecordBatch] = []
        self._held_bytes = 0
        self._writer: Any = None

    def add(self, batches: Sequence[RecordBatch]) -> None:
        """Add rows, all of one schema. Raises `KeyTypeError` for keys of another type than those before."""
        for batch in batches:
            check_keys(batch.schema, None if self.schema is None else self.schema.field(KEY).type)
            self.schema = batch.schema
            self.rows += batch.num_rows
            if self.ahead is not None:
                self.ahead.add(batch)
            if self._writer is None and self._held_bytes + batch.nbytes <= HELD_BYTES_MAX:
                self._held.append(batch)
                self._held_bytes += batch.nbytes
                continue
            if self._writer is None:
                self._writer = pa.ipc.new_file(self._path, batch.schema)
            self._writer.write_batch(batch)

    @property
    def has_file(self) -> bool:
        """True if some rows lie in a file, which `end` completes."""
        return self._writer is not None

    def end(self) -> None:
        """No more rows are added."""
        if self._writer is not None:
            self._writer.close()

    @property
    def _path(self) -> str:
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="statebackend-mirror-", ignore_cleanup_errors=True)
        return f"{self._directory.name}/rows.arrow"

    def close(self) -> None:
        """The file is not needed any more."""
        if self._directory is not None:
            self._directory.cleanup()

    def batches(self) -> Iterator[RecordBatch]:
        """All rows, in the order in which they were added."""
        yield from self._held
        if self._writer is not None:
            with pa.memory_map(self._path) as file:
                reader = pa.ipc.open_file(file)
                for place in range(reader.num_record_batches):
                    yield reader.get_batch(place)


@contextmanager
def opened_spool(ahead: EarlyRows | None = None) -> Generator[Spool]:
    """A spool whose file, if it needs one, goes with the context."""
    spool = Spool(ahead)
    try:
        yield spool
    finally:
        spool.close()


def key_type_text(schema: Schema) -> str:
    """The type of the key column, as text."""
    found: bytes = pa.schema([pa.field(KEY, schema.field(KEY).type)]).serialize().to_pybytes()
    return base64.b64encode(found).decode()


def key_type_of(text: str) -> DataType:
    """The type that `key_type_text` has made text of."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))).field(KEY).type


def check_keys(schema: Schema, mirrored: DataType | None) -> None:
    """Raise `KeyTypeError` for keys that are of another type than those that the table was made with."""
    if mirrored is not None and schema.field(KEY).type != mirrored:
        raise KeyTypeError(
            "the state's keys are of another type than the first ones that were mirrored: mirror into a new table with"
            " key_as_json=True, which takes keys of all types",
            type=str(schema.field(KEY).type),
            type_mirrored=str(mirrored),
        )
