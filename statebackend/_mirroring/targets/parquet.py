"""A folder of Parquet files, in any store that a primary may lie in: the `log` form. A file per step.

    file := number ".parquet" | number "-" part "-" attempt ".parquet"        12, 5 and 8 digits

The file without a part is made last, by put-if-absent, so a step is there once, however many processes write it. Its
own metadata names the mirror. Others are there where a step has more rows than one file: that metadata names the
attempt at the step which they belong to, and files of others, which were killed or too late, are deleted.
"""

import importlib
import os
import re
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from statebackend._backend.stores import open_store, open_threads
from statebackend._columns.arrow import Array, RecordBatch, pa
from statebackend._mirroring.target import (
    BATCH_ID,
    CHECKPOINT_ID,
    COMMITTED_AT,
    GENERATION,
    OP,
    EarlyRows,
    MirrorMark,
    MirrorRows,
    MirrorTable,
    MirrorTarget,
    newest_view,
    quoted,
    rows_to_read_back,
)
from statebackend._mirroring.targets.apart import check_apart
from statebackend._reading.rows.layouts import KEY_GROUP
from statebackend.abc import Capability, ObjectStore
from statebackend.errors import InputError, MirrorSchemaError, ObjectExistsError, PrimaryUrlError
from statebackend.settings import MiB, Settings
from statebackend.settings.settings import check_primary

FILE_ROWS_MAX: Final = 1_000_000
MIRROR_KEY: Final = b"statebackend.mirror"
_ALIKE: Final = [GENERATION, OP, CHECKPOINT_ID, BATCH_ID, COMMITTED_AT, KEY_GROUP]
"""Columns with few values."""
SAMPLED: Final = 1024
"""So many rows tell whether a column of the state has few values: a dictionary of others costs more than it saves."""
ENCODED_AT_ONCE: Final = 1 << 16
GROUP_BYTES_MIN: Final = MiB
"""About as large is the first row group of a file that is encoded while its rows are read."""
_FINAL: Final = re.compile(r"(\d{12})\.parquet")
ATTEMPT_KEY: Final = b"statebackend.attempt"
_PART: Final = re.compile(r"(\d{12})-(\d{5})-([0-9a-f]{8})\.parquet")
_FIRST: Final = "00000"
"""The part that each attempt at a step of several files begins with."""
_OURS: Final = re.compile(r"\d{12}(-\d{5}-[0-9a-f]{8})?\.parquet")


