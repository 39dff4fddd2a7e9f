"""Each release of PySpark that is supported, for real: the README's program, a processor, executors, the Spark reader.

    nox -s compat                                             every release, on every Python that is found
    nox -s compat -- --python 3.11 --pyspark 4.0 4.3

It is run with one release on the path, and prints a JSON object: what was checked, and "ok" or the error. Of a release
that is too old only the refusal is checked.
"""

import argparse
import asyncio
import faulthandler
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import statebackend as sb
from statebackend.errors import SettingsError

README: Final = Path(__file__).parents[1] / "README.md"
CHECKPOINTS: Final = Path(__file__).parents[1] / "tests" / "spark" / "checkpoints"
"""By the release of Spark that wrote them."""
PROGRAM_ROWS: Final = 1000
"""Rows that each run of the README's program takes."""
BOUND_S: Final = 240
"""For each stream, and each program."""
TOTAL_BOUND_S: Final = 1200
"""For all checks of one release: after that its process says where it hangs, and ends."""
FLOWN: Final = ("JFK,N1\nSFO,N1\n", "JFK,N2\n")
"""The batches: destination and aircraft."""
COUNTS: Final = [("JFK", 2), ("SFO", 1)]
REFUSED: Final = "refused by SettingsError"
OK: Final = "ok"


def counting() -> Any:
    """A processor. Not at the top of the module: there a release that is too old would be refused before we look."""

    class Counting(sb.spark.KeyedProcessor):
        """How often each airport was flown to."""

        def open(self, context: sb.spark.ProcessorContext) -> None:
            """Declare the state."""
            self.counts = context.value_state("counts", int)

        def process(
            self, key: Any, rows: Iterable[Mapping[str, Any]], context: sb.spark.ProcessorContext
        ) -> Iterator[Mapping[str, Any]]:
            """Count the rows of one key."""
            self.counts[key] = self.counts.get(key, 0) + len(list(rows))
            yield from ()

    return Counting()


class Job:
    """A stream of two batches, in a folder of its own."""

    def __init__(self, spark: Any, folder: Path, name: str) -> None:
        self.spark = spark
        self.settings = sb.Settings(job=name, primary=f"file://{folder}/primary")
        self._folder = folder / name
        (self._folder / "input").mkdir(parents=True)
        for number, rows in enumerate(FLOWN):
            file = self._folder / "input" / f"{number}.csv"
            file.write_text(rows, encoding="ascii")
            os.utime(file, (number, number))

    def run(self, **options: Any) -> None:
        """Process all batches."""
        flights = self.spark.readStream.schema("dest string, tailnum string").option("maxFilesPerTrigger", 1)
        with sb.spark.StatefulSink(counting(), self.settings, key="dest", **options) as sink:
            writer = flights.csv(str(self._folder / "input")).writeStream.foreachBatch(sink)
            self.finish(writer.option("checkpointLocation", str(self._folder / "checkpoint")))

    def finish(self, writer: Any) -> None:
        """Run this stream until it has caught up."""
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(BOUND_S), "the stream hangs"

    def load(self, format_: str = "statebackend", **options: str) -> Any:
        """What Spark reads of the job."""
        return self.spark.read.format(format_).options(job=self.settings.job, **options).load()

    def counts(self) -> Sequence[tuple[str, int]]:
        """The state, read without Spark."""
        table = sb.read_state(self.settings, "counts").read_all()
        return sorted(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))

    def check(self, found: object, expected: object) -> None:
        """Raise `AssertionError` if they differ."""
        assert found == expected, f"{found} where {expected} was expected"


