"""Sources in Arrow: tables, readers, and files of Parquet. The only module of a seed that needs pyarrow, an extra.

The columns are those that `read_state` and `export` give: `key`, then `value`, or a column for each field. A column
`key_group` that comes with them is passed over: each key is placed anew.
"""

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

from statebackend._codec.plain import python_rows, python_values
from statebackend._columns.arrow import pa
from statebackend._columns.batch.numbered_keys import column_in
from statebackend._columns.batch.user_keys import keys_from, keys_of
from statebackend._columns.fitting import array_of_values, fits, fitted
from statebackend._upkeep.seeding.source_rows import Source, SourceRows
from statebackend.errors import InputError, KeyTypeError
from statebackend.ids import Key

KEY_GROUP: Final = "key_group"
VALUE: Final = "value"
ROWS_AT_ONCE: Final = 1 << 16
"""Rows that are read from Parquet together, and checked together."""
_SUFFIXES: Final = (".parquet", ".pq")


class ArrowRows(SourceRows):
    """Rows of a batch. `key`: the names of the columns of their keys."""

    def __init__(self, first: int, batch: Any, key: str | Sequence[str]) -> None:
        super().__init__(first)
        self._batch = batch
        self._key = key

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def pairs(self) -> tuple[Sequence[Key], Sequence[Any]]:
        names = [self._key] if isinstance(self._key, str) else [*self._key]
        columns = [column_in(self._batch, name) for name in names]
        for name, column in zip(names, columns, strict=True):
            self._check_no_null(column, name)
        parts = [list(map(_key, python_values(column))) for column in columns]
        keys = parts[0] if len(parts) == 1 else list(zip(*parts, strict=True))
        rest = self._other_columns()
        if [name for name in rest if name != KEY_GROUP] == [VALUE]:
            column = column_in(self._batch, VALUE)
            return keys, _restored(python_values(column), column.type)
        rows = python_rows(self._batch.select(rest))
        for name in rest:
            if not _is_plain(type_ := self._batch.schema.field(name).type):
                values = _restored([row[name] for row in rows], type_)
                rows = [{**row, name: value} for row, value in zip(rows, values, strict=True)]
        return keys, rows

    def columns(self, schema: Any, key_type: Any) -> tuple[Any, Mapping[str, Any]]:
        names = [self._key] if isinstance(self._key, str) else [*self._key]
        for name in names:
            self._check_no_null(column_in(self._batch, name), name)
        found = self._by_own_name(schema)
        _check_columns(found, schema)
        arrays = {field.name: self._column(found[field.name], field) for field in schema}
        return keys_of(self._batch, self._key if isinstance(self._key, str) else names, key_type), arrays

    def row(self, number: int) -> "ArrowRows":
        return ArrowRows(self.first + number, self._batch.slice(number, 1), self._key)

    def _by_own_name(self, schema: Any) -> dict[str, str]:
        """For each column of the state, and each that it does not have, its name in the batch."""
        rest = self._other_columns()
        shown = [name for name in rest if name.startswith(f"{VALUE}.") and name not in schema.names]
        found = {name: name for name in rest if name not in shown}
        if KEY_GROUP in found and (KEY_GROUP not in schema.names or f"{VALUE}.{KEY_GROUP}" in shown):
            del found[KEY_GROUP]
        return found | {name.removeprefix(f"{VALUE}."): name for name in shown}

    def _other_columns(self) -> list[str]:
        names = {self._key} if isinstance(self._key, str) else {*self._key}
        return [name for name in self._batch.schema.names if name not in names]

    def _column(self, name: str, field: Any) -> Any:
        column = column_in(self._batch, name)
        if not fits(column.type, field.type):
            raise InputError(
                "a column is of another type than the state's: cast it",
                column=name,
                type=str(column.type),
                type_declared=str(field.type),
            )
        return fitted(column, field.type, name)

    def _check_no_null(self, column: Any, name: str) -> None:
        parts = column.flatten() if pa.types.is_struct(column.type) else [column]
        for part in (column, *parts):
            if part.null_count:
                row = self.name_of(python_values(part.is_null()).index(True))
                raise KeyTypeError("a key is null: filter such rows, or give them a key", column=name, row=row)


class ArrowSource(Source):
    """The batches of a reader, or of another iterable."""

    def __init__(self, reader: Any, key: str | Sequence[str], total: int | None = None, *, first: int = 0) -> None:
        self._reader = reader
        self._key = key
        self._first = first
        self.total = total

    def rows(self) -> Iterator[SourceRows]:
        first, batches = self._first, iter(self._reader)
        while True:
            try:
                batch = next(batches, None)
            except (OSError, pa.ArrowException) as error:
                raise InputError(f"the source cannot be read further: {error}", rows_read=first) from error
            if batch is None:
                return
            for at in range(0, batch.num_rows, ROWS_AT_ONCE):
                yield ArrowRows(first + at, batch.slice(at, ROWS_AT_ONCE), self._key)
            first += batch.num_rows


