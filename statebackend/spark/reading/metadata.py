"""The data source `statebackend-metadata`: a job's states, its commits with their batches, and its savepoints.

states        operatorId, operatorName, stateStoreName, numPartitions, minBatchId, maxBatchId, operatorProperties: the
              columns of Spark's `state-metadata`, with a row for each state; then kind, checkpointId, numKeys and
              numBytes, both null where the checkpoint does not know them of this state alone in all ranges
commits       checkpointId, batchId, queryId, runId, sequence, epoch, parent, onBranch, committedAt, savepoints,
              objects, objectBytes
savepoints    name, checkpointId, sequence, committedAt
"""

import datetime as dt
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, ClassVar, Final

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from statebackend._upkeep.inspect import inspect
from statebackend._upkeep.job_primary import open_job_primary
from statebackend._upkeep.savepoints import savepoints
from statebackend._upkeep.sizes import sizes_by_state
from statebackend.ids import SourceMark, StateDescriptor, StateSize
from statebackend.settings import Settings
from statebackend.spark.reading.positions import commit_asked_for
from statebackend.spark.reading.read_options import MetadataOptions, metadata_options
from statebackend.spark.reading.readers import run

METADATA_FORMAT: Final = "statebackend-metadata"

_SCHEMAS: Final[Mapping[str, str]] = {
    "states": (
        "operatorId long, operatorName string, stateStoreName string, numPartitions int, minBatchId long, "
        "maxBatchId long, operatorProperties string, kind string, checkpointId long, numKeys long, numBytes long"
    ),
    "commits": (
        "checkpointId long, batchId long, queryId string, runId string, sequence long, epoch long, parent long, "
        "onBranch boolean, committedAt timestamp, savepoints array<string>, objects long, objectBytes long"
    ),
    "savepoints": "name string, checkpointId long, sequence long, committedAt timestamp",
}


class MetadataSource(DataSource):
    """`spark.read.format("statebackend-metadata")`. `jobs`: the registered settings, by job."""

    jobs: ClassVar[Mapping[str, Settings]] = {}

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._asked = metadata_options(options, self.jobs)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return METADATA_FORMAT

    def schema(self) -> str:
        """The columns of the view, in Spark's words."""
        return _SCHEMAS[self._asked.view]

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the view."""
        return MetadataReader(self._asked)


class MetadataReader(DataSourceReader):
    """Reads a view in one task."""

    def __init__(self, asked: MetadataOptions) -> None:
        self._asked = asked

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows. Raises `InputError`, also for a job that is not there."""
        views = {"states": _states, "commits": _commits, "savepoints": _savepoints}
        return iter(run(views[self._asked.view], self._asked))


async def _states(asked: MetadataOptions) -> Sequence[tuple[Any, ...]]:
    async with open_job_primary(asked.settings, None) as primary:
        commit = await commit_asked_for(asked, primary)
        found = await inspect(asked.settings)
    batches = [row.source.batch_id for row in found.log if row.source is not None and row.on_branch]
    ends = (min(batches, default=None), max(batches, default=None))
    sizes = sizes_by_state(commit)
    return [
        (0, asked.settings.job, state.name, commit.max_parallelism, *ends, _properties(state), state.kind,
         commit.checkpoint_id, *_size(sizes.get(state.state_id)))
        for state in commit.states
    ]  # fmt: skip


def _size(size: StateSize | None) -> tuple[int | None, int | None]:
    return (None, None) if size is None else (size.keys, size.size_bytes)


def _properties(state: StateDescriptor) -> str:
    described = {"schema": state.schema, "keySchema": state.key_schema, "version": state.version}
    return msgspec.json.encode(described).decode()


async def _commits(asked: MetadataOptions) -> Sequence[tuple[Any, ...]]:
    found = await inspect(asked.settings)
    return [
        (
            *(row.checkpoint_id, *_batch(row.source), row.sequence, row.epoch, row.parent, row.on_branch),
            *(_time(row.at_s), list(row.savepoints), row.objects, row.object_bytes),
        )
        for row in found.log
        if row.kind == "commit"
    ]


def _batch(source: SourceMark | None) -> tuple[int | None, str | None, str | None]:
    return (None, None, None) if source is None else (source.batch_id, source.query_id, source.run_id)


async def _savepoints(asked: MetadataOptions) -> Sequence[tuple[Any, ...]]:
    found = await savepoints(asked.settings)
    return [(each.name, each.checkpoint_id, each.sequence, _time(each.committed_at_s)) for each in found]


def _time(at_s: float | None) -> dt.datetime | None:
    return None if at_s is None else dt.datetime.fromtimestamp(at_s, dt.UTC)
