"""statebackend: keyed state for PySpark `foreachBatch`, durable per micro-batch, back from the local copy first.

    open_backend, StateBackend      open a job's state, use it, checkpoint it
    open_coordinator, CheckpointCoordinator     commit what the owners of parts of the key groups contribute
    open_download_cache             for several backends that restore from the same files
    Output, StagedOutput            rows that are committed with the state, and published after it
    inspect, report, verify, open_rows      look at a job from outside, beside a running stream
    sweep                           delete what no retained checkpoint needs
    rewrite                         give a job another number of key groups
    savepoints, drop_savepoint      names that keep a checkpoint
    reports                         the records that these return
    Settings                        what the job means, and how fast
    ValueState, ListState, MapState, ReducingState, AggregatingState    what user code reads and writes
    OperatorState                   what belongs to no key
    Timers, TimeToLive              when a key is due, and how long what was written is there
    spark.StatefulSink              the callable for `foreachBatch` (needs the extra `spark`)
    ObjectStore, StateChangeUploader, Serializer, Observer, Clock       what you may implement
    CheckpointInfo, RestoreReport   what happened; `statebackend.observers` counts it
    StateBackendError               the base of every error; `statebackend.errors` draws the tree

Rooms whose name begins with an underscore are private.
"""

import importlib
from typing import TYPE_CHECKING, Any

from statebackend import reports
from statebackend._backend.downloads import open_download_cache
from statebackend._backend.opening import open_backend, open_coordinator
from statebackend._cache.download_cache import DownloadCache
from statebackend._checkpoint.backend import StateBackend
from statebackend._log.coordinator import CheckpointCoordinator, Committed
from statebackend._log.outbox import Output
from statebackend._state.aggregating_state import Aggregate, AggregatingState
from statebackend._state.list_state import ListState
from statebackend._state.map_state import MapState
from statebackend._state.operator_state import OperatorState
from statebackend._state.reducing_state import ReducingState
from statebackend._state.timers import Timers
from statebackend._state.ttl import TimeToLive
from statebackend._state.value_state import ValueState
from statebackend._upkeep.inspect import inspect
from statebackend._upkeep.report import report
from statebackend._upkeep.rewrite import rewrite
from statebackend._upkeep.rows import open_rows
from statebackend._upkeep.savepoints import drop_savepoint, savepoints
from statebackend._upkeep.sweep import sweep
from statebackend._upkeep.verify import verify
from statebackend._version import __version__
from statebackend.abc import (
    Body,
    Capability,
    CheckpointInfo,
    Clock,
    CountsRequests,
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
    StagedOutput,
)
from statebackend.settings import Secret, Settings

if TYPE_CHECKING:
    from statebackend import spark as spark

__all__ = [
    "Aggregate",
    "AggregatingState",
    "Body",
    "Capability",
    "CheckpointCoordinator",
    "CheckpointId",
    "CheckpointInfo",
    "Clock",
    "CommitSequence",
    "CommitSummary",
    "Committed",
    "CountsRequests",
    "DownloadCache",
    "Epoch",
    "Fallback",
    "Handle",
    "Key",
    "KeyGroupRange",
    "ListState",
    "MapState",
    "ObjectInfo",
    "ObjectStore",
    "Observer",
    "OperatorState",
    "Output",
    "ReducingState",
    "RestoreReport",
    "Secret",
    "Segment",
    "SequenceNumber",
    "Serializer",
    "Settings",
    "SnapshotResult",
    "SourceMark",
    "StagedOutput",
    "StateBackend",
    "StateBackendError",
    "StateChangeUploader",
    "TimeToLive",
    "Timers",
    "UploadedSegment",
    "ValueState",
    "__version__",
    "drop_savepoint",
    "inspect",
    "open_backend",
    "open_coordinator",
    "open_download_cache",
    "open_rows",
    "report",
    "reports",
    "rewrite",
    "savepoints",
    "sweep",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "spark":  # on first use: it imports pyspark, which not every process has
        return importlib.import_module("statebackend.spark")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
