"""Makes the data sources known to a session of Spark, with the settings of the jobs that they read.

The settings travel as part of the pickled class, never as options, which Spark writes into its event log. Secrets stay
behind as always: a process that reads takes its credentials from the usual AWS chain.
"""

import weakref
from typing import Any, Final

from pyspark.sql import SparkSession

from statebackend.settings import Settings
from statebackend.spark.reading.metadata import MetadataSource
from statebackend.spark.reading.sources import StateSource

_jobs: Final[weakref.WeakKeyDictionary[Any, dict[str, Settings]]] = weakref.WeakKeyDictionary()


def register(spark: SparkSession, *settings: Settings) -> None:
    """Make `spark.read.format("statebackend")` and `"statebackend-metadata"` known, for these jobs.

        sb.spark.register(spark, settings)
        legs = spark.read.format("statebackend").option("stateVarName", "legs").load()

    A later call adds jobs, or replaces the settings of one. Without settings, a query gives `job` and `primary` as
    options. A `StatefulSink` registers its own job in the session that is active where it is made. The Python processes
    of Spark must be able to import `statebackend`, and to reach the primary.
    """
    jobs = {**_jobs.get(spark, {}), **{each.job: each for each in settings}}
    _jobs[spark] = jobs
    for source in (StateSource, MetadataSource):
        # A class that no module has: cloudpickle sends it with what it holds.
        own: Any = type(source.__name__, (source,), {"jobs": jobs, "__module__": "__main__"})
        spark.dataSource.register(own)


def register_in_active_session(settings: Settings) -> None:
    """Register the job in the session that is active here, if there is one."""
    spark = SparkSession.getActiveSession()
    if spark is not None:
        register(spark, settings)
