"""The streaming process: days of flights from a folder, through `foreachBatch`, into keyed state. Made to be killed.

    python -m benchmarks.demo.job WORKDIR

Runs until all days are seen. Tells what happens as lines of `events`.
"""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import statebackend as sb
from benchmarks.demo.aircraft import STATE_NAME, Aircraft, fly
from benchmarks.demo.events import Begun, Committed, Finished, Ready, Restored, tell
from benchmarks.demo.flights import SPARK_SCHEMA
from benchmarks.demo.places import Places
from benchmarks.demo.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Teller(sb.Observer):
    """Tells of each restore and each commit as it happens."""

    def __init__(self) -> None:
        self.batch = -1
        self.rows = 0
        self._changelog_bytes = 0

    def segment_uploaded(
        self, segment: sb.Segment, uploaded: sb.UploadedSegment, *, attempt: int, seconds: float
    ) -> None:
        self._changelog_bytes += segment.size_bytes

    def checkpoint_committed(self, info: sb.CheckpointInfo) -> None:
        tell(Committed(self.batch, self.rows, self._changelog_bytes, info))
        self._changelog_bytes = 0

    def restored(self, report: sb.RestoreReport) -> None:
        tell(Restored(report))


def run(places: Places) -> None:
    """Stream all days that Spark's checkpoint does not list as done."""
    started_s = time.monotonic()
    spark = spark_session(places)
    tell(Ready(time.monotonic() - started_s))
    teller = Teller()

    def keep(df: "DataFrame", batch_id: int, backend: sb.StateBackend) -> None:
        tell(Begun(batch_id))
        flights = df.toArrow()
        teller.batch, teller.rows = batch_id, flights.num_rows
        fly(flights, backend.value_state(STATE_NAME, Aircraft))

    with sb.spark.StatefulSink(keep, places.settings, observer=teller) as sink:
        query = (
            spark.readStream.schema(SPARK_SCHEMA)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(places.days))
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(places.spark_checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    tell(Finished())
    spark.stop()


if __name__ == "__main__":
    run(Places(Path(sys.argv[1])))
