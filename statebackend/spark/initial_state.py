"""The way back into Spark: the states of a job as the frame that `transformWithState` takes as its initial state."""

from collections.abc import Sequence
from functools import reduce
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as functions_
from pyspark.sql import types as types_

from statebackend.errors import InputError
from statebackend.settings import Settings
from statebackend.spark.reading.registration import register

F: Any = functions_
_types: Any = types_
_VALUE = "value"


def initial_state(
    session: SparkSession,
    settings: Settings,
    states: str | Sequence[str],
    *,
    key: str | Sequence[str],
    timers: str | Sequence[str] = (),
    **options: Any,
) -> DataFrame:
    """A frame with a row for each key, and a column for each of these states of a job, null where the key has nothing.

        frame = sb.spark.initial_state(spark, settings, ["customers", "visits"], key="customer")
        stream.groupBy("customer").transformWithState(..., initialState=frame.groupBy("customer"))

    `key` names the columns of the key, which must be those of the stream's `groupBy`, in their order. A record or a row
    of columns is a struct, any other value itself; a list is an array, and a map a map. `timers`: timers of the job, an
    array of milliseconds each. The processor's `handleInitialState` is given the row of each key.

    `options` are those of `format("statebackend")`, such as `checkpointId` or `savepoint`; by default the newest
    checkpoint. Raises `InputError` for no state, and what Spark does for one that is not there.
    """
    register(session, settings)
    names, wanted = _names(key), dict.fromkeys((*_names(states), *_names(timers)))
    if not wanted:
        raise InputError("name at least one state")
    reader = {"job": settings.job, "keyColumns": ",".join(names), "flattenCollectionTypes": "false", **options}
    frames = [_of_state(session, name, names, {**reader, "stateVarName": name}) for name in wanted]
    return reduce(lambda one, other: one.join(other, names, "full_outer"), frames)


def _names(given: str | Sequence[str]) -> list[str]:
    return [given] if isinstance(given, str) else [*given]


def _of_state(session: SparkSession, name: str, key: Sequence[str], options: dict[str, Any]) -> DataFrame:
    frame = session.read.format("statebackend").options(**options).load()
    keys = [F.col("key")[each].alias(each) for each in key]
    if "expiration_timestamp_ms" in frame.columns:
        times = F.sort_array(F.collect_list("expiration_timestamp_ms")).alias(name)
        return frame.select(*keys, "expiration_timestamp_ms").groupBy(*key).agg(times)
    column = next(each for each in frame.columns if each in (_VALUE, "list_value", "map_value"))
    type_: Any = cast("Any", frame.schema)[column].dataType
    return frame.select(*keys, _plain(F.col(column), type_).alias(name))


def _plain(column: Any, type_: Any) -> Any:
    """The column without the structs that a reader puts around what is none: they have the one field `value`."""

    def inner(each: Any) -> Any:
        return each[_VALUE]

    def inner_of_name(name: Any, _: Any) -> Any:
        return name[_VALUE]

    def inner_of_value(_: Any, each: Any) -> Any:
        return each[_VALUE]

    if isinstance(type_, _types.ArrayType):
        return F.transform(column, inner) if _is_wrapped(type_.elementType) else column
    if isinstance(type_, _types.MapType):
        column = F.transform_keys(column, inner_of_name) if _is_wrapped(type_.keyType) else column
        return F.transform_values(column, inner_of_value) if _is_wrapped(type_.valueType) else column
    return inner(column) if _is_wrapped(type_) else column


def _is_wrapped(type_: Any) -> bool:
    return isinstance(type_, _types.StructType) and type_.names == [_VALUE]
