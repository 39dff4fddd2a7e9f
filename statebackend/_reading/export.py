"""Writes one state of a checkpoint to a file: Parquet, CSV, or a line of JSON for each row."""

import importlib
import os
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, Literal, Unpack, get_args

import msgspec

from statebackend._codec.plain import plain
from statebackend._columns.arrow import Array, RecordBatch, Schema, pa, plain_of
from statebackend._keywords import keywords_of
from statebackend._reading.opened_state import read_batches
from statebackend._reading.reading_reports import ExportReport
from statebackend._reading.rows.layouts import KEY, KEY_GROUP, VALUE
from statebackend._reading.what_to_read import AskedOfState, WhatToRead
from statebackend._tasks import finish
from statebackend._threads import FileThreads
from statebackend._upkeep.progress import Tell
from statebackend.abc import ObjectStore
from statebackend.errors import InputError, StateBackendError
from statebackend.settings import Settings

Format = Literal["parquet", "csv", "jsonl"]
PARTIAL: Final = ".partial"
_BY_SUFFIX: Final[Mapping[str, Format]] = {
    "": "parquet",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}


@keywords_of(WhatToRead, AskedOfState)
async def export(
    settings: Settings,
    state: str,
    path: str | os.PathLike[str],
    *,
    format: Format | None = None,  # noqa: A002  # as the option of the command
    initial_key: str | Sequence[str] | None = None,
    store: ObjectStore | None = None,
    tell: Tell = lambda _: None,
    **what: Unpack[WhatToRead],
) -> ExportReport:
    """Write a state to a new file. The keywords are those of `read_state`.

    The `format` is that of the file's name: Parquet for `.parquet` or none, CSV for `.csv`, a line of JSON for each row
    for `.jsonl`. A name that ends in another way needs it, and one that is given counts more than the name.

    `initial_key`: write rows for the initial state of Spark's `transformWithState`, whose `groupBy` has these columns:
    the parts of the key in columns of these names, and the value in one of the state's name.

    The file appears under its name once it is whole; after an error or a cancelled call there is none. A process that
    is killed leaves a hidden file that ends in `.partial`. CSV shows bytes and nested values as JSON. Raises
    `InputError` for a file that exists or cannot be written, also if another call was quicker, and as `read_state`.
    """
    path = Path(path)
    if format is None:
        format = _format_of(path)  # noqa: A001
    if format not in get_args(Format):
        raise InputError("the format is one of these", format=format, formats=", ".join(get_args(Format)))
    threads = FileThreads(1)
    rows = 0
    with _new_file(path) as partial:
        async with read_batches(settings, state, store=store, tell=tell, **what) as batches:
            initial = None if initial_key is None else InitialRows(batches.schema, state, initial_key)
            # `finish`: a cancelled task waits for its thread, or that would write to a file that is closed.
            writer = await finish(threads.io, _WRITERS[format], partial, initial.schema if initial else batches.schema)
            try:
                async for batch in batches:
                    await finish(threads.io, writer.write, initial.batch(batch) if initial else batch)
                    rows += batch.num_rows
            finally:
                await finish(threads.io, writer.close)
            checkpoint_id = batches.checkpoint_id
    return ExportReport(state, checkpoint_id, str(path), rows, path.stat().st_size)


def _format_of(path: Path) -> Format:
    """The format that the file's name tells. Raises `InputError`."""
    found = _BY_SUFFIX.get(path.suffix.lower())
    if found is None:
        raise InputError(
            "the name of the file does not tell its format: end it in one of these, or give the format",
            out=str(path),
            suffixes=", ".join(each for each in _BY_SUFFIX if each),
        )
    return found


