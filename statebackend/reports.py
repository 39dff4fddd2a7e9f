"""The records that upkeep returns: what was found, what was done, and how far a long call is.

    sweep       SweepReport, made of Classified objects with a Verdict each, and SweepFailure
    verify      VerifyReport, made of Damage
    repair      Repair
    inspect     Inspection, made of LogRow and SizeRow
    report      JobReport, made of RangeRow, SizeRow and Pace
    size_totals SizeTotal, from the SizeRow of either
    open_rows   Row
    export      ExportReport
    diff        Difference
    watch       LogBeat
    rewrite     RewriteReport
    savepoints  SavepointInfo
    tell=...    Progress

Each is frozen, and `msgspec.json.encode` writes it: the command line prints the same with `--json`.
"""

from statebackend._log.savepoints import SavepointInfo
from statebackend._log.sweeping.retention import Classified, Verdict
from statebackend._log.sweeping.sweep import SweepReport
from statebackend._log.sweeping.sweep_requests import SweepFailure
from statebackend._reading.reports import Difference, ExportReport
from statebackend._reading.watching import LogBeat
from statebackend._upkeep.inspect import Inspection, LogRow
from statebackend._upkeep.progress import Progress
from statebackend._upkeep.repair import Repair
from statebackend._upkeep.report import JobReport, Pace, RangeRow
from statebackend._upkeep.rewrite import RewriteReport
from statebackend._upkeep.rows import Row
from statebackend._upkeep.sizes import SizeRow, SizeTotal, size_totals
from statebackend._upkeep.verify import Damage, VerifyReport

__all__ = [
    "Classified",
    "Damage",
    "Difference",
    "ExportReport",
    "Inspection",
    "JobReport",
    "LogBeat",
    "LogRow",
    "Pace",
    "Progress",
    "RangeRow",
    "Repair",
    "RewriteReport",
    "Row",
    "SavepointInfo",
    "SizeRow",
    "SizeTotal",
    "SweepFailure",
    "SweepReport",
    "Verdict",
    "VerifyReport",
    "size_totals",
]
