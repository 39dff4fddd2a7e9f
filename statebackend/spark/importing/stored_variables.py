"""The variables of a stateful operator of Spark's, as the data source `state-metadata` tells them, and their columns.

operator                                   variables                    column of the reader
transformWithState, in Scala or Python     each by its name; `timers`   value, list_value, map_value, or a time
applyInPandasWithState                     `state`, and `timeouts`      value.groupState, value.timeoutTimestamp
an aggregation                             `state`                      value
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from statebackend.errors import InputError

VariableKind = Literal["value", "list", "map", "timers"]
STATE: Final = "state"
TIMERS: Final = "timers"
TIMEOUTS: Final = "timeouts"
_OF_SPARK: Final[Mapping[str, VariableKind]] = {
    "ValueState": "value",
    "ListState": "list",
    "MapState": "map",
    "TimerState": "timers",
}
_TRANSFORMS: Final = ("transformWithStateExec", "transformWithStateInPandasExec", "transformWithStateInPySparkExec")
_GROUPS: Final = ("applyInPandasWithState", "flatMapGroupsWithState")
_AGGREGATION: Final = "stateStoreSave"


class Variable(msgspec.Struct, frozen=True):
    """A variable. `column`: where its values lie in what the reader gives; `options`: those of the reader."""

    name: str
    kind: VariableKind
    column: str
    options: Mapping[str, str]
    has_ttl: bool = False


def variables_of(operator: str, properties: str | None) -> Mapping[str, Variable]:
    """The variables by name. Raises `InputError` for an operator whose state is not known. Pure."""
    if operator in _TRANSFORMS:
        return _of_transform(properties)
    if operator in _GROUPS:
        return {
            STATE: Variable(STATE, "value", "value.groupState", {}),
            TIMEOUTS: Variable(TIMEOUTS, "timers", "value.timeoutTimestamp", {}),
        }
    if operator == _AGGREGATION:
        return {STATE: Variable(STATE, "value", "value", {})}
    raise InputError(
        "the state of this operator cannot be taken over: read it with Spark, and seed the job with what it stands for",
        operator=operator,
        known=[*_TRANSFORMS, *_GROUPS, _AGGREGATION],
    )


def _of_transform(properties: str | None) -> Mapping[str, Variable]:
    try:
        found: Any = msgspec.json.decode(properties or "")["stateVariables"]
        declared = [(each["stateName"], each["stateVariableType"], bool(each["ttlEnabled"])) for each in found]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"the operator's variables are told in a form that is not known: {error!r}") from error
    variables: dict[str, Variable] = {}
    for name, type_, has_ttl in declared:
        kind = _OF_SPARK.get(type_)
        if kind is None:
            raise InputError("a variable is of a type that is not known", variable=name, type=type_)
        if kind == "timers":
            variables[TIMERS] = Variable(TIMERS, kind, "expiration_timestamp_ms", {"readRegisteredTimers": "true"})
            continue
        column = "value" if kind == "value" else f"{kind}_value"
        options = {"stateVarName": name, "flattenCollectionTypes": "false"}
        variables[name] = Variable(name, kind, column, options, has_ttl)
    return variables
