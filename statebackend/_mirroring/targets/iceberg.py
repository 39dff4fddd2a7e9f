"""A log in an Iceberg table: each step is one commit of it, whose snapshots say which.

An append that meets another's is repeated by `pyiceberg` behind that, and would be there twice. So its retries are
switched off by a property of the table: of two that write the same step one fails, and looks what is there now.
"""

import errno
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Final

from statebackend._columns.arrow import RecordBatch, Schema, pa
from statebackend._mirroring.target import MirrorMark, MirrorRows, MirrorTable, newest_view
from statebackend._mirroring.targets.blocking import BlockingTarget, imported, told
from statebackend._mirroring.targets.lakehouse_types import fitting
from statebackend._tasks import finish
from statebackend.errors import (
    InputError,
    MirrorSchemaError,
    StoreAccessError,
    StoreFullError,
    StoreUnavailableError,
)
from statebackend.settings import Settings

MIRROR_KEY: Final = "statebackend.mirror"
NUMBER_KEY: Final = "statebackend.number"
RETRIES_KEY: Final = "commit.retry.num-retries"
TRIES_MAX: Final = 5
"""So often the table is changed anew where another writer was quicker each time."""
APPENDED_ROWS: Final = 1_000_000
"""About as many rows are in memory at a time, and in a file."""


