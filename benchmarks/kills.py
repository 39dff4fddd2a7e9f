"""A hundred kills between the sink and Spark's commit: how many rows count twice, ours beside what people write.

    python -m benchmarks kills --sizes kills=3            in a minute, to see that all is right
    python -m benchmarks.kills FOLDER BATCH               a life of the process, which it starts

`STATEBACKEND_BENCH_KILLS` names a folder in which everything is copied after every tenth kill: a run that was
interrupted is taken up from the last copy, by the same command.

Each contestant counts rows by key in a stream of its own. In each life of the process all of them work on the same
batch; when the function of the last one has returned, and before Spark has written that the batch is done, the process
kills itself and its JVM with SIGKILL. The next life gets that batch again, as Spark promises it at least once. The last
life runs to the end, and then the rows counted are compared with the rows that there were.

Expected: counts that are added without the batch's id count the batch of each kill twice. With the id in the same
commit none is counted twice, nor by Spark's aggregation if its totals are written over the old ones and not added.
Nobody loses a row.
"""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import statebackend as sb
from benchmarks.contest import Line, Report, Sample
from benchmarks.jobs import directory, settings_of
from benchmarks.totals import Traffic

ROWS: Final = 1_000
TIMEOUT_S: Final = 600
COPIED_EVERY: Final = 10
KEYS: Final = 200
SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that lives for seconds: most of its work is to start."""
OURS: Final = "statebackend"
MERGE: Final = "MERGE that adds"
MERGE_WITH_ID: Final = "MERGE that adds, and asks for the batch's id first"
SQLITE: Final = "SQLite that adds"
SQLITE_WITH_ID: Final = "SQLite that adds, the batch's id in the transaction"
NATIVE: Final = "Spark's aggregation, its totals over the old ones"
TWICE: Final = frozenset({MERGE, SQLITE})
"""Those that are expected to count the batch of each kill twice."""
COUNTS: Final = pa.schema({"key": pa.string(), "n": pa.int64()})

Write = Callable[[Any, int], None]
"""A function for `foreachBatch`."""


def run(report: Report, *, kills: int = 100) -> None:
    """Rows that each counted twice. Ten seconds for each kill."""
    with _place() as (folder, copies):
        first = _taken_up(folder, copies)
        _write_rows(folder, kills + 1)
        for batch in range(first, kills):
            status = _life(folder, batch)
            if status != -signal.SIGKILL:
                raise RuntimeError(f"the process ended with {status} before it could kill itself")
            print(f"  killed {batch + 1} of {kills} times", flush=True)
            if copies is not None and (batch + 1) % COPIED_EVERY == 0:
                shutil.copytree(folder, copies / "copying")
                (copies / "copying").rename(copies / str(batch + 1))
        if status := _life(folder, kills + 1):
            raise RuntimeError(f"the last life of the process ended with {status}")
        twice = {name: counted(folder / name) - (kills + 1) * ROWS for name, (_, counted) in CONTESTANTS.items()}
    report.keep(
        "rows counted twice", "rows", {name: Sample([float(each)]) for name, each in twice.items()}, kills=kills
    )
    for name, rows in twice.items():
        expected = kills * ROWS if name in TWICE else 0
        report.add(
            Line(
                f"rows counted twice after {kills} kills, {name}",
                f"{expected:,}",
                float(rows),
                "rows",
                float(expected),
                detail=f"{-rows:,} rows were lost" if rows < 0 else f"{rows:,} of {(kills + 1) * ROWS:,} rows",
            )
        )


def open_ours(folder: Path) -> Write:
    """A function that keeps its counts in our state."""

    def count(df: Any, _: int, backend: sb.StateBackend) -> None:
        counts = backend.value_state("counts", int)
        for key in df.toArrow()["key"].to_pylist():
            counts[key] = counts.get(key, 0) + 1

    return sb.spark.StatefulSink(count, settings_of(folder, "heap"))


def counted_by_ours(folder: Path) -> int:
    """All rows that it has counted."""
    table = sb.read_state(settings_of(folder, "heap"), "counts").read_all()
    return sum(table[table.column_names[-1]].to_pylist())


def open_merge(folder: Path, *, asks: bool = False) -> Write:
    """A `MERGE` of counts into a table of Delta Lake's. If it `asks`, it skips a batch that the table has."""
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake  # noqa: PLC0415

    path = str(folder)

    def merge(df: Any, batch_id: int) -> None:
        new = _counts_of(df)
        marks = CommitProperties(app_transactions=[Transaction("counts", batch_id)]) if asks else None
        if not DeltaTable.is_deltatable(path):
            write_deltalake(path, new, commit_properties=marks)
            return
        table = DeltaTable(path)
        if asks and (known := table.transaction_version("counts")) is not None and known >= batch_id:
            return
        each = table.merge(new, "old.key = new.key", source_alias="new", target_alias="old", commit_properties=marks)
        each.when_matched_update({"n": "old.n + new.n"}).when_not_matched_insert_all().execute()

    return merge


def counted_by_merge(folder: Path) -> int:
    """All rows that are in the table."""
    from deltalake import DeltaTable  # noqa: PLC0415

    return sum(DeltaTable(str(folder)).to_pyarrow_table()["n"].to_pylist())