def readme(folder: Path) -> None:
    """The README's program as it stands, twice: the second run goes on where the first has stopped."""
    code = README.read_text(encoding="utf-8").split("```python\n", 1)[1].split("```", 1)[0]
    program = folder / "program.py"
    program.write_text(code, encoding="utf-8")
    for run in (1, 2):
        command = [sys.executable, str(program)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BOUND_S, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        (values,) = re.findall(r"'value': \[([\d, ]+)\]", done.stdout)
        assert sum(map(int, values.split(","))) == run * PROGRAM_ROWS, done.stdout


def processor(job: Job) -> None:
    """A processor in the driver."""
    job.run()
    job.check(job.counts(), COUNTS)


def executors(job: Job) -> None:
    """A processor in Spark's Python workers."""
    job.run(execution="executors", parallelism=2)
    job.check(job.counts(), COUNTS)


def read_batch(job: Job) -> None:
    """The state, the state of an earlier batch, and the change feed."""
    job.run()
    columns = ("key.value AS key", "value.value AS value")
    for options, rows in (({}, COUNTS), ({"batchId": "0"}, [("JFK", 1), ("SFO", 1)])):
        found = job.load(stateVarName="counts", **options).selectExpr(*columns).collect()
        job.check(sorted(map(tuple, found)), rows)
    feed = job.load(stateVarName="counts", readChangeFeed="true", changeStartBatchId="0")
    found = feed.selectExpr("batch_id", *columns).collect()
    job.check(sorted(map(tuple, found)), [(0, "JFK", 1), (0, "SFO", 1), (1, "JFK", 2)])


def read_stream(job: Job) -> None:
    """The change feed as a stream."""
    job.run()
    found: list[tuple[Any, ...]] = []
    options = {"job": job.settings.job, "stateVarName": "counts", "readChangeFeed": "true", "changeStartBatchId": "0"}
    feed = job.spark.readStream.format("statebackend").options(**options).load()
    writer = feed.selectExpr("batch_id", "key.value", "value.value").writeStream
    job.finish(writer.foreachBatch(lambda frame, _: found.extend(map(tuple, frame.collect()))))
    job.check(sorted(found), [(0, "JFK", 1), (0, "SFO", 1), (1, "JFK", 2)])


def importing(job: Job) -> None:
    """The state of queries of Spark's, from checkpoints of this release and of those before."""
    for kept in sorted(CHECKPOINTS.iterdir()):
        if tuple(map(int, kept.name.split("."))) > tuple(map(int, version("pyspark").split(".")[:2])):
            continue
        settings = sb.Settings(job=kept.name, primary=job.settings.primary)
        states = {"variables": {"state": "counts", "timeouts": None}, "session": job.spark}
        asyncio.run(sb.spark.import_checkpoint(settings, _counted, f"file://{kept}/groups", **states))
        table = sb.read_state(settings, "counts").read_all()
        found = {
            key: int(dict(value)["n"])
            for key, value in zip(*(table[name].to_pylist() for name in ("key", "value")), strict=True)
        }
        job.check(found, {"k0": 4, "k1": 3, "k2": 3})


def _counted(backend: Any) -> None:
    backend.value_state("counts", dict[str, Any])


def metadata(job: Job) -> None:
    """The states and the commits of the job."""
    job.run()
    states = job.load("statebackend-metadata").select("stateStoreName", "minBatchId", "maxBatchId").collect()
    job.check(list(map(tuple, states)), [("counts", 0, 1)])
    commits = job.load("statebackend-metadata", view="commits").select("batchId").collect()
    job.check(list(map(tuple, commits)), [(0,), (1,)])


CHECKS: Final[Mapping[str, Callable[[Job], None]]] = {
    "import": importing,  # first: in a session that has had no stream
    "processor": processor,
    "executors": executors,
    "reader, batch": read_batch,
    "reader, stream": read_stream,
    "reader, metadata": metadata,
}


def outcome(check: Callable[..., object], *arguments: object) -> str:
    """Run a check. Its error, in one line, or `OK`."""
    try:
        check(*arguments)
    except Exception as error:  # noqa: BLE001  # it is the outcome
        traceback.print_exc()
        lines = str(error).strip().splitlines()
        return f"{type(error).__name__}: {lines[-1] if lines else ''}"
    return OK


def refusal() -> str:
    """How a release that is too old is refused."""
    try:
        sb.spark.StatefulSink(lambda *_: None, sb.Settings(job="j", primary="memory://refused"))
    except SettingsError:
        return REFUSED
    return "not refused"


def checked(folder: Path) -> dict[str, str]:
    """The outcome of each check."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  # it may be of a release that has less

    found = {"README": outcome(readme, folder)}
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    for name, check in CHECKS.items():
        place = folder / re.sub(r"\W+", "-", name)
        place.mkdir()
        found[name] = outcome(check, Job(spark, place, place.name))
    spark.stop()
    return found


def main() -> None:
    """Check the release that is installed."""
    options = argparse.ArgumentParser()
    options.add_argument("--refused", action="store_true", help="the release is too old")
    given = options.parse_args()
    faulthandler.dump_traceback_later(TOTAL_BOUND_S, exit=True)
    with tempfile.TemporaryDirectory() as folder:
        found = {"refusal": refusal()} if given.refused else checked(Path(folder))
    python = ".".join(map(str, sys.version_info[:3]))
    print(json.dumps({"python": python, "pyspark": version("pyspark"), "found": found}))


if __name__ == "__main__":
    main()
