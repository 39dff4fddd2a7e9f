"""Every target, each with what its table shows to somebody who did not write it."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import duckdb
import psycopg
from pyiceberg.catalog import load_catalog

from statebackend._log.mirror_steps import Form
from statebackend._mirroring.target import MirrorMark, MirrorRows, MirrorTable, MirrorTarget, newest_view
from statebackend._mirroring.targets.delta import DeltaTarget
from statebackend._mirroring.targets.iceberg import IcebergTarget
from statebackend._mirroring.targets.parquet import ParquetTarget
from statebackend._mirroring.targets.postgres import PostgresTarget
from statebackend.settings import Settings
from tests.mirroring.mirrored import shown, shown_rows


class Place(NamedTuple):
    """A table: what opens it as a target, and what reads its rows by key."""

    target: Callable[[], MirrorTarget]
    rows: Callable[[], dict[str, Any]]
    form: Form | None = None


def folder(where: str, root: Path, *, is_new: bool = True) -> Place:
    return Place(lambda: ParquetTarget(root / "legs"), lambda: shown(root / "legs"))


def postgres_table(where: str, root: Path, *, is_new: bool = True) -> Place:
    if is_new:
        with psycopg.connect(where, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS legs")
            connection.execute("DROP TABLE IF EXISTS statebackend_mirrors")

    def rows() -> dict[str, Any]:
        with psycopg.connect(where) as connection, connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            found = cursor.execute("SELECT * FROM legs").fetchall()
        ours = ("key", "key_group", "checkpoint_id", "batch_id", "committed_at")
        return {str(row["key"]): {name: row[name] for name in row if name not in ours} for row in found}

    return Place(lambda: PostgresTarget(where, "legs"), rows)


def delta_files(table: Path) -> tuple[list[str], list[str]]:
    """The files of the newest version of a Delta table, and the columns, as its log tells them."""
    files: dict[str, None] = {}
    columns: list[str] = []
    for version in sorted((table / "_delta_log").glob("*.json")):
        for line in version.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                files[action["add"]["path"]] = None
            if "remove" in action:
                files.pop(action["remove"]["path"], None)
            if "metaData" in action:
                columns = [field["name"] for field in json.loads(action["metaData"]["schemaString"])["fields"]]
    return [str(table / unquote(each)) for each in files], columns


def delta_table(where: str, root: Path, *, is_new: bool = True) -> Place:
    def rows() -> dict[str, Any]:
        files, columns = delta_files(root / "delta")
        if not files:
            return {}
        names = ", ".join(each for each in columns if each != "partition")
        return shown_rows(duckdb.sql(f"SELECT {names} FROM read_parquet({files}, union_by_name=true)"))

    return Place(lambda: DeltaTarget(str(root / "delta"), partitions=4), rows, "table")


def delta_log(where: str, root: Path, *, is_new: bool = True) -> Place:
    def rows() -> dict[str, Any]:
        files, columns = delta_files(root / "delta")
        return shown_rows(duckdb.sql(newest_view(columns, f"read_parquet({files}, union_by_name=true)")))

    return Place(lambda: DeltaTarget(str(root / "delta")), rows, "log")


def iceberg_log(where: str, root: Path, *, is_new: bool = True) -> Place:
    """Its list of files is read by the writer's library, since DuckDB's is not there; their rows are not."""
    catalog = iceberg_catalog(root)

    def rows() -> dict[str, Any]:
        table = catalog.load_table("air.legs")
        files = [each.file.file_path for each in table.scan().plan_files()]
        columns = [field.name for field in table.schema().fields]
        return shown_rows(duckdb.sql(newest_view(columns, f"read_parquet({files}, union_by_name=true)")))

    return Place(lambda: IcebergTarget("air.legs", catalog=catalog), rows)


def iceberg_catalog(root: Path) -> Any:
    """A catalog in a file, with the namespace `air`."""
    properties = {"uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}/warehouse"}
    catalog = load_catalog("test", type="sql", **properties)
    catalog.create_namespace_if_not_exists("air")
    return catalog


PLACES: Final[dict[str, Callable[..., Place]]] = {
    "folder": folder,
    "postgres": postgres_table,
    "delta": delta_table,
    "delta-log": delta_log,
    "iceberg": iceberg_log,
}


class Killed(MirrorTarget):
    """A target that does nothing any more from its `nth` call on, before or after that has had its effect."""

    def __init__(self, target: MirrorTarget, nth: int, *, after: bool) -> None:
        self._target = target
        self._left = nth
        self._after = after
        self.forms, self.partitions = target.forms, target.partitions

    @property
    def place(self) -> str:
        return self._target.place

    def opened(self, settings: Settings) -> AbstractAsyncContextManager[None]:
        return self._target.opened(settings)

    async def find(self) -> MirrorMark:
        self._strike(after=False)
        found = await self._target.find()
        self._strike(after=True)
        return found

    async def fit(self, table: MirrorTable) -> None:
        self._strike(after=False)
        await self._target.fit(table)
        self._strike(after=True)

    async def write(self, rows: MirrorRows) -> None:
        self._strike(after=False)
        await self._target.write(rows)
        self._strike(after=True)

    def _strike(self, *, after: bool) -> None:
        if not after:
            self._left -= 1
        if self._left < 0 or (self._left == 0 and after == self._after):
            raise KilledError


class KilledError(Exception):
    """The process is no more."""