class IcebergTarget(BlockingTarget):
    """A `log` in an Iceberg table: `IcebergTarget("air.legs", catalog="prod")`. Needs the extra `iceberg`.

    `catalog`: its name, as `pyiceberg` knows it by its configuration or by `properties`; or a catalog that is loaded.
    The namespace has to be there; the table is made if it is not.
    """

    forms = ("log",)

    def __init__(self, table: str, *, catalog: Any = "default", **properties: str) -> None:
        super().__init__()
        self._load: Final[Any] = imported("pyiceberg.catalog", "a mirror in Iceberg", "iceberg").load_catalog
        self._errors: Final[Any] = imported("pyiceberg.exceptions", "a mirror in Iceberg", "iceberg")
        self._name = table
        self._catalog = catalog
        self._properties = properties
        self._schema: Schema = None
        self._shown: Sequence[str] = ()

    @property
    def place(self) -> str:
        return f"iceberg:{self._catalog_name}.{self._name}"

    @property
    def _catalog_name(self) -> str:
        return self._catalog if isinstance(self._catalog, str) else str(self._catalog.name)

    @asynccontextmanager
    async def opened(self, settings: Settings) -> AsyncGenerator[None]:
        if isinstance(self._catalog, str):
            try:
                with self._translated():
                    self._loaded = await finish(self._threads.io, lambda: self._load(self._catalog, **self._properties))
            except ValueError as error:  # an unknown name, or a type or a scheme that there is not
                raise InputError(
                    f"correct the catalog's name, or its configuration: {told(error)}", target=self.place
                ) from error
        else:
            self._loaded = self._catalog
        yield

    def view(self) -> str | None:
        return newest_view(self._shown, self._name) if self._shown else None

    def _find(self) -> MirrorMark:
        with self._translated():
            if not self._loaded.table_exists(self._name):
                return MirrorMark(is_empty=True)
            table = self._loaded.load_table(self._name)
            self._shown = [field.name for field in table.schema().fields]
            return self._mark(table)

    @staticmethod
    def _mark(table: Any) -> MirrorMark:
        """The newest step in the history of the newest snapshot, as far as its snapshots are kept."""
        snapshot = table.current_snapshot()
        if snapshot is None:
            return MirrorMark(is_empty=True)
        while snapshot is not None:
            found: dict[str, str] = {} if snapshot.summary is None else snapshot.summary.additional_properties
            if MIRROR_KEY in found:
                return MirrorMark(found[MIRROR_KEY], int(found[NUMBER_KEY]))
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)
        return MirrorMark()

    def _fit(self, table: MirrorTable) -> None:
        self._schema = fitting(table.schema, self.place, has_times=True)
        self._shown = self._schema.names
        with self._translated():
            if not self._loaded.table_exists(self._name):
                with suppress(self._errors.TableAlreadyExistsError):  # another process was quicker
                    self._loaded.create_table(self._name, schema=self._schema, properties={RETRIES_KEY: "0"})
                    return
            self._change(partial(self._fit_what_is_there, may_grow=table.may_grow))

    def _fit_what_is_there(self, table: Any, *, may_grow: bool) -> None:
        if table.properties.get(RETRIES_KEY) != "0":
            with table.transaction() as changes:
                changes.set_properties({RETRIES_KEY: "0"})
        self._check(table, may_grow=may_grow)

    def _change(self, change: Callable[[Any], None]) -> None:
        """Change the table; where another writer was quicker, as it is then, for none of the change is there."""
        for tries_left in reversed(range(TRIES_MAX)):
            try:
                return change(self._loaded.load_table(self._name))
            except self._errors.CommitFailedException:
                if not tries_left:
                    raise
        raise AssertionError("it returns or raises")

    def _check(self, table: Any, *, may_grow: bool) -> None:
        names = {field.name for field in table.schema().fields}
        lacking = [name for name in self._schema.names if name not in names]
        if lacking and not may_grow:
            raise MirrorSchemaError(
                "the table lacks a column: add it, or start over with anew=True, which does",
                column=lacking[0],
                target=self.place,
            )
        try:
            with table.update_schema() as update:
                update.union_by_name(self._schema)
        except (self._errors.ValidationError, ValueError, TypeError) as error:
            raise MirrorSchemaError(
                f"a column of the table is of another type: mirror into another table ({error})", target=self.place
            ) from error

    def _write(self, rows: MirrorRows) -> None:
        with self._translated():
            self._change(partial(self._append, rows))

    def _append(self, rows: MirrorRows, table: Any) -> None:
        if self._has_step(self._mark(table), rows):
            return
        said = {MIRROR_KEY: rows.mirror_id, NUMBER_KEY: str(rows.number)}
        with table.transaction() as commit:
            for some in _tables(rows.batches()):
                commit.append(some.cast(self._schema), snapshot_properties=said)

    def _read_back(self, generation: int, key_group: int) -> Iterator[RecordBatch]:
        with self._translated():
            asked = f"generation = {generation} AND (key_group = {key_group} OR key_group IS NULL)"
            yield from self._loaded.load_table(self._name).scan(row_filter=asked).to_arrow_batch_reader()

    @contextmanager
    def _translated(self) -> Generator[None]:
        """Raise the library's errors in place of `pyiceberg`'s."""
        errors = self._errors
        try:
            yield
        except errors.CommitFailedException as error:
            raise StoreUnavailableError(
                f"another writer has changed the mirror's table meanwhile: {error}", target=self.place
            ) from error
        except (errors.NoSuchNamespaceError, errors.NoSuchPropertyException) as error:
            raise InputError(f"make the namespace, or correct the catalog: {error}", target=self.place) from error
        except (errors.UnauthorizedError, errors.ForbiddenError, PermissionError) as error:
            raise StoreAccessError(f"the mirror's table refuses: {error}", target=self.place) from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFullError(f"the mirror's table has no room: {error}", target=self.place) from error
            if error.errno == errno.EROFS:
                raise StoreAccessError(f"the mirror's table refuses: {error}", target=self.place) from error
            raise StoreUnavailableError(f"the mirror's table does not answer: {error}", target=self.place) from error
        except (errors.RESTError, errors.CommitStateUnknownException, errors.NoSuchTableError) as error:
            raise StoreUnavailableError(f"the mirror's table does not answer: {error}", target=self.place) from error


def _tables(batches: Iterator[RecordBatch]) -> Iterator[Any]:
    held: list[RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(each.num_rows for each in held) >= APPENDED_ROWS:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)
