"""A SparkSession for small batches on two cores: quiet, bound to loopback, without a web server."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.demo.places import Places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_START_FAST = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # processes end before Java's best compiler pays off
_QUIET = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""


def spark_session(places: Places) -> "SparkSession":
    """A new session on `local[2]` that leaves files only in the work directory."""
    os.environ["PYSPARK_PYTHON"] = sys.executable  # for the workers; the default is any python3 on the path
    from pyspark.sql import SparkSession  # noqa: PLC0415 (half a second that the tests of the pure parts need not pay)

    from statebackend.spark.advice import CHECKPOINT_FILES, by_file_system  # noqa: PLC0415 (as above)

    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_log_settings(places)} {_START_FAST}",
        "spark.local.dir": str(places.scratch),
        "spark.sql.adaptive.enabled": "false",  # there is nothing to adapt in a batch of a thousand rows
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(places.scratch / "warehouse"),
        CHECKPOINT_FILES: by_file_system(),  # Spark's own checkpoint is on a local disk
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("statebackend demo")
    return builder.config(map=settings).getOrCreate()


def _log_settings(places: Places) -> Path:
    path = places.scratch / "log4j2.properties"
    path.write_text(_QUIET)
    return path
