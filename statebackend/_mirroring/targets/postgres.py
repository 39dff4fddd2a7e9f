"""A table in Postgres, with one row per key: each step is one transaction, with the step's number in it."""

import re
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from statebackend._mirroring.target import GONE, OP, MirrorMark, MirrorRows, MirrorTable
from statebackend._mirroring.targets.blocking import BlockingTarget, imported, told
from statebackend._mirroring.targets.sql_columns import SqlColumn, columns_of, csv_of
from statebackend._tasks import finish
from statebackend.errors import (
    InputError,
    MirrorSchemaError,
    StoreAccessError,
    StoreFullError,
    StoreUnavailableError,
    WrongMirrorError,
)
from statebackend.settings import Settings

MARKS: Final = "statebackend_mirrors"
"""The table beside the mirrored ones that says which step each of them has."""
FRESH: Final = "statebackend_fresh"
UNKNOWN_OPTION: Final = re.compile(r"invalid .*\b(option|parameter)\b.*")
"""The part of libpq's message that names an option which it does not know."""


class PostgresTarget(BlockingTarget):
    """A `table` in Postgres: `PostgresTarget("postgresql://me@host/db", "legs")`. Needs the extra `postgres`.

    `table`: its name, or `schema.name`; it is made if it is not there, with the key as its primary key. A record's
    fields are columns, and so are the parts of a tuple that is a key; what is nested in them is `jsonb`.
    `lock_timeout_s`: how long it waits for a table that another transaction has locked.
    """

    forms = ("table",)

    def __init__(self, url: str, table: str, *, lock_timeout_s: float = 30.0) -> None:
        super().__init__()
        self._psycopg: Final[Any] = imported("psycopg", "a mirror in Postgres", "postgres")
        self._schema, _, self._table = table.rpartition(".")
        if not self._table:
            raise InputError("name the table to mirror into: postgresql://host/db?table=NAME", table=table)
        self._url = url
        self._known: Final = self._understood(url)
        self._lock_timeout_s = lock_timeout_s
        self._columns: Sequence[SqlColumn] = ()

    @classmethod
    def of_url(cls, text: str) -> "PostgresTarget":
        """The target of a URL that names its `table`, beside what libpq takes. Raises `InputError`."""
        if text.split() != [text]:  # earlier releases of libpq look for a host of that name
            raise InputError("that is no URL: postgresql://HOST/DB?table=NAME", reason="it has white space")
        try:
            url = urlsplit(text)
        except ValueError as error:
            raise InputError("that is no URL: postgresql://HOST/DB?table=NAME", reason=str(error)) from None
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        table = query.pop("table", "")
        return cls(urlunsplit(url._replace(query=urlencode(query))), table)

    def _understood(self, url: str) -> Mapping[str, Any]:
        """The parts of the URL. Raises `InputError`, which does not show it: it may have a password."""
        try:
            found: Mapping[str, Any] = self._psycopg.conninfo.conninfo_to_dict(url)
        except self._psycopg.ProgrammingError as error:
            option = UNKNOWN_OPTION.search(told(error))
            raise InputError(
                "libpq does not understand where to connect to: postgresql://HOST/DB?table=NAME, or key=value pairs",
                table=self._name,
                reason=option[0] if option else "it is neither",
            ) from None
        return found

    @property
    def place(self) -> str:
        known = self._known
        where = ":".join(str(known[each]) for each in ("host", "port") if known.get(each))
        return f"postgresql://{where}/{known.get('dbname', '')}?table={self._name}"

    @property
    def _name(self) -> str:
        return f"{self._schema}.{self._table}" if self._schema else self._table

    @asynccontextmanager
    async def opened(self, settings: Settings) -> AsyncGenerator[None]:
        self._connection = await finish(self._threads.io, self._connect)
        try:
            yield
        finally:
            await finish(self._threads.io, self._connection.close)

    def _connect(self) -> Any:
        with self._translated():
            connection = self._psycopg.connect(self._url, autocommit=True)
            connection.execute(f"SET lock_timeout = {int(self._lock_timeout_s * 1000)}")
            connection.execute("SET timezone = 'UTC'")
            return connection

    def _find(self) -> MirrorMark:
        with self._translated():
            if not self._has(self._table):
                return MirrorMark(is_empty=True)
            mark = self._mark() if self._has(MARKS) else None
            if not self._rows("SELECT FROM {table} LIMIT 1"):
                return MirrorMark(None if mark is None else mark[0], is_empty=True)
            return MirrorMark(number=0) if mark is None else MirrorMark(*mark)

    def _fit(self, table: MirrorTable) -> None:
        columns = columns_of(table.schema, place=self.place)
        own = [each for each in columns if each.name != OP]
        with self._translated(), self._connection.transaction():
            self._execute("SELECT pg_advisory_xact_lock(hashtext(%s))", MARKS)  # of two that make a table one fails
            self._execute(
                "CREATE TABLE IF NOT EXISTS {marks}"
                " (table_name text PRIMARY KEY, mirror_id text NOT NULL, number bigint NOT NULL)"
            )
            if not self._has(self._table):
                keys = self._listed([each.name for each in own if each.is_key])
                self._execute(
                    "CREATE TABLE {table} ({columns}, PRIMARY KEY ({keys}))", columns=self._defined(own), keys=keys
                )
            else:
                self._check(own, may_grow=table.may_grow)
            self._execute("DROP TABLE IF EXISTS {fresh}")
            self._execute("CREATE TEMP TABLE {fresh} ({columns}) ON COMMIT DELETE ROWS", columns=self._defined(columns))
        self._columns = columns

    def _check(self, columns: Sequence[SqlColumn], *, may_grow: bool) -> None:
        """Compare the table with what is wanted; with `may_grow`, add what it lacks."""
        there = self._table_columns()
        wanted = {each.name: each for each in columns}
        for name, type_ in there.items():
            if name not in wanted:
                raise MirrorSchemaError(
                    "the table has a column that the state has not: drop it, or mirror into another table",
                    column=name,
                    target=self.place,
                )
            if type_ != wanted[name].type:
                raise MirrorSchemaError(
                    "a column of the table is of another type: change it, or mirror into another table",
                    column=name,
                    type=type_,
                    type_wanted=wanted[name].type,
                    target=self.place,
                )
        for name, column in wanted.items():
            if name in there:
                continue
            if column.is_key or not may_grow:
                raise MirrorSchemaError(
                    "the table lacks a column: add it, or start over with anew=True, which does",
                    column=name,
                    type=column.type,
                    target=self.place,
                )
            self._execute("ALTER TABLE {table} ADD COLUMN {columns}", columns=self._defined([column]))
        keys = {each.name for each in columns if each.is_key}
        if self._primary_key() != keys:
            raise MirrorSchemaError(
                "the table's primary key is not the state's key: declare it, or mirror into another table",
                column=", ".join(sorted(keys)),
                target=self.place,
            )

    def _write(self, rows: MirrorRows) -> None:
        with self._translated(), self._connection.transaction():
            self._execute("INSERT INTO {marks} VALUES (%s, %s, 0) ON CONFLICT DO NOTHING", self._name, rows.mirror_id)
            mirror_id, number = self._mark(lock=True) or ("", 0)
            if mirror_id == rows.mirror_id and number >= rows.number:
                return
            if not rows.is_whole and (mirror_id, number) != (rows.mirror_id, rows.number - 1):
                raise StoreUnavailableError("the table was put back meanwhile: look again", target=self.place)
            if mirror_id != rows.mirror_id and self._rows("SELECT FROM {table} LIMIT 1"):
                raise WrongMirrorError("another mirror has begun to write this table", target=self.place)
            names = [each.name for each in self._columns]
            with self._connection.cursor() as cursor:
                statement = self._sql("COPY {fresh} ({columns}) FROM STDIN (FORMAT csv)", columns=self._listed(names))
                has_gone = False
                with cursor.copy(statement) as copy:
                    for text, gone in csv_of(rows.batches(), self._columns):
                        copy.write(text)
                        has_gone = has_gone or gone
            self._merge(rows, has_gone=has_gone)
            self._execute(
                "UPDATE {marks} SET mirror_id = %s, number = %s WHERE table_name = %s",
                rows.mirror_id,
                rows.number,
                self._name,
            )

    def _merge(self, rows: MirrorRows, *, has_gone: bool) -> None:
        """Bring the fresh rows into the table. A row of an older checkpoint replaces none; but a whole state all."""
        own = [each.name for each in self._columns if each.name != OP]
        keys = [each.name for each in self._columns if each.is_key]
        others = [each for each in own if each not in keys]
        parts = {
            "own": self._listed(own),
            "keys": self._listed(keys),
            "others": self._listed(others),
            "excluded": self._listed(others, "excluded"),
            "same_key": self._equal(keys),
            "gone": self._sql(", ".join(["%s"] * len(GONE))),
            "in_order": self._in_order([each for each in self._columns if each.is_key]),
            "guard": self._sql("" if rows.is_whole else " WHERE mirrored.checkpoint_id <= excluded.checkpoint_id"),
        }
        distinct = "(SELECT DISTINCT ON ({in_order}) * FROM {fresh} ORDER BY {in_order}, checkpoint_id DESC)"
        parts["newest"] = self._sql("{fresh}") if rows.is_single else self._sql(distinct, in_order=parts["in_order"])
        self._execute(
            "INSERT INTO {table} AS mirrored ({own}) SELECT {own} FROM {newest} AS fresh WHERE op NOT IN ({gone})"
            " ORDER BY {in_order} ON CONFLICT ({keys}) DO UPDATE SET ({others}) = ROW({excluded}){guard}",
            *GONE,
            **parts,
        )
        if rows.is_whole:
            self._execute(
                "DELETE FROM {table} AS mirrored WHERE NOT EXISTS (SELECT FROM {fresh} AS fresh WHERE {same_key})",
                **parts,
            )
        elif has_gone:
            self._execute(
                "DELETE FROM {table} AS mirrored USING {newest} AS fresh WHERE {same_key} AND op IN ({gone})"
                " AND mirrored.checkpoint_id <= fresh.checkpoint_id",
                *GONE,
                **parts,
            )

    # ------------------------------------------------------------------------------------------------------ in SQL

    def _mark(self, *, lock: bool = False) -> tuple[str, int] | None:
        rows = self._rows(
            "SELECT mirror_id, number FROM {marks} WHERE table_name = %s{lock}",
            self._name,
            lock=self._sql(" FOR UPDATE" if lock else ""),
        )
        return None if not rows else (str(rows[0][0]), int(rows[0][1]))

    def _has(self, table: str) -> bool:
        found = self._rows("SELECT to_regclass(%s) IS NOT NULL", self._qualified(table).as_string(self._connection))
        return bool(found[0][0])

    def _table_columns(self) -> dict[str, str]:
        rows = self._rows(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = to_regclass(%s)"
            " AND attnum > 0 AND NOT attisdropped AND attgenerated = ''",
            self._qualified(self._table).as_string(self._connection),
        )
        return {str(name): str(type_) for name, type_ in rows}

    def _primary_key(self) -> set[str]:
        rows = self._rows(
            "SELECT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey)"
            " WHERE indisprimary AND indrelid = to_regclass(%s)",
            self._qualified(self._table).as_string(self._connection),
        )
        return {str(name) for (name,) in rows}

    def _rows(self, text: str, *values: object, **parts: Any) -> Sequence[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._connection.execute(self._sql(text, **parts), values).fetchall()
        return found

    def _execute(self, text: str, *values: object, **parts: Any) -> None:
        self._connection.execute(self._sql(text, **parts), values)

    def _sql(self, text: str, **parts: Any) -> Any:
        names: dict[str, Any] = {
            "table": self._qualified(self._table),
            "marks": self._qualified(MARKS),
            "fresh": self._psycopg.sql.Identifier("pg_temp", FRESH),
        }
        template: Any = text
        return self._psycopg.sql.SQL(template).format(**names, **parts)

    def _qualified(self, name: str) -> Any:
        return self._psycopg.sql.Identifier(*filter(None, (self._schema, name)))

    def _listed(self, names: Sequence[str], table: str = "") -> Any:
        sql = self._psycopg.sql
        return sql.SQL(", ").join(sql.Identifier(*filter(None, (table, each))) for each in names)

    def _in_order(self, keys: Sequence[SqlColumn]) -> Any:
        """Neighbours in the index one after the other, by bytes, which is near its order: a third less work there."""
        sql = self._psycopg.sql
        collated = (sql.SQL(' COLLATE "C"' if each.type == "text" else "") for each in keys)
        return sql.SQL(", ").join(
            sql.Identifier(each.name) + collate for each, collate in zip(keys, collated, strict=True)
        )

    def _equal(self, names: Sequence[str]) -> Any:
        sql = self._psycopg.sql
        return sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(sql.Identifier("mirrored", each), sql.Identifier("fresh", each)) for each in names
        )

    def _defined(self, columns: Sequence[SqlColumn]) -> Any:
        sql = self._psycopg.sql
        types: list[Any] = [each.type for each in columns]
        return sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(each.name), sql.SQL(type_))
            for each, type_ in zip(columns, types, strict=True)
        )

    @contextmanager
    def _translated(self) -> Generator[None]:
        """Raise the library's errors in place of the client's."""
        errors = self._psycopg.errors
        try:
            yield
        except (errors.InsufficientPrivilege, errors.InvalidAuthorizationSpecification) as error:
            raise StoreAccessError(f"the mirror's table refuses: {told(error)}", target=self.place) from error
        except (errors.DiskFull, errors.ProgramLimitExceeded) as error:
            raise StoreFullError(f"the mirror's table has no room: {told(error)}", target=self.place) from error
        except (errors.LockNotAvailable, errors.DeadlockDetected) as error:
            raise StoreUnavailableError(
                "another transaction has locked the mirror's table", target=self.place
            ) from error
        except (errors.UndefinedTable, errors.OperationalError, errors.InterfaceError) as error:
            raise StoreUnavailableError(
                f"the mirror's table does not answer: {told(error)}", target=self.place
            ) from error
        except errors.DataError as error:
            raise InputError(f"the mirror's table cannot hold a value: {told(error)}", target=self.place) from error
        except errors.Error as error:
            raise InputError(f"the mirror's table cannot be written: {told(error)}", target=self.place) from error
