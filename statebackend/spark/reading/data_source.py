"""The data source `statebackend`: a job's state, and what its commits change, as frames and streams."""

from collections.abc import Iterable, Mapping, MutableMapping
from importlib.util import find_spec
from itertools import product
from typing import Any, ClassVar, Final

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from statebackend._log.position import Pin
from statebackend._reading.asked_of_state import check_known
from statebackend._reading.differences import Migrate
from statebackend._reading.rows.layouts import KEY
from statebackend.errors import SettingsError
from statebackend.ids import Key
from statebackend.settings import Settings
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


_source: Any = datasource  # what it has depends on the release


class FilteredReader(StateReader):
    """A `StateReader` of the keys for which filters of equality ask, if there are such. Needs Spark 4.1.

    It is handed out on request: where Spark's switch is off, and by default it is, any reader that overrides
    `pushFilters` fails. Spark applies all filters again, so one that is not taken costs time and nothing else.
    """

    def __init__(self, plan: Plan, schema: StructType) -> None:
        if not hasattr(_source, "EqualTo"):
            raise SettingsError("pushFilters needs PySpark 4.1 or newer: name the keys by option('keys', ...)")
        super().__init__(plan, schema)

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802  # Spark's name
        """Note the keys that are asked for; leave all filters to Spark as well."""
        key = self._schema[KEY].dataType if KEY in self._schema.names else None
        fields = key.names if isinstance(key, StructType) and not self._plan.options.keys_as_json else []
        if found := keys_in(filters, fields):
            self._keys = tuple(found) if self._keys is None else tuple(found.intersection(self._keys))
        return filters


def keys_in(filters: Iterable[Any], fields: list[str]) -> frozenset[Key]:
    """The keys that equality of all parts of the key, `fields`, leaves; empty if not all parts are asked for.

    Text, whole numbers and bytes: what Spark compares exactly.
    """
    allowed: dict[str, frozenset[Any]] = {}
    for each in filters:
        values: Iterable[Any]
        if isinstance(each, _source.EqualTo):
            values = (each.value,)
        elif isinstance(each, _source.In):
            values = each.value
        else:
            continue
        path = tuple(each.attribute)
        exact = frozenset(value for value in values if type(value) in {str, int, bytes})
        if len(path) == 2 and path[0] == KEY and len(exact) == len(frozenset(values)):
            allowed[path[1]] = allowed.get(path[1], exact) & exact
    if not fields or set(fields) != set(allowed):
        return frozenset()
    if len(fields) == 1:
        return allowed[fields[0]]
    return frozenset(product(*(allowed[field] for field in fields)))
