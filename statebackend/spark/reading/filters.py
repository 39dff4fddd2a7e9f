"""A reader that takes filters on the key, and so reads the key groups of the keys alone. Needs Spark 4.1.

It is a class of its own, handed out on request: where Spark's switch is off, and by default it is, any reader that
overrides `pushFilters` fails. Spark applies all filters again, so one that is not taken costs time and nothing else.
"""

from collections.abc import Iterable
from itertools import product
from typing import Any

from pyspark.sql import datasource
from pyspark.sql.types import StructType

from statebackend._reading.rows.layouts import KEY
from statebackend.errors import SettingsError
from statebackend.ids import Key
from statebackend.spark.reading.readers import Plan, StateReader

_source: Any = datasource  # what it has depends on the release


class FilteredReader(StateReader):
    """A `StateReader` of the keys for which filters of equality ask, if there are such."""

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
