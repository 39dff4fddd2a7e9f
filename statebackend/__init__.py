"""statebackend: keyed state for PySpark `foreachBatch`, durable per micro-batch, restored from the local copy first.

    open_backend, StateBackend      open a job's state, use it, checkpoint it
    Settings                        the job's name and places, and how fast it works; its records for S3, uploads and
                                    prices are in `statebackend.settings`
    ValueState, ListState, MapState, ReducingState, AggregatingState    what user code reads and writes; Aggregate: how
                                    the last one adds up
    ColumnarState                   a row of columns per key, for whole batches in Arrow (needs the extra `columns`)
    OperatorState                   state that belongs to no key
    Timers, TimeToLive              when a key is due, and how long a value lives
    Output, StagedOutput            rows that are committed with the state, and published after it
    spark.StatefulSink              the callable for `foreachBatch` (needs the extra `spark`)
    CheckpointInfo, RestoreReport, CommitSummary    what happened; `statebackend.observers` counts it
    inspect, report, verify, read_rows      look at a job from outside, beside a running stream
    read_state, read_batches, export, diff      the state of a job as columns, in Arrow or files, and what changed in it
                                    (need the extra `columns`)
    history_of                      each kept commit that changed a key, with its value before and after (the same)
    watch                           each checkpoint as it is made
    follow, follow_in_background, StateFollower     the newest state of a running job, held in memory: it answers reads,
                                    and can take the job over
    Mirror, mirror_once, keep_mirrored      a state as a table elsewhere, kept up to date: `statebackend.mirrors`
                                    (need the extra `columns`)
    repair                          put damaged commits back from local copies
    sweep                           delete what no retained checkpoint needs
    savepoint, savepoints, drop_savepoint   names that keep a checkpoint
    rewrite                         give a job another number of key groups
    clone                           make a new job of another job's checkpoint, here or in another cloud
    seed                            the first state of a job, of rows that lie elsewhere
    transform                       change a state key by key: re-key it, split it, drop some of it
    erase, verify_erased            delete keys for good, and prove that nothing has them
    StateBackendError               the base of every error; `statebackend.errors` draws the tree

and rooms for those who need more:

    abc         what you may implement: ObjectStore, StateChangeUploader, Serializer, Observer, Clock, and their records
    mirrors     the tables that a state can be mirrored into, and the contract for one of your own
    owners      for a job whose key groups are shared by several processes
    reports     the records that `sweep`, `verify` and their like return
    objectstore     the stores that a primary's URL opens, to wrap them or to pass them as `store=`
    uploaders   the uploader that is the default, to extend it
    observers   what counts and exports events
    testing     kits, fakes and a tester for processors, for tests of your own (needs the extra `testing`)

Rooms whose name begins with an underscore are private.
"""

import importlib
from typing import TYPE_CHECKING, Any

from statebackend import abc as abc
from statebackend import owners as owners
from statebackend import reports as reports
from statebackend._backend.opening import open_backend
from statebackend._checkpoint.backend import StateBackend
from statebackend._following.background import follow_in_background
from statebackend._following.follower import StateFollower, follow
from statebackend._log.outbox import Output
from statebackend._reading.watching import watch
from statebackend._state.kinds.aggregating_state import Aggregate, AggregatingState
from statebackend._state.kinds.list_state import ListState
from statebackend._state.kinds.map_state import MapState
from statebackend._state.kinds.operator_state import OperatorState
from statebackend._state.kinds.reducing_state import ReducingState
from statebackend._state.kinds.value_state import ValueState
from statebackend._state.time.timers import Timers
from statebackend._state.time.ttl import TimeToLive
from statebackend._upkeep.inspect import inspect
from statebackend._upkeep.offline.clone import clone
from statebackend._upkeep.offline.erase import erase
from statebackend._upkeep.offline.erasure_proof import verify_erased
from statebackend._upkeep.offline.transform import transform
from statebackend._upkeep.plain_rows import read_rows
from statebackend._upkeep.repair import repair
from statebackend._upkeep.report import report
from statebackend._upkeep.rewrite import rewrite
from statebackend._upkeep.savepoints import drop_savepoint, savepoint, savepoints
from statebackend._upkeep.seeding.seed import seed
from statebackend._upkeep.sweep import sweep
from statebackend._upkeep.verify import verify
from statebackend._version import __version__
from statebackend.abc import (
    CheckpointInfo,
    Clock,
    ObjectStore,
    Observer,
    RestoreReport,
    Serializer,
    StateChangeUploader,
)
from statebackend.errors import StateBackendError
from statebackend.ids import CommitSummary, Key, SourceMark, StagedOutput
from statebackend.settings import Settings

if TYPE_CHECKING:
    from statebackend import mirrors as mirrors
    from statebackend import spark as spark
    from statebackend._mirroring.keeping_up import keep_mirrored, mirror_once
    from statebackend._mirroring.mirrors import Mirror
    from statebackend._reading.differences import diff
    from statebackend._reading.export import export
    from statebackend._reading.histories import history_of
    from statebackend._reading.opened_state import read_batches, read_state
    from statebackend._state.columnar.columnar_state import ColumnarState

__all__ = [
    "Aggregate",
    "AggregatingState",
    "CheckpointInfo",
    "Clock",
    "ColumnarState",
    "CommitSummary",
    "Key",
    "ListState",
    "MapState",
    "Mirror",
    "ObjectStore",
    "Observer",
    "OperatorState",
    "Output",
    "ReducingState",
    "RestoreReport",
    "Serializer",
    "Settings",
    "SourceMark",
    "StagedOutput",
    "StateBackend",
    "StateBackendError",
    "StateChangeUploader",
    "StateFollower",
    "TimeToLive",
    "Timers",
    "ValueState",
    "__version__",
    "clone",
    "diff",
    "drop_savepoint",
    "erase",
    "export",
    "follow",
    "follow_in_background",
    "history_of",
    "inspect",
    "keep_mirrored",
    "mirror_once",
    "open_backend",
    "read_batches",
    "read_rows",
    "read_state",
    "repair",
    "report",
    "rewrite",
    "savepoint",
    "savepoints",
    "seed",
    "sweep",
    "transform",
    "verify",
    "verify_erased",
    "watch",
]

_ROOMS = (
    "abc",
    "errors",
    "mirrors",
    "objectstore",
    "observers",
    "owners",
    "reports",
    "settings",
    "spark",
    "testing",
    "uploaders",
)
_WITH_ARROW = {
    "ColumnarState": "statebackend._state.columnar.columnar_state",
    "Mirror": "statebackend._mirroring.mirrors",
    "diff": "statebackend._reading.differences",
    "export": "statebackend._reading.export",
    "history_of": "statebackend._reading.histories",
    "keep_mirrored": "statebackend._mirroring.keeping_up",
    "mirror_once": "statebackend._mirroring.keeping_up",
    "read_batches": "statebackend._reading.opened_state",
    "read_state": "statebackend._reading.opened_state",
}


def __dir__() -> list[str]:
    """The public names and rooms, also those that are imported on first use."""
    return sorted([*__all__, *_ROOMS])


def __getattr__(name: str) -> Any:
    if name in _ROOMS:  # on first use: pyspark, pytest and the clients of clouds are not in every process
        return importlib.import_module(f"statebackend.{name}")
    if name in _WITH_ARROW:  # as above, of pyarrow
        return getattr(importlib.import_module(_WITH_ARROW[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
