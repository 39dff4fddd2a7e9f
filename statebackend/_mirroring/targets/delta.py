"""A table in Delta: a `table` by whole partitions, or a `log`. Each step is one commit of it.

The commit says in its own metadata which step it is. It is made on the version in which the number was looked up, as a
transaction of the mirror, so of two that write the same step one fails: Delta refuses neither an id nor a number.
"""

from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from statebackend._columns.arrow import RecordBatch, Schema, pa
from statebackend._mirroring.target import (
    OP,
    MirrorMark,
    MirrorRows,
    MirrorTable,
    newest_view,
    quoted,
    rows_to_read_back,
)
from statebackend._mirroring.targets.apart import check_apart
from statebackend._mirroring.targets.blocking import BlockingTarget, imported, told
from statebackend._mirroring.targets.lakehouse_types import fitting
from statebackend._reading.rows.layouts import KEY_GROUP
from statebackend._tasks import finish
from statebackend.errors import (
    InputError,
    MirrorSchemaError,
    StoreAccessError,
    StoreFullError,
    StoreUnavailableError,
)
from statebackend.settings import Settings

PARTITION: Final = "partition"
MIRROR_KEY: Final = "statebackend_mirror"
NUMBER_KEY: Final = "statebackend_number"
SCHEMES: Final = frozenset(
    {
        "file",
        "memory",
        "s3",
        "s3a",
        "gs",
        "az",
        "azure",
        "abfs",
        "abfss",
        "adl",
        "http",
        "https",
        "hdfs",
        "lakefs",
        "uc",
    }
)
"""Those that `deltalake` knows, and is not asked about."""
UNKNOWN_SCHEME: Final = "Unknown scheme"
LOOKED_BACK: Final = 1000
"""Commits of the table among which the newest of a mirror is looked for."""
MAINTENANCE: Final = ("OPTIMIZE", "VACUUM", "FSCK", "REORG", "ADD CONSTRAINT", "SET TBLPROPERTIES", "ADD FEATURE")
"""How the operations begin that leave the rows of a table as they are."""


REFUSED: Final = ("ermission", "denied", "Denied", "not permitted", "Read-only", "Forbidden")
FULL: Final = ("No space", "quota")
"""The words of messages by which the library's errors are told apart: it has no others."""


