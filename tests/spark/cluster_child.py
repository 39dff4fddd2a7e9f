"""A driver that streams days of invoice lines on executors until it has caught up. `cluster.py` starts and kills it.

Its one argument is a `Plan` as JSON. It reports what it does, and its end, on standard output.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Literal

import msgspec
from pyspark.sql import SparkSession

import statebackend as sb
from tests.knobs import settings_with
from tests.spark.retail import PROCESSORS, SPARK_LINES, Failing, Slow


class Plan(msgspec.Struct):
    """A driver's task. `pauses_s`: how long it is idle after a batch. `conf`: for Spark.

    `fails_in`: the batches of customers in which an attempt fails; `slow_in`: those in which one waits for another
    attempt. `outbox`: rows are published after the commit; otherwise an output gets them before it.
    `clock`: that of the sink.
    """

    folder: str
    which: str
    master: str
    parallelism: int
    pauses_s: dict[int, float] = {}
    conf: dict[str, str] = {}
    table: str = "heap"
    outbox: bool = False
    fails_in: tuple[int, ...] = ()
    slow_in: tuple[int, ...] = ()
    clock: Literal["batch"] | None = None


def settings_of(plan: Plan) -> sb.Settings:
    """Few handles before bases are written, and little in a commit, so that all kinds of files are written."""
    return settings_with(
        job=plan.which,
        primary=f"file://{plan.folder}/primary",
        local=(f"{plan.folder}/local",),
        table=plan.table,
        table_dir=f"{plan.folder}/tables",
        persist_delay_s=0.0,
        inline_bytes_max=4096,
        materialize_handles_max=24,
        upload__timeout_s=10.0,
    )


class Teller(sb.Observer):
    """Reports commits, and where ranges found their state, in one write each."""

    def range_opened(self, found: str) -> None:
        tell("found", found)

    def checkpoint_committed(self, info: sb.CheckpointInfo) -> None:
        tell("committed", info.checkpoint_id)


def tell(what: str, value: object = None) -> None:
    os.write(1, f"@ {what} {value}\n".encode())


def session_of(plan: Plan) -> SparkSession:
    """A session on `plan.master`. Executors are told where our modules are; their own folder is elsewhere."""
    builder = SparkSession.builder.master(plan.master).appName("statebackend-cluster")
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.shuffle.reduceLocality.enabled": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": f"{plan.folder}/warehouse",
        **plan.conf,
    }
    for name, value in conf.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def main(plan: Plan) -> None:
    folder = Path(plan.folder)
    published = folder / "published"
    published.mkdir(exist_ok=True)

    def put_out(batch_id, rows):
        tell("put out", batch_id)
        text = json.dumps({row["key"]: row for row in rows}, sort_keys=True)
        place, part = published / str(batch_id), published / f".{batch_id}"
        if plan.outbox and place.exists() and place.read_text() != text:
            raise AssertionError(f"batch {batch_id} was published again, and differs")
        part.write_text(text)
        part.rename(place)

    if plan.outbox:
        output = sb.spark.Outbox(lambda publication: put_out(publication.batch_id, publication.table.to_pylist()))
    else:
        output = lambda df, batch_id: put_out(batch_id, [row.asDict() for row in df.collect()])  # noqa: E731
    processor = PROCESSORS[plan.which]()
    if plan.fails_in:
        processor = Failing(plan.folder, plan.fails_in)
    if plan.slow_in:
        processor = Slow(plan.folder, plan.slow_in)
    spark = session_of(plan)
    sink = sb.spark.StatefulSink(
        processor,
        settings_of(plan),
        key=processor.key,
        order_by="line",
        output=output,
        execution="executors",
        parallelism=plan.parallelism,
        observer=Teller(),
        clock=plan.clock,
    )

    def apply(df, batch_id):
        tell("begun", batch_id)
        sink(df.where(f"{processor.key} IS NOT NULL"), batch_id)
        if pause_s := plan.pauses_s.get(batch_id):
            time.sleep(pause_s)

    reader = spark.readStream.schema(SPARK_LINES).option("maxFilesPerTrigger", 1).parquet(str(folder / "days"))
    writer = reader.writeStream.foreachBatch(apply).trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
    sink.close()
    tell("finished")
    spark.stop()


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Plan))
