"""The page on mirrors: its tests are these."""

from typing import Any, NamedTuple

import duckdb
import pytest

from tests.howto.pages import claims_on, load_page
from tests.mirroring.servers import postgres
from tests.spark.conftest import spark

__all__ = ["postgres", "settings", "spark"]  # the fixtures that they ask for

globals().update(claims_on("mirror"))

settings = load_page("mirror").settings


class Rows(NamedTuple):
    """The answer to a query."""

    result_rows: list[Any]


class ClickHouse:
    """A client's calls on DuckDB, which understands the page's SQL but for what is ClickHouse's own."""

    def __init__(self) -> None:
        self._connection = duckdb.connect()

    def command(self, text: str) -> Any:
        if text.startswith("EXISTS TABLE "):
            names = self._connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
            return (text.removeprefix("EXISTS TABLE "),) in names
        text = text.partition(" ENGINE ")[0].replace("Nullable(DateTime64(6))", "TIMESTAMPTZ")
        for name, type_ in (("Int64", "BIGINT"), ("Int32", "INTEGER"), ("String", "VARCHAR")):
            text = text.replace(f"Nullable({name})", type_).replace(name, type_)
        return self._connection.execute(text)

    def query(self, text: str) -> Rows:
        return Rows(self._connection.execute(text).fetchall())

    def query_arrow(self, text: str) -> Any:
        return self._connection.sql(text).to_arrow_table()

    def insert_arrow(self, table: str, rows: Any) -> None:
        self._connection.execute(f"INSERT INTO {table} SELECT * FROM rows")


@pytest.fixture
def clickhouse() -> ClickHouse:
    return ClickHouse()
