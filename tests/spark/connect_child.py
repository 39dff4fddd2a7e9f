"""Queries on a Spark Connect server on this machine. Started by `test_connect.py`, in a process of its own.

Argument: a folder. A session of Spark Connect and one of the usual kind do not go into one process, and nor do two
servers' ports: so the server takes a free one, for which Spark wants to be told that it is being tested.

Everything that a query runs is pickled, and runs in a process beside the server. So what is defined here, where it is
`__main__`, travels by value, and what came of it is told by files.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["SPARK_TESTING"] = "1"
os.environ["PYSPARK_PYTHON"] = sys.executable

import pyarrow as pa
from pyspark.sql import SparkSession

import statebackend as sb

BOUND_S = 120
STARTS_MAX = 10
SCHEMA = pa.schema([("key", pa.string()), ("count", pa.int64()), ("chance", pa.binary())])


class Counting(sb.spark.KeyedProcessor):
    """Counts rows by key; no two runs of it on the same rows give the same."""

    output_schema = SCHEMA

    def open(self, context):
        self.counts = context.value_state("counts", int)

    def process(self, key, rows, context):
        self.counts[key] = self.counts.get(key, 0) + len(rows)
        yield {"key": key, "count": self.counts[key], "chance": os.urandom(8)}


class Receiver:
    """Writes what is published into a folder, a file for each publication."""

    def __init__(self, folder: Path, *, fails_at: int | None = None) -> None:
        self.folder = folder
        self.fails_at = fails_at

    def __call__(self, publication: sb.spark.Publication) -> None:
        rows = [row.asDict() for row in publication.df().collect()]
        made = [[row["key"], row["count"], row["chance"].hex()] for row in rows]
        told = [publication.query_id, publication.batch_id, made]
        self.folder.mkdir(exist_ok=True)
        (self.folder / f"{len(list(self.folder.iterdir())):03d}").write_text(json.dumps(told))
        if publication.batch_id == self.fails_at:
            raise OSError("the receiver is away")


async def counted_later(df, batch_id, backend):
    """Counts asynchronously, with a Spark action besides."""
    table = await sb.spark.to_arrow(df)
    assert await sb.spark.run(df.count) == table.num_rows
    counts = backend.value_state("counts", int)
    for key in table["key"].to_pylist():
        counts[key] = counts.get(key, 0) + 1


def started(writer: Any) -> Any:
    """The query, started. Spark gives its worker ten seconds to appear, which is too few on a busy machine."""
    for _ in range(STARTS_MAX):
        try:
            return writer.start()
        except Exception as error:
            if "failed to connect back" not in str(error):
                raise
    raise TimeoutError("no worker for foreachBatch appears in time")


class Queries:
    """A folder of files, each a batch, and queries over it, each with a job and a Spark checkpoint of its own."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        (folder / "input").mkdir()
        for number, keys in enumerate(["aab", "", "ac"]):
            path = folder / "input" / f"{number:04d}.json"
            path.write_text("".join(json.dumps({"key": key}) + "\n" for key in keys))
            os.utime(path, (1_700_000_000 + number,) * 2)

    def settings(self, name: str) -> sb.Settings:
        return sb.Settings(job=name, primary=f"file://{self._folder}/primary", persist_delay_s=0.0)

    def run(self, name: str, sink: Callable[[Any, int], None]) -> str:
        """Run a query; return what it failed with, nothing if it has caught up."""
        rows = self._spark.readStream.schema("key string").option("maxFilesPerTrigger", 1)
        writer = rows.json(str(self._folder / "input")).writeStream.foreachBatch(sink).trigger(availableNow=True)
        query = started(writer.option("checkpointLocation", str(self._folder / name)))
        try:
            assert query.awaitTermination(BOUND_S), "the query hangs"
        except Exception as error:  # noqa: BLE001 - whatever Spark calls it
            return str(error)
        return str(query.exception() or "")

    def forget_commit(self, name: str, batch_id: int) -> None:
        for path in (self._folder / name / "commits").glob(f"*{batch_id}*"):
            path.unlink()

    def committed(self, name: str) -> dict[str, Any]:
        async def read() -> dict[str, Any]:
            async with sb.open_backend(self.settings(name), read_only=True) as backend:
                sources = [summary.source async for summary in backend.history()]
                return {
                    "counts": dict(backend.value_state("counts", int)),
                    "marks": [[mark.query_id, mark.batch_id] for mark in sources if mark is not None],
                }

        return asyncio.run(read())


def main(folder: Path) -> None:
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    queries = Queries(spark, folder)
    told: dict[str, Any] = {}

    name = "processor"
    settings = queries.settings(name)
    for fails_at in (2, None, None):
        outbox = sb.spark.Outbox(Receiver(folder / "received", fails_at=fails_at))
        sink = sb.spark.StatefulSink(Counting(), settings, key="key", query_id="mine", output=outbox)
        told[f"processor, failing at {fails_at}"] = queries.run(name, sink)
        queries.forget_commit(name, 2)
    told["processor"] = queries.committed(name)
    told["received"] = [json.loads(path.read_text()) for path in sorted((folder / "received").iterdir())]

    name = "async"
    sink = sb.spark.StatefulSink(counted_later, queries.settings(name), query_id="q")
    told["async failure"] = queries.run(name, sink)
    told["async"] = queries.committed(name)

    name = "parts"
    parts = sb.spark.StatefulSink(counted_later, queries.settings(name), query_id="q")

    def in_parts(df, batch_id):
        for condition in ("key = 'a'", "key = 'a'", "key <> 'a'"):
            parts(df.where(condition), batch_id)

    told["parts failure"] = queries.run(name, in_parts)
    told["parts"] = queries.committed(name)

    name = "nameless"
    told["nameless"] = queries.run(name, sb.spark.StatefulSink(counted_later, queries.settings(name)))

    name = "executors"
    sink = sb.spark.StatefulSink(
        Counting(),
        queries.settings(name),
        key="key",
        query_id="q",
        output=sb.spark.Outbox(Receiver(folder / "never")),
        execution="executors",
        parallelism=2,
    )
    told["executors"] = queries.run(name, sink)
    told["claimed for executors"] = (folder / "primary" / name).exists()

    spark.stop()
    (folder / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
