"""Settings of Spark that make batches faster, logged once per run of a query. The sink needs none of them."""

import logging
from contextlib import suppress
from typing import Any, Final, cast

from pyspark import __version__ as spark_release
from pyspark.sql import DataFrame

from statebackend.spark.frames import QUERY_ID_PROPERTY, context_of

CHECKPOINT_FILES: Final = "spark.sql.streaming.checkpointFileManagerClass"
"""Spark's setting of the class that writes the files of its own checkpoint. The default starts ten processes for each
file on a local disk (`chmod`, `readlink`)."""

UNIX_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
"""Spark's setting (since 4.1) of how it talks to its Python workers. With TCP, the default, every task waits 40 ms for
its rows: Spark sends them in a second small write, which the kernel delays until the first one is acknowledged."""

_logger = logging.getLogger(__name__)


def by_file_system(release: str = spark_release) -> str:
    """The value of `CHECKPOINT_FILES` for a checkpoint on a local disk. It is the same class, moved by Spark 4.1."""
    package = "org.apache.spark.sql.execution.streaming"
    if not release.startswith("4.0."):
        package += ".checkpointing"
    return f"{package}.FileSystemBasedCheckpointFileManager"


def advise_checkpoint_files(df: DataFrame) -> None:
    """Log a better setting of `CHECKPOINT_FILES`, if it is unset and the query's checkpoint is on a local disk."""
    context = context_of(df)
    query_id = context.getLocalProperty(QUERY_ID_PROPERTY) if context is not None else None
    if query_id is None or df.sparkSession.conf.get(CHECKPOINT_FILES, None) is not None:
        return
    with suppress(Exception):  # only advice, and PySpark has no public way to the location
        session: Any = cast("Any", df.sparkSession)._jsparkSession  # noqa: SLF001
        jvm: Any = cast("Any", df.sparkSession)._jvm  # noqa: SLF001
        query = session.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(query_id))
        if query is not None and str(query.resolvedCheckpointRoot()).startswith("file:"):
            _logger.info(
                "each batch waits some 70 ms too long for the files of Spark's own checkpoint: start Spark with %s=%s, "
                "if the query has no stateful operator of Spark",
                CHECKPOINT_FILES,
                by_file_system(),
            )


def advise_unix_sockets(df: DataFrame) -> None:
    """Log a better setting of `UNIX_SOCKETS`, if it is not set."""
    context = context_of(df)
    if context is not None and str(context.getConf().get(UNIX_SOCKETS, "false")).lower() != "true":
        _logger.info(
            "each batch waits 40 ms for its Python workers: start Spark with %s=true (4.1 or newer)", UNIX_SOCKETS
        )
