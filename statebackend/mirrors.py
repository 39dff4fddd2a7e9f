"""Tables that mirror a state, and what a table of your own has to be.

ParquetTarget       a folder of Parquet: a `log`
PostgresTarget      a table in Postgres
MirrorTarget        the contract of a target
MirrorMark, MirrorTable, MirrorRows      what it returns, and what it is given
MirrorReport        what `mirror_once` returns
newest_view         the text of a query that makes a `log` the state: its newest row of each key
"""

from statebackend._mirroring.mirrors import MirrorReport
from statebackend._mirroring.target import MirrorMark, MirrorRows, MirrorTable, MirrorTarget, newest_view
from statebackend._mirroring.targets.parquet import ParquetTarget
from statebackend._mirroring.targets.postgres import PostgresTarget

__all__ = [
    "MirrorMark",
    "MirrorReport",
    "MirrorRows",
    "MirrorTable",
    "MirrorTarget",
    "ParquetTarget",
    "PostgresTarget",
    "newest_view",
]