class DeltaTarget(BlockingTarget):
    """A Delta table at a path or URL: `DeltaTarget("s3://bucket/legs")`. Needs the extra `delta`.

    A `table` has the column `partition`, the key group modulo `partitions`: a commit rewrites only the partitions of
    keys that it changed, with what the state has there. In Spark, a query for one key reads one partition, too, with
    `partition = pmod(pmod(xxhash64(key), max_parallelism), partitions)`. `storage_options`: as `deltalake` takes them.
    """

    forms = ("table", "log")

    def __init__(self, uri: str, *, partitions: int = 16, storage_options: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._delta: Final[Any] = imported("deltalake", "a mirror in Delta", "delta")
        if not uri:
            raise InputError("name the table's folder, or its URL: delta:/tables/legs", target="delta:")
        if partitions < 1:
            raise InputError("a table has at least one partition", partitions=partitions)
        self._check_scheme(uri)
        self._uri = uri
        self.partitions = partitions
        self._options = None if storage_options is None else dict(storage_options)
        self._table: MirrorTable | None = None
        self._schema: Schema = None
        self._shown: Sequence[str] = ()

    def _check_scheme(self, uri: str) -> None:
        """Raise `InputError` for a URL that the library knows no store for."""
        scheme, is_url, _ = uri.partition("://")
        reason = ""
        try:
            urlsplit(uri)
            if is_url and scheme.lower() not in SCHEMES:
                self._delta.DeltaTable(uri)
        except ValueError as error:
            reason = str(error)
        except (self._delta.exceptions.DeltaError, OSError) as error:
            reason = told(error)[:100] if UNKNOWN_SCHEME in str(error) else ""
        if reason:
            raise InputError(
                "Delta has no tables there: give a folder, or a URL such as s3://, gs:// or abfss://",
                target=f"delta:{uri}",
                reason=reason,
            )

    @property
    def place(self) -> str:
        return f"delta:{self._uri}?partitions={self.partitions}"

    @asynccontextmanager
    async def opened(self, settings: Settings) -> AsyncGenerator[None]:
        await finish(self._threads.io, partial(check_apart, self._uri, settings, place=self.place))
        yield

    def view(self) -> str | None:
        uri = quoted(self._uri, "'")
        return newest_view(self._shown, f"delta_scan({uri})") if self._shown else None

    def _opened(self) -> Any:
        """The table as it is now, `None` if there is none."""
        if not self._delta.DeltaTable.is_deltatable(self._uri, self._options):
            return None
        return self._delta.DeltaTable(self._uri, storage_options=self._options)

    def _find(self) -> MirrorMark:
        with self._translated():
            return self._mark(self._opened())

    def _mark(self, table: Any) -> MirrorMark:
        """The newest step that the table has; 0 if somebody else has changed its rows since."""
        if table is None:
            return MirrorMark(is_empty=True)
        is_empty = not table.file_uris()
        self._shown = [field.name for field in table.schema().fields]
        is_changed = False
        for commit in table.history(LOOKED_BACK):
            if MIRROR_KEY in commit:
                number = 0 if is_changed else int(commit[NUMBER_KEY])
                return MirrorMark(str(commit[MIRROR_KEY]), None if is_empty else number, is_empty=is_empty)
            is_changed = is_changed or not str(commit["operation"]).startswith(MAINTENANCE)
        return MirrorMark(is_empty=is_empty)

    def _fit(self, table: MirrorTable) -> None:
        schema = pa.schema([field for field in table.schema if table.form == "log" or field.name != OP])
        if table.form == "table":
            schema = schema.insert(0, pa.field(PARTITION, pa.int32()))
        self._table, self._schema = table, fitting(schema, self.place)
        self._shown = self._schema.names
        with self._translated():
            there = self._opened()
            if there is None:
                return
            if list(there.metadata().partition_columns) != ([PARTITION] if table.form == "table" else []):
                raise MirrorSchemaError(
                    "the table is partitioned in another way: mirror into another one",
                    column=", ".join(there.metadata().partition_columns),
                    target=self.place,
                )
            if not (table.may_grow and table.form == "table"):
                self._check(there, may_grow=table.may_grow)

    def _check(self, table: Any, *, may_grow: bool) -> None:
        wanted = {field.name: field.type for field in self._delta.Schema.from_arrow(self._schema).fields}
        found = {field.name: field.type for field in table.schema().fields}
        for name, type_ in wanted.items():
            if name not in found and not may_grow:
                raise MirrorSchemaError(
                    "the table lacks a column: add it, or start over with anew=True, which does",
                    column=name,
                    target=self.place,
                )
            if name in found and not _has_room(found[name], type_):
                raise MirrorSchemaError(
                    "a column of the table is of another type: mirror into another table",
                    column=name,
                    type=str(found[name]),
                    type_wanted=str(type_),
                    target=self.place,
                )
        for name in found if not self._is_log else ():  # a log has rows of earlier versions of the state
            if name not in wanted:
                raise MirrorSchemaError(
                    "the table has a column that the state has not: drop it, or mirror into another table",
                    column=name,
                    target=self.place,
                )

    @property
    def _is_log(self) -> bool:
        return self._table is not None and self._table.form == "log"

    def _write(self, rows: MirrorRows) -> None:
        assert self._table is not None
        with self._translated():
            table = self._opened_or_made()
            if self._has_step(self._mark(table), rows):
                return
            options: dict[str, Any] = {"mode": "append", "schema_mode": "merge"}
            if self._table.form == "table":
                options = {"mode": "overwrite", "partition_by": [PARTITION]}
                if rows.is_whole:
                    options["schema_mode"] = "overwrite"
                elif rows.partitions is not None:
                    options["predicate"] = f"{PARTITION} IN ({', '.join(map(str, rows.partitions))})"
            self._delta.write_deltalake(
                table,
                pa.RecordBatchReader.from_batches(self._schema, self._batches(rows)),
                commit_properties=self._delta.CommitProperties(
                    app_transactions=[self._delta.Transaction(f"statebackend:{rows.mirror_id}", rows.number)],
                    custom_metadata={MIRROR_KEY: rows.mirror_id, NUMBER_KEY: str(rows.number)},
                ),
                **options,
            )

    def _opened_or_made(self) -> Any:
        """The table, without rows if it is new: of two that begin with rows on no version, Delta takes both."""
        if (table := self._opened()) is not None:
            return table
        assert self._table is not None
        return self._delta.DeltaTable.create(
            self._uri,
            self._delta.Schema.from_arrow(self._schema),
            mode="ignore",
            partition_by=[PARTITION] if self._table.form == "table" else None,
            storage_options=self._options,
        )

    def _batches(self, rows: MirrorRows) -> Iterator[RecordBatch]:
        assert self._table is not None
        for batch in rows.batches():
            found = batch
            if self._table.form == "table":
                found = found.drop_columns([OP])
                groups: Any = found.column(KEY_GROUP).to_numpy()
                partition = pa.array(groups % self.partitions, pa.int32())
                found = pa.RecordBatch.from_arrays([partition, *found.columns], [PARTITION, *found.schema.names])
            yield from pa.Table.from_batches([found]).cast(self._schema).to_batches()

    def _read_back(self, generation: int, key_group: int) -> Iterator[RecordBatch]:
        """By the statistics in the table's own log, files of other generations are not read."""
        with self._translated():
            if (table := self._opened()) is not None:
                yield from table.to_pyarrow_dataset().to_batches(filter=rows_to_read_back(generation, key_group))

    @contextmanager
    def _translated(self) -> Generator[None]:
        """Raise the library's errors in place of `deltalake`'s."""
        errors = self._delta.exceptions
        try:
            yield
        except errors.CommitFailedError as error:
            raise StoreUnavailableError(
                f"another writer has changed the mirror's table meanwhile: {told(error)}", target=self.place
            ) from error
        except errors.SchemaMismatchError as error:
            raise InputError(f"the mirror's table cannot hold a value: {told(error)}", target=self.place) from error
        except (errors.DeltaError, OSError) as error:
            text = str(error)
            if isinstance(error, PermissionError) or any(each in text for each in REFUSED):
                raise StoreAccessError(f"the mirror's table refuses: {told(error)}", target=self.place) from error
            if any(each in text for each in FULL):
                raise StoreFullError(f"the mirror's table has no room: {told(error)}", target=self.place) from error
            raise StoreUnavailableError(
                f"the mirror's table does not answer: {told(error)}", target=self.place
            ) from error


def _has_room(found: Any, wanted: Any) -> bool:
    """True if a column of the type `found` can have such values; a struct may have more fields, or get more."""
    if hasattr(found, "fields") and hasattr(wanted, "fields"):
        there = {field.name: field.type for field in found.fields}
        return all(field.name not in there or _has_room(there[field.name], field.type) for field in wanted.fields)
    return bool(found == wanted)
