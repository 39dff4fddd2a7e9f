"""The variables of a query as frames of Spark: a column for each part of the key, and what the state takes."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as functions_
from pyspark.sql import types as types_

from statebackend._state.columnar.declaration import KIND as COLUMNAR
from statebackend.errors import InputError
from statebackend.ids import StateDescriptor
from statebackend.spark.importing.query_log import QueryLog
from statebackend.spark.importing.stored_variables import Variable

F: Any = functions_
_types: Any = types_
KEY: Final = "__key_"
"""The names of the columns of keys begin with it."""
VALUE: Final = "value"
_KEY_TYPES: Final = (_types.ByteType, _types.ShortType, _types.IntegerType, _types.LongType)
_TAKES_FIELDS: Final = ('{"record"', '{"dict"', '{"one_of"', '"any"')
"""How schemas begin of states whose values have fields, or may have."""


class StoredFrames(msgspec.Struct, frozen=True):
    """The state of one operator of a query, as of the batch of its `log`."""

    session: SparkSession
    checkpoint: str
    operator_id: int
    log: QueryLog

    def frame(self, variable: Variable, state: StateDescriptor, fields: Mapping[str, Sequence[str]]) -> DataFrame:
        """The rows of a variable, for the state that it becomes. `fields`: other names of fields, by variable.

        Raises `InputError` for what cannot be mapped.
        """
        options: Mapping[str, Any] = {"operatorId": self.operator_id, "batchId": self.log.batch_id, **variable.options}
        try:
            stored = self.session.read.format("statestore").options(**options).load(self.checkpoint)
        except PySparkException as error:
            raise InputError(f"Spark cannot read a variable: {first_line(error)}", variable=variable.name) from error
        keys = _keys(stored, variable)
        if variable.kind == "timers":
            return _timers(stored, variable, keys)
        if variable.kind == "value":
            return self._values(stored, variable, state, keys, fields.get(variable.name))
        entries = self._elements if variable.kind == "list" else self._entries
        return stored.select(*keys, entries(stored, variable, state).alias(VALUE))

    def _values(
        self, stored: DataFrame, variable: Variable, state: StateDescriptor, keys: Any, fields: Sequence[str] | None
    ) -> DataFrame:
        column, type_ = F.col(variable.column), _type_at(stored, variable.column)
        stored = stored.where(column.isNotNull())
        if variable.has_ttl:
            stored = stored.where(self._is_live(column))
            column, type_ = column.value, type_["value"].dataType
        column, type_ = _renamed(column, type_, fields, variable)
        if state.kind == COLUMNAR:
            return stored.select(*keys, *(column[name].alias(name) for name in type_.names))
        return stored.select(*keys, _plain(column, type_, state.schema).alias(VALUE))

    def _elements(self, stored: DataFrame, variable: Variable, state: StateDescriptor) -> Any:
        column, type_ = F.col(variable.column), _type_at(stored, variable.column).elementType
        if variable.has_ttl:
            column, type_ = F.filter(column, self._is_live), type_["value"].dataType

        def element(each: Any) -> Any:
            return _plain(each.value if variable.has_ttl else each, type_, state.schema)

        return F.transform(column, element)

    def _entries(self, stored: DataFrame, variable: Variable, state: StateDescriptor) -> Any:
        column, types = F.map_entries(variable.column), _type_at(stored, variable.column)
        type_ = types.valueType
        if variable.has_ttl:
            column, type_ = F.filter(column, self._is_live_entry), type_["value"].dataType

        def entry(each: Any) -> Any:
            value = each.value.value if variable.has_ttl else each.value
            name = _plain(each.key, types.keyType, state.key_schema)
            return F.struct(name.alias("key"), _plain(value, type_, state.schema).alias("value"))

        return F.map_from_entries(F.transform(column, entry))

    def _is_live(self, value: Any) -> Any:
        return value.ttlExpirationMs > self.log.batch_timestamp_ms

    def _is_live_entry(self, entry: Any) -> Any:
        return self._is_live(entry.value)


def first_line(error: BaseException) -> str:
    """The first line of an error of Spark's, which has dozens."""
    return str(error).strip().partition("\n")[0]


def _timers(stored: DataFrame, variable: Variable, keys: Sequence[Any]) -> DataFrame:
    """The times of each key, in seconds."""
    found = stored.select(*keys, (F.col(variable.column) / 1000).alias("at")).where("at >= 0")
    return found.groupBy(*(name for name in found.columns if name != "at")).agg(F.collect_list("at").alias(VALUE))


def _keys(stored: DataFrame, variable: Variable) -> Sequence[Any]:
    """A column for each part of the key. Raises `InputError` for a type that no key has."""
    found: list[Any] = []
    for field in _type_at(stored, "key"):
        if not isinstance(field.dataType, (_types.StringType, _types.BinaryType, *_KEY_TYPES)):
            raise InputError(
                "a part of the key is of a type that no key has here: keys are texts, whole numbers and bytes",
                variable=variable.name,
                part=field.name,
                type=field.dataType.simpleString(),
            )
        found.append(F.col("key")[field.name].alias(f"{KEY}{field.name}"))
    return found


def _renamed(column: Any, type_: Any, fields: Sequence[str] | None, variable: Variable) -> tuple[Any, Any]:
    """A struct by other names for its fields; those that come twice get a number. Raises `InputError`."""
    names: list[str] = list(type_.names)
    wanted = _numbered(names) if fields is None else list(fields)
    if len(wanted) != len(names) or len(set(wanted)) < len(names):
        raise InputError("give each field of the variable one name", variable=variable.name, given=wanted, fields=names)
    if wanted == names:
        return column, type_
    renamed = [_types.StructField(name, each.dataType) for name, each in zip(wanted, type_, strict=True)]
    return column.cast(_types.StructType(renamed)), _types.StructType(renamed)


def _numbered(names: Sequence[str]) -> list[str]:
    counts = [names[: place + 1].count(name) for place, name in enumerate(names)]
    return [name if count == 1 else f"{name}_{count}" for name, count in zip(names, counts, strict=True)]


def _plain(column: Any, type_: Any, schema: str) -> Any:
    """The column; its only field, where that is what a state of this schema takes."""
    is_single = isinstance(type_, _types.StructType) and len(type_.fields) == 1
    return column[type_.names[0]] if is_single and not schema.startswith(_TAKES_FIELDS) else column


def _type_at(stored: DataFrame, column: str) -> Any:
    found: Any = stored.schema
    for name in column.split("."):
        found = found[name].dataType
    return found
