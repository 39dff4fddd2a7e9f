"""Keyed state inside `foreachBatch`. Needs the extra `spark`.

    StatefulSink            the callable for `foreachBatch`: runs your function on its state, commits once per batch
    KeyedProcessor          instead of a function: what to do with the rows of one key, or with an Arrow table
    lookup                  for an asynchronous `process`: asks a function once per argument and batch, within limits
    Outbox, Publication     output rows that are published once they are committed
    register                data sources for Spark: the state, its change feed, the commits
    seed                    the first state of a job from frames, written by the executors
    import_checkpoint       the state of a query from Spark's own checkpoint, as the first state of a job
    initial_state           the way back: states as the frame that Spark's `transformWithState` begins with
    to_arrow, run           for `async def` functions: the batch's rows, or any Spark action, off the event loop

Start at `sink.py`: it takes one batch through. `replay.py` decides whether the batch is new. `execution.py` is the
contract for where it is processed: here (`driver.py`) or on Spark's executors (`executors/`). `output.py` gives output
rows to the user's function, or turns them into staged output and back, and `publishing.py` publishes that. `bridge.py`
waits for coroutines while watching the query; `frames.py` knows the batch's frame and threads. Processors are run by
the room `_processing`.
"""

from statebackend.errors import needs_extra

try:
    import pyarrow as pyarrow  # noqa: ICN001  # asked for here, where the error can say what is missing
    import pyspark
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(needs_extra("statebackend.spark", "spark"), name=error.name) from error

from statebackend.spark.release import check_release

check_release(pyspark.__version__)  # an older one has not even what is imported below

from statebackend._processing.lookup import Lookup, lookup
from statebackend._processing.processor import KeyedProcessor, ProcessorContext
from statebackend.spark.driver import BatchFunction
from statebackend.spark.executors.seed import seed
from statebackend.spark.frames import run, to_arrow
from statebackend.spark.importing.import_checkpoint import import_checkpoint
from statebackend.spark.initial_state import initial_state
from statebackend.spark.output import Outbox, Publication
from statebackend.spark.reading.registration import register
from statebackend.spark.sink import StatefulSink

__all__ = [
    "BatchFunction",
    "KeyedProcessor",
    "Lookup",
    "Outbox",
    "ProcessorContext",
    "Publication",
    "StatefulSink",
    "import_checkpoint",
    "initial_state",
    "lookup",
    "register",
    "run",
    "seed",
    "to_arrow",
]
