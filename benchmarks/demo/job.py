"""The streaming process: days of flights from a folder, through `foreachBatch`, into keyed state. Made to be killed.

    python -m benchmarks.demo.job WORKDIR

Runs until it has seen all days. Reports what happens as lines of `events`.
"""

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import statebackend as sb
from benchmarks.demo.aircraft import STATE_NAME, Aircraft, Fleet, fly
from benchmarks.demo.airports import CONCURRENCY, FleetThatAsks
from benchmarks.demo.columns import COLUMNS, KEY, FleetInColumns, fly_columns
from benchmarks.demo.events import Begun, Committed, Delivered, Finished, Ready, Restored, tell
from benchmarks.demo.flights import ORDER, SPARK_SCHEMA
from benchmarks.demo.places import PARALLELISM, Places
from benchmarks.demo.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BatchFunction = Callable[["DataFrame", int], None]


class Teller(sb.Observer):
    """Reports each restore and each commit as it happens."""

    def __init__(self) -> None:
        self.batch = -1
        self.rows = 0
        self._changelog_bytes = 0

    def segment_uploaded(
        self, segment: sb.abc.Segment, uploaded: sb.abc.UploadedSegment, *, attempt: int, seconds: float
    ) -> None:
        self._changelog_bytes += segment.size_bytes

    def checkpoint_committed(self, info: sb.CheckpointInfo) -> None:
        tell(Committed(self.batch, self.rows, self._changelog_bytes, info))
        self._changelog_bytes = 0

    def restored(self, report: sb.RestoreReport) -> None:
        tell(Restored(report))


class TellerOfRanges(sb.Observer):
    """Collects the restores of all ranges, and reports them as one with the first commit.

    `committed` reports the commits, since only Spark's thread knows the number of rows.
    """

    def __init__(self) -> None:
        self._restored: list[sb.RestoreReport] = []
        self._info: sb.CheckpointInfo | None = None
        self._told = False

    def restored(self, report: sb.RestoreReport) -> None:
        self._restored.append(report)

    def checkpoint_committed(self, info: sb.CheckpointInfo) -> None:
        if self._restored and not self._told:
            tell(Restored(together(self._restored)))
        self._told = True
        self._info = info

    def committed(self, batch: int, rows: int) -> None:
        """Report the commit, if there was one."""
        info, self._info = self._info, None
        if info is not None:
            tell(Committed(batch, rows, info.primary_bytes, info))


def together(reports: list[sb.RestoreReport]) -> sb.RestoreReport:
    """The restores of several ranges as one. They ran side by side, so the longest time counts."""
    return sb.RestoreReport(
        checkpoint_id=reports[0].checkpoint_id,
        sequence=reports[0].sequence,
        files_local=sum(report.files_local for report in reports),
        files_primary=sum(report.files_primary for report in reports),
        bytes_local=sum(report.bytes_local for report in reports),
        bytes_primary=sum(report.bytes_primary for report in reports),
        changes=sum(report.changes for report in reports),
        seconds=max(report.seconds for report in reports),
        fallbacks=tuple(fallback for report in reports for fallback in report.fallbacks),
    )


@contextmanager
def in_driver(places: Places) -> Generator[BatchFunction]:
    """The function that Spark calls with each day, with the state in this process."""
    teller = Teller()

    def keep(df: "DataFrame", batch_id: int, backend: sb.StateBackend) -> None:
        tell(Begun(batch_id))
        flights = df.toArrow()
        teller.batch, teller.rows = batch_id, flights.num_rows
        if places.in_columns:
            fly_columns(flights, backend.columnar_state(STATE_NAME, COLUMNS, key=KEY))
        else:
            fly(flights, backend.value_state(STATE_NAME, Aircraft))

    with sb.spark.StatefulSink(keep, places.settings, observer=teller) as sink:
        yield sink


@contextmanager
def by_processor(places: Places) -> Generator[BatchFunction]:
    """The function that Spark calls with each day, for a processor: on executors, or one that asks a service.

    Flights without an aircraft are dropped, because they belong to no range.
    """
    from pyspark.sql import Observation  # noqa: PLC0415 (as in session.py)
    from pyspark.sql import functions as f  # noqa: PLC0415

    teller = TellerOfRanges()
    where: dict[str, Any] = {"execution": "executors", "parallelism": PARALLELISM} if places.on_executors else {}
    processor: sb.spark.KeyedProcessor = FleetInColumns() if places.in_columns else Fleet()
    if places.lookups:
        processor, where = FleetThatAsks(places.lookups), {**where, "order_by": ORDER, "concurrency": CONCURRENCY}
    sink = sb.spark.StatefulSink(processor, places.settings, key="tailnum", observer=teller, **where)

    def apply(df: "DataFrame", batch_id: int) -> None:
        tell(Delivered(batch_id))
        counted = Observation()
        sink(df.observe(counted, f.count(f.lit(1)).alias("rows")).where("tailnum IS NOT NULL"), batch_id)
        teller.committed(batch_id, int(counted.get["rows"]))

    with sink:
        yield apply


def run(places: Places) -> None:
    """Stream all days that Spark's checkpoint does not list as done."""
    started_s = time.monotonic()
    spark = spark_session(places)
    tell(Ready(time.monotonic() - started_s))
    with by_processor(places) if places.on_executors or places.lookups else in_driver(places) as function:
        query = (
            spark.readStream.schema(SPARK_SCHEMA)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(places.days))
            .writeStream.foreachBatch(function)
            .option("checkpointLocation", str(places.spark_checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    tell(Finished())
    spark.stop()


if __name__ == "__main__":
    run(Places(Path(sys.argv[1])))
