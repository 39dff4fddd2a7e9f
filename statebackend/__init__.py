"""statebackend: keyed state for PySpark `foreachBatch`, durable per micro-batch, back from the local copy first.

    open_backend, StateBackend      open a job's state, use it, checkpoint it
    open_coordinator, CheckpointCoordinator     commit what the owners of parts of the key groups contribute
    Settings                        what the job means, and how fast
    ValueState                      what user code reads and writes
    spark.StatefulSink              the callable for `foreachBatch` (needs the extra `spark`)
    ObjectStore, StateChangeUploader, Serializer, Observer, Clock       what you may implement
    CheckpointInfo, RestoreReport   what happened; `statebackend.observers` counts it
    StateBackendError               the base of every error; `statebackend.errors` draws the tree

Rooms whose name begins with an underscore are private.
"""

import importlib
from typing import TYPE_CHECKING, Any

from statebackend._backend import open_backend, open_coordinator
from statebackend._checkpoint.backend import StateBackend
from statebackend._checkpoint.coordinator import CheckpointCoordinator, Committed
from statebackend._state.value_state import ValueState
from statebackend._version import __version__
from statebackend.abc import (
    Body,
    Capability,
    CheckpointInfo,
    Clock,
    Fallback,
    ObjectInfo,
    ObjectStore,
    Observer,
    RestoreReport,
    Segment,
    Serializer,
    StateChangeUploader,
    UploadedSegment,
)
from statebackend.errors import StateBackendError
from statebackend.ids import (
    CheckpointId,
    CommitSequence,
    CommitSummary,
    Epoch,
    Handle,
    Key,
    KeyGroupRange,
    SequenceNumber,
    SnapshotResult,
    SourceMark,
)
from statebackend.settings import Settings

if TYPE_CHECKING:
    from statebackend import spark as spark

__all__ = [
    "Body",
    "Capability",
    "CheckpointCoordinator",
    "CheckpointId",
    "CheckpointInfo",
    "Clock",
    "CommitSequence",
    "CommitSummary",
    "Committed",
    "Epoch",
    "Fallback",
    "Handle",
    "Key",
    "KeyGroupRange",
    "ObjectInfo",
    "ObjectStore",
    "Observer",
    "RestoreReport",
    "Segment",
    "SequenceNumber",
    "Serializer",
    "Settings",
    "SnapshotResult",
    "SourceMark",
    "StateBackend",
    "StateBackendError",
    "StateChangeUploader",
    "UploadedSegment",
    "ValueState",
    "__version__",
    "open_backend",
    "open_coordinator",
]


def __getattr__(name: str) -> Any:
    if name == "spark":  # on first use: it imports pyspark, which not every process has
        return importlib.import_module("statebackend.spark")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
