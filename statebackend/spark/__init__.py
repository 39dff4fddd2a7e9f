"""Keyed state inside `foreachBatch`. Needs the extra `spark`.

    StatefulSink      the callable for `foreachBatch`: runs your function with its state, commits once per batch
    KeyedProcessor    in place of a function: what to do with the rows of one key, or with an Arrow table
    Outbox, Publication     rows that come out, published once they are committed
    to_arrow, run     for `async def` functions: the batch's rows, or any Spark action, without blocking the loop

Who does what: `sink.py` takes one batch through, `replay.py` decides whether it is new, `driver.py` applies it here,
`executors.py` on Spark's executors (`placement.py`, `worker.py`, `pickling.py`). `outbox.py` makes of rows what is
staged, and of that what is published. `bridge.py` waits for coroutines without losing sight of the query, `frames.py`
knows the batch's frame and threads, `keyed.py` runs processors, and `grouping.py` sorts rows by key for them.
"""

from statebackend.spark.driver import BatchFunction
from statebackend.spark.frames import run, to_arrow
from statebackend.spark.outbox import Outbox, Publication
from statebackend.spark.processor import KeyedProcessor, ProcessorContext
from statebackend.spark.sink import StatefulSink

__all__ = [
    "BatchFunction",
    "KeyedProcessor",
    "Outbox",
    "ProcessorContext",
    "Publication",
    "StatefulSink",
    "run",
    "to_arrow",
]
