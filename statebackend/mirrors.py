"""Tables that mirror a state, and what a table of your own has to be.

ParquetTarget       a folder of Parquet: a `log`
PostgresTarget      a table in Postgres
DeltaTarget         a table in Delta, or a `log` there
IcebergTarget       a `log` in Iceberg
MirrorTarget        the contract of a target
MirrorMark, MirrorTable, MirrorRows     what it returns, and what it is given
newest_view         the text of a query that makes a `log` the state: its newest row of each key
"""

from statebackend._mirroring.target import MirrorMark, MirrorRows, MirrorTable, MirrorTarget, newest_view
from statebackend._mirroring.targets.delta import DeltaTarget
from statebackend._mirroring.targets.iceberg import IcebergTarget
from statebackend._mirroring.targets.parquet import ParquetTarget
from statebackend._mirroring.targets.postgres import PostgresTarget

__all__ = [
    "DeltaTarget",
    "IcebergTarget",
    "MirrorMark",
    "MirrorRows",
    "MirrorTable",
    "MirrorTarget",
    "ParquetTarget",
    "PostgresTarget",
    "newest_view",
]
