"""Reads in Spark's Python processes: plans partitions in the driver, and reads each in a task, as Arrow batches.

Whatever is pinned when the query is planned, its checkpoint or its offsets, is what every task reads.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from statebackend._log.position import Pin
from statebackend._portal import Portal
from statebackend._reading.feed import open_changes
from statebackend._reading.opened_state import read_batches
from statebackend._state.values import Upcast
from statebackend.ids import Key, StateDescriptor
from statebackend.spark.reading.positions import (
    FeedPart,
    feed_after,
    feed_between,
    first_offset,
    key_group_ranges,
    last_offset,
)
from statebackend.spark.reading.read_options import FeedOptions, StateOptions
from statebackend.spark.reading.spark_columns import SparkColumns

SEQUENCE: Final = "sequence"
"""The one field of an offset."""


class Plan(msgspec.Struct, frozen=True):
    """One state that is to be read: by what options, in which commit, and by which upcasts."""

    options: StateOptions
    state: StateDescriptor
    pin: Pin
    migrate: Sequence[Upcast] = ()

    @property
    def columns(self) -> SparkColumns:
        """The columns of the query."""
        options = self.options
        by_batch = None if options.feed is None else options.feed.by_batch
        return SparkColumns(self.state.kind, flatten=options.flatten, names=options.key_columns, by_batch=by_batch)


def run(function: Any, *args: Any) -> Any:
    """Run a coroutine function to its end, on a loop of its own."""
    with Portal(name="statebackend-spark") as portal:
        return portal.call(function, *args)


class StateReader(DataSourceReader):
    """Reads a state: a partition for each range of key groups."""

    def __init__(self, plan: Plan, schema: StructType) -> None:
        self._plan = plan
        self._schema = schema
        self._keys: Sequence[Key] | None = plan.options.keys

    def partitions(self) -> Sequence[InputPartition]:
        """One for each range of key groups; a single one if keys are asked for."""
        options = self._plan.options
        if self._keys is not None or self._plan.state.kind.startswith("operator"):
            return [InputPartition(options.key_groups)]
        return [InputPartition(each) for each in run(key_group_ranges, options, self._plan.pin)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of the partition. Raises as `sb.read_state`."""
        plan = self._plan
        what = plan.options.what(plan.migrate)
        what["key_groups"], what["keys"] = partition.value, self._keys
        opening = partial(read_batches, plan.options.settings, plan.state.name, pin=plan.pin, **what)
        return _batches(plan, self._schema, opening)


class FeedReader(DataSourceReader):
    """Reads the change feed between two commits: a partition for neighbouring commits."""

    def __init__(self, plan: Plan, schema: StructType, feed: FeedOptions) -> None:
        self._plan = plan
        self._schema = schema
        self._feed = feed

    def partitions(self) -> Sequence[InputPartition]:
        """As many as the bytes of the changes ask for."""
        return [InputPartition(each) for each in run(feed_between, self._plan.options, self._feed)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The changes of the partition's commits. Raises as `open_changes`."""
        return _changes(self._plan, self._schema, self._feed, partition)


class FeedStream(DataSourceStreamReader):
    """Reads the change feed of a running job. An offset is the place of a commit in the job's log."""

    _newest: int | None = None

    def __init__(self, plan: Plan, schema: StructType, feed: FeedOptions) -> None:
        self._plan = plan
        self._schema = schema
        self._feed = feed

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        """Behind the commit before the start, or behind the newest one."""
        return {SEQUENCE: run(first_offset, self._plan.options, self._feed)}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802  # until Spark 4.1 without arguments
        """The newest commit."""
        newest = run(last_offset, self._plan.options, self._newest)
        self._newest = newest
        return {SEQUENCE: newest}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Those of the commits between. Raises `CheckpointNotFoundError`, `RewindError`."""
        found = run(feed_after, self._plan.options, start[SEQUENCE], end[SEQUENCE])
        return [InputPartition(each) for each in found]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The changes of the partition's commits. Raises as `open_changes`."""
        return _changes(self._plan, self._schema, self._feed, partition)


def _changes(plan: Plan, schema: StructType, feed: FeedOptions, partition: InputPartition) -> Iterator[Any]:
    part: FeedPart | None = partition.value
    if part is None:  # Spark makes a partition where there is none
        return iter(())
    opening = partial(
        open_changes,
        plan.options.settings,
        plan.state.name,
        sequences=part.sequences,
        before=part.before,
        columns=plan.options.columns,
        old_values=feed.old_values,
        key_as_json=plan.options.keys_as_json,
        migrate=plan.migrate,
        shown_as=plan.state,
    )
    return _batches(plan, schema, opening)


def _batches(plan: Plan, schema: StructType, opening: Any) -> Iterator[Any]:
    """The batches of what is opened, in Spark's columns. It is closed after the last one, or with the iterator."""
    columns = plan.columns
    with closing(Portal(name="statebackend-spark")) as portal:
        held = portal.hold(opening())
        try:
            held.wait()
            batches = held.result()
            while some := portal.call(batches.some):
                for batch in some:
                    if batch.num_rows:
                        yield columns.batch(batch, schema)
        finally:
            held.close()