def open_sqlite(folder: Path, *, asks: bool = False, adds: bool = True) -> Write:
    """Upserts of counts, that add or overwrite, with the batch's id in the transaction or without."""
    value = "n + excluded.n" if adds else "excluded.n"
    upsert = f"INSERT INTO counts VALUES (?, ?) ON CONFLICT(key) DO UPDATE SET n = {value}"  # noqa: S608

    def write(df: Any, batch_id: int) -> None:
        new = _counts_of(df) if adds else df.toArrow().select(COUNTS.names)
        with closing(sqlite3.connect(folder / "database")) as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS counts(key TEXT PRIMARY KEY, n INT)")
            connection.execute("CREATE TABLE IF NOT EXISTS done(batch INT PRIMARY KEY)")
            if asks and connection.execute("SELECT 1 FROM done WHERE batch = ?", (batch_id,)).fetchone():
                return
            connection.executemany(upsert, zip(*(column.to_pylist() for column in new.columns), strict=True))
            connection.execute("INSERT OR IGNORE INTO done VALUES (?)", (batch_id,))

    return write


def counted_by_sqlite(folder: Path) -> int:
    """All rows that are in the database."""
    with closing(sqlite3.connect(folder / "database")) as connection:
        return int(connection.execute("SELECT sum(n) FROM counts").fetchone()[0])


CONTESTANTS: Final[Mapping[str, tuple[Callable[[Path], Write], Callable[[Path], int]]]] = {
    OURS: (open_ours, counted_by_ours),
    MERGE: (open_merge, counted_by_merge),
    MERGE_WITH_ID: (partial(open_merge, asks=True), counted_by_merge),
    SQLITE: (open_sqlite, counted_by_sqlite),
    SQLITE_WITH_ID: (partial(open_sqlite, asks=True), counted_by_sqlite),
    NATIVE: (partial(open_sqlite, adds=False), counted_by_sqlite),
}
"""How to open each in its folder, and how to count what is there in the end."""


class _Killing:
    """Kills the process once every contestant has ended the batch `last`, and lets none of them come back to Spark."""

    def __init__(self, last: int) -> None:
        self._last = last
        self._all_ended = threading.Barrier(len(CONTESTANTS))

    def after(self, write: Write) -> Write:
        """As it is, until that batch."""

        def killed(df: Any, batch_id: int) -> None:
            write(df, batch_id)
            if batch_id == self._last:
                self._all_ended.wait(TIMEOUT_S)  # raises if another one failed
                os.killpg(os.getpgid(0), signal.SIGKILL)

        return killed


def _counts_of(df: Any) -> Any:
    found = df.toArrow().group_by("key").aggregate([("key", "count")])
    return pa.table([found["key"], found["key_count"]], COUNTS)


@contextmanager
def _place() -> Generator[tuple[Path, Path | None]]:
    """The folder of the run, and that of its copies if there are to be any."""
    if kept := os.environ.get("STATEBACKEND_BENCH_KILLS"):
        copies = Path(kept)
        (copies / "run").mkdir(parents=True, exist_ok=True)
        yield copies / "run", copies
        return
    with directory() as folder:
        yield folder, None


def _taken_up(folder: Path, copies: Path | None) -> int:
    """Put the last copy in the place of what an interrupted run has left; return its number of kills."""
    if copies is None:
        return 0
    done = max((int(path.name) for path in copies.iterdir() if path.name.isdigit()), default=0)
    shutil.rmtree(folder)  # a life that was interrupted has killed some of them, and others not
    shutil.rmtree(copies / "copying", ignore_errors=True)
    shutil.copytree(copies / str(done), folder) if done else folder.mkdir()
    return done


def _write_rows(folder: Path, files: int) -> None:
    import pyarrow.parquet  # noqa: PLC0415

    (folder / "rows").mkdir(exist_ok=True)
    for number in range(files):
        path = folder / "rows" / f"{number:04d}.parquet"
        pyarrow.parquet.write_table(Traffic(KEYS, zipf=True).rows(number, ROWS).select(["key"]), path)
        os.utime(path, (number, number))  # by which Spark orders them


def _life(folder: Path, last: int) -> int:
    command = [sys.executable, "-m", "benchmarks.kills", str(folder), str(last)]
    environment = {**os.environ, "JDK_JAVA_OPTIONS": SHORT_LIVED, "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(
        command, env=environment, stderr=subprocess.DEVNULL, check=False, start_new_session=True
    ).returncode


def _live(folder: Path, last: int) -> None:
    from benchmarks.spark.workload import open_session  # noqa: PLC0415  # needs Spark

    killing = _Killing(last)
    with open_session(folder) as spark:
        queries: list[Any] = []
        for name, (open_, _) in CONTESTANTS.items():
            (folder / name).mkdir(exist_ok=True)
            rows = spark.readStream.schema("key string").option("maxFilesPerTrigger", 1).parquet(str(folder / "rows"))
            counts = rows.groupBy("key").count().withColumnRenamed("count", "n") if name == NATIVE else rows
            stream = counts.writeStream.outputMode("update" if name == NATIVE else "append").trigger(availableNow=True)
            stream = stream.option("checkpointLocation", str(folder / "checkpoints" / name))
            queries.append(stream.foreachBatch(killing.after(open_(folder / name))).start())
        for query in queries:
            query.awaitTermination()


if __name__ == "__main__":
    _live(Path(sys.argv[1]), int(sys.argv[2]))
