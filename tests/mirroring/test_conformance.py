"""The targets that are built in keep the contract of one of your own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from statebackend._mirroring.target import MirrorTarget
from statebackend._mirroring.targets.delta import DeltaTarget
from statebackend._mirroring.targets.iceberg import IcebergTarget
from statebackend._mirroring.targets.parquet import ParquetTarget
from statebackend._mirroring.targets.postgres import PostgresTarget
from statebackend.testing import MirrorTargetConformance
from tests.mirroring.places import delta_files, iceberg_catalog
from tests.mirroring.servers import postgres

__all__ = ["postgres"]


class InAFolder(MirrorTargetConformance):
    """A table in a folder of its own."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "table"


class TestParquet(InAFolder):
    def make_target(self) -> MirrorTarget:
        return ParquetTarget(self.folder)

    def read(self) -> Sequence[dict[str, Any]]:
        return duckdb.sql(f"SELECT * FROM '{self.folder}/*.parquet'").to_arrow_table().to_pylist()


class TestDeltaTable(InAFolder):
    form = "table"

    def make_target(self) -> MirrorTarget:
        return DeltaTarget(str(self.folder), partitions=4)

    def read(self) -> Sequence[dict[str, Any]]:
        files, _ = delta_files(self.folder)
        return duckdb.sql(f"SELECT * FROM read_parquet({files})").to_arrow_table().to_pylist()


class TestDeltaLog(TestDeltaTable):
    form = "log"


class TestIceberg(InAFolder):
    def make_target(self) -> MirrorTarget:
        self.folder.mkdir(exist_ok=True)
        return IcebergTarget("air.legs", catalog=iceberg_catalog(self.folder))

    def read(self) -> Sequence[dict[str, Any]]:
        files = [
            each.file.file_path for each in iceberg_catalog(self.folder).load_table("air.legs").scan().plan_files()
        ]
        return duckdb.sql(f"SELECT * FROM read_parquet({files})").to_arrow_table().to_pylist()


class TestPostgres(MirrorTargetConformance):
    form = "table"

    @pytest.fixture(autouse=True)
    def _place(self, postgres: str) -> None:
        self.place = postgres
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS legs")
            connection.execute("DROP TABLE IF EXISTS statebackend_mirrors")

    def make_target(self) -> MirrorTarget:
        return PostgresTarget(self.place, "legs")

    def read(self) -> Sequence[dict[str, Any]]:
        with psycopg.connect(self.place, row_factory=psycopg.rows.dict_row) as connection:
            return connection.execute("SELECT * FROM legs").fetchall()
