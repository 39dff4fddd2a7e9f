"""Keyed state inside `foreachBatch`. Needs the extra `spark`.

    StatefulSink      the callable for `foreachBatch`: runs your function with its state, commits once per batch
    to_arrow, run     for `async def` functions: the batch's rows, or any Spark action, without blocking the loop

Who does what: `sink.py` takes one batch through, `replay.py` decides whether it is new, `bridge.py` waits for
coroutines without losing sight of the query, `frames.py` knows the batch's frame and threads.
"""

from statebackend.spark.frames import run, to_arrow
from statebackend.spark.sink import BatchFunction, StatefulSink

__all__ = ["BatchFunction", "StatefulSink", "run", "to_arrow"]
