"""Whoever takes a batch of totals, adds them to what it has, and has them on the disk when it returns, its id too."""

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.jobs import Job, open_job
from benchmarks.totals import TOTALS, ValueTotals

NUMBERS: Final = pa.schema([pa.field("key", pa.string()), *(pa.field(name, pa.int64()) for name in TOTALS.names[1:])])
"""Totals as databases get them: the time is a number of microseconds."""
UPSERT: Final = """
    INSERT INTO totals {source} ON CONFLICT(key) DO UPDATE SET
        n = totals.n + excluded.n, sum = totals.sum + excluded.sum, last = {greatest}(totals.last, excluded.last)
"""

AT_ONCE: Final = 250_000
"""Rows that ours takes at once: a batch, but not all keys."""


class Contestant(Protocol):
    """Has totals on the disk."""

    def upsert(self, rows: Any, totals: Any) -> None:
        """Add a batch: `rows` as they come, `totals` the same as `NUMBERS`. When it returns it is committed."""
        ...

    def rest(self) -> None:
        """End what goes on in the background: it belongs to the turn."""
        ...

    def finish(self) -> None:
        """Write what was put off, for the count of bytes."""
        ...

    def written_bytes(self) -> int:
        """Bytes that its processes gave the disk so far."""
        ...

    def table(self) -> Any:
        """All totals."""
        ...


class Ours:
    """A state and its checkpoints, by default settings and with both copies."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def upsert(self, rows: Any, totals: Any) -> None:
        for first in range(0, rows.num_rows, AT_ONCE):
            if isinstance(self._job.totals, ValueTotals):  # as the databases: without grouping the rows once more
                self._job.totals.add(*totals.slice(first, AT_ONCE).columns)
            else:
                self._job.totals.merge(rows.slice(first, AT_ONCE))
            self._job.checkpoint()

    def rest(self) -> None:
        self._job.bases.wait()

    def finish(self) -> None: ...

    def written_bytes(self) -> int:
        return bytes_of_process("self")

    def table(self) -> Any:
        return self._job.totals.table()


class Sqlite:
    """Rows in the order of their keys, in a table that is an index: of what was tried, by far the fastest."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "cache_size=-2097152", "wal_autocheckpoint=50000"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("CREATE TABLE totals(key TEXT PRIMARY KEY, n INT, sum INT, last INT) WITHOUT ROWID")
        connection.execute("CREATE TABLE mark AS SELECT -1 AS batch")

    def upsert(self, rows: Any, totals: Any) -> None:
        ordered = totals.sort_by("key")
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(
            UPSERT.format(source="VALUES (?, ?, ?, ?)", greatest="max"),
            zip(*(column.to_pylist() for column in ordered.columns), strict=True),
        )
        self._connection.execute("UPDATE mark SET batch = batch + 1")
        self._connection.execute("COMMIT")

    def rest(self) -> None: ...

    def finish(self) -> None:
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def written_bytes(self) -> int:
        return bytes_of_process("self")

    def table(self) -> Any:
        return from_rows(self._connection.execute("SELECT key, n, sum, last FROM totals").fetchall())


class Delta:
    """MERGE, with the batch's id in the same commit. Its files are written, not synced."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._batch = str(folder), 0

    def upsert(self, rows: Any, totals: Any) -> None:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake  # noqa: PLC0415

        self._batch += 1
        marks = CommitProperties(app_transactions=[Transaction("bench", self._batch)])
        if self._batch == 1:
            write_deltalake(self._folder, totals, commit_properties=marks)
            return
        added = {"n": "old.n + new.n", "sum": "old.sum + new.sum", "last": "greatest(old.last, new.last)"}
        merge = DeltaTable(self._folder).merge(
            totals,
            predicate="old.key = new.key",
            source_alias="new",
            target_alias="old",
            commit_properties=marks,
        )
        merge.when_matched_update(added).when_not_matched_insert_all().execute()

    def rest(self) -> None: ...

    def finish(self) -> None: ...

    def written_bytes(self) -> int:
        return bytes_of_process("self")

    def table(self) -> Any:
        from deltalake import DeltaTable  # noqa: PLC0415

        return DeltaTable(self._folder).to_pyarrow_table()


@contextmanager
def open_ours(folder: Path, kind: str) -> Generator[Contestant]:
    """A job of this kind."""
    with open_job(folder, kind) as job:
        yield Ours(job)


@contextmanager
def open_sqlite(folder: Path) -> Generator[Contestant]:
    """A database in one file."""
    with closing(sqlite3.connect(folder / "database", isolation_level=None)) as connection:
        yield Sqlite(connection)


@contextmanager
def open_delta(folder: Path) -> Generator[Contestant]:
    """A table of Delta Lake's."""
    yield Delta(folder)


def numbers_of(rows: Any) -> Any:
    """The totals of rows of which each has another key."""
    counts = pa.array([1] * rows.num_rows, pa.int64())
    return pa.table([rows["key"], counts, rows["amount"], pc.cast(rows["at"], "int64")], NUMBERS)


def from_rows(rows: list[tuple[Any, ...]]) -> Any:
    """A table of totals, from rows of a database."""
    columns = zip(*rows, strict=True)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, NUMBERS, strict=True)], NUMBERS)


def bytes_of_process(number: int | str) -> int:
    """Bytes that the process gave the disk, as the kernel counts them: pages, when they are written to."""
    found = Path(f"/proc/{number}/io").read_text(encoding="ascii")
    return int(found.partition("\nwrite_bytes: ")[2].split()[0])
