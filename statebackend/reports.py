"""The records that upkeep returns: what was found, what was done, and how far a long call is.

    sweep       SweepReport, made of an ObjectReport with a SweepReason for each object, and SweepFailure
    verify      VerifyReport, made of Damage
    repair      Repair
    inspect     Inspection, made of LogRow and SizeRow
    report      JobReport, made of RangeRow, SizeRow, MirrorRow and RequestRate
    size_totals SizeTotal, from the SizeRow of either
    read_rows   Row
    export      ExportReport
    diff        Difference
    history_of  KeyHistory, made of a KeyChange for each commit
    watch       LogEntry
    follow      FollowerPosition
    mirror_once MirrorReport
    rewrite     RewriteReport
    clone       CloneReport
    transform   TransformReport
    erase       EraseReport, made of a KeyHolder for each object that still has the keys
    verify_erased   ErasureProof, made of the same
    savepoints  SavepointInfo
    tell=...    Progress

Each is frozen, and `msgspec.json.encode` writes it: the command line prints the same with `--json`.
"""

from statebackend._following.position import FollowerPosition
from statebackend._log.savepoint_markers import SavepointInfo
from statebackend._log.sweeping.log_sweep import SweepReport
from statebackend._log.sweeping.retention import ObjectReport, SweepReason
from statebackend._log.sweeping.sweep_requests import SweepFailure
from statebackend._mirroring.mirror_report import MirrorReport
from statebackend._reading.reading_reports import Difference, ExportReport, KeyChange, KeyHistory
from statebackend._reading.watching import LogEntry
from statebackend._upkeep.inspect import Inspection, LogRow
from statebackend._upkeep.offline.clone import CloneReport
from statebackend._upkeep.offline.erase import EraseReport
from statebackend._upkeep.offline.erasure_proof import ErasureProof
from statebackend._upkeep.offline.keys_found import KeyHolder
from statebackend._upkeep.offline.transform import TransformReport
from statebackend._upkeep.plain_rows import Row
from statebackend._upkeep.progress import Progress
from statebackend._upkeep.repair import Repair
from statebackend._upkeep.report import JobReport, MirrorRow, RangeRow, RequestRate
from statebackend._upkeep.rewrite import RewriteReport
from statebackend._upkeep.seeding.seed import SeedReport
from statebackend._upkeep.sizes import SizeRow, SizeTotal, size_totals
from statebackend._upkeep.verify import Damage, VerifyReport

__all__ = [
    "CloneReport",
    "Damage",
    "Difference",
    "EraseReport",
    "ErasureProof",
    "ExportReport",
    "FollowerPosition",
    "Inspection",
    "JobReport",
    "KeyChange",
    "KeyHistory",
    "KeyHolder",
    "LogEntry",
    "LogRow",
    "MirrorReport",
    "MirrorRow",
    "ObjectReport",
    "Progress",
    "RangeRow",
    "Repair",
    "RequestRate",
    "RewriteReport",
    "Row",
    "SavepointInfo",
    "SeedReport",
    "SizeRow",
    "SizeTotal",
    "SweepFailure",
    "SweepReason",
    "SweepReport",
    "TransformReport",
    "VerifyReport",
    "size_totals",
]
