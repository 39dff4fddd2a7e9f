"""The same programs on a real session of Spark: what keeps `frames.py` honest. Slower, some seconds for each.

Two things differ. Workers are processes of their own, in which a row that is to do harm only raises; and a kill leaves
them alive, so that the driver is only closed.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from statebackend.spark.frames import QUERY_ID_PROPERTY, RUN_ID_PROPERTY
from tests.programs.processors import fail
from tests.programs.program import Program
from tests.programs.running import Running


class RealSession:
    """As `frames.Session`, of a session that runs: it is given the properties of a streaming query."""

    def __init__(self, spark: SparkSession, zone: str, times: str) -> None:
        self._spark = spark
        spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ" if times == "naive" else "TIMESTAMP_LTZ")
        spark.conf.set("spark.sql.session.timeZone", zone)

    def begin_run(self, number: int, query_id: str) -> None:
        context = self._spark.sparkContext
        context.setLocalProperty(QUERY_ID_PROPERTY, query_id)
        context.setLocalProperty(RUN_ID_PROPERTY, f"run-{number}")

    def stop_query(self) -> None:
        fail()

    def frame(self, table: pa.Table, *, pieces: int = 0, plan: object = None) -> Any:
        return self._spark.createDataFrame(table)


class OnSpark(Running):
    """A program on a real session."""

    def __init__(self, program: Program, home: Path, spark: SparkSession) -> None:
        self._spark = spark
        super().__init__(program, home)

    def new_session(self, zone: str) -> Any:
        return RealSession(self._spark, zone, self.job.times)

    def copy_home(self) -> None:
        """A kill is an end without anything more."""
