"""Spark's daemon of Python workers, which has imported what programs need before it forks them.

A worker that is idle for a minute ends, and on a busy machine most of its successor's time was spent on imports.
"""

from pyspark import daemon

import statebackend.spark.executors.worker  # noqa: F401
from tests.programs import processors  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
