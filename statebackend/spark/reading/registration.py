"""Makes the data sources known to a session of Spark, with the settings of the jobs that they read.

The settings travel as part of the pickled class, never as options, which Spark writes into its event log. Secrets stay
behind as always: a process that reads takes its credentials from the usual AWS chain.
"""

import weakref
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import SparkSession

from statebackend._reading.differences import Migrate
from statebackend.errors import InputError
from statebackend.settings import Settings
from statebackend.spark.reading.data_source import StateSource
from statebackend.spark.reading.metadata import MetadataSource

_jobs: Final[weakref.WeakKeyDictionary[Any, dict[str, Settings]]] = weakref.WeakKeyDictionary()
_migrate: Final[weakref.WeakKeyDictionary[Any, dict[str, Migrate]]] = weakref.WeakKeyDictionary()


def register(spark: SparkSession, *settings: Settings, migrate: Migrate | None = None) -> None:
    """Make `spark.read.format("statebackend")` and `"statebackend-metadata"` known, for these jobs.

        sb.spark.register(spark, settings)
        legs = spark.read.format("statebackend").option("stateVarName", "legs").load()

    A later call adds jobs, or replaces the settings of one. Without settings, a query gives `job` and `primary` as
    options. A `StatefulSink` registers its own job in the session that is active where it is made. The Python processes
    of Spark must be able to import `statebackend`, and to reach the primary.

    `migrate`, by the name of a state, is that of its declaration, in each of these jobs: values of an earlier version
    cannot be read without it. It stays until it is given again. Raises `InputError` where it is none.
    """
    if migrate is not None and not isinstance(migrate, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError("register takes `migrate` by the name of the state: give a dict", migrate=repr(migrate))
    jobs = {**_jobs.get(spark, {}), **{each.job: each for each in settings}}
    _jobs[spark] = jobs
    upcasts = _migrate.setdefault(spark, {})
    if migrate is not None:
        upcasts.update({each.job: migrate for each in settings})
    held: Mapping[Any, dict[str, Any]] = {
        MetadataSource: {"jobs": jobs},
        StateSource: {"jobs": jobs, "migrate": dict(upcasts)},
    }
    for source, known in held.items():
        # A class that no module has: cloudpickle sends it with what it holds.
        own: Any = type(source.__name__, (source,), {**known, "__module__": "__main__"})
        spark.dataSource.register(own)


def register_in_active_session(settings: Settings) -> None:
    """Register the job in the session that is active here, if there is one."""
    spark = SparkSession.getActiveSession()
    if spark is not None:
        register(spark, settings)
