"""The data source `statebackend`: a job's state, and what its commits change, as frames and streams."""

from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec
from typing import ClassVar, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from statebackend._log.position import Pin
from statebackend._reading.asked_of_state import check_known
from statebackend._reading.differences import Migrate
from statebackend.errors import SettingsError
from statebackend.settings import Settings
from statebackend.spark.reading.filters import FilteredReader
from statebackend.spark.reading.positions import position, schema_of
from statebackend.spark.reading.read_options import feed_of_batch, feed_of_stream, state_options
from statebackend.spark.reading.readers import FeedReader, FeedStream, Plan, StateReader, run

STATE_FORMAT: Final = "statebackend"


class StateSource(DataSource):
    """`spark.read.format("statebackend")`, and `spark.readStream`.

    `jobs`: the registered settings, by job. `migrate`: the upcasts of states, by job and state.
    """

    jobs: ClassVar[Mapping[str, Settings]] = {}
    migrate: ClassVar[Mapping[str, Migrate]] = {}

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._plan: Plan | None = None

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return STATE_FORMAT

    def schema(self) -> StructType:
        """The columns, as Spark's own state reader has them. Raises `InputError` and as `sb.read_state`."""
        plan = self._planned()
        has_old = plan.options.feed is not None and plan.options.feed.old_values
        return plan.columns.schema(
            run(schema_of, plan.options, plan.state.name, plan.pin, plan.migrate), old_values=has_old
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads a batch."""
        plan = self._planned()
        if plan.options.feed is not None:
            return FeedReader(plan, schema, feed_of_batch(plan.options.feed))
        return FilteredReader(plan, schema) if plan.options.push_filters else StateReader(plan, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Reads a stream."""
        plan = self._planned()
        feed = feed_of_stream(plan.options.feed)
        if find_spec("pyspark.sql.streaming.datasource") is not None:
            from statebackend.spark.reading.admission import AdmittingStream  # noqa: PLC0415  # Spark 4.2 has what it needs

            return AdmittingStream(plan, schema, feed)
        if feed.commits_max is not None:
            raise SettingsError("maxCommitsPerTrigger needs PySpark 4.2 or newer: older ones take all there is")
        return FeedStream(plan, schema, feed)

    def _planned(self) -> Plan:
        """The plan. Its checkpoint is found once: a frame shows the same state in every action."""
        if self._plan is None:
            options = state_options(self.options, self.jobs)
            commit, state = run(position, options)
            migrate = self.migrate.get(options.settings.job, {})
            check_known("state", list(migrate), [each.name for each in commit.states])
            upcasts = migrate.get(state.name, ())
            self._plan = Plan(options, state, Pin.of(commit), (upcasts,) if callable(upcasts) else upcasts)
        return self._plan