class ParquetTarget(MirrorTarget):
    """A `log` in a folder: a path, or a URL as of a primary (`s3://bucket/prefix`), read with the job's credentials.

    DuckDB, Spark and pandas read it as one table. `compression`: of Parquet. `store`: in place of that of the URL.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, compression: str = "zstd", store: ObjectStore | None = None
    ) -> None:
        text = os.fspath(folder)
        url = urlsplit(text)
        self._url = text.rstrip("/") if url.scheme else f"file://{Path(text).absolute()}"
        if store is None:
            _check_folder(text, self._url)
        self._compression = compression
        self._instead = store
        self._columns: Sequence[str] = ()

    @property
    def place(self) -> str:
        return self._url

    @asynccontextmanager
    async def opened(self, settings: Settings) -> AsyncGenerator[None]:
        job, settings = settings, msgspec.structs.replace(settings, primary=self._url)
        async with (
            open_threads(settings) as self._threads,
            open_store(settings, self._threads, commits=False, instead=self._instead) as store,
        ):
            if self._instead is None:
                await self._threads.io(partial(check_apart, self._url, job, place=self._url))
            if not {Capability.LIST, Capability.PUT_IF_ABSENT} <= store.capabilities:
                raise InputError("a mirror's folder must list, and create files if absent", target=self._url)
            self._store = store
            yield

    async def find(self) -> MirrorMark:
        files = [info.key async for info in self._store.list("") if info.key.endswith(".parquet")]
        newest = max(filter(_FINAL.fullmatch, files), default=None)
        if newest is None:
            return MirrorMark(is_empty=not files)
        told = await self._threads.cpu(_told_by, await self._store.get(newest))
        self._columns = told.columns
        attempts = Counter(part[1] for part in map(_PART.fullmatch, files) if part and part[2] == _FIRST)
        for number, count in attempts.items():
            if count > 1 and f"{number}.parquet" <= newest:
                await self._clear(number)
        return MirrorMark(told.mirror_id, int(newest.removesuffix(".parquet")))

    async def fit(self, table: MirrorTable) -> None:
        try:
            await self._threads.cpu(self._encoded, [pa.RecordBatch.from_pylist([], schema=table.schema)], "")
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise MirrorSchemaError(f"Parquet has no place for a column: {error}", target=self._url) from error
        self._columns = table.schema.names

    async def write(self, rows: MirrorRows) -> None:
        name, part, attempt = f"{rows.number:012d}", 0, secrets.token_hex(4)
        files = self._files(rows, attempt)
        body, is_last = await self._threads.cpu(next, files)
        while not is_last:
            if not part and await self._store.head(f"{name}.parquet") is not None:
                return
            await self._store.put(f"{name}-{part:05d}-{attempt}.parquet", [body])
            part += 1
            body, is_last = await self._threads.cpu(next, files)
        with suppress(ObjectExistsError):  # another process has taken the same step
            await self._store.put_if_absent(f"{name}.parquet", [body])
        if part:
            await self._clear(name)

    async def _clear(self, number: str) -> None:
        """Delete the files of all attempts at a step but that which has ended it."""
        told = await self._threads.cpu(_told_by, await self._store.get(f"{number}.parquet"))
        if told.attempt is not None:  # older releases did not name it
            for key in [info.key async for info in self._store.list(f"{number}-")]:
                if (part := _PART.fullmatch(key)) and part[3] != told.attempt:
                    await self._store.delete(key)

    def ahead(self, mirror_id: str) -> EarlyRows:
        return _Ahead(self._compression, mirror_id)

    def _files(self, rows: MirrorRows, attempt: str) -> Iterator[tuple[memoryview, bool]]:
        """One file after the other, and whether it is the last."""
        if isinstance(rows.ahead, _Ahead) and (body := rows.ahead.body()) is not None:
            yield body, True
            return
        held: list[RecordBatch] = []
        count = 0
        for batch in rows.batches():
            if held and count + batch.num_rows > FILE_ROWS_MAX:
                yield self._encoded(held, rows.mirror_id, attempt), False
                held, count = [], 0
            held.append(batch)
            count += batch.num_rows
        held = held or [pa.RecordBatch.from_pylist([], schema=rows.schema)]
        yield self._encoded(held, rows.mirror_id, attempt), True

    def _encoded(self, batches: Sequence[RecordBatch], mirror_id: str, attempt: str = "") -> memoryview:
        file = _LogFile(self._compression, mirror_id, batches[0], attempt)
        file.write(batches)
        return file.body()

    async def read_back(self, generation: int, key_group: int) -> AsyncIterator[RecordBatch]:
        first = f"{generation:012d}"
        names = [info.key async for info in self._store.list("") if _OURS.fullmatch(info.key) and info.key >= first]
        for name in names:
            for batch in await self._threads.cpu(_rows_of, await self._store.get(name), generation, key_group):
                yield batch

    def view(self) -> str | None:
        files = quoted(f"{self._url.removeprefix('file://')}/*.parquet", "'")
        return newest_view(self._columns, f"read_parquet({files}, union_by_name=true)") if self._columns else None


class _LogFile:
    """One file. `first`: rows whose schema it has, and which tell how its columns are encoded."""

    def __init__(self, compression: str, mirror_id: str, first: RecordBatch, attempt: str = "") -> None:
        told = {MIRROR_KEY: mirror_id.encode()} | ({ATTEMPT_KEY: attempt.encode()} if attempt else {})
        self._schema = first.schema.with_metadata(told)
        self._bytes: Final = pa.BufferOutputStream()  # a file of Python's would ask for the interpreter at each page
        leaves = list(_leaves("", pa.StructArray.from_arrays(first.columns, first.schema.names)[:SAMPLED]))
        options = {
            "compression": compression,
            "use_dictionary": [*_ALIKE, *(name for name, sample in leaves if len(sample.unique()) <= len(sample) // 2)],
            "write_statistics": [OP, *(name for name, sample in leaves if not _is_text(sample))],
            "write_batch_size": ENCODED_AT_ONCE,
        }
        self._writer = _parquet().ParquetWriter(self._bytes, self._schema, **options)

    def write(self, batches: Sequence[RecordBatch]) -> None:
        """Add a row group."""
        self._writer.write_table(pa.Table.from_batches(list(batches)).cast(self._schema))

    def body(self) -> memoryview:
        """The whole of it."""
        self._writer.close()
        return memoryview(self._bytes.getvalue())


class _Ahead(EarlyRows):
    """A file that is encoded while its rows are read. Each row group has twice as many bytes as the one before."""

    def __init__(self, compression: str, mirror_id: str) -> None:
        self._given = compression, mirror_id
        self._file: _LogFile | None = None
        self._held: list[RecordBatch] = []
        self._rows = 0
        self._group_bytes = GROUP_BYTES_MIN
        self._has_given_up = False

    def add(self, rows: RecordBatch) -> None:
        self._rows += rows.num_rows
        self._has_given_up = self._has_given_up or self._rows > FILE_ROWS_MAX
        self._held.append(rows)
        if self._has_given_up or sum(each.nbytes for each in self._held) >= self._group_bytes:
            self._encode()

    def body(self) -> memoryview | None:
        """The file, if all rows are in it."""
        if self._held:
            self._encode()
        return None if self._file is None else self._file.body()

    def _encode(self) -> None:
        held, self._held = self._held, []
        try:
            if not self._has_given_up:
                self._file = self._file or _LogFile(*self._given, held[0])
                self._file.write(held)
        except pa.ArrowException:  # `write` meets it again, and says so
            self._has_given_up = True
        if self._has_given_up:
            self._file = None
        self._group_bytes *= 2


def _check_folder(text: str, url: str) -> None:
    """Raise `InputError` for what is no folder, as which any text passes that names no other target."""
    try:
        if not text:
            raise PrimaryUrlError("no folder is named")
        check_primary(url)
    except PrimaryUrlError as error:
        raise InputError(
            "no mirror goes there: give a folder, or its URL as of a primary; delta: and a folder or a URL;"
            " postgresql://HOST/DB?table=NAME; or a target, such as sb.mirrors.IcebergTarget",
            target=error.facts.get("primary", ""),
            reason=error.message.replace("primary", "target"),
        ) from error


def _leaves(name: str, rows: Array) -> Iterator[tuple[str, Array]]:
    """The columns within, of records too but not of lists and maps, by their paths in Parquet."""
    if pa.types.is_struct(rows.type):
        for field, values in zip(rows.type, rows.flatten(), strict=True):
            yield from _leaves(f"{name}.{field.name}".removeprefix("."), values)
    elif not pa.types.is_nested(rows.type):
        yield name, rows


def _is_text(values: Array) -> bool:
    """True for what takes long to compare, and no reader skips rows by: keys lie by their hash."""
    return not (pa.types.is_primitive(values.type) or pa.types.is_decimal(values.type))


def _rows_of(body: bytes, generation: int, key_group: int) -> list[RecordBatch]:
    """The rows of a file that have this generation, and this key group or none."""
    found: list[RecordBatch] = (
        _parquet().read_table(pa.BufferReader(body), filters=rows_to_read_back(generation, key_group)).to_batches()
    )
    return found


class _Told(NamedTuple):
    """The mirror that has written a file, at which attempt at its step, and its columns; as the file says."""

    mirror_id: str | None
    attempt: str | None
    columns: Sequence[str]


def _told_by(body: bytes) -> _Told:
    schema = _parquet().read_schema(pa.BufferReader(body))
    found: dict[bytes, bytes] = schema.metadata or {}
    mirror_id, attempt = (None if each is None else each.decode() for each in map(found.get, (MIRROR_KEY, ATTEMPT_KEY)))
    return _Told(mirror_id, attempt, schema.names)


def _parquet() -> Any:
    """The part of pyarrow that writes Parquet: it takes long to import."""
    return importlib.import_module("pyarrow.parquet")