@contextmanager
def _new_file(path: Path) -> Generator[Path]:
    """Yield where to write what is to be at `path`, and put it there in the end. Raises `InputError`."""
    if not path.name:
        raise InputError("name the file to write", out=str(path))
    partial = path.with_name(f".{path.name}-{secrets.token_hex(4)}{PARTIAL}")  # another export may be on its way there
    try:
        if path.exists():
            raise InputError("the file is there already: name another, or remove it", out=str(path))
        try:
            yield partial
            _publish(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        if isinstance(error, StateBackendError):
            raise
        raise InputError(f"the file cannot be written: {error.strerror or error}", out=str(path)) from error


def _publish(partial: Path, path: Path) -> None:
    """Give the file its name, and replace none. Without hard links the name is there, empty, for a moment before."""
    try:
        os.link(partial, path)
    except FileExistsError:
        raise
    except OSError:
        path.touch(exist_ok=False)
        try:
            partial.replace(path)
        except OSError:
            path.unlink()
            raise


class _Parquet:
    def __init__(self, path: Path, schema: Schema) -> None:
        self._writer = _module("parquet").ParquetWriter(str(path), schema, compression="zstd")

    def write(self, batch: RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class _Csv:
    def __init__(self, path: Path, schema: Schema) -> None:
        types = [pa.string() if _is_json(field.type) else field.type for field in schema]
        self._schema = pa.schema(list(zip(schema.names, types, strict=True)))
        self._writer = _module("csv").CSVWriter(str(path), self._schema)

    def write(self, batch: RecordBatch) -> None:
        arrays = [_as_json(each) if _is_json(each.type) else each for each in batch.columns]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


class _Jsonl:
    def __init__(self, path: Path, schema: Schema) -> None:
        self._names = schema.names
        self._file = path.open("wb")

    def write(self, batch: RecordBatch) -> None:
        self._file.writelines(line + b"\n" for line in json_lines(batch))

    def close(self) -> None:
        with closing(self._file):
            self._file.flush()


def json_lines(batch: RecordBatch) -> Sequence[bytes]:
    """Each row as an object in JSON."""
    return [msgspec.json.encode(plain(row)) for row in plain_of(batch)]


_WRITERS: Final[Mapping[Format, Callable[[Path, Schema], _Parquet | _Csv | _Jsonl]]] = {
    "parquet": _Parquet,
    "csv": _Csv,
    "jsonl": _Jsonl,
}


def _is_json(type_: Any) -> bool:
    types = pa.types
    return bool(
        types.is_nested(type_)
        or types.is_binary(type_)
        or types.is_large_binary(type_)
        or types.is_fixed_size_binary(type_)
        or types.is_duration(type_)
    )


def _as_json(array: Array) -> Array:
    texts = [None if each is None else msgspec.json.encode(plain(each)).decode() for each in plain_of(array)]
    return pa.array(texts, pa.string())


def _module(name: str) -> Any:
    """A part of pyarrow that takes long to import."""
    return importlib.import_module(f"pyarrow.{name}")


class InitialRows:
    """Rows as `transformWithState` takes them: a column for each part of the key, by these names, and the state's own.

    That is a struct for a columnar state. Raises `InputError` if the key has not so many parts.
    """

    def __init__(self, read: Schema, state: str, key: str | Sequence[str]) -> None:
        names = [key] if isinstance(key, str) else [*key]
        type_ = read.field(KEY).type
        self._is_tuple = pa.types.is_struct(type_)
        parts = list(type_) if self._is_tuple else [read.field(KEY)]
        self._rest = [each for each in read if each.name not in (KEY, KEY_GROUP)]
        self._is_single = [each.name for each in self._rest] == [VALUE]
        if len(names) != len(parts) or len({*names, state}) <= len(names):
            raise InputError(
                "give each part of the key a name, and none that of the state", key=names, parts=len(parts), state=state
            )
        value: Any = self._rest[0].type if self._is_single else pa.struct(self._rest)
        keys = [(name, part.type) for name, part in zip(names, parts, strict=True)]
        self.schema: Final[Schema] = pa.schema([*keys, (state, value)])

    def batch(self, read: RecordBatch) -> RecordBatch:
        """These rows in that form."""
        key: Any = read.column(KEY)
        keys = key.flatten() if self._is_tuple else [key]
        columns = [read.column(each.name) for each in self._rest]
        value = columns[0] if self._is_single else pa.StructArray.from_arrays(columns, fields=self._rest)
        return pa.RecordBatch.from_arrays([*keys, value], schema=self.schema)