class ParquetSource(Source):
    """Files of Parquet, one after the other in the order of their names."""

    def __init__(self, paths: Sequence[Path], key: str | Sequence[str]) -> None:
        self._paths = paths
        self._key = key
        self._parquet = importlib.import_module("pyarrow.parquet")
        self.total = sum(self._opened(path).metadata.num_rows for path in paths)

    def rows(self) -> Iterator[SourceRows]:
        first = 0
        for path in self._paths:
            file = self._opened(path)
            yield from ArrowSource(file.iter_batches(batch_size=ROWS_AT_ONCE), self._key, first=first).rows()
            first += file.metadata.num_rows

    def _opened(self, path: Path) -> Any:
        try:
            return self._parquet.ParquetFile(path)
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"a file of Parquet cannot be read: {error}", path=str(path)) from error


def arrow_source(given: Any, key: str | Sequence[str]) -> Source:
    """The source that is a path, or has Arrow's interface. Raises `InputError`."""
    if isinstance(given, (str, os.PathLike)):
        return ParquetSource(_files(Path(cast("str", given))), key)
    if hasattr(given, "mapInArrow"):
        return ArrowSource(_batches_of(given), key)
    if isinstance(given, pa.RecordBatch):
        given = pa.Table.from_batches([given])
    if isinstance(given, pa.Table):
        return ArrowSource(given.to_batches(), key, given.num_rows)
    source = ArrowSource(pa.RecordBatchReader.from_stream(given), key)
    source.is_read_once = isinstance(given, pa.RecordBatchReader)
    return source


def _batches_of(frame: Any) -> Iterator[Any]:
    """The rows of a frame of Spark, a partition at a time: `toArrow` would have all of them in memory.

    Each batch comes as one row of bytes, since Spark hands rows over one by one.
    """

    def as_messages(batches: Iterator[Any]) -> Iterator[Any]:  # a worker of Spark's need not have this library
        arrow: Any = importlib.import_module("pyarrow")
        for batch in batches:
            sink = arrow.BufferOutputStream()
            with arrow.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            yield arrow.record_batch([arrow.array([sink.getvalue().to_pybytes()], arrow.binary())], names=["message"])

    for row in frame.mapInArrow(as_messages, "message binary").toLocalIterator(prefetchPartitions=True):
        with pa.ipc.open_stream(row[0]) as reader:
            yield from reader


def columns_of_pairs(
    keys: Sequence[Any], values: Sequence[Any], schema: Any, key_type: Any
) -> tuple[Any, Mapping[str, Any]]:
    """As `SourceRows.columns`, of Python keys, and mappings from columns to values."""
    for row in values:
        if not isinstance(row, Mapping):
            raise InputError("a row of columns is a mapping from their names to values", got=repr(row)[:80])
        _check_columns(cast("Mapping[str, Any]", row), schema)
    arrays = {
        field.name: array_of_values([row[field.name] for row in values], field.type, field.name) for field in schema
    }
    return keys_from(keys, key_type), arrays


def _check_columns(found: Mapping[str, Any], schema: Any) -> None:
    """A column that is missing is most likely one of another name: what is meant to be null must say so."""
    known: set[str] = set(schema.names)
    if set(found) != known:
        raise InputError(
            "the rows must have the columns of the state, no others and none less: rename them, or add nulls",
            missing=sorted(known - found.keys()),
            unknown=sorted(found.keys() - known),
        )


def _files(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.rglob("*") if each.suffix in _SUFFIXES and each.name[0] not in "._")
    if not found:
        raise InputError("the directory has no files of Parquet", path=str(path), suffixes=", ".join(_SUFFIXES))
    return found


def _key(found: Any) -> Any:
    """A key of several parts comes as a struct."""
    return tuple(map(_key, cast("dict[str, Any]", found).values())) if isinstance(found, dict) else found


def _is_plain(type_: Any) -> bool:
    """True if Python values of the type are as a state takes them."""
    types = pa.types
    if types.is_map(type_) or _is_tuple(type_):
        return False
    return not types.is_nested(type_) or all(_is_plain(type_.field(place).type) for place in range(type_.num_fields))


def _is_tuple(type_: Any) -> bool:
    """True for a struct of `_1`, `_2` and so on, which stands for a tuple."""
    names = [field.name for field in type_] if pa.types.is_struct(type_) else []
    return bool(names) and names == [f"_{place}" for place in range(1, len(names) + 1)]


def _restored(values: Sequence[Any], type_: Any) -> Sequence[Any]:
    """The values with a dict in place of each list of pairs, which is how Arrow gives a map, and with tuples."""
    return values if _is_plain(type_) else [_restored_one(value, type_) for value in values]


def _restored_one(value: Any, type_: Any) -> Any:
    types = pa.types
    if value is None or _is_plain(type_):
        return value
    if types.is_map(type_):
        own = type_.key_type, type_.item_type
        return _map_of([tuple(map(_restored_one, pair, own)) for pair in value])
    if types.is_struct(type_):
        fields = {name: _restored_one(each, type_.field(name).type) for name, each in value.items()}
        return tuple(fields.values()) if _is_tuple(type_) else fields
    return [_restored_one(each, type_.value_type) for each in value]


def _map_of(pairs: list[tuple[Any, ...]]) -> Any:
    """A dict, or the pairs, where no dict has room for their names: for records, and for both 0.0 and -0.0."""
    with suppress(TypeError):
        if len(found := dict(pairs)) == len(pairs):
            return found
    return pairs
